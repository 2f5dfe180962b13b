"""Goal-conditioned tasks: what is drawn when, what judges a step, what outlives an episode."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from envs.goal_tasks import ant_goal
from envs.goals import GOAL_TASKS, GoalSimulator, goal_simulator
from envs.probe import ProbeSimulator
from envs.vector import VectorEnv
from jaxagent.rollout import collect
from jaxagent.types import GoalSpec, PolicySample, Restartable, Simulator


def near_here(key, features, reach):
    sign_key, size_key = jax.random.split(key)
    sign = jax.random.rademacher(sign_key, (1,), jnp.float32)
    size = jax.random.uniform(size_key, (1,), minval=reach[0], maxval=reach[1])
    return features[:1] + sign * size


SPEC = GoalSpec(
    state_indices=(0,),
    see=lambda features, goal: jnp.concatenate([features, goal - features], -1),
    goal_features=1,
    sample=near_here,
    workspace=(0.0, 10.0),
    reach=(1.0, 2.0),
    threshold=0.3,
)


def line(falls_at: float = 1e9, **changes) -> GoalSimulator:
    """A point that moves by its action, from a start in [0, 1)."""
    body = ProbeSimulator(
        "line",
        1,
        lambda key: jax.random.uniform(key, (1,)),
        lambda o, a: (o + a, jnp.zeros(()), jnp.abs(o[0] + a) > falls_at),
    )
    spec = dataclasses.replace(SPEC, **changes)
    return GoalSimulator("line", body, lambda state: state.observation, spec)


def play(simulator, length, steps, count=6, action=None, seed=0):
    """Roll out; by default each action goes straight to the goal, 0.5 at most."""

    def policy(observation, keys):
        chosen = jnp.clip(observation[:, 1:], -0.5, 0.5) if action is None else action
        chosen = jnp.broadcast_to(chosen, (count, 1))
        return PolicySample(chosen, chosen, chosen[:, 0])

    env = VectorEnv(simulator, length)
    keys = jax.random.split(jax.random.key(seed), count)
    state, trajectory = collect(env, policy, env.reset(keys), keys, steps)
    return state, jax.tree.map(np.asarray, trajectory)


@pytest.mark.parametrize("name", GOAL_TASKS)
def test_every_task_obeys_the_protocols(name):
    simulator = goal_simulator(name)
    assert isinstance(simulator, Simulator)
    assert isinstance(simulator, Restartable)

    def kind(x):
        return x.shape, x.dtype, getattr(x, "weak_type", False)

    start = jax.eval_shape(simulator.reset, jax.random.key(0))
    step = jax.eval_shape(simulator.step, start, jnp.zeros(simulator.action_size))
    again = jax.eval_shape(simulator.restart, step, jax.random.key(0))
    aimed = jax.eval_shape(simulator.aim, step, step.goal)
    for other in (step, again, aimed):
        assert jax.tree.map(kind, other) == jax.tree.map(kind, start)
    assert start.observation.shape == (simulator.observation_size,)
    assert start.goal.shape == start.achieved_goal.shape == (simulator.spec.goal_size,)


def test_goals_and_starts_are_drawn_afresh_at_every_reset():
    """Brax's own wrapper keeps the first goal for the whole run."""
    _, t = play(line(), length=1, steps=40)
    assert len(np.unique(t.goal)) == t.goal.size
    assert len(np.unique(t.achieved_goal)) == t.achieved_goal.size


def test_success_ends_the_episode_and_is_no_truncation():
    _, t = play(line(), length=50, steps=30)
    assert t.success.any()
    np.testing.assert_array_equal(t.terminated, t.success)
    assert not t.truncated.any()
    reached = np.abs(t.next_achieved_goal - t.goal)[..., 0]
    np.testing.assert_array_equal(reached < SPEC.threshold, t.success)
    np.testing.assert_array_equal(t.reward, t.success - 1.0)


