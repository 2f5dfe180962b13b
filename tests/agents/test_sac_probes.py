"""Soft actor-critic on environments that isolate one fault each, as PPO in `test_ppo`.

The temperature is all but 0, so that values are those of the reward alone; experience is fresh.
"""

import jax
import jax.numpy as jnp
import pytest

from envs.probe import PROBES
from envs.vector import VectorEnv
from jaxagent.agents.hindsight import SoftBatch
from jaxagent.agents.sac_config import SACConfig
from jaxagent.agents.sac_her import SACHER
from jaxagent.rollout import collect
from tests.envs.test_goals import line

COUNT, LENGTH, UPDATES, GROUPS = 32, 8, 8, 2


def told(observation):
    """With a goal that says nothing, which the networks expect last."""
    return jnp.concatenate([observation, jnp.zeros((*observation.shape[:-1], 1))], axis=-1)


def transitions(trajectory, discount_factor) -> SoftBatch:
    """Every step once, as the updates take them."""
    batch = SoftBatch(
        observation=told(trajectory.observation),
        action=trajectory.action,
        reward=trajectory.reward,
        discount=discount_factor * (1.0 - trajectory.terminated),
        next_observation=told(trajectory.next_observation),
        is_relabelled=jnp.zeros(trajectory.reward.shape, bool),
    )
    return jax.tree.map(lambda x: x.reshape((UPDATES, GROUPS, -1) + x.shape[2:]), batch)


def train(name, iterations, episode_length=1000, **options):
    env = VectorEnv(PROBES[name](), episode_length=episode_length)
    config = SACConfig(
        **{
            "policy_hidden_sizes": (32,), "critic_hidden_sizes": (32,), "polyak_rate": 0.05,
            "initial_temperature": 1e-4, "temperature_learning_rate": 0.0, "sample_groups": GROUPS,
            "normalise_observations": False, "actor_learning_rate": 3e-3,
            "critic_learning_rate": 3e-3,
        } | options
    )  # fmt: skip
    agent = SACHER(
        config,
        line().spec,  # of one goal feature; its rewards are not looked at
        observation_size=env.observation_size + 1,
        action_size=1,
        encoder_sizes=(16,),
    )
    start_key, env_key, run_key = jax.random.split(jax.random.key(0), 3)

    def iterate(carry, number):
        state, env_state = carry
        act_key, update_key = jax.random.split(jax.random.fold_in(run_key, number))
        env_state, trajectory = collect(
            env, lambda observation, keys: agent.act(state, told(observation), keys), env_state,
            jax.random.split(act_key, COUNT), LENGTH,
        )  # fmt: skip
        batch = transitions(trajectory, config.discount_factor)
        state, _ = agent.update(state, batch, jax.random.split(update_key, GROUPS))
        return (state, env_state), None

    @jax.jit
    def run():
        start = agent.init(start_key), env.reset(jax.random.split(env_key, COUNT))
        return jax.lax.scan(iterate, start, jnp.arange(iterations))[0][0]

    return agent, run()


def action(agent, state, observation) -> float:
    return float(jnp.tanh(agent.distribution(state, told(jnp.array([observation])))[0][0, 0]))


def value(agent, state, observation) -> float:
    """Of the least critic at the policy's own action."""
    seen = told(jnp.array([observation]))
    chosen = jnp.tanh(agent.distribution(state, seen)[0])
    return float(agent.critics.apply(state.critic_params, seen, chosen).min())


def test_constant_reward_is_valued():
    assert value(*train("constant_reward", 60), [0.0]) == pytest.approx(1.0, abs=0.05)


def test_value_depends_on_the_observation():
    learnt = train("observation_reward", 80)
    assert value(*learnt, [1.0]) == pytest.approx(1.0, abs=0.1)
    assert value(*learnt, [-1.0]) == pytest.approx(-1.0, abs=0.1)


def test_the_discount_reaches_one_step_back():
    learnt = train("two_step_discount", 120, discount_factor=0.5)
    assert value(*learnt, [1.0]) == pytest.approx(1.0, abs=0.06)
    assert value(*learnt, [0.0]) == pytest.approx(0.5, abs=0.06)


def test_the_policy_finds_the_best_action():
    assert action(*train("action_reward", 150), [0.0]) == pytest.approx(0.5, abs=0.1)


def test_the_policy_depends_on_the_observation():
    learnt = train("goal_reach", 150, episode_length=20, discount_factor=0.9)
    assert action(*learnt, [-0.5, 1.0]) > 0.3
    assert action(*learnt, [0.5, -1.0]) < -0.3


@pytest.mark.parametrize("limit", [1, 3])
def test_a_time_limit_is_bootstrapped(limit):
    """Without it Q would be 1 (limit 1) or at most 2.2 (limit 3) instead of 1 / (1 − γ)."""
    learnt = train("truncation_bootstrap", 150, episode_length=limit, discount_factor=0.75)
    assert value(*learnt, [0.0]) == pytest.approx(4.0, rel=0.1)


def test_entropy_is_worth_the_temperature_in_value_and_policy():
    """One more step at temperature 0.5: the value of the first holds the entropy of the second.

    An observation that pays nothing leaves the policy as wide as it likes: V(0) counts its
    entropy, and a policy without a reason to choose is near the uniform one, whose entropy is
    log 2 nats.
    """
    agent, state = train(
        "two_step_discount", 150, discount_factor=0.5, initial_temperature=0.5,
        actor_learning_rate=1e-2,
    )  # fmt: skip
    loc, scale = agent.distribution(state, told(jnp.array([[1.0], [0.0]])))
    assert jnp.abs(loc).max() < 0.5
    assert 0.6 < scale.min() <= scale.max() < 1.3
    # Q(0) = γ [Q(1) + α H], Q(1) = 1, H = log 2 at best
    assert value(agent, state, [0.0]) == pytest.approx(0.5 * (1.0 + 0.5 * 0.69), abs=0.06)
