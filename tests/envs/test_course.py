"""A course with walls."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from envs.course import Course, crosses
from envs.vector import VectorEnv
from jaxagent.types import Simulator
from tests.agents.plane import PointBody, point_task


@pytest.mark.parametrize(
    ("start", "end", "hit"),
    [
        ((0, 0), (2, 0), True),
        ((2, 0), (0, 0), True),  # from the other side
        ((0, 0), (0.9, 0), False),  # not that far
        ((0, 2), (2, 2), False),  # past its end
        ((0, 0), (1, 0), False),  # up to it
        ((0, 0.5), (0, -0.5), False),  # along it
        ((0, 5), (9, 5), True),  # the second wall
    ],
)
def test_a_wall_is_crossed_where_it_stands(start, end, hit):
    walls = jnp.array([[1.0, -1.0, 1.0, 1.0], [5.0, 4.0, 5.0, 6.0]])
    found = crosses(jnp.array(start, jnp.float32), jnp.array(end, jnp.float32), walls)
    assert bool(found) == hit


def walk(course: Course, actions) -> list[tuple[float, bool, bool]]:
    state = course.reset(jax.random.key(0))
    rows = []
    for action in actions:
        state = course.step(state, jnp.array(action, jnp.float32))
        rows.append((float(state.reward), bool(state.terminated), bool(state.success)))
    return rows


def course(body: PointBody | None = None, **changes) -> Course:
    settings = {"walls": ((1.0, -1.0, 1.0, 1.0),), "target": (2.0, 0.0), "radius": 0.5}
    return Course(body or PointBody(), **settings | changes)


def test_the_straight_way_ends_at_the_wall_with_nothing():
    rows = walk(course(), [(1, 0)] * 8)
    first = [terminated for _, terminated, _ in rows].index(True)
    assert first in (3, 4)  # 0.25 a step from near the origin
    assert rows[first] == (0.0, True, False)


def test_the_way_round_arrives():
    rows = walk(course(), [(0, 1)] * 6 + [(1, 0)] * 8 + [(0, -1)] * 5)
    assert rows[-2:].count((1.0, True, True)) >= 1
    assert not any(terminated for _, terminated, _ in rows[:14])


def test_a_fall_is_no_arrival():
    rows = walk(course(PointBody(edge=1.0), walls=((9, 9, 9, 8),)), [(1, 0)] * 6)
    assert (0.0, True, False) in rows
    assert sum(reward for reward, _, _ in rows) == 0


def test_the_position_is_observed_and_the_goal_can_be_changed():
    task = Course(point_task())
    assert isinstance(task, Simulator)
    state = task.step(task.reset(jax.random.key(0)), jnp.zeros(2))
    assert state.observation.shape == (task.observation_size,) == (6,)
    np.testing.assert_allclose(state.observation[4:], state.body.position[:2] / 10)
    aimed = task.aim(state, jnp.array([3.0, 4.0]))
    np.testing.assert_allclose(aimed.goal, [3.0, 4.0])
    np.testing.assert_allclose(aimed.observation[2:4], jnp.array([3.0, 4.0]) - aimed.features)


def test_an_episode_inherits_the_difficulty_below():
    env = VectorEnv(Course(point_task()), episode_length=1)
    state = jax.jit(env.reset)(jax.random.split(jax.random.key(0), 2))
    goal_state = state.simulator.physics.physics
    harder = goal_state.difficulty.replace(threshold=jnp.array([0.7, 0.8]))
    below = state.simulator.physics.replace(physics=goal_state.replace(difficulty=harder))
    state = state.replace(simulator=state.simulator.replace(physics=below))
    state, step = jax.jit(env.step)(state, jnp.zeros((2, 2)))
    assert step.truncated.all()
    threshold = state.simulator.physics.physics.difficulty.threshold
    np.testing.assert_allclose(threshold, [0.7, 0.8])
