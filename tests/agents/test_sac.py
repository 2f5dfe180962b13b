"""Soft actor-critic: its wiring against NumPy, and the environments that isolate one fault each."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from jaxagent.agents.hindsight import SoftBatch
from jaxagent.agents.sac_config import SACConfig
from jaxagent.agents.sac_her import SACHER
from jaxagent.losses import tanh_normal_log_prob
from jaxagent.models.normaliser import known_normaliser
from tests.envs.test_goals import line
from tests.reference import sac_agent
from tests.test_replay import LENGTH, REPLAY, ROWS, empty, steps

GROUPS, SAMPLES = 2, 6
MEAN, VARIANCE = np.array([0.5, -1.0, 2.0]), np.array([4.0, 0.25, 9.0])
CONFIG = SACConfig(
    policy_hidden_sizes=(5,), critic_hidden_sizes=(5,), num_critics=2, batch_size=12,
    sample_groups=2, target_entropy=-0.7, polyak_rate=0.1, max_gradient_norm=1e6,
    actor_learning_rate=0.02, critic_learning_rate=0.03, temperature_learning_rate=0.01,
)  # fmt: skip


def make(config: SACConfig = CONFIG) -> SACHER:
    return SACHER(config, line().spec, observation_size=3, action_size=2, encoder_sizes=(4,))


def scrambled(tree, seed):
    """Parameters that are all large enough to matter."""
    flat, back = ravel_pytree(tree)
    return back(flat + 0.4 * jax.random.normal(jax.random.key(seed), flat.shape))


@pytest.fixture(scope="module")
def learnt():
    """An agent whose policy, critics and targets have nothing in common."""
    agent = make()
    state = agent.init(jax.random.key(0))
    count = jnp.float32(1000)
    return agent, state.replace(
        policy_params=scrambled(state.policy_params, 1),
        critic_params=scrambled(state.critic_params, 2),
        target_critic_params=scrambled(state.critic_params, 3),
        log_temperature=jnp.float32(-0.4),
        normaliser=known_normaliser(
            count, jnp.asarray(MEAN, jnp.float32), jnp.asarray(VARIANCE, jnp.float32) * count
        ),
    )


@pytest.fixture(scope="module")
def batch() -> SoftBatch:
    """One update's transitions, raw; some are terminal."""
    rng = np.random.default_rng(4)
    rows = (1, GROUPS, SAMPLES)

    def around():
        return rng.normal(MEAN, np.sqrt(VARIANCE), (*rows, 3))

    return jax.tree.map(
        lambda x: jnp.asarray(x, bool if x.dtype == bool else jnp.float32),
        SoftBatch(
            observation=around(),
            action=rng.uniform(-1, 1, (*rows, 2)),
            reward=rng.normal(size=rows),
            discount=np.where(rng.random(rows) < 0.3, 0.0, 0.9),
            next_observation=around() + 1.0,
            is_relabelled=rng.random(rows) < 0.5,
        ),
    )


@pytest.fixture(scope="module")
def moved(learnt, batch):
    """After one update, with what NumPy needs to say the same."""
    agent, state = learnt
    keys = jax.random.split(jax.random.key(9), GROUPS)
    after, metrics = jax.jit(agent.update)(state, batch, keys)
    split = [jax.random.split(jax.random.fold_in(key, 0)) for key in keys]
    noise = [
        np.stack([jax.random.normal(pair[i], (SAMPLES, 2)) for pair in split]) for i in range(2)
    ]
    see = functools.partial(sac_agent.normalised, MEAN, VARIANCE)
    plain = {name: np.asarray(x[0], np.float64) for name, x in batch._asdict().items()}
    plain |= {"seen": see(plain["observation"]), "next_seen": see(plain["next_observation"])}
    before = {
        "policy": state.policy_params,
        "target": state.target_critic_params,
        "log_temperature": float(state.log_temperature),
    }
    return state, after, jax.device_get(metrics), plain, before, noise


def slopes(function, params, step=1e-5):
    """Derivatives by differences, in float64."""
    flat = np.concatenate([np.asarray(x, np.float64).ravel() for x in jax.tree.leaves(params)])
    shapes = [np.shape(x) for x in jax.tree.leaves(params)]
    structure = jax.tree.structure(params)
    ends = np.cumsum([int(np.prod(s)) for s in shapes])[:-1]

    def at(vector):
        parts = [p.reshape(s) for p, s in zip(np.split(vector, ends), shapes)]
        return function(jax.tree.unflatten(structure, parts))

    found = []
    for i in range(len(flat)):
        there, here = flat.copy(), flat.copy()
        there[i] += step
        here[i] -= step
        found.append((at(there) - at(here)) / (2 * step))
    return np.array(found)


