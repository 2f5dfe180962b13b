"""A manager over a frozen skill, and HIRO's correction of old sub-goals."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from envs.course import Course
from envs.vector import VectorEnv
from jaxagent.agents.manager import ManagedSimulator, correct_sub_goals, skill_record, sub_goal
from jaxagent.losses import tanh_normal_log_prob
from jaxagent.types import Simulator
from tests.agents.plane import STEP, point_task, straight

WALLS = ((1.5, -9.0, 1.5, 1.0),)


def walker(features, goal):
    """Walks straight to the goal, with a little noise around it."""
    action = 0.95 * straight(jnp.concatenate([features, goal - features], axis=-1), None)
    return jnp.arctanh(action), 0.2 * jnp.ones(action.shape)


def log_prob(features, goal, action):
    return tanh_normal_log_prob(jnp.arctanh(action), *walker(features, goal))


def managed(interval: int = 4, **body) -> ManagedSimulator:
    course = Course(point_task(**body), walls=WALLS, target=(3.0, 0.0), radius=0.5)
    return ManagedSimulator(course, walker, interval, reach=2.0)


def play(simulator: ManagedSimulator, actions):
    state = jax.jit(simulator.reset)(jax.random.key(0))
    step, states = jax.jit(simulator.step), []
    for action in actions:
        state = step(state, jnp.array(action, jnp.float32))
        states.append(state)
    return states


def test_one_step_is_one_sub_goal_held_for_the_interval():
    simulator = managed()
    assert isinstance(simulator, Simulator)
    (state,) = play(simulator, [(0.0, 1.0)])
    start = jax.jit(simulator.reset)(jax.random.key(0)).achieved_goal
    moved = state.achieved_goal - start
    np.testing.assert_allclose(moved, [0.0, 0.95 * 4 * STEP], atol=1e-3)
    assert state.observation.shape == (simulator.observation_size,) == (2,)
    np.testing.assert_allclose(state.physics.goal, start + jnp.array([0.0, 2.0]), rtol=1e-6)


def test_what_the_skill_saw_and_did_is_recorded():
    states = play(managed(), [(0.0, 1.0), (0.5, 0.0)])
    features, action = skill_record(states[1].features, 4, 2)
    assert features.shape == action.shape == (4, 2)
    np.testing.assert_allclose(features[0], states[0].achieved_goal, rtol=1e-6)
    np.testing.assert_allclose(jnp.diff(features, axis=0), STEP * action[:-1], atol=1e-5)


def test_rewards_are_summed_and_an_end_on_the_way_is_an_end():
    round_the_wall = [(0.0, 1.0)] * 2 + [(1.0, 0.0)] * 3 + [(0.0, -1.0)] * 2
    states = play(managed(), round_the_wall)
    rewards = [float(state.reward) for state in states]
    arrived = rewards.index(1.0)
    assert bool(states[arrived].terminated)
    assert bool(states[arrived].success)
    # It stopped where it arrived, within half a metre, and not where the interval ended.
    distance = np.linalg.norm(np.asarray(states[arrived].achieved_goal) - [3.0, 0.0])
    assert 0.25 - 1e-3 < distance < 0.5
    into_the_wall = play(managed(8), [(1.0, 0.0)])[0]
    assert bool(into_the_wall.terminated)
    assert float(into_the_wall.reward) == 0.0
    assert into_the_wall.achieved_goal[0] < 1.5 + STEP


def test_it_is_vectorised_and_restarted_like_any_environment():
    simulator = managed(8)
    env = VectorEnv(simulator, episode_length=5)
    state = jax.jit(env.reset)(jax.random.split(jax.random.key(0), 3))
    action = jnp.array([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
    state, step = jax.jit(env.step)(state, action)
    assert step.terminated.tolist() == [True, False, False]
    assert state.elapsed.tolist() == [0, 1, 1]
    # The record of the step that ended is kept, though the episode has started afresh.
    features, _ = skill_record(step.next_features, 8, 2)
    assert features[0, 3, 0] > 0.5
    assert np.abs(state.simulator.achieved_goal[0]).max() <= 0.11


@pytest.fixture(scope="module")
def walked():
    """Ten steps towards (2, 0) by the skill as it is."""
    goal = jnp.array([2.0, 0.0])

    def advance(place, _):
        action = jnp.tanh(walker(place, goal)[0])
        return place + 0.1 * STEP * action, (place, action)

    place, (features, action) = jax.lax.scan(advance, jnp.zeros(2), None, 10)
    return goal, place, features, action


def test_correction_keeps_the_goal_while_the_skill_is_the_same(walked):
    goal, reached, features, action = walked
    for seed in range(5):
        key = jax.random.key(seed)
        found = correct_sub_goals(key, log_prob, features, action, goal, reached, spread=0.5)
        np.testing.assert_array_equal(found, goal)


def test_correction_finds_the_goal_that_explains_the_actions(walked):
    """The skill has learnt to do the opposite: only a goal behind it explains going east."""
    goal, reached, features, action = walked

    def mirrored(features, goal, action):
        return log_prob(features, 2 * features - goal, action)

    for seed in range(5):
        key = jax.random.key(seed)
        found = correct_sub_goals(
            key, mirrored, features, action, goal, reached, spread=2.0, num_candidates=32
        )
        drawn = reached[None] + 2.0 * jax.random.normal(key, (32, 2))
        candidates = np.concatenate([goal[None], reached[None], drawn])
        likelihood = [
            float(mirrored(features, np.tile(g, (10, 1)).astype("f4"), action).sum())
            for g in candidates
        ]
        np.testing.assert_allclose(found, candidates[int(np.argmax(likelihood))], rtol=1e-6)
        assert found[0] < 0.0


def test_a_sub_goal_lies_within_reach():
    achieved = jnp.array([1.0, 2.0])
    np.testing.assert_allclose(sub_goal(achieved, jnp.array([0.5, -7.0]), 2.0), [2.0, 0.0])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"interval": 0}, r"interval \(0\) must be at least 1"),
        ({"reach": 0.0}, r"reach \(0.0\) must be a positive, finite number"),
    ],
)
def test_mistakes_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        ManagedSimulator(Course(point_task()), walker, **{"interval": 4, "reach": 1.0} | changes)
