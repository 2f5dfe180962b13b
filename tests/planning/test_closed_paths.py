"""What walking in circles earns: nothing, of every guidance term that claims so.

Claims: the progress of `plan` is a decrease of distance, and `velocity_linear` a displacement, so
both add up to 0 over a closed path; an arrival is paid once; `plan_potential` telescopes, with its
discount. The other velocity terms and `heading` are paid by the step and claim nothing.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxagent.planning.guidance import Guidance, GuidanceConfig
from jaxagent.types import Plan, SubGoal
from tests.losses.strategies import few, numbers
from tests.planning.test_guidance import walk

STEPS, SECONDS = 24, 0.05
PLAN = Plan((SubGoal((2.0, 0.0), 0.6), SubGoal((2.0, 3.0), 0.6)), "test")
FAR = Plan((SubGoal((40.0, 40.0), 0.6),), "never reached")
TELESCOPING = ("plan", "plan_potential", "velocity_linear")
BY_THE_STEP = ("velocity_saturated", "velocity_target", "velocity_threshold")


def run(path, plan, terms, gamma=1.0, state=None, **options):
    """Rewards [T] of a path [T + 1, 2], whose body faces and moves along it."""
    trajectory = walk(path)
    moved = np.diff(np.asarray(path, np.float32), axis=0)
    velocity = trajectory.next_body.velocity.at[:, 0, :2].set(moved / SECONDS)
    facing = moved / np.maximum(np.linalg.norm(moved, axis=-1, keepdims=True), 1e-9)
    trajectory = trajectory._replace(
        body=trajectory.body._replace(heading=jnp.asarray(facing)[:, None]),
        next_body=trajectory.next_body._replace(velocity=velocity),
    )
    guidance, reward = _guidance(plan, terms, gamma, tuple(options.items()))
    state = guidance.init(1) if state is None else state
    state, total, _ = reward(state, trajectory, jnp.float32(0.0))
    return state, np.asarray(total)[:, 0]


@functools.cache
def _guidance(plan, terms, gamma, options):
    config = GuidanceConfig(guidance_terms=terms, wanted_velocity=1.0, **dict(options))
    guidance = Guidance(config, plan, discount_factor=gamma)
    return guidance, jax.jit(guidance.reward)


def circle(centre, radius, speed, laps=1):
    """Whole laps around a point at a speed, metres and metres a second."""
    steps = max(8, round(laps * 2 * np.pi * radius / (speed * SECONDS)))
    angle = np.linspace(0, 2 * np.pi * laps, steps + 1)
    return centre + radius * np.stack([np.cos(angle), np.sin(angle)], axis=-1)


@pytest.mark.parametrize("speed", [0.3, 1.5, 5.7])
@pytest.mark.parametrize("radius", [0.7, 1.2, 4.0])
def test_circling_around_a_sub_goal_earns_nothing(speed, radius):
    """The body turns with the circle, so its chords cut in; with the defaults of the plan."""
    one = Plan((SubGoal((3.0, -1.0), 0.5),), "test")
    for centre in ((3.0, -1.0), (3.4, -1.0), (9.0, 2.0)):
        path = circle(np.array(centre), radius, speed)
        if np.linalg.norm(path - np.array([3.0, -1.0]), axis=-1).min() > 0.5:  # no arrival
            _, earned = run(path, one, ("plan",))
            assert earned.sum() == pytest.approx(0.0, abs=2e-3)


@few
@given(numbers(shape=(STEPS, 2)), st.sampled_from(TELESCOPING))
def test_a_closed_path_adds_up_to_nothing(points, term):
    path = np.concatenate([points, points[:1]])
    _, earned = run(path, FAR, (term,))
    np.testing.assert_allclose(earned.sum(), 0.0, atol=2e-2)


@few
@given(numbers(shape=(STEPS, 2)))
def test_going_on_after_an_arrival_is_closed_as_well(points):
    """From any place at which both sub-goals' cursors agree, and back to it."""
    state, _ = run([(0, 0), (2, 0)], PLAN, ("plan",))
    assert int(state.cursor[0]) == 1
    away = np.asarray(points) + np.array([-8.0, -8.0])  # never within 0.6 m of the second one
    state, earned = run(np.concatenate([away, away[:1]]), PLAN, ("plan",), state=state)
    assert int(state.cursor[0]) == 1
    np.testing.assert_allclose(earned.sum(), 0.0, atol=2e-2)


def test_crossing_the_arrival_radius_again_pays_nothing():
    """In and out of the first sub-goal ten times, in two batches: one arrival."""
    inside, outside = (1.6, 0.0), (1.0, 0.0)
    swing = [outside] + [inside, outside] * 6
    options = {"progress_weight": 0.0}
    state, first = run(swing, PLAN, ("plan",), **options)
    _, second = run(swing, PLAN, ("plan",), state=state, **options)
    assert first.sum() == GuidanceConfig().arrival_weight
    assert second.sum() == 0.0
    # With progress too: the way in was paid by the first sub-goal, the swings are closed paths.
    state, first = run(swing, PLAN, ("plan",))
    _, second = run(swing, PLAN, ("plan",), state=state)
    gained = 10.0 * (0.6 + np.hypot(0.4, 3.0) - np.hypot(1.0, 3.0)) + 5.0
    assert first.sum() == pytest.approx(gained, rel=1e-4)
    assert second.sum() == pytest.approx(0.0, abs=1e-3)


@few
@given(numbers(shape=(STEPS, 2)))
def test_no_path_earns_more_than_the_plan_is_long(points):
    """Whatever is walked: the metres of the plan once, and each arrival once."""
    path = np.concatenate([np.zeros((1, 2)), points])
    _, earned = run(path, PLAN, ("plan",))
    slack = 0.6 * 2  # where one sub-goal's radius is left for the next
    assert np.cumsum(earned).max() <= 10.0 * (2.0 + 3.0 + slack) + 5.0 * 2 + 1e-3


@few
@given(numbers(shape=(STEPS, 2)))
def test_the_potential_telescopes_with_its_discount(points):
    path, gamma = np.concatenate([points, points[:1]]), 0.9
    _, earned = run(path, FAR, ("plan_potential",), gamma=gamma)
    start = -np.linalg.norm(path[0] - 40.0)
    expected = (gamma**STEPS - 1.0) * start
    found = (earned * gamma ** np.arange(STEPS)).sum()
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-2)


@pytest.mark.parametrize("term", BY_THE_STEP)
def test_terms_paid_by_the_step_do_not_claim_it(term):
    """Slowly forth and fast back, as `--help` says of them."""
    there = np.linspace(0, 2.0, 21)
    path = np.stack([np.append(there, [1.0, 0.0]), np.zeros(23)], axis=-1)
    _, earned = run(path, FAR, (term,))
    assert abs(earned.sum()) > 0.5


def test_by_default_no_term_of_a_plan_pays_for_standing():
    """Facing the sub-goal, standing; `heading` pays that by the step and is off unless asked."""
    still = np.zeros((STEPS + 1, 2))
    assert run(still, PLAN, ("plan",))[1].sum() == 0.0
