import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxagent.losses import (
    angular_velocity_penalty,
    arrival,
    energy_penalty,
    heading,
    plan_guidance,
    potential_shaping,
    progress,
    velocity_linear,
    velocity_saturated,
    velocity_target,
    velocity_threshold,
)
from tests.losses.strategies import few, numbers

points = numbers(shape=(6, 2))


def test_velocity_terms_worked_by_hand():
    v = jnp.array([2.0])
    assert velocity_linear(v).item() == 2.0
    np.testing.assert_allclose(velocity_saturated(v, velocity_scale=2.0), math.tanh(1), rtol=1e-6)
    assert velocity_target(v, target_velocity=0.5).item() == -2.25  # −1.5²
    assert velocity_threshold(v, threshold_velocity=2.0).item() == 0.0  # strictly faster
    assert velocity_threshold(v, threshold_velocity=1.99).item() == 1.0


def test_plan_terms_worked_by_hand():
    # Facing east at (1, 1), target (4, 5): bearing (3, 4)/5, cosine 0.6; threshold 60°: 0.6 − 0.5
    facing, x, target = jnp.array([2.0, 0.0]), jnp.array([1.0, 1.0]), jnp.array([4.0, 5.0])
    found = heading(facing, x, target, angle_threshold=math.pi / 3)
    np.testing.assert_allclose(found, 0.1, rtol=1e-5)
    # The same line from (1, 1); a step (0.5, 1) covers 0.5·0.6 + 1·0.8 = 1.1 m of it
    step = progress(x, x + jnp.array([0.5, 1.0]), x, target)
    np.testing.assert_allclose(step, 1.1, rtol=1e-5)
    # (4, 3) is 2 m away: inside of 2.1, not of 2
    near = jnp.array([4.0, 3.0])
    assert arrival(near, target, radius=2.1) == 1.0
    assert arrival(near, target, radius=2.0) == 0.0
    # 0.5·0.1 + 2·1.1 + 10·1 = 12.25
    total = plan_guidance(
        found, step, jnp.ones(()), heading_weight=0.5, progress_weight=2.0, arrival_weight=10.0
    )
    np.testing.assert_allclose(total, 12.25, rtol=1e-5)


def test_penalties_worked_by_hand():
    assert energy_penalty(jnp.array([[0.5, -0.5, 1.0]])).tolist() == [-1.5]
    assert angular_velocity_penalty(jnp.array([[3.0, 0.0, -4.0]])).tolist() == [-25.0]


@pytest.mark.parametrize("degrees", [0, 29, 31, 90, 180, 271, 329, 331])
def test_heading_is_positive_exactly_below_the_threshold(degrees):
    angle = math.radians(degrees)
    facing = jnp.array([math.cos(angle), math.sin(angle)])
    found = heading(facing, jnp.zeros(2), jnp.array([3.0, 0.0]), angle_threshold=math.radians(30))
    assert (found > 0) == (min(degrees, 360 - degrees) < 30)


def test_standing_on_the_target_has_a_finite_gradient():
    def terms(x):
        here = jnp.array([1.0, 2.0])
        turned = heading(jnp.zeros(2), x, here, angle_threshold=0.5)
        return turned + progress(x, x, here, here) + arrival(x, here, radius=1.0)

    value, slope = jax.value_and_grad(terms)(jnp.array([1.0, 2.0]))
    np.testing.assert_allclose(value, -math.cos(0.5) + 1.0, rtol=1e-6)
    assert jnp.isfinite(slope).all()


@few
@given(numbers(shape=(7, 2)), points, points)
def test_progress_of_a_path_is_the_distance_covered_along_the_line(path, origin, target):
    origin, target = origin[0], target[0]
    same = lambda x: jnp.broadcast_to(x, (6, 2))  # noqa: E731
    found = progress(path[:-1], path[1:], same(origin), same(target)).sum()
    length = math.dist(origin, target)
    unit = (target - origin) / length if length else jnp.zeros(2)
    np.testing.assert_allclose(found, jnp.dot(path[-1] - path[0], unit), atol=1e-3)


@few
@given(points, points, points, st.floats(0, 6.28))
def test_heading_does_not_change_when_the_world_turns(facing, position, target, angle):
    turn = jnp.array([[math.cos(angle), math.sin(angle)], [-math.sin(angle), math.cos(angle)]])
    # A vector of almost no length has no direction that survives rounding.
    enough = jnp.minimum(*(jnp.linalg.norm(v, axis=-1) for v in (facing, target - position))) > 0.1
    before = heading(facing, position, target, angle_threshold=0.5)
    after = heading(facing @ turn, position @ turn, target @ turn, angle_threshold=0.5)
    np.testing.assert_allclose(jnp.where(enough, before - after, 0), 0, atol=1e-3)


@few
@given(numbers(shape=(7,)), numbers(shape=(6,)), st.floats(0, 1, width=32))
def test_shaping_adds_a_constant_to_the_discounted_return(potential, reward, gamma):
    # Σ γᵗ F telescopes to −Φ(s₀) when the episode terminates, whatever was done.
    terminated = jnp.arange(6) == 5
    shaping = potential_shaping(potential[:-1], potential[1:], terminated, discount_factor=gamma)
    weight = gamma ** jnp.arange(6)
    np.testing.assert_allclose(jnp.sum(weight * shaping), -potential[0], atol=1e-4)


def test_shaping_of_a_truncated_step_keeps_the_next_potential():
    # γΦ′ − Φ = 0.5·4 − 1 = 1 goes on, −1 where the task ends; NaN beyond the end is not seen.
    one = jnp.ones(2)
    found = potential_shaping(
        one, jnp.array([4.0, jnp.nan]), jnp.array([False, True]), discount_factor=0.5
    )
    np.testing.assert_array_equal(found, [1.0, -1.0])