def test_held_goals_go_on_until_the_time_limit():
    _, t = play(line(on_success="hold"), length=8, steps=16)
    assert not t.terminated.any()
    assert t.truncated[[7, 15]].all()
    assert t.truncated.sum() == 2 * 6
    assert t.success[7].all()
    assert (t.goal[:8] == t.goal[:1]).all()
    assert (t.outcome.goals_reached[7] == t.success[:8].sum(0)).all()
    first = t.success[:8].argmax(0) + 1
    np.testing.assert_array_equal(t.outcome.steps_to_success[7], first)


def test_a_held_goal_counts_when_it_is_held_to_the_end():
    """Not when it is passed, be it at the last step, nor when a fall follows."""

    def success(action, steps, falls_at=1e9):
        simulator = line(on_success="hold", reach=(1.0, 1.0), threshold=0.45, falls_at=falls_at)
        _, t = play(simulator, length=steps, steps=steps, action=action, seed=1)
        return t.outcome.success[-1], t.success.any(0), t.success[-1]

    counted, touched, _ = success(None, 12)
    assert counted.all()
    assert touched.all()
    for steps in (2, 4):  # moves on by 0.3 a step: three or four steps within the goal at most
        for action in (0.3, -0.3):
            counted, touched, last = success(action, steps)
            assert not counted.any()
    assert last.any()  # some of them end on the goal
    assert not success(0.3, 12, falls_at=2.0)[0].any()


def test_of_redrawn_goals_the_share_that_was_reached_counts():
    _, t = play(line(on_success="redraw"), length=1000, steps=60)
    reached = t.outcome.goals_reached
    np.testing.assert_allclose(t.outcome.success, reached / (reached + 1.0), rtol=1e-6)


def test_a_reached_goal_is_redrawn_and_the_successor_sees_the_new_one():
    _, t = play(line(on_success="redraw"), length=1000, steps=60)
    assert not t.episode_end.any()
    assert t.success.sum() > 30
    changed = (t.goal[1:] != t.goal[:-1])[..., 0]
    np.testing.assert_array_equal(changed, t.success[:-1])
    np.testing.assert_array_equal(t.next_observation[:-1], t.observation[1:])
    assert len(np.unique(t.goal)) == t.success[:-1].sum() + 6  # every one of them is fresh


def test_the_successor_of_an_end_belongs_to_the_old_goal():
    _, t = play(line(), length=50, steps=30)
    old = t.goal - t.next_achieved_goal
    np.testing.assert_allclose(t.next_observation[..., 1:], old, rtol=1e-6)
    np.testing.assert_array_equal(t.next_features, t.next_achieved_goal)


def test_a_fall_is_never_a_success():
    """The point falls exactly where the goal is."""
    simulator = line(falls_at=1.5, reach=(0.0, 0.01), reward="dense", threshold=5.0)
    _, t = play(simulator, length=50, steps=20, action=2.0)
    assert t.terminated.all()
    assert not t.success.any()
    np.testing.assert_allclose(t.reward, -10.0 - 0.1 * t.outcome.distance, rtol=1e-5)
    paid = dataclasses.replace(simulator, spec=simulator.spec.charged(0.9))
    _, t = play(paid, length=50, steps=20, action=2.0)  # 9 steps of lying there, discounted
    np.testing.assert_allclose(t.reward, -10.0 - 10 * 0.1 * t.outcome.distance, rtol=1e-5)


@pytest.mark.parametrize(
    ("reward", "expected"),
    # One step of 0.5 towards a goal 0.7 away: 0.2 is left, which is inside 0.3.
    [("sparse", 0.0), ("dense", 10 - 0.1 * 0.2), ("difference", 10 + 0.7 - 0.2)],
)
def test_rewards_by_hand(reward, expected):
    spec = dataclasses.replace(SPEC, reward=reward)
    at = jnp.array([[0.0], [0.5], [0.7]])
    fell = jnp.array(False)
    value, success = spec.judge(at[0], at[1], at[2], fell)
    assert success
    assert float(value) == pytest.approx(expected, rel=1e-6)
    value, success = spec.judge(at[0], at[1], at[2], fell, 0.1)
    assert not success
    missed = {"sparse": -1.0, "dense": -0.02, "difference": 0.5}[reward]
    assert float(value) == pytest.approx(missed, rel=1e-5)


