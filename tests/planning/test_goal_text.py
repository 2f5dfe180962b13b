"""Sub-goals in words."""

import math
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxagent.planning.goal_text import (
    COMPASS,
    GRAMMAR,
    Go,
    MoveTo,
    Stop,
    Turn,
    parse_sub_goal,
    resolve_sub_goal,
)
from jaxagent.types import SubGoal


@pytest.mark.parametrize(
    ("text", "command"),
    [
        ("move to (3, 4)", MoveTo(3.0, 4.0)),
        ("Move to (-3.5,4e-1).", MoveTo(-3.5, 0.4)),
        ("go to 3 m, \u22124 m", MoveTo(3.0, -4.0)),
        ("walk to \uff08\uff13\uff0c4\uff09", MoveTo(3.0, 4.0)),
        ("go north 5 metres", Go("north", 5.0)),
        ("  GO   North-East 2.5m ", Go("northeast", 2.5)),
        ("head south west for 1 meter", Go("southwest", 1.0)),
        ("walk straight ahead 3 m", Go("forward", 3.0)),
        ("move backwards by .5 metres", Go("back", 0.5)),
        ("go left 1 m", Go("left", 1.0)),
        ("turn left 90 degrees", Turn(90.0)),
        ("turn to the right by 45\u00b0", Turn(-45.0)),
        ("turn around", Turn(180.0)),
        ("stop", Stop()),
        ("Stand still.", Stop()),
    ],
)
def test_what_is_understood(text, command):
    assert parse_sub_goal(text) == command


@pytest.mark.parametrize(
    "text",
    [
        "",
        "fly to (3, 4)",
        "move to the red door",
        "move to (3, 4, 5)",
        "move to (3)",
        "move to (nan, inf)",
        "go north",
        "go north 5",  # metres or steps?
        "go north 5 feet",
        "go up 5 metres",
        "go north 5 metres then stop",
        "please go north 5 metres",
        "turn left",
        "turn left 90 metres",
        "turn north 90 degrees",
        "stop stop",
        "move to (3, 4)\nturn left 90 degrees",
    ],
)
def test_what_is_not_understood_is_refused_with_the_grammar(text):
    with pytest.raises(ValueError, match=re.escape(f"sub-goal ({text!r}) must read ")) as refusal:
        parse_sub_goal(text)
    assert all(sentence in str(refusal.value) for sentence in GRAMMAR)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("move to (1e999, 0)", "1e999 must be a finite number"),
        ("go north 0 metres", r"the distance \(0\) must be greater than 0"),
        ("go north -2 metres", r"the distance \(-2\) must be greater than 0"),
        ("turn left 0 degrees", r"the angle \(0\) must be greater than 0"),
    ],
)
def test_numbers_that_mean_nothing_are_refused(text, rule):
    with pytest.raises(ValueError, match=rule):
        parse_sub_goal(text)


@pytest.mark.parametrize(
    ("command", "sub_goal"),
    [
        (MoveTo(3.0, 4.0), SubGoal((3.0, 4.0), 0.5)),
        (Go("north", 5.0), SubGoal((1.0, 7.0), 0.5)),  # whatever it faces
        (Go("southwest", math.sqrt(2)), SubGoal((0.0, 1.0), 0.5)),
        (Go("forward", 2.0), SubGoal((1.0, 4.0), 0.5)),  # it faces north
        (Go("left", 2.0), SubGoal((-1.0, 2.0), 0.5)),
        (Go("right", 2.0), SubGoal((3.0, 2.0), 0.5)),
        (Go("back", 2.0), SubGoal((1.0, 0.0), 0.5)),
        (Turn(90.0), SubGoal((1.0, 2.0), 0.5, -180.0)),
        (Turn(-45.0), SubGoal((1.0, 2.0), 0.5, 45.0)),
        (Stop(), SubGoal((1.0, 2.0), 0.5)),
    ],
)
def test_what_it_means_at_1_2_facing_north(command, sub_goal):
    found = resolve_sub_goal(command, (1.0, 2.0), 90.0, radius=0.5)
    assert found.target == pytest.approx(sub_goal.target, abs=1e-12)
    assert (found.radius, found.heading) == (sub_goal.radius, sub_goal.heading)


@settings(max_examples=50, deadline=None)
@given(
    st.floats(0.01, 100), st.sampled_from(sorted(COMPASS)), st.floats(-360, 360), st.floats(-9, 9)
)
def test_a_compass_point_is_the_turn_of_forward(distance, direction, heading, x):
    """Going to a compass point is turning there and going forward."""
    text = f"go {direction} {distance:.4f} metres"
    there = resolve_sub_goal(parse_sub_goal(text), (x, 1.0), heading, radius=1.0)
    turned = resolve_sub_goal(Turn(COMPASS[direction] - heading), (x, 1.0), heading, radius=1.0)
    assert turned.heading is not None
    forward = Go("forward", float(f"{distance:.4f}"))
    same = resolve_sub_goal(forward, turned.target, turned.heading, radius=1.0)
    assert there.target == pytest.approx(same.target, abs=1e-9)
