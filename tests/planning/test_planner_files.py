"""Planners come back from their folders as they were, or one line says why not."""

import json

import jax
import numpy as np
import pytest

from envs.text.generator import generate_games
from experiments.alfworld_data import entity_tokenizer, plain_tokenizer
from jaxagent.agents.planner import Imitation, ImitationConfig
from jaxagent.planning.household_format import FORMATS
from jaxagent.planning.household_player import HouseholdPlayer
from jaxagent.planning.planner_files import Planner, load_planner, save_planner
from tests.planning.small_planner import small_config

OPENING = "You see a desk 1, and a bed 1.\n\nYour task is to: put a pen in bed."


def small(name: str = "compact") -> Planner:
    is_compact = name.startswith("compact")
    games = [made.game for made in generate_games(2, 3)]
    tokenizer = entity_tokenizer() if is_compact else plain_tokenizer(games)
    config = small_config(tokenizer.vocab_size)
    factors = tokenizer.factors if is_compact else None
    agent = Imitation(config, ImitationConfig(warmup_updates=0), 1, factors=factors)
    params = agent.init(jax.random.key(0)).params
    return Planner(config, params, tokenizer, FORMATS[name], {"seed": 0})


@pytest.mark.parametrize("name", ["compact-hierarchical", "plain"])
def test_a_planner_comes_back_as_it_was(tmp_path, name):
    before = small(name)
    save_planner(tmp_path, before)
    after = load_planner(tmp_path)
    assert (after.config, after.style, after.made) == (before.config, before.style, before.made)
    assert jax.tree.structure(after.params) == jax.tree.structure(before.params)
    for a, b in zip(jax.tree.leaves(after.params), jax.tree.leaves(before.params)):
        np.testing.assert_array_equal(a, b)
    text = "go to drawer 1"
    assert after.tokenizer.encode(text) == before.tokenizer.encode(text)


def change(folder, **fields):
    path = folder / "planner.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"format": "jaxagent.planner.0"},
            r"format 'jaxagent.planner.0' is not 'jaxagent.planner.1'",
        ),
        ({"style_version": 7}, r"trained on text format compact 7; known: compact 3,"),
        ({"style": "runes"}, r"trained on text format runes 3; known:"),
        ({"tokenizer": {"format": "bytes"}}, r"tokeniser format 'bytes'"),
        (
            {"tokenizer": {"format": "jaxagent.words.1", "words": ["a"], "kinds": {"egg": 2}}},
            r"stem is \(\d+, 16\), the tokeniser needs \(5, 16\)",
        ),
        (
            {"tokenizer": {"format": "jaxagent.words.1", "words": ["a"], "kinds": {}}},
            "tensors of embedding are missing",
        ),
    ],
)
def test_planners_of_another_make_are_refused(tmp_path, fields, message):
    save_planner(tmp_path, small())
    change(tmp_path, **fields)
    with pytest.raises(ValueError, match=message):
        load_planner(tmp_path)


def test_damage_and_absence_are_named(tmp_path):
    with pytest.raises(ValueError, match="unknown planner 'nobody': neither tiny, tiny-hier"):
        load_planner("nobody")
    save_planner(tmp_path, small())
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(ValueError, match="truncated"):
        load_planner(tmp_path)
    (tmp_path / "planner.json").write_text("{")
    with pytest.raises(ValueError, match="is not JSON"):
        load_planner(tmp_path)


def test_a_game_with_unknown_things_can_be_played_and_they_are_named():
    player = HouseholdPlayer(small().playing(), is_constrained=True)
    player.begin([OPENING.replace("desk 1", "gizmo 3")])
    ((command, _),) = player.act([""], [["go to gizmo 3"]])
    assert command == "go to gizmo 3"
    assert "'gizmo 3' as 'thing 3'" in player.notes()[0]
