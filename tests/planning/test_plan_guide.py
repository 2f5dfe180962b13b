"""The plan of a run: made, watched, made anew, kept in checkpoints."""

import json
import math
import threading

import numpy as np
import pytest

from jaxagent.planning.asking import AskSettings
from jaxagent.planning.chat import ChatError
from jaxagent.planning.goal_planner import GoalPlanner, GoalTask
from jaxagent.planning.plan_guide import PlanGuide, judge_plan
from jaxagent.planning.rules import FixedPlanner, RulePlanner
from jaxagent.planning.serving.replanning import ReplanRule, ReplanTrigger
from jaxagent.types import Plan, SubGoal
from tests.planning.scripted import ScriptedChat

RULE = RulePlanner((10.0, 10.0))
TASK = GoalTask("walk to the point (10, 10)", (10.0, 10.0), most=4)
PLAN = Plan((SubGoal((3.0, 0.0)), SubGoal((3.0, 4.0))), "test")


def says(*points):
    return json.dumps(
        {"sub_goals": [{"skill": "walk_to", "x": x, "y": y} for x, y in (*points, (10, 10))]}
    )


def paths(*ends, length=30):
    """Straight walks from the origin, one an end."""
    share = np.linspace(0.0, 1.0, length)[:, None]
    return np.stack([share * np.array(end, float) for end in ends])


def guide(*replies, planner=None, **options):
    chat = ScriptedChat(*replies)
    planner = planner or GoalPlanner(chat, TASK, RULE, settings=AskSettings(retries=0))
    options.setdefault("wait", True)
    options.setdefault("replan", ReplanRule(patience=2))
    return PlanGuide(planner, RULE, "corner", (0.0, 0.0), **options), chat


def test_a_plan_is_judged_by_where_episodes_get_to():
    bend = np.concatenate([paths((3.0, 0.0)), paths((0.0, 4.0)) + [3.0, 0.0]], axis=1)
    stuck = np.concatenate([paths((1.0, 0.0)), np.full((1, 30, 2), [1.0, 0.0])], axis=1)
    progress = judge_plan(PLAN, np.concatenate([bend, stuck]))
    assert [a.result for a in progress.attempts] == [
        "reached in 1 of 2 attempts, otherwise stopped near (1, 0)",
        "reached in 1 of 1 attempts",
    ]
    assert progress.metres_to_go == pytest.approx((0.0 + 2.0 + 4.0) / 2)
    assert progress.arrived == 0.5


def test_sub_goals_count_in_their_order():
    progress = judge_plan(PLAN, paths((3.0, 4.0)))  # cuts the corner: the second is not reached
    assert progress.arrived == 0.0
    assert [a.sub_goal for a in progress.attempts] == [PLAN.sub_goals[0]]


def test_paths_that_are_not_finite_are_no_progress():
    lost = np.full((1, 5, 2), math.nan)
    lost[0, 0] = 0.0
    progress = judge_plan(PLAN, lost)
    assert (progress.metres_to_go, progress.arrived) == (7.0, 0.0)
    assert progress.attempts[0].result == "reached in 0 of 1 attempts"
    for shape in ((2, 3), (0, 5, 2), (1, 0, 2), (1, 5, 3)):
        with pytest.raises(ValueError, match="must be"):
            judge_plan(PLAN, np.zeros(shape))


def test_a_stuck_policy_gets_another_plan_that_knows_what_was_tried():
    following, chat = guide(says((5, 5)), says((0, 10)))
    with following:
        assert following.begin().sub_goals[0].target == (5.0, 5.0)
        stuck = paths((4.0, 4.0))
        assert following.review(1, stuck) is None
        assert following.review(2, stuck) is None
        plan = following.review(3, stuck)
        assert plan is not None
        assert plan.sub_goals[0].target == (0.0, 10.0)
        assert following.plan == plan
        asked = chat.asked[1][-1].content
        assert '(5, 5): <data>"reached in 0 of 1 attempts, otherwise stopped near (4, 4)"' in asked
        assert following.review(4, stuck) is None
        summary = following.summary()
    assert [(e["step"], e["reason"]) for e in summary["events"]] == [
        (0, "start"),
        (3, "no_progress"),
    ]
    assert summary["plan"] == "(0, 10), (10, 10); by scripted"
    assert summary["planner"]["accepted_share"] == 1.0
    assert summary["service"]["answered"] == 2
    json.dumps(summary)


def test_a_policy_that_gets_on_keeps_its_plan():
    following, chat = guide(says((5, 5)))
    with following:
        following.begin()
        for step in range(1, 8):
            assert following.review(step, paths((step, step))) is None
        for step in range(8, 20):  # most arrive: nothing is left to improve
            arrived = paths((10.0, 10.0), (10.0, 10.0), (1.0, 1.0), length=100)
            assert following.review(step, arrived) is None
    assert len(chat.asked) == 1


def test_every_n_reviews_the_plan_is_made_anew_and_the_same_plan_is_no_change():
    following, chat = guide(says((5, 5)), replan=ReplanRule(every=3, patience=None))
    with following:
        following.begin()
        for step in range(1, 7):
            assert following.review(step, paths((step, step))) is None
        assert [e["step"] for e in following.events] == [0, 3, 6]
    assert len(chat.asked) == 3