def first_moment(optimiser_state):
    """Of Adam after one step: a tenth of the gradient that reached it."""
    parts = jax.tree.leaves(optimiser_state, is_leaf=lambda x: hasattr(x, "mu"))
    return ravel_pytree(next(part for part in parts if hasattr(part, "mu")).mu)[0]


def test_critics_regress_to_the_soft_target_of_the_target_critics(moved):
    state, after, metrics, plain, before, noise = moved
    loss = functools.partial(sac_agent.critic_loss, learnt=before, batch=plain, noise=noise[0])
    assert metrics["critic_loss"] == pytest.approx(loss(state.critic_params), rel=1e-4)
    gradient = slopes(loss, state.critic_params)
    np.testing.assert_allclose(
        first_moment(after.critic_optimiser) / 0.1, gradient, rtol=2e-3, atol=2e-4
    )
    assert metrics["critic_gradient_norm"] == pytest.approx(np.linalg.norm(gradient), rel=1e-3)


def test_the_policy_climbs_the_critics_of_the_moment_at_fresh_actions(moved):
    state, after, metrics, plain, _, noise = moved
    loss = functools.partial(
        sac_agent.policy_loss, critic_params=after.critic_params,
        log_temperature=float(state.log_temperature), batch=plain, noise=noise[1],
    )  # fmt: skip
    assert metrics["policy_loss"] == pytest.approx(loss(state.policy_params), rel=1e-4)
    gradient = slopes(loss, state.policy_params)
    beside = np.linalg.norm(first_moment(after.policy_optimiser) / 0.1 - gradient)
    assert beside < 0.02 * np.linalg.norm(gradient)  # float32 beside float64
    action, log_prob = sac_agent.acted(state.policy_params, plain["seen"], noise[1])
    value = sac_agent.values(after.critic_params, plain["seen"], action)
    assert metrics["value_mean"] == pytest.approx(value.mean(), abs=1e-5)
    assert metrics["entropy"] == pytest.approx(-log_prob.mean(), rel=1e-4)
    assert metrics["policy_gradient_norm"] == pytest.approx(np.linalg.norm(gradient), rel=1e-3)


def test_the_temperature_moves_towards_the_target_entropy(moved):
    state, after, metrics, plain, _, noise = moved
    _, log_prob = sac_agent.acted(state.policy_params, plain["seen"], noise[1])
    slope = sac_agent.temperature_slope(float(state.log_temperature), log_prob, -0.7)
    np.testing.assert_allclose(first_moment(after.temperature_optimiser) / 0.1, [slope], rtol=1e-3)
    step = float(after.log_temperature - state.log_temperature)
    assert step == pytest.approx(-0.01 * np.sign(slope), rel=1e-3)
    assert np.sign(step) == np.sign(-0.7 + log_prob.mean())  # too little entropy is worth more
    assert metrics["temperature"] == pytest.approx(np.exp(-0.4), rel=1e-6)


def test_targets_follow_the_new_critics_by_the_polyak_rate(moved):
    state, after, _, _, _, _ = moved
    by_hand = 0.9 * ravel_pytree(state.target_critic_params)[0]
    by_hand += 0.1 * ravel_pytree(after.critic_params)[0]
    np.testing.assert_allclose(
        ravel_pytree(after.target_critic_params)[0], by_hand, rtol=1e-4, atol=1e-5
    )


def test_every_network_moves_by_its_own_learning_rate(moved):
    """Adam's first step is the learning rate, against the sign of the gradient."""
    state, after, *_ = moved
    for name, rate in (("policy", 0.02), ("critic", 0.03)):
        change = ravel_pytree(getattr(after, f"{name}_params"))[0]
        change -= ravel_pytree(getattr(state, f"{name}_params"))[0]
        moment = first_moment(getattr(after, f"{name}_optimiser"))
        felt = np.abs(moment) > 1e-5
        assert felt.mean() > 0.3
        np.testing.assert_allclose(change[felt], -rate * np.sign(moment[felt]), rtol=1e-2)


def test_gradients_are_clipped_by_their_global_norm(learnt, batch):
    agent, state = make(SACConfig(**{**vars(CONFIG), "max_gradient_norm": 0.01})), learnt[1]
    keys = jax.random.split(jax.random.key(9), GROUPS)
    fresh = agent.init(jax.random.key(0))
    state = state.replace(
        policy_optimiser=fresh.policy_optimiser, critic_optimiser=fresh.critic_optimiser
    )
    after, metrics = jax.jit(agent.update)(state, batch, keys)
    assert metrics["critic_gradient_norm"] > 0.1
    for name in ("policy", "critic"):
        moment = first_moment(getattr(after, f"{name}_optimiser"))
        assert np.linalg.norm(moment) == pytest.approx(0.001, rel=1e-3)


