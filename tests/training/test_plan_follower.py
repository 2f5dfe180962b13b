"""Plans that change during a run: on the device, in the folder, in checkpoints."""

import dataclasses
import json
import signal

import jax
import numpy as np
import pytest

from jaxagent.planning.asking import AskSettings
from jaxagent.planning.chat import ChatError
from jaxagent.planning.device_plan import plan_arrays
from jaxagent.planning.flax_chat import FlaxChat
from jaxagent.planning.goal_planner import GoalPlanner, GoalTask
from jaxagent.planning.guidance import Guidance
from jaxagent.planning.plan_guide import PlanGuide
from jaxagent.planning.plans import load_plan
from jaxagent.planning.rules import RulePlanner
from jaxagent.planning.serving.replanning import ReplanRule
from jaxagent.training.interruption import Interrupted
from jaxagent.training.plan_follower import PlanFollower
from tests.models.llm.random_models import random_model
from tests.planning.scripted import ScriptedChat
from tests.training.probe_run import make_arm, make_trainer, run_config
from tests.training.test_loop import StopAfter, same

RULE = RulePlanner((2.0, 0.0))
TASK = GoalTask("go to (2, 0)", (2.0, 0.0), most=3)
# Nothing is ever progress: every second evaluation asks anew.
STUCK = ReplanRule(patience=1, least_progress=100.0)


def says(*points):
    uses = [{"skill": "walk_to", "x": x, "y": y} for x, y in (*points, (2, 0))]
    return json.dumps({"sub_goals": uses})


REPLIES = (says((1, 0)), "no idea", says((0, 1), (1, 1)), ChatError("unreachable", "it is down"))


def make_guide(chat):
    planner = GoalPlanner(chat, TASK, RULE, settings=AskSettings(retries=0))
    return PlanGuide(planner, RULE, "reach", (0.0, 0.0), replan=STUCK, wait=True)


@pytest.fixture(scope="module")
def programs():
    """A trainer whose plan is part of the state, and its programs."""
    run = run_config(12, num_evaluations=6)
    trainer = make_trainer(run)
    guidance = Guidance(
        trainer.guidance.config, RULE.plan("", (0.0, 0.0)),
        discount_factor=0.97, axis_name=trainer.guidance.axis_name, plan_capacity=3,
    )  # fmt: skip
    trainer = dataclasses.replace(trainer, guidance=guidance)
    return run, trainer, trainer.compile(trainer.init([0]))


def start(programs, folder, chat, resumed=False, **changes):
    """An arm that follows what a chat says, and its follower."""
    run, trainer, compiled = programs
    guide = make_guide(chat)
    if not resumed:
        plan = guide.begin()
        guidance = Guidance(
            trainer.guidance.config, plan,
            discount_factor=0.97, axis_name=trainer.guidance.axis_name, plan_capacity=3,
        )  # fmt: skip
        trainer = dataclasses.replace(trainer, guidance=guidance)
    arm = make_arm(folder, run, trainer, compiled)
    follower = PlanFollower(guide, trainer, folder)
    return dataclasses.replace(arm, plans=follower, **changes), follower


@pytest.fixture(scope="module")
def whole(programs, tmp_path_factory):
    """A run that was never disturbed."""
    arm, follower = start(
        programs, tmp_path_factory.mktemp("run") / "whole", ScriptedChat(*REPLIES)
    )
    state, _ = arm.train(resume=False)
    follower.guide.close()
    return arm, follower, state


def test_the_plan_on_the_device_is_the_plan_in_the_folder(whole):
    arm, follower, state = whole
    plan = follower.guide.plan
    arrays = plan_arrays(plan, 3)
    for field in arrays._fields:
        there = np.asarray(getattr(state.guidance.plan, field))
        np.testing.assert_array_equal(there, np.asarray(getattr(arrays, field))[None])
    assert load_plan(arm.folder / "plan.json").sub_goals == plan.sub_goals