def test_training_goes_on_while_the_model_thinks():
    begun, release = threading.Semaphore(0), threading.Semaphore(0)

    class Slow(ScriptedChat):
        def complete(self, messages, **options):
            begun.release()
            assert release.acquire(timeout=60)
            return super().complete(messages, **options)

    slow = Slow(says((5, 5)), says((0, 10)))
    planner = GoalPlanner(slow, TASK, RULE, settings=AskSettings(retries=0))
    following, _ = guide(planner=planner, wait=False, replan=ReplanRule(patience=1))
    with following:
        release.release()
        following.begin()
        assert [following.review(step, paths((1, 1))) for step in range(1, 6)] == [None] * 5
        assert following.summary()["service"]["pending"] == 1
        begun.acquire(timeout=60)
        release.release()
        plan = None
        for step in range(6, 10_000):
            plan = following.review(step, paths((1, 1)))
            if plan is not None:
                break
            threading.Event().wait(0.005)
        assert plan is not None
        assert plan.sub_goals[0].target == (0.0, 10.0)


@pytest.mark.parametrize("reply", ["nonsense", ChatError("unreachable", "it is down")])
def test_without_a_usable_answer_the_rule_plans_and_says_so(reply):
    following, _ = guide(reply)
    with following:
        plan = following.begin()
        assert plan.sub_goals == RULE.plan("", (0.0, 0.0)).sub_goals
        assert plan.source == "rule (no usable plan from scripted)"
        for step in range(1, 12):
            assert following.review(step, paths((1, 1))) is None  # the rule knows no other plan
        summary = following.summary()
    assert summary["planner"]["accepted_share"] == 0.0
    assert summary["planner"]["fell_back"] >= 1


@pytest.mark.parametrize("planner", [RULE, FixedPlanner(PLAN)])
def test_planners_without_a_model_are_followed_too(planner):
    following, _ = guide(planner=planner)
    with following:
        assert following.begin() == planner.plan("corner", (0.0, 0.0))
        assert all(following.review(step, paths((1, 1))) is None for step in range(1, 8))
        assert following.capacity == max(3, len(following.plan.sub_goals))
        assert following.summary()["planner"] is None


def test_there_is_room_for_whichever_plan_comes():
    following, _ = guide(says())
    with following:
        assert following.capacity == 4
        with pytest.raises(RuntimeError, match="no plan before begin"):
            _ = following.plan


def test_the_next_run_finds_the_answer_on_disk(tmp_path):
    for expected in (1, 0):
        following, chat = guide(says((5, 5)), cache_folder=tmp_path)
        with following:
            following.begin()
        assert len(chat.asked) == expected


def test_a_restored_guide_goes_on_as_one_that_was_not_interrupted():
    def run(interrupted):
        following, chat = guide(says((5, 5)), says((0, 10)), says((10, 0)))
        following.begin()
        for step in range(1, 9):
            if step == interrupted:
                saved = json.loads(json.dumps(following.snapshot()))
                following.close()
                following, _ = guide(*chat.replies)
                following.restore(saved)
            following.review(step, paths((1, 1)))
        following.close()
        return following.events, following.plan

    assert run(None) == run(2) == run(5)
    assert len(run(None)[0]) == 3


def test_when_a_plan_is_too_old():
    trigger = ReplanTrigger(ReplanRule(every=10, patience=3, least_progress=0.5))
    assert [trigger.due(step, value) for step, value in enumerate((0.0, 0.4, 0.6), 1)] == [None] * 3
    assert [trigger.due(step, 1.0) for step in (4, 5, 6)] == [None, None, "no_progress"]
    trigger.planned(6)
    assert [trigger.due(step, step) for step in range(7, 17)] == [None] * 9 + ["interval"]


def test_not_a_number_is_no_progress():
    trigger = ReplanTrigger(ReplanRule(patience=2))
    assert trigger.due(1, 1.0) is None
    assert [trigger.due(step, math.nan) for step in (2, 3)] == [None, "no_progress"]


@pytest.mark.parametrize("lost", [math.nan, -math.inf, math.inf])
def test_progress_that_was_never_a_number_makes_a_plan_too_old(lost):
    trigger = ReplanTrigger(ReplanRule(patience=3))
    found = [trigger.due(step, lost) for step in range(1, 5)]
    assert found == [None, None, "no_progress", "no_progress"]
    assert trigger.snapshot()["best"] is None
    assert trigger.due(5, 1.0) is None  # a number at last
    assert trigger.due(6, lost) is None
    assert trigger.due(8, lost) == "no_progress"


def test_a_lost_episode_does_not_hide_how_far_the_others_get():
    path = np.zeros((2, 4, 2))
    path[0] = math.nan
    plan = Plan((SubGoal((3.0, 4.0), 1.0),), "test")
    assert judge_plan(plan, path).metres_to_go == 5.0
    assert judge_plan(plan, path[:1]).metres_to_go == math.inf


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"every": 0}, r"every \(0\) must be at least 1, or None"),
        ({"patience": 0}, r"patience \(0\) must be at least 1"),
        ({"least_progress": math.nan}, r"least_progress \(nan\) must be finite"),
    ],
)
def test_rules_that_make_no_sense_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        ReplanRule(**options)
