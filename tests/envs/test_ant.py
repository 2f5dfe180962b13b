"""The Ant's tasks and the Brax adapter."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from envs.ant import ReachPoint, ant
from envs.brax_env import BACKENDS, BraxSimulator
from envs.probe import ProbeSimulator
from envs.skeleton import skeleton
from envs.vector import VectorEnv
from jaxagent.types import Simulator


def walker(terminates_at: float = 1e9) -> ProbeSimulator:
    """Moves half a metre along x at every step; falls at `terminates_at`."""
    return ProbeSimulator(
        "walker",
        1,
        lambda key: jnp.zeros(1),
        lambda o, a: (o + 0.5, jnp.full((), 7.0), o[0] + 0.5 >= terminates_at),
    )


def walk(task: ReachPoint, steps: int):
    state = task.reset(jax.random.key(0))
    rows = []
    for _ in range(steps):
        state = task.step(state, jnp.zeros(1))
        rows.append((float(state.reward), bool(state.terminated), bool(state.success)))
    return state, rows


def test_arrival_pays_once_ends_the_episode_and_is_a_success():
    task = ReachPoint(walker(), target=(2.0, 0.0), radius=1.0, scale=10.0)
    _, rows = walk(task, 3)  # at 0.5, 1.0 (on the rim: not inside), 1.5
    assert rows == [(0.0, False, False), (0.0, False, False), (1.0, True, True)]


def test_a_fall_ends_with_nothing():
    _, rows = walk(ReachPoint(walker(terminates_at=1.5), target=(2.0, 0.0)), 3)
    assert rows[2] == (0.0, True, False)


def test_the_way_to_the_point_is_observed():
    task = ReachPoint(walker(), target=(2.0, -3.0), scale=10.0)
    state, _ = walk(task, 1)
    np.testing.assert_allclose(state.observation, [0.5, 0.15, -0.3], rtol=1e-6)
    assert task.observation_size == 3


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ant("fly"), r"task \(fly\) must be one of run, corner"),
        (lambda: ant("run", "warp"), r"backend \(warp\) must be one of spring"),
        (lambda: BraxSimulator("spider"), r"environment \(spider\) must be one of ant"),
    ],
)
def test_unknown_names_are_refused_with_those_known(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_brax_keeps_types_separates_ends_and_starts_afresh():
    """On the smallest Brax graph; every backend goes through the same code."""
    simulator = BraxSimulator("inverted_pendulum", "generalized")
    assert isinstance(simulator, Simulator)
    env = VectorEnv(simulator, episode_length=40)
    state = jax.jit(env.reset)(jax.random.split(jax.random.key(0), 8))

    @jax.jit
    def run(state):
        def advance(state, time):
            state, step = env.step(state, jnp.ones((8, 1)))
            return state, (step.terminated, step.truncated, state.simulator.observation, step)

        return jax.lax.scan(advance, state, jnp.arange(60))

    after, (terminated, truncated, observation, step) = run(state)

    def kind(x):
        return x.dtype, getattr(x, "weak_type", False)

    types = jax.tree.map(kind, after)
    assert types == jax.tree.map(kind, state)
    assert terminated.any()  # pushed over
    assert not (terminated & truncated).any()
    fallen = np.asarray(step.next_observation)[np.asarray(terminated)]
    assert (np.abs(fallen[:, 1]) > 0.2).all()  # the true successor is the fallen pole
    starts = np.asarray(observation)[np.asarray(terminated)]
    assert len(np.unique(starts, axis=0)) == len(starts) > 8
    assert (np.abs(starts) <= 0.011).all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_ant_loads_on_every_backend(backend):
    simulator = ant("corner", backend)
    state = jax.eval_shape(simulator.reset, jax.random.key(0))
    assert state.observation.shape == (simulator.observation_size,) == (29,)
    after = jax.eval_shape(simulator.step, state, jnp.zeros(simulator.action_size))
    assert jax.tree.map(lambda x: (x.shape, x.dtype), after) == jax.tree.map(
        lambda x: (x.shape, x.dtype), state
    )


def test_the_skeleton_follows_the_pose():
    simulator = BraxSimulator("ant")
    pose = np.tile(np.asarray(simulator.brax.sys.init_q), (2, 1))
    pose[1, 0] += 3.0  # the torso moves along x
    drawn = skeleton(simulator, pose)
    moved = drawn.segments[1] - drawn.segments[0]
    np.testing.assert_allclose(moved[..., 0], 3.0, atol=1e-5)
    np.testing.assert_allclose(moved[..., 1:], 0.0, atol=1e-5)
    assert drawn.segments.shape == (2, len(drawn.radius), 2, 3)