def test_the_folder_tells_what_was_planned_and_why(whole):
    arm, _, _ = whole
    told = json.loads((arm.folder / "plans.json").read_text())
    assert [event["reason"] for event in told["events"]] == ["start"] + ["no_progress"] * 3
    assert told["events"][0]["plan"] == "(1, 0), (2, 0); by scripted"
    assert told["events"][1]["plan"] == "(2, 0); by rule (no usable plan from scripted)"
    assert told["plan"] == told["events"][-1]["plan"]
    counts = told["planner"]
    assert counts["questions"] == 4
    assert counts["accepted"] == counts["fell_back"] == 2
    assert counts["accepted_share"] == 0.5
    assert counts["refused"] == {"no_json": 1, "unreachable": 1}


def test_it_is_told_in_one_line(whole):
    _, follower, _ = whole
    assert follower.tell() == (
        "plans: 4 questions to the model, 2 accepted (50%); refused replies and calls: 1 no_json, "
        "1 unreachable; the rule planned 2 times; replanned 3 times, 3 with another plan"
    )


@pytest.mark.parametrize("iteration", [3, 6])  # between evaluations, and at one
def test_interrupted_and_resumed_is_the_same_run(programs, whole, tmp_path, iteration):
    chat = ScriptedChat(*REPLIES)
    arm, follower = start(programs, tmp_path / "run", chat)
    arm.reporter = StopAfter(arm.reporter, iteration, signal.SIGTERM)
    with pytest.raises(Interrupted):
        arm.train(resume=False)
    follower.guide.close()
    arm, follower = start(programs, tmp_path / "run", ScriptedChat(*chat.replies), resumed=True)
    state, _ = arm.train(resume=True)
    follower.guide.close()
    same(state, whole[2])
    assert follower.guide.events == whole[1].guide.events
    assert follower.tell() == whole[1].tell()


def test_a_model_in_this_process_answers_while_two_devices_train(programs, tmp_path):
    """Its programs and the training's, which synchronise two devices, must not block each other."""
    run, trainer, compiled = programs
    assert trainer.layout.size == 2
    chat = FlaxChat(random_model(max_positions=4096), context=4096)
    wander = GoalTask("wander", most=trainer.guidance.plan_capacity)
    planner = GoalPlanner(chat, wander, RULE, settings=AskSettings(retries=0, temperature=2.0))
    with PlanGuide(planner, RULE, "reach", (0.0, 0.0), replan=STUCK) as guide:
        assert guide.begin().source == chat.name
        arm = make_arm(tmp_path / "run", run, trainer, compiled)
        arm.plans = PlanFollower(guide, trainer, tmp_path / "run")
        arm.train(resume=False)
        asked = guide.summary()["service"]["asked"]
        assert asked > 1  # and nobody stood still for the answer
        question = guide._question
        if question is not None:
            assert guide._service.wait(question).answer is not None
    assert planner.log.summary()["accepted"] > 1


def test_another_plan_compiles_nothing(programs, whole):
    _, trainer, compiled = programs
    change = trainer.compile_change_plan()
    state = trainer.init([0])
    for points in ((), ((0, 1),), ((0, 1), (1, 1))):
        plan = plan_arrays(make_guide(ScriptedChat(says(*points))).begin(), 3)
        guidance = change(state.guidance, plan, state.env.simulator.body.position[..., :2])
        state, _ = compiled.iterate(state.replace(guidance=guidance))
    assert change._cache_size() == 1


def test_every_environment_goes_on_from_where_it_is(programs):
    _, trainer, _ = programs
    state = trainer.init([0])
    plan = plan_arrays(RulePlanner((6.0, 0.0), spacing=2.0).plan("", (0.0, 0.0)), 3)
    x = np.linspace(0.0, 6.0, 16, dtype=np.float32)
    position = jax.numpy.stack([x, np.zeros_like(x)], axis=-1)[None]
    guidance = trainer.compile_change_plan()(state.guidance, plan, position)
    assert np.asarray(guidance.cursor)[0].tolist() == [0] * 6 + [1] * 5 + [2] * 5


def test_a_plan_that_is_compiled_in_cannot_change(tmp_path):
    with pytest.raises(ValueError, match="compiled in cannot be changed: give plan_capacity"):
        PlanFollower(make_guide(ScriptedChat(says())), make_trainer(run_config()), tmp_path)


def test_several_processes_are_refused(programs, monkeypatch, tmp_path):
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    with pytest.raises(ValueError, match="runs of one process, not of 2"):
        PlanFollower(make_guide(ScriptedChat(says())), programs[1], tmp_path)
