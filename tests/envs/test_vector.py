"""The batch of environments: ends, successors, fresh starts, statistics, layout."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from envs.probe import PROBES, ProbeSimulator, two_step_discount
from envs.vector import VectorEnv
from jaxagent.types import Env, Simulator


def counter(limit: float = 1e9) -> ProbeSimulator:
    """Counts steps from a start in [0, 1); terminates above `limit`; the reward is the action."""

    def advance(observation, action):
        after = observation + 1.0
        return after, action, after[0] > limit

    return ProbeSimulator("counter", 1, lambda key: jax.random.uniform(key, (1,)), advance)


def play(env: VectorEnv, count: int, steps: int, seed: int = 0):
    state = env.reset(jax.random.split(jax.random.key(seed), count))
    first = state.simulator.observation

    def advance(state, time):
        before = state.simulator.observation
        state, step = env.step(state, jnp.full((count, 1), 0.5))
        return state, (before, state.simulator.observation, step)

    state, out = jax.lax.scan(advance, state, jnp.arange(steps))
    return first, *jax.tree.map(np.asarray, out)


@pytest.mark.parametrize("name", PROBES)
def test_probes_obey_the_protocols(name):
    simulator = PROBES[name]()
    assert isinstance(simulator, Simulator)
    assert isinstance(VectorEnv(simulator), Env)
    state = simulator.reset(jax.random.key(0))
    after = jax.eval_shape(simulator.step, state, jnp.zeros(1))
    assert jax.tree.map(lambda x: (x.shape, x.dtype), after) == jax.tree.map(
        lambda x: (x.shape, x.dtype), state
    )
    assert state.observation.shape == (simulator.observation_size,)


def test_time_limit_truncates_and_does_not_terminate():
    _, _, _, step = play(VectorEnv(counter(), episode_length=4), 3, 9)
    expected = np.zeros(9, bool)
    expected[[3, 7]] = True
    np.testing.assert_array_equal(step.truncated, np.repeat(expected[:, None], 3, 1))
    assert not step.terminated.any()


def test_an_end_on_the_time_limit_is_a_termination():
    _, _, _, step = play(VectorEnv(two_step_discount(), episode_length=2), 2, 4)
    np.testing.assert_array_equal(step.terminated[:, 0], [False, True, False, True])
    assert not step.truncated.any()


def test_the_successor_is_the_true_one_and_the_next_start_is_not():
    _, before, after, step = play(VectorEnv(counter(), episode_length=3), 5, 3)
    np.testing.assert_allclose(step.next_observation, before + 1.0, rtol=1e-6)
    assert step.next_observation[2].min() >= 3.0
    assert after[2].max() < 1.0  # a start


def test_every_reset_draws_a_fresh_start():
    """Brax's own wrapper restores the first state for the whole run."""
    first, _, after, _ = play(VectorEnv(counter(), episode_length=1), 4, 50)
    starts = np.concatenate([np.asarray(first)[None], after])[..., 0]  # [51, 4]
    assert len(np.unique(starts)) == starts.size


def test_more_ends_at_once_than_one_pass_of_resets_holds():
    count = 40  # a pass draws count // 16 -> 4 starts
    _, _, after, step = play(VectorEnv(counter(), episode_length=2), count, 2)
    assert step.truncated[1].all()
    assert (after[1] < 1.0).all()
    assert len(np.unique(after[1])) == count


def test_running_environments_keep_their_state_when_others_end():
    simulator = ProbeSimulator(
        "some_end",
        2,
        lambda key: jnp.stack([jax.random.uniform(key), jax.random.uniform(key) * 3]),
        lambda o, a: (o + 1.0, a, o[1] + 1.0 > 3.0),
    )
    _, before, after, step = play(VectorEnv(simulator), 16, 1)
    running = ~step.terminated[0]
    assert running.any()
    assert not running.all()
    np.testing.assert_array_equal(after[0][running], before[0][running] + 1.0)


def test_statistics_cover_one_episode():
    _, _, _, step = play(VectorEnv(counter(), episode_length=3), 2, 7)
    np.testing.assert_allclose(step.episode_return[:, 0], [0.5, 1, 1.5, 0.5, 1, 1.5, 0.5])
    np.testing.assert_array_equal(step.episode_length[:, 0], [1, 2, 3, 1, 2, 3, 1])


def test_chunks_change_nothing():
    whole = play(VectorEnv(counter(), 3), 12, 8)
    chunked = play(VectorEnv(counter(), 3, chunk_size=4), 12, 8)
    jax.tree.map(np.testing.assert_array_equal, whole, chunked)


def test_an_explosion_terminates_and_stays_contained():
    simulator = ProbeSimulator(
        "explodes",
        1,
        lambda key: jnp.zeros(1),
        lambda o, a: (
            jnp.where(o + 1 > 2, jnp.nan, o + 1),
            jnp.where(o[0] > 1, jnp.inf, 1.0),
            False,
        ),
    )
    _, _, after, step = play(VectorEnv(simulator), 2, 7)
    np.testing.assert_array_equal(step.terminated[:, 0], [0, 0, 1, 0, 0, 1, 0])
    for array in (step.reward, step.next_observation, after, step.episode_return):
        assert np.isfinite(array).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"episode_length": 0}, r"episode_length \(0\) must be at least 1"),
        ({"chunk_size": 0}, r"chunk_size \(0\) must be at least 1"),
    ],
)
def test_wrong_sizes_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        VectorEnv(counter(), **options)


def test_a_batch_that_chunks_do_not_divide_is_refused():
    env = VectorEnv(counter(), chunk_size=4)
    state = env.reset(jax.random.split(jax.random.key(0), 6))
    with pytest.raises(ValueError, match=r"\(6\) must be a multiple of chunk_size \(4\)"):
        env.step(state, jnp.zeros((6, 1)))
