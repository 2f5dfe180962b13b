"""PPO on environments that isolate one fault each, and its parts."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec

from envs.probe import PROBES
from envs.vector import VectorEnv
from jaxagent.agents.ppo import PPO, PPOConfig
from jaxagent.losses import gae, tanh_normal_log_prob
from jaxagent.rollout import collect

SMALL = {
    "policy_hidden_sizes": (32,),
    "critic_hidden_sizes": (32,),
    "num_minibatches": 2,
    "shuffle_groups": 2,
    "learning_rate_schedule": "constant",
    "reward_scale": 1.0,
    "policy_learning_rate": 3e-3,
    "critic_learning_rate": 3e-3,
    "normalise_observations": False,
}


def agent_for(env: VectorEnv, num_updates: int = 100, axis_name=None, **options) -> PPO:
    return PPO(
        PPOConfig(**SMALL | options),
        observation_size=env.observation_size,
        action_size=env.action_size,
        num_updates=num_updates,
        axis_name=axis_name,
    )


def train(
    env: VectorEnv, iterations: int, count: int = 32, length: int = 8, seed: int = 0, **options
):
    agent = agent_for(env, iterations, **options)
    keys = jax.random.split(jax.random.key(seed + 1), count)

    def iterate(carry, number):
        state, env_state = carry
        act = jax.vmap(jax.random.fold_in, in_axes=(0, None))(keys, number)
        env_state, trajectory = collect(
            env, functools.partial(agent.act, state), env_state, act, length
        )
        state, metrics = agent.update(
            state, trajectory, trajectory.reward, jax.random.fold_in(keys[0], number)
        )
        return (state, env_state), metrics

    @jax.jit
    def run():
        start = (agent.init(jax.random.key(seed)), env.reset(keys))
        return jax.lax.scan(iterate, start, jnp.arange(iterations))

    (state, _), metrics = run()
    return agent, state, metrics


def value(agent: PPO, state, observation) -> float:
    seen = agent._see(state, jnp.asarray([observation], jnp.float32))
    return float(agent.critic.apply(state.critic_params, seen)[0])


def action(agent: PPO, state, observation) -> float:
    loc, _ = agent.distribution(state, jnp.asarray([observation], jnp.float32))
    return float(jnp.tanh(loc[0, 0]))


def test_constant_reward_is_valued():
    agent, state, _ = train(VectorEnv(PROBES["constant_reward"]()), 60)
    assert value(agent, state, [0.0]) == pytest.approx(1.0, abs=0.05)


def test_value_depends_on_the_observation():
    agent, state, _ = train(VectorEnv(PROBES["observation_reward"]()), 80)
    assert value(agent, state, [1.0]) == pytest.approx(1.0, abs=0.1)
    assert value(agent, state, [-1.0]) == pytest.approx(-1.0, abs=0.1)


def test_the_discount_reaches_one_step_back():
    agent, state, _ = train(VectorEnv(PROBES["two_step_discount"]()), 120, discount_factor=0.5)
    assert value(agent, state, [1.0]) == pytest.approx(1.0, abs=0.06)
    assert value(agent, state, [0.0]) == pytest.approx(0.5, abs=0.06)


def test_the_policy_finds_the_best_action():
    agent, state, _ = train(VectorEnv(PROBES["action_reward"]()), 150, policy_learning_rate=1e-2)
    assert action(agent, state, [0.0]) == pytest.approx(0.5, abs=0.1)


def test_the_policy_depends_on_the_observation():
    agent, state, _ = train(VectorEnv(PROBES["goal_reach"](), episode_length=20), 150)
    assert action(agent, state, [-0.5, 1.0]) > 0.3
    assert action(agent, state, [0.5, -1.0]) < -0.3


@pytest.mark.parametrize("limit", [1, 3])
def test_a_time_limit_is_bootstrapped(limit):
    """Without it V would be 1 (limit 1) or at most 2.2 (limit 3) instead of 1 / (1 − γ)."""
    env = VectorEnv(PROBES["truncation_bootstrap"](), episode_length=limit)
    agent, state, _ = train(
        env, 250, discount_factor=0.75, gae_lambda=0.9, critic_learning_rate=1e-2
    )
    assert value(agent, state, [0.0]) == pytest.approx(4.0, rel=0.1)


@pytest.fixture(scope="module")
def batch():
    """One batch of the goal probe, with cuts inside, and the agent that made it."""
    env = VectorEnv(PROBES["goal_reach"](), episode_length=5)
    agent = agent_for(env)
    state = agent.init(jax.random.key(3))
    keys = jax.random.split(jax.random.key(4), 8)
    _, trajectory = collect(env, functools.partial(agent.act, state), env.reset(keys), keys, 12)
    return agent, state, trajectory


def test_advantages_use_the_true_successor_of_every_step(batch):
    """Against V evaluated on every recorded successor, the expensive way."""
    agent, state, trajectory = batch
    assert trajectory.truncated.any()
    critic = functools.partial(agent.critic.apply, state.critic_params)
    samples, _ = agent._prepare(state, trajectory, trajectory.reward)
    value, successor = critic(trajectory.observation), critic(trajectory.next_observation)
    advantage = gae(
        trajectory.reward,
        agent.config.discount_factor * (1.0 - trajectory.terminated),
        value,
        successor,
        trajectory.episode_end,
        gae_lambda=agent.config.gae_lambda,
    )
    np.testing.assert_allclose(samples.value_target, advantage + value, atol=1e-5)
    np.testing.assert_allclose(
        samples.advantage, (advantage - advantage.mean()) / advantage.std(), atol=1e-4
    )


def test_the_recorded_log_probability_is_that_of_the_recorded_action(batch):
    agent, state, trajectory = batch
    loc, scale = agent.distribution(state, trajectory.observation)
    again = tanh_normal_log_prob(trajectory.pre_tanh, loc, scale)
    np.testing.assert_allclose(again, trajectory.behaviour_log_prob, atol=1e-5)
    np.testing.assert_allclose(jnp.tanh(trajectory.pre_tanh), trajectory.action, atol=1e-6)


def test_the_first_gradient_step_has_ratio_one(batch):
    """Observation statistics must not move between acting and learning."""
    agent, state, trajectory = batch
    config = PPOConfig(
        **SMALL | {"num_epochs": 1, "num_minibatches": 1, "normalise_observations": True}
    )
    agent = PPO(config, observation_size=2, action_size=1, num_updates=1)
    later, metrics = agent.update(state, trajectory, trajectory.reward, jax.random.key(0))
    assert float(metrics["clip_fraction"]) == 0.0
    assert abs(float(metrics["kl"])) < 1e-6
    assert float(later.normaliser.count) == trajectory.reward.size


def test_gradients_are_clipped_by_their_global_norm():
    """Clipping by element would change the direction."""
    optimiser = agent_for(VectorEnv(PROBES["goal_reach"]()), max_gradient_norm=1.0).policy_optimiser
    params = {"a": jnp.zeros(2), "b": jnp.zeros(1)}
    grads = {"a": jnp.array([30.0, 40.0]), "b": jnp.array([0.0])}
    # Adam's first step is sign-like; its first moment, 0.1 of the gradient, tells what reached it.
    _, state = optimiser.update(grads, optimiser.init(params), params)
    moments = next(
        s for s in jax.tree.leaves(state, is_leaf=lambda x: hasattr(x, "mu")) if hasattr(s, "mu")
    )
    np.testing.assert_allclose(moments.mu["a"], [0.06, 0.08], rtol=1e-5)


def test_a_non_finite_update_is_dropped_and_counted(batch):
    agent, state, trajectory = batch
    bad = trajectory.reward.at[3, 2].set(jnp.nan)
    update = jax.jit(agent.update)
    once, metrics = update(state, trajectory, bad, jax.random.key(0))
    for name in ("policy_params", "critic_params", "policy_optimiser", "critic_optimiser"):
        jax.tree.map(np.testing.assert_array_equal, getattr(once, name), getattr(state, name))
    assert float(metrics["gradient_steps"]) == 0
    twice, _ = update(once, trajectory, bad, jax.random.key(1))
    assert (int(twice.nonfinite_updates), int(twice.nonfinite_in_a_row)) == (2, 2)
    clean, metrics = update(twice, trajectory, trajectory.reward, jax.random.key(2))
    assert (int(clean.nonfinite_updates), int(clean.nonfinite_in_a_row)) == (2, 0)
    assert float(metrics["gradient_steps"]) == 8


def test_target_kl_stops_the_epochs(batch):
    _, state, trajectory = batch
    options = SMALL | {"policy_learning_rate": 0.05, "num_epochs": 10}
    make = functools.partial(PPO, observation_size=2, action_size=1, num_updates=1)
    free = make(PPOConfig(**options))
    held = make(PPOConfig(**options, target_kl=0.01))
    _, without = free.update(state, trajectory, trajectory.reward, jax.random.key(0))
    _, with_it = held.update(state, trajectory, trajectory.reward, jax.random.key(0))
    assert float(without["gradient_steps"]) == 20
    assert 1 <= float(with_it["gradient_steps"]) < 20


@pytest.mark.parametrize("schedule", ["constant", "linear", "warmup_cosine"])
def test_learning_rate_schedules_end_where_the_training_ends(schedule):
    agent = agent_for(VectorEnv(PROBES["goal_reach"]()), 10, learning_rate_schedule=schedule)
    params = {"x": jnp.ones(1)}
    state = agent.policy_optimiser.init(params)
    sizes = []
    for _ in range(10 * 4 * 2):
        step, state = agent.policy_optimiser.update({"x": jnp.ones(1)}, state, params)
        sizes.append(-float(step["x"][0]))
    peak = SMALL["policy_learning_rate"]
    expected = {
        "constant": (peak, peak),
        "linear": (peak, peak / 80),
        "warmup_cosine": (0.0, peak * 0.5 * (1 + np.cos(np.pi * 75 / 76))),
    }[schedule]
    assert sizes[0] == pytest.approx(expected[0], rel=1e-3, abs=1e-9)
    assert sizes[-1] == pytest.approx(expected[1], rel=2e-2)
    assert max(sizes) == pytest.approx(peak, rel=1e-3)


def test_two_devices_give_the_result_of_one(batch):
    _, state, trajectory = batch
    results = []
    for count in (1, 2):
        env = VectorEnv(PROBES["goal_reach"]())
        agent = agent_for(env, axis_name="data", normalise_observations=True)
        spec = PartitionSpec(None, "data")
        update = jax.shard_map(
            agent.update,
            mesh=Mesh(np.array(jax.devices()[:count]), ("data",)),
            in_specs=(PartitionSpec(), spec, spec, PartitionSpec()),
            out_specs=PartitionSpec(),
            check_vma=False,
        )
        results.append(jax.jit(update)(state, trajectory, trajectory.reward, jax.random.key(0)))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-6), *results)


def test_a_student_approaches_its_teacher(batch):
    _, state, trajectory = batch

    def teacher(observation):
        loc = jnp.full((*observation.shape[:-1], 1), 0.7)
        return loc, jnp.full_like(loc, 0.3)

    student = PPO(
        PPOConfig(**SMALL | {"distill_cost": 10.0, "policy_learning_rate": 1e-2}),
        observation_size=2,
        action_size=1,
        num_updates=30,
        teacher=teacher,
    )
    update = jax.jit(student.update)
    first = None
    for i in range(30):
        state, metrics = update(state, trajectory, 0.0 * trajectory.reward, jax.random.key(i))
        first = first if first is not None else float(metrics["distill_kl"])
    assert float(metrics["distill_kl"]) < 0.1 * first
    loc, _ = student.distribution(state, trajectory.observation)
    np.testing.assert_allclose(loc, 0.7, atol=0.15)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gae_lambda": 1.5}, r"gae_lambda \(1.5\) must lie in \[0, 1\]"),
        ({"clip_epsilon": 0.0}, r"clip_epsilon \(0.0\) must be a positive, finite number"),
        ({"target_kl": float("nan")}, r"target_kl \(nan\) must be a positive"),
        ({"entropy_cost": -1.0}, r"entropy_cost \(-1.0\) must be at least 0"),
        ({"num_epochs": 0}, r"num_epochs \(0\) must be at least 1"),
        ({"activation": "gelu"}, r"activation \(gelu\) must be one of tanh, relu, swish, elu"),
        ({"learning_rate_schedule": "step"}, r"learning_rate_schedule \(step\) must be one of"),
        ({"policy_hidden_sizes": (64, 0)}, r"policy_hidden_sizes \(64, 0\) must be positive"),
    ],
)
def test_wrong_hyper_parameters_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        PPOConfig(**options)