def test_acting_samples_what_the_distribution_says(learnt):
    agent, state = learnt
    observation = jnp.asarray(np.random.default_rng(5).normal(MEAN, 1.0, (6, 3)), jnp.float32)
    keys = jax.random.split(jax.random.key(3), 6)
    sample = agent.act(state, observation, keys)
    seen = sac_agent.normalised(MEAN, VARIANCE, np.asarray(observation, np.float64))
    loc, scale = sac_agent.policy(state.policy_params, seen)
    noise = np.stack([jax.random.normal(key, (2,)) for key in keys])
    np.testing.assert_allclose(sample.pre_tanh, loc + scale * noise, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(sample.action, np.tanh(sample.pre_tanh), rtol=1e-6)
    expected = tanh_normal_log_prob(sample.pre_tanh, *map(jnp.float32, (loc, scale)))
    np.testing.assert_allclose(sample.log_prob, expected, rtol=1e-3, atol=1e-4)


def test_without_normalisation_the_networks_see_what_there_is(learnt, batch):
    _, state = learnt
    agent = make(SACConfig(**{**vars(CONFIG), "normalise_observations": False}))
    raw = batch.observation[0, 0]
    np.testing.assert_allclose(
        agent.distribution(state, raw)[0],
        sac_agent.policy(state.policy_params, np.asarray(raw, np.float64))[0],
        rtol=1e-4, atol=1e-5,
    )  # fmt: skip


def test_a_fresh_state_has_its_targets_at_the_critics_and_the_stated_temperature():
    agent = make(SACConfig(initial_temperature=0.3))
    state = agent.init(jax.random.key(0))
    jax.tree.map(np.testing.assert_array_equal, state.target_critic_params, state.critic_params)
    assert float(jnp.exp(state.log_temperature)) == pytest.approx(0.3, rel=1e-6)
    assert agent.target_entropy == -2.0  # minus the number of actions
    first, second = (state.critic_params["params"][f"critic_{k}"] for k in range(2))
    assert not np.allclose(
        first["MLP_0"]["Dense_0"]["kernel"], second["MLP_0"]["Dense_0"]["kernel"]
    )


def test_metrics_are_means_over_the_steps_that_were_applied(learnt, batch):
    """Of three steps the second is not finite: it is dropped, counted, and in no mean."""
    agent, state = learnt
    three = jax.tree.map(lambda x: jnp.concatenate([x] * 3), batch)
    bad = three._replace(reward=three.reward.at[1, 0, 0].set(jnp.inf))
    keys = jax.random.split(jax.random.key(9), GROUPS)
    update = jax.jit(agent.update)
    _, whole = update(state, three, keys)
    after, metrics = update(state, bad, keys)
    assert np.isfinite([float(x) for x in jax.tree.leaves(metrics)]).all()
    first = update(state, batch, keys)[1]["critic_loss"]
    assert 0.3 * first < metrics["critic_loss"] < 1.01 * first
    assert int(after.nonfinite_updates) == int(after.nonfinite_in_a_row) == 1
    again, _ = update(after, bad, keys)
    assert (int(again.nonfinite_updates), int(again.nonfinite_in_a_row)) == (2, 2)
    clean, metrics = update(again, three, keys)
    assert (int(clean.nonfinite_updates), int(clean.nonfinite_in_a_row)) == (2, 0)
    assert float(metrics["nonfinite_updates"]) == 2
    assert float(whole["relabelled_share"]) == pytest.approx(float(batch.is_relabelled.mean()))


def test_every_group_gives_its_share_of_every_update():
    """Features tell (time, environment): three updates of twelve, half from either group."""
    config = SACConfig(**{**vars(CONFIG), "updates_per_iteration": 3, "relabel_share": 0.0})
    agent = SACHER(config, line().spec, observation_size=2, action_size=2, encoder_sizes=(4,))
    buffer = REPLAY.add(empty(), steps(0, LENGTH))
    keys = jax.random.split(jax.random.key(0), 2)
    batch = agent.draw(REPLAY, buffer, keys)
    assert batch.action.shape == (3, 2, 6, 2)
    assert batch.reward.shape == (3, 2, 6)
    env = np.asarray(batch.action[..., 1])
    assert (env[:, 0] < ROWS).all()
    assert (env[:, 1] >= ROWS).all()
    drawn = np.asarray(batch.action).reshape(3, -1)
    assert len({tuple(update) for update in drawn.tolist()}) == 3  # no update is another's copy
