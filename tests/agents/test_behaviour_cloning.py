"""A policy that is learnt from what another one did."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from envs.vector import VectorEnv
from jaxagent.agents.behaviour_cloning import (
    CloningConfig,
    Demonstrations,
    clone_behaviour,
    undo_tanh,
)
from jaxagent.agents.ppo import PPO, PPOConfig
from tests.agents.plane import point_task, straight

QUICK = CloningConfig(cloning_steps=400, cloning_batch_size=64, cloning_learning_rate=3e-3)


@pytest.fixture(scope="module")
def agent() -> PPO:
    config = PPOConfig(policy_hidden_sizes=(32, 32), critic_hidden_sizes=(8,))
    return PPO(config, observation_size=4, action_size=2, num_updates=1)


@pytest.fixture(scope="module")
def demonstrations() -> Demonstrations:
    """A walker that goes straight to its goal, seen from many places."""
    place, way = jax.random.uniform(jax.random.key(5), (2, 2000, 2), minval=-3.0, maxval=3.0)
    observation = jnp.concatenate([place, way], axis=-1)
    action = jnp.clip(straight(observation, None), -0.98, 0.98)
    return Demonstrations(observation, action, jnp.arctanh(action))


def clone(agent, demonstrations, config, state=None):
    state = state or agent.init(jax.random.key(0))
    run = jax.jit(functools.partial(clone_behaviour, agent, config=config))
    return state, *run(state, demonstrations, key=jax.random.key(1))


@pytest.fixture(scope="module")
def cloned(agent, demonstrations):
    return clone(agent, demonstrations, QUICK)


def test_the_clone_does_what_it_saw(agent, cloned):
    _, state, metrics = cloned
    assert metrics["cloning_loss_after"] < 0.1 * metrics["cloning_loss_before"]
    env = VectorEnv(point_task("end"), episode_length=40)

    @jax.jit
    def play(state):
        def advance(env_state, _):
            loc, _ = agent.distribution(state, env_state.simulator.observation)
            env_state, step = env.step(env_state, jnp.tanh(loc))
            return env_state, (step.success, step.terminated | step.truncated)

        start = env.reset(jax.random.split(jax.random.key(2), 32))
        success, ended = jax.lax.scan(advance, start, None, 80)[1]
        return success.sum() / ended.sum()

    assert play(state) > 0.95
    assert play(agent.init(jax.random.key(0))) < 0.3


def test_nothing_but_the_policy_and_the_statistics_changes(cloned, demonstrations):
    before, after, _ = cloned
    for name in ("critic_params", "policy_optimiser", "critic_optimiser", "nonfinite_updates"):
        jax.tree.map(np.testing.assert_array_equal, getattr(before, name), getattr(after, name))
    np.testing.assert_allclose(after.normaliser.mean, demonstrations.observation.mean(0), atol=1e-4)
    # The squared error says nothing about exploration.
    log_scale = [s.policy_params["params"]["log_scale"] for s in (before, after)]
    np.testing.assert_array_equal(*log_scale)


def test_likelihood_learns_the_spread_of_the_demonstrator(agent):
    """Actions around tanh(observation) with a standard deviation of 0.2 before tanh."""
    keys = jax.random.split(jax.random.key(3))
    observation = jax.random.normal(keys[0], (4000, 4))
    pre_tanh = 0.5 * observation[:, :2] + 0.2 * jax.random.normal(keys[1], (4000, 2))
    seen = Demonstrations(observation, jnp.tanh(pre_tanh), pre_tanh)
    config = CloningConfig(
        cloning_steps=600, cloning_batch_size=128, cloning_learning_rate=1e-2,
        cloning_loss="likelihood",
    )  # fmt: skip
    _, state, _ = clone(agent, seen, config)
    loc, scale = agent.distribution(state, observation)
    np.testing.assert_allclose(scale[0], 0.2, atol=0.03)
    assert jnp.sqrt(((loc - 0.5 * observation[:, :2]) ** 2).mean()) < 0.1


def test_what_is_held_out_is_not_trained_on(agent, demonstrations):
    """Nonsense in the last tenth changes the reported loss and nothing else."""
    nonsense = demonstrations.action.at[-200:].add(1.0)
    quick = CloningConfig(cloning_steps=20, cloning_batch_size=64)
    _, clean, said = clone(agent, demonstrations, quick)
    _, other, told = clone(agent, demonstrations._replace(action=nonsense), quick)
    jax.tree.map(np.testing.assert_array_equal, clean.policy_params, other.policy_params)
    assert abs(said["cloning_loss_after"] - told["cloning_loss_after"]) > 0.1


@pytest.mark.parametrize("edge", [1.0, -1.0, 1.0 + 1e-7])
@pytest.mark.parametrize("kind", ["arctanh", "huge", "NaN"])
def test_actions_at_the_bounds_leave_loss_and_policy_finite(agent, demonstrations, edge, kind):
    """Recordings of others hold ±1, of which arctanh is infinite, or NaN just beyond."""
    action = np.asarray(demonstrations.action).copy()
    action[::7, 0] = edge
    with np.errstate(divide="ignore", invalid="ignore"):
        pre_tanh = {
            "arctanh": np.arctanh(action),
            "huge": np.where(np.abs(action) >= 1, 1e30 * np.sign(action), np.arctanh(action)),
            "NaN": np.where(np.abs(action) >= 1, np.nan, np.arctanh(action)),
        }[kind].astype(np.float32)
    seen = Demonstrations(np.asarray(demonstrations.observation), action, pre_tanh)
    config = CloningConfig(
        cloning_steps=200, cloning_batch_size=64, cloning_learning_rate=1e-2,
        cloning_loss="likelihood",
    )  # fmt: skip
    state, metrics = clone_behaviour(
        agent, agent.init(jax.random.key(0)), seen, config, jax.random.key(1)
    )
    assert metrics["cloning_loss_after"] < metrics["cloning_loss_before"]
    assert all(np.isfinite(x).all() for x in jax.tree.leaves((state, metrics)))
    edges = jnp.asarray(seen.observation[::7])
    assert (edge * jnp.tanh(agent.distribution(state, edges)[0][:, 0])).mean() > 0.5


def test_undoing_tanh_is_arctanh_inside_and_finite_at_the_edge():
    inside = jnp.linspace(-0.999, 0.999, 41)
    np.testing.assert_allclose(jnp.tanh(undo_tanh(inside)), inside, atol=1e-6)
    at = undo_tanh(jnp.array([1.0, -1.0, 1.5, -1.5, jnp.nan]))
    np.testing.assert_allclose(at[:4], [7.25, -7.25, 7.25, -7.25], atol=0.1)
    assert jnp.isnan(at[4])  # what was never a number is not made one
    slope = jax.vmap(jax.grad(undo_tanh))(jnp.array([0.0, 1.0, -1.5]))
    assert jnp.isfinite(slope).all()
    assert slope[0] == 1.0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"cloning_steps": 0}, r"cloning_steps \(0\) must be at least 1"),
        ({"cloning_learning_rate": 0.0}, r"cloning_learning_rate \(0.0\) must be a positive"),
        ({"cloning_loss": "mse"}, r"cloning_loss \(mse\) must be one of squared_error, lik"),
    ],
)
def test_mistakes_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        CloningConfig(**changes)
