"""Language models as planners of the household games, from the command line."""

import dataclasses
import json

import jax
import pytest

from envs.household.panels import load_panel
from experiments.evaluate_text import main
from jaxagent.models.llm.llama import init_params
from jaxagent.models.llm.load import LanguageModel, save_model
from jaxagent.models.llm.tokenizer import train_tokenizer
from jaxagent.planning.prompt import FOLDER
from tests.models.llm.random_models import random_model
from tests.planning.endpoint import serving


def run(tmp_path, *arguments, status=0):
    assert main(["--panel", "generated_unseen", "--out", str(tmp_path), *arguments]) == status
    return json.loads((tmp_path / "result.json").read_text())


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Random weights, and a tokeniser that has seen the prompt: it has to fit the context."""
    texts = [(FOLDER / "household.txt").read_text()]
    texts += [game.task_text for game, _ in load_panel("generated_unseen").games]
    tokenizer = train_tokenizer(texts * 3, 1500)
    config = dataclasses.replace(
        random_model().config, vocab_size=len(tokenizer), max_positions=2048
    )
    model = LanguageModel(config, init_params(config, jax.random.key(0)), tokenizer, "house")
    path = tmp_path_factory.mktemp("models") / "house"
    save_model(path, model)
    return path


def test_a_folder_plans_within_the_white_list(folder, tmp_path, capsys):
    result = run(tmp_path, "--agent", f"planner:{folder}", "--limit", "2", "--horizon", "4")
    assert result["panel"] == "generated_unseen[:2]"
    assert result["games"] == 2
    counts = result["planner"]
    assert counts["questions"] >= 2
    assert counts["accepted_share"] == 1.0
    assert counts["fell_back"] == 0
    assert "sub-goals asked for" in capsys.readouterr().err
    shown = (tmp_path / "transcripts.html").read_text()
    assert "house" in shown


def test_with_a_wrong_key_the_rules_propose_and_the_games_go_on(tmp_path, monkeypatch):
    with serving((401, {}, "{}")) as endpoint:
        monkeypatch.setenv("OPENAI_API_KEY", "wrong")
        monkeypatch.setenv("OPENAI_BASE_URL", endpoint.url)
        result = run(tmp_path, "--agent", "planner:openai:theirs", "--limit", "6")
    counts = result["planner"]
    assert counts["accepted"] == 0
    assert counts["fell_back"] >= 6
    assert counts["refused"]["wrong_key"] > 0
    assert result["scores"]["all"]["won"] >= 5


def test_what_an_endpoint_proposes_is_done(tmp_path, monkeypatch):
    """The first game is won by an endpoint that says the sub-goals of its task."""
    game, _ = load_panel("generated_unseen").games[0]
    _, _, rest = game.task_text.partition(" ")
    words = [word.strip(".") for word in rest.split() if word not in ("a", "some", "in", "on")]
    thing, place = words[0], words[-1]
    said = [{"verb": "take", "thing": thing}, {"verb": "put", "thing": thing, "place": place}]
    with serving(*map(json.dumps, said)) as endpoint:
        monkeypatch.setenv("OPENAI_API_KEY", "k")
        monkeypatch.setenv("OPENAI_BASE_URL", endpoint.url)
        result = run(tmp_path, "--agent", "planner:openai:theirs", "--limit", "1")
        assert len(endpoint.requests) == result["planner"]["questions"] == 2
    assert result["planner"]["accepted_share"] == 1.0
    assert result["scores"]["all"]["won"] == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--agent", "planner:gpt-9"), "planner:smollm2-135m, planner:openai:MODEL"),
        (("--agent", "planner:rules", "--limit", "0"), "--limit 0 must lie in [1, 120]"),
        (("--agent", "planner:rules", "--limit", "121"), "--limit 121 must lie in [1, 120]"),
        (("--agent", "planner:openai:m", "--workers", "2"), "plays one game after the other"),
        (("--agent", "planner:openai:m", "--temperature", "1"), "samples nothing"),
        (("--agent", "planner:openai:m", "--decoding", "constrained"), "generates no text"),
    ],
)
def test_a_mistake_is_one_line(arguments, message, capsys, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    assert main(["--panel", "generated_unseen", *arguments]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1