def test_difficulty_outlives_the_episode():
    """A curriculum sets it between iterations; resets keep it, one environment apart."""
    env = VectorEnv(line(), 1)
    state = env.reset(jax.random.split(jax.random.key(0), 4))
    physics = state.simulator.physics
    reach = jnp.array([[5.0, 6.0]] * 3 + [[7.0, 8.0]])
    harder = physics.difficulty.replace(reach=reach, threshold=jnp.full(4, 0.01))
    state = state.replace(
        simulator=state.simulator.replace(physics=physics.replace(difficulty=harder))
    )
    for _ in range(3):
        state, _ = env.step(state, jnp.zeros((4, 1)))
        away = np.abs(state.simulator.goal - state.simulator.achieved_goal)[:, 0]
        assert ((away > [5, 5, 5, 7]) & (away < [6, 6, 6, 8])).all()
    np.testing.assert_allclose(state.simulator.physics.difficulty.threshold, 0.01)


def test_aim_gives_a_running_episode_another_goal():
    simulator = line(on_success="hold")
    state = simulator.step(simulator.reset(jax.random.key(0)), jnp.array([0.5]))
    aimed = simulator.aim(state, jnp.array([9.0]))
    assert float(aimed.goal[0]) == 9.0
    np.testing.assert_allclose(aimed.observation[1:], 9.0 - state.achieved_goal)
    after = simulator.step(aimed, jnp.array([0.5]))
    np.testing.assert_allclose(after.outcome.distance, 9.0 - float(after.achieved_goal[0]))
    assert int(after.physics.elapsed) == 2


def test_an_explosion_leaves_no_number_that_is_not_finite():
    body = ProbeSimulator(
        "explodes", 1, lambda key: jnp.zeros(1), lambda o, a: (o * jnp.nan, o[0], False)
    )
    simulator = GoalSimulator("explodes", body, lambda state: state.observation, SPEC)
    _, t = play(simulator, length=5, steps=4, action=0.0)
    assert t.terminated.all()
    assert not t.success.any()
    for leaf in jax.tree.leaves(t):
        assert np.isfinite(leaf).all()


def test_what_the_ant_sees_does_not_depend_on_where_it_stands_or_faces():
    simulator = goal_simulator("ant_goal")
    state = jax.eval_shape(simulator.reset, jax.random.key(0))
    body = jax.random.normal(jax.random.key(1), (state.features.shape[0] - 4,))

    def seen(angle, place):
        turn = jnp.array([[jnp.cos(angle), -jnp.sin(angle)], [jnp.sin(angle), jnp.cos(angle)]])
        features = jnp.concatenate([place, turn[:, 0], body])
        return ant_goal.see(features, place + turn @ jnp.array([3.0, 1.0]))

    here = seen(0.3, jnp.array([1.0, 2.0]))
    there = seen(2.5, jnp.array([-7.0, 4.0]))
    np.testing.assert_allclose(here, there, atol=1e-5)
    assert float(here[-2]) == pytest.approx(3 / np.sqrt(10), rel=1e-4)
    assert float(here[-1]) == pytest.approx(1 / np.sqrt(10), rel=1e-4)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"threshold": 0.0}, r"threshold \(0.0\) must be a positive, finite number"),
        ({"reach": (0.1, 0.5)}, r"reach \(0.1, 0.5\) must lie in the workspace: 0 <= low <= high"),
        ({"reach": (0.2, 0.1)}, r"reach \(0.2, 0.1\) must lie in the workspace"),
        ({"reward": "shaped"}, r"reward \(shaped\) must be one of sparse, dense, difference"),
        ({"fall_cost": -1.0}, r"fall_cost \(-1.0\) must be finite and at least 0"),
        ({"on_success": "stop"}, r"on_success \(stop\) must be one of end, hold, redraw"),
        ({"name": "juggle"}, r"task \(juggle\) must be one of ant_goal, halfcheetah_velocity"),
    ],
)
def test_a_goal_space_that_cannot_be_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        goal_simulator(**({"name": "reacher_goal"} | changes))
