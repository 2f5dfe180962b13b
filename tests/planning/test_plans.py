"""Plan files: what is read, what is refused and where."""

import json

import pytest

from jaxagent.planning.plans import dump_plan, load_plan
from jaxagent.planning.rules import FixedPlanner, RulePlanner
from jaxagent.types import Plan, Planner, SubGoal


def test_yaml_and_json_say_the_same(tmp_path):
    yaml_file, json_file = tmp_path / "plan.yaml", tmp_path / "plan.json"
    yaml_file.write_text(
        "sub_goals:\n  - target: [5, 5.5]\n  - {target: [1e1, 10], radius: 0.5, heading: 45}\n"
    )
    json_file.write_text(
        '{"sub_goals": [{"target": [5, 5.5]},\n'
        ' {"target": [1e1, 10], "radius": 0.5, "heading": 45}]}'
    )
    expected = (SubGoal((5.0, 5.5)), SubGoal((10.0, 10.0), 0.5, 45.0))
    assert load_plan(yaml_file).sub_goals == expected == load_plan(json_file).sub_goals


def test_what_is_written_is_read_back(tmp_path):
    plan = Plan((SubGoal((1.0, -2.0), 0.3), SubGoal((3.0, 4.0), 1.0, -90.0)), "rule")
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(dump_plan(plan)))
    assert load_plan(path).sub_goals == plan.sub_goals


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sub_goals: []\n", r":1: sub_goals must list at least one sub-goal"),
        ("goals: []\n", r":1: unknown key 'goals'; known: sub_goals"),
        ("{}\n", r":1: a plan must have the key sub_goals"),
        ("- 1\n", r":1: a plan must be a mapping of sub_goals"),
        ("", r":1: a plan must be a mapping"),
        ("sub_goals:\n - target: [1, 2]\n   speed: 3\n", r":3: unknown key 'speed'; known: target"),
        ("sub_goals:\n - target: [1, .nan]\n", r":2: target \(.nan\) must be a finite number"),
        ("sub_goals:\n - target: [1, inf]\n", r":2: target \(inf\) must be a finite number"),
        ("sub_goals:\n - target: [1, 2]\n   radius: -1\n", r":3: radius \(-1.0\) must be greater"),
        (
            "sub_goals:\n - target: [1, 2]\n   radius: wide\n",
            r":3: radius \(wide\) must be a finite",
        ),
        ("sub_goals:\n - target: [1, 2, 3]\n", r":2: target must be two numbers"),
        ("sub_goals:\n - radius: 1\n", r":2: a sub-goal must have a target"),
        ("sub_goals:\n - target: [[1], 2]\n", r":2: target \(a collection\) must be a finite"),
        ("sub_goals:\n - target: [1, 2]\n   target: [3, 4]\n", r":3: key 'target' stands twice"),
        ("sub_goals:\n - {target: [1, 2]\n", r": not YAML or JSON"),
        ("sub_goals: " + "[" * 2000 + "]" * 2000, r": nested too deep for a plan"),
        (b"sub_goals:\n - target: [1, 2] # \xe9\n", r":2: not text in UTF-8"),
        ("sub_goals: []\n".encode("utf-16"), r":1: not text in UTF-8"),
    ],
)
def test_a_wrong_plan_is_refused_with_its_line(tmp_path, text, message):
    path = tmp_path / "plan.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ValueError, match=message) as refusal:
        load_plan(path)
    assert "\n" not in str(refusal.value)
    assert str(refusal.value).startswith(str(path))
    assert "\n" not in str(refusal.value)


def test_the_rule_planner_walks_a_straight_line():
    planner = RulePlanner((10.0, 10.0), spacing=5.0, radius=1.0)
    assert isinstance(planner, Planner)
    targets = [goal.target for goal in planner.plan("corner", (0.0, 0.0)).sub_goals]
    assert targets == [pytest.approx((10 * k / 3, 10 * k / 3)) for k in (1, 2, 3)]
    assert len(planner.plan("corner", (10.0, 10.0)).sub_goals) == 1


def test_a_fixed_plan_is_given_back():
    plan = Plan((SubGoal((1.0, 2.0)),), "here")
    assert FixedPlanner(plan).plan("anything", (0.0, 0.0)) is plan
