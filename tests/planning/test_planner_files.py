"""Planners come back from their folders as they were, or one line says why not."""

import json

import jax
import numpy as np
import pytest

from envs.household.format import FORMATS
from envs.household.generator import generate_games
from envs.household.world import HOUSEHOLD
from experiments.alfworld_data import entity_tokenizer, plain_tokenizer
from experiments.evaluate_text import main as evaluate
from jaxagent.agents.planner import Imitation, ImitationConfig
from jaxagent.planning.household_player import HouseholdPlayer
from jaxagent.planning.planner_files import Planner, load_planner, save_planner
from tests.models.llm.files import rewrite
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
    after = load_planner(tmp_path, HOUSEHOLD)
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
        ({"tokenizer": {"format": "jaxagent.words.1", "words": ["a"]}}, "tokenizer lacks 'kinds'"),
        (
            {"tokenizer": {"format": "jaxagent.words.1", "words": [1, "a"], "kinds": {}}},
            "words must be a list of texts",
        ),
        (
            {"tokenizer": {"format": "jaxagent.words.1", "words": ["a"], "kinds": {"egg": "2"}}},
            "kinds must be a mapping of names to whole numbers",
        ),
        (
            {"tokenizer": {"format": "jaxagent.words.1", "words": ["a"], "kinds": {"egg": 2}}},
            r"vocab_size of model is \d+, tokenizer has 15 tokens",
        ),
        ({"tokenizer": 3}, "tokenizer must be a mapping, found 3"),
        ({"style": ["compact"]}, r"trained on text format \['compact'\] 3; known:"),
        ({"model": None}, "model must be a mapping, found None"),
        ({"made": "by hand"}, "made must be a mapping, found 'by hand'"),
    ],
)
def test_planners_of_another_make_are_refused(tmp_path, fields, message):
    save_planner(tmp_path, small())
    change(tmp_path, **fields)
    with pytest.raises(ValueError, match=message) as refused:
        load_planner(tmp_path, HOUSEHOLD)
    assert str(tmp_path / "planner.json") in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"depth": 3}, "model has an unknown field 'depth'"),
        ({"num_layers": "2"}, "model's num_layers is of the wrong type: '2'"),
        ({"qk_norm": 1}, "model's qk_norm is of the wrong type: 1"),
        ({"head_dim": 7}, r"model: head_dim \(7\) must be even"),
        ({"rope_scaling": {"kind": "linear"}}, "model's rope_scaling is of the wrong type"),
        ({"num_layers": 3}, r"layers\..* has shape \[2, .*\], planner.json says \[3, "),
        ({"hidden_size": 8}, r" has shape \[.*\], planner.json says"),
        ({"qk_norm": True}, "lacks the tensor layers.attention.key_norm.scale and 1 more"),
    ],
)
def test_the_model_must_be_that_of_the_tensors(tmp_path, fields, message):
    save_planner(tmp_path, small())
    model = json.loads((tmp_path / "planner.json").read_text())["model"]
    change(tmp_path, model={**model, **fields})
    with pytest.raises(ValueError, match=message) as refused:
        load_planner(tmp_path, HOUSEHOLD)
    assert str(tmp_path) in str(refused.value)


@pytest.mark.parametrize("name", ["style", "style_version", "model", "tokenizer", "made"])
def test_a_missing_field_is_named(tmp_path, name, capsys):
    save_planner(tmp_path, small())
    path = tmp_path / "planner.json"
    fields = json.loads(path.read_text())
    del fields[name]
    path.write_text(json.dumps(fields))
    assert evaluate(["--agent", f"planner:{tmp_path}", "--panel", "generated_unseen"]) == 2
    assert capsys.readouterr().err == f"error: {path}: lacks {name!r}\n"


def test_a_description_that_is_no_mapping(tmp_path, capsys):
    (tmp_path / "planner.json").write_text("[1]")
    assert evaluate(["--agent", f"planner:{tmp_path}", "--panel", "generated_unseen"]) == 2
    message = f"error: {tmp_path / 'planner.json'} must hold a mapping, found [1]\n"
    assert capsys.readouterr().err == message


def drop_one(arrays):
    del arrays["final_norm.scale"]


def add_one(arrays):
    arrays["extra"] = np.zeros(3, np.float32)


def turn_one(arrays):
    arrays["stem"] = np.ascontiguousarray(arrays["stem"].T)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (drop_one, "lacks the tensor final_norm.scale"),
        (add_one, "holds extra, which the model does not have"),
        (turn_one, r"stem has shape \[16, \d+\], planner.json says \[\d+, 16\]"),
    ],
)
def test_tensors_must_be_those_of_the_model(tmp_path, damage, message):
    save_planner(tmp_path, small())
    rewrite(tmp_path, damage)
    with pytest.raises(ValueError, match=message) as refused:
        load_planner(tmp_path, HOUSEHOLD)
    assert str(tmp_path / "model.safetensors") in str(refused.value)


def test_damage_and_absence_are_named(tmp_path):
    with pytest.raises(ValueError, match="unknown planner 'nobody': neither tiny, tiny-hier"):
        load_planner("nobody", HOUSEHOLD)
    save_planner(tmp_path, small())
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(ValueError, match="truncated"):
        load_planner(tmp_path, HOUSEHOLD)
    (tmp_path / "planner.json").write_text("{")
    with pytest.raises(ValueError, match="is not JSON"):
        load_planner(tmp_path, HOUSEHOLD)


def test_a_game_with_unknown_things_can_be_played_and_they_are_named():
    player = HouseholdPlayer(small().playing(), is_constrained=True)
    player.begin([OPENING.replace("desk 1", "gizmo 3")])
    ((command, _),) = player.act([""], [["go to gizmo 3"]])
    assert command == "go to gizmo 3"
    assert "'gizmo 3' as 'thing 3'" in player.notes()[0]
