"""A language model plans the corner task: asked, refused, asked again, followed, told."""

import functools
import json

import numpy as np
import pytest

from experiments import ant_guidance
from jaxagent.planning.device_plan import plan_arrays
from jaxagent.planning.plans import load_plan
from jaxagent.planning.serving import resilience
from jaxagent.training.metrics import read_metrics
from tests.experiments.test_ant_guidance import SMALL
from tests.planning.endpoint import serving


def says(*points):
    uses = [{"skill": "walk_to", "x": x, "y": y} for x, y in (*points, (10, 10))]
    return json.dumps({"sub_goals": uses})


def train(tmp_path, *arguments):
    return ant_guidance.main(
        [
            *SMALL, "--task", "corner", "--num-evaluations", "4",
            "--runs-dir", str(tmp_path), "--name", "run", *arguments,
        ]
    )  # fmt: skip


@pytest.fixture
def environment(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    monkeypatch.delenv("OPENAI_MODEL", raising=False)
    return monkeypatch


def test_a_run_whose_plans_come_from_an_endpoint(tmp_path, environment, capsys):
    """At first its key is refused, then it talks nonsense, then it plans; the Ant never moves far.

    The rule takes over, training goes on, and the plan changes without compiling again.
    """
    answers = ((401, {}, "{}"), "I would go north-east.", says((6, 2)), says((2, 6)))
    stuck = ("--replan-patience", "1", "--planner-wait", "--planner", "openai:theirs")
    # Where compiling is quick the endpoint would still be left alone for the key that it refused.
    at_once = functools.partial(resilience.CircuitBreaker, cooldown=0.0)
    environment.setattr(resilience, "CircuitBreaker", at_once)
    with serving(*answers) as endpoint:
        environment.setenv("OPENAI_BASE_URL", endpoint.url)
        assert train(tmp_path, *stuck) == 0
    folder, out = tmp_path / "run", capsys.readouterr().out
    told = json.loads((folder / "plans.json").read_text())
    assert [event["plan"] for event in told["events"]] == [
        "(3.33, 3.33), (6.67, 6.67), (10, 10); by rule (no usable plan from theirs@127.0.0.1)",
        "(6, 2), (10, 10); by theirs@127.0.0.1",
        "(2, 6), (10, 10); by theirs@127.0.0.1",
    ]
    assert told["planner"]["refused"] == {"no_json": 1, "wrong_key": 1}
    assert told["planner"]["accepted"] == 2
    assert "new plan (no_progress): (6, 2), (10, 10); by theirs@127.0.0.1" in out
    assert "3 questions to the model, 2 accepted (67%)" in out
    assert "replanned 2 times, 2 with another plan" in out
    plan = load_plan(folder / "plan.json")
    assert [goal.target for goal in plan.sub_goals] == [(2.0, 6.0), (10.0, 10.0)]
    assert (folder / "curves.png").stat().st_size > 10_000
    trained = [r for r in read_metrics(folder / "metrics.jsonl") if r["kind"] == "train"]
    assert len(trained) == 4
    assert all(r["reward_guidance"] != 0 for r in trained)

    # Taken up again after its end it asks nobody (the endpoint is gone) and keeps its history.
    assert train(tmp_path, *stuck, "--resume") == 0
    assert json.loads((folder / "plans.json").read_text())["events"] == told["events"]
    assert "3 questions to the model, 2 accepted (67%)" in capsys.readouterr().out
    assert load_plan(folder / "plan.json") == plan

    # It is read again without the model: what was followed is part of the state.
    environment.delenv("OPENAI_BASE_URL")
    environment.delenv("OPENAI_API_KEY")
    _, _, state = ant_guidance.load_run(folder)
    target = np.asarray(state.guidance.plan.target)[0]
    np.testing.assert_array_equal(target, np.asarray(plan_arrays(plan, 4).target))


def test_without_a_model_the_plan_is_compiled_in():
    config = ant_guidance.read_command_line(["--task", "corner"], "cpu")
    layout = ant_guidance.choose_layout(config.run.num_envs, config.ppo.shuffle_groups)
    trainer, plan = ant_guidance.build(config, layout)
    assert trainer.abstract_state(1).guidance.plan is None
    assert len(plan.sub_goals) == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--planner", "gpt-9"), "planner (gpt-9) must be rule, a plan file"),
        (
            ("--planner", "openai"),
            "planner openai needs a model: openai:MODEL, or set OPENAI_MODEL",
        ),
        (("--planner", "openai:m"), "planner openai needs a key in OPENAI_API_KEY"),
        (("--planner", "openai:m", "--task", "run"), "needs task corner, not run"),
        (("--planner", "openai:m", "--guidance-terms", "velocity_linear"), "that read a plan, not"),
        (("--planner", "openai:m", "--distill-from", "x"), "a student is unguided"),
        (("--planner-wait",), "planner_wait and replan_patience need a language model"),
        (("--replan-patience", "2"), "planner_wait and replan_patience need a language model"),
        (("--replan-patience", "0"), "replan_patience (0) must be at least 1"),
    ],
)
def test_a_mistake_is_one_line_and_leaves_nothing(
    arguments, message, tmp_path, monkeypatch, capsys
):
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "OPENAI_MODEL"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(SystemExit) as left:
        train(tmp_path, *arguments)
    assert left.value.code == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_holds_no_model_is_named(tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    with pytest.raises(SystemExit):
        train(tmp_path / "runs", "--planner", str(tmp_path / "empty"))
    assert "empty is not a model's folder: it has no config.json" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()
