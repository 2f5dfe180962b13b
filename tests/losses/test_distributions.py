import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given

from jaxagent.losses import (
    categorical_entropy,
    categorical_kl,
    categorical_log_prob,
    categorical_sample,
    tanh_normal_entropy,
    tanh_normal_kl,
    tanh_normal_log_prob,
    tanh_normal_mode,
    tanh_normal_sample,
)
from tests.losses.strategies import few, numbers

INF = jnp.inf
logits = numbers(shape=(6, 4))


def test_tanh_normal_log_prob_worked_by_hand():
    # u = (0, 1), μ = (0, 1), σ = (1, 2). log N = −½log 2π and −½log 2π − log 2.
    # log(1 − tanh² 0) = 0, log(1 − tanh² 1) = log 0.419974 = −0.867562
    # sum −log 2π − log 2 + 0.867562 = −1.837877 − 0.693147 + 0.867562
    found = tanh_normal_log_prob(jnp.array([0.0, 1.0]), jnp.array([0.0, 1.0]), jnp.array([1.0, 2]))
    np.testing.assert_allclose(found, -1.663462, rtol=1e-6)


def test_density_integrates_to_one():
    action = (jnp.arange(20_000) + 0.5) / 10_000 - 1
    column = jnp.arctanh(action)[:, None]
    log_prob = tanh_normal_log_prob(column, jnp.full_like(column, 0.3), jnp.full_like(column, 0.8))
    np.testing.assert_allclose(jnp.exp(log_prob).sum() / 10_000, 1.0, atol=1e-3)


@pytest.mark.parametrize("pre_tanh", [-1e4, -50.0, 12.0, 50.0, 1e4])
def test_log_prob_of_a_saturated_action_is_exact(pre_tanh):
    # For large |u|: log(1 − tanh² u) = 2 (log 2 − |u|), where the naive form gives log 0.
    u, scale = jnp.full(1, pre_tanh), jnp.full(1, 1e3)
    expected = -0.5 * (pre_tanh / 1e3) ** 2 - math.log(1e3) - 0.5 * math.log(2 * math.pi)
    expected -= 2 * (math.log(2) - abs(pre_tanh))
    np.testing.assert_allclose(tanh_normal_log_prob(u, 0 * u, scale), expected, rtol=1e-6)
    slope = jax.grad(lambda u: tanh_normal_log_prob(u, 0 * u, scale))(u)
    np.testing.assert_allclose(slope, -pre_tanh / 1e6 + 2 * np.sign(pre_tanh), rtol=1e-5)


def test_samples_have_the_moments_of_their_normal():
    loc, scale = jnp.array([0.5, -1.0]), jnp.array([0.2, 2.0])
    keys = jax.random.split(jax.random.key(0), 20_000)
    sample = jax.vmap(tanh_normal_sample, (0, None, None))(keys, loc, scale)
    np.testing.assert_allclose(sample.pre_tanh.mean(0), loc, atol=0.05)
    np.testing.assert_allclose(sample.pre_tanh.std(0), scale, rtol=0.02)
    np.testing.assert_array_equal(sample.action, jnp.tanh(sample.pre_tanh))
    # the two components are independent
    assert abs(np.corrcoef(sample.pre_tanh.T)[0, 1]) < 0.03


def test_sample_is_reparameterised():
    key, loc, scale = jax.random.key(3), jnp.array([0.4]), jnp.array([0.7])
    noise = (tanh_normal_sample(key, loc, scale).pre_tanh - loc) / scale
    by_loc, by_scale = jax.grad(
        lambda m, s: tanh_normal_sample(key, m, s).pre_tanh.sum(), argnums=(0, 1)
    )(loc, scale)
    np.testing.assert_allclose(by_loc, [1.0])
    np.testing.assert_allclose(by_scale, noise, rtol=1e-5)


@pytest.mark.parametrize(("scale", "varies_less"), [(0.1, True), (0.6, False)])
def test_entropy_estimate_is_unbiased(scale, varies_less):
    loc, scales = jnp.array([0.3, -0.5]), jnp.full(2, scale)
    keys = jax.random.split(jax.random.key(1), 20_000)
    estimate = jax.vmap(tanh_normal_entropy, (0, None, None))(keys, loc, scales)
    action = (np.arange(20_000) + 0.5) / 10_000 - 1
    exact = 0.0
    for m in loc:
        z = (np.arctanh(action) - float(m)) / scale
        density = np.exp(-(z**2) / 2) / (scale * np.sqrt(2 * np.pi)) / (1 - action**2)
        exact -= np.sum(density * np.log(density + 1e-300)) / 10_000
    np.testing.assert_allclose(estimate.mean(), exact, atol=0.02)
    sample = jax.vmap(tanh_normal_sample, (0, None, None))(keys, loc, scales).pre_tanh
    crude = -jax.vmap(tanh_normal_log_prob, (0, None, None))(sample, loc, scales)
    np.testing.assert_allclose(crude.mean(), exact, atol=0.03)
    assert bool(estimate.std() < crude.std()) is varies_less


def test_entropy_and_sample_take_both_kinds_of_key():
    zero, one = jnp.zeros(2), jnp.ones(2)
    for take in (tanh_normal_sample, tanh_normal_entropy):
        new, old = take(jax.random.key(5), zero, one), take(jax.random.PRNGKey(5), zero, one)
        np.testing.assert_array_equal(jnp.asarray(new), jnp.asarray(old))
    assert tanh_normal_entropy(
        jax.random.key(0), jnp.zeros((4, 3, 2)), jnp.ones((4, 3, 2))
    ).shape == (4, 3)


def test_gradient_of_the_entropy_raises_a_narrow_scale_and_lowers_a_wide_one():
    # Squashing turns a very wide normal into two spikes at ±1, of low entropy.
    def slope(scale):
        keys = jax.random.split(jax.random.key(0), 500)
        zero = jnp.zeros(1)
        mean = lambda s: jax.vmap(lambda k: tanh_normal_entropy(k, zero, s))(keys).mean()  # noqa: E731
        return jax.grad(mean)(jnp.full(1, scale)).item()

    assert slope(0.1) > 0 > slope(5.0)


def test_kl_worked_by_hand():
    # μ 1 against 0, σ 2 against 1: log(1/2) + (4 + 1)/2 − ½ = 2 − log 2
    one, zero = jnp.ones(1), jnp.zeros(1)
    np.testing.assert_allclose(tanh_normal_kl(one, 2 * one, zero, one), 2 - math.log(2), rtol=1e-6)


def test_kl_is_the_mean_log_ratio_of_squashed_samples():
    p, q = (jnp.array([0.4]), jnp.array([0.5])), (jnp.array([-0.1]), jnp.array([0.8]))
    keys = jax.random.split(jax.random.key(2), 40_000)
    u = jax.vmap(tanh_normal_sample, (0, None, None))(keys, *p).pre_tanh
    log_p = jax.vmap(tanh_normal_log_prob, (0, None, None))(u, *p)
    log_q = jax.vmap(tanh_normal_log_prob, (0, None, None))(u, *q)
    np.testing.assert_allclose((log_p - log_q).mean(), tanh_normal_kl(*p, *q), atol=0.01)


def test_mode_is_the_median_action():
    loc = jnp.array([0.7])
    keys = jax.random.split(jax.random.key(0), 20_000)
    actions = jax.vmap(tanh_normal_sample, (0, None, None))(keys, loc, jnp.ones(1)).action
    np.testing.assert_allclose(jnp.median(actions), tanh_normal_mode(loc)[0], atol=0.02)


def test_categorical_worked_by_hand():
    # probabilities 1/2, 1/4, 1/4 and 1/4, 1/4, 1/2
    # H = ½·log 2 + 2·¼·log 4 = 1.5 log 2    KL = ½·log 2 + 0 − ¼·log 2 = ¼ log 2
    p, q = jnp.log(jnp.array([2.0, 1.0, 1.0])), jnp.log(jnp.array([1.0, 1.0, 2.0]))
    np.testing.assert_allclose(categorical_entropy(p), 1.5 * math.log(2), rtol=1e-6)
    np.testing.assert_allclose(categorical_kl(p, q), 0.25 * math.log(2), rtol=1e-6)
    np.testing.assert_allclose(categorical_log_prob(p, jnp.array(1)), -math.log(4), rtol=1e-6)


def test_categorical_frequencies():
    p = jnp.array([0.1, 0.2, 0.7])
    drawn = categorical_sample(jax.random.key(0), jnp.broadcast_to(jnp.log(p), (20_000, 3)))
    np.testing.assert_allclose(np.bincount(drawn, minlength=3) / 20_000, p, atol=0.015)


def test_forbidden_actions():
    allowed = jnp.array([1.0, -INF, 0.0])
    assert not (categorical_sample(jax.random.key(0), jnp.tile(allowed, (500, 1))) == 1).any()
    assert categorical_log_prob(allowed, jnp.array(1)) == -INF
    without = jnp.array([1.0, 0.0])
    np.testing.assert_allclose(categorical_entropy(allowed), categorical_entropy(without))
    assert categorical_kl(allowed, jnp.zeros(3)) < INF
    assert categorical_kl(jnp.zeros(3), allowed) == INF
    both = categorical_kl(allowed, jnp.array([0.0, -INF, 0.0]))
    np.testing.assert_allclose(both, categorical_kl(without, jnp.zeros(2)), rtol=1e-6)
    for function in (categorical_entropy, lambda x: categorical_kl(x, jnp.zeros(3))):
        assert jnp.isfinite(jax.grad(function)(allowed)).all()


@pytest.mark.parametrize("action", [-1, -3, 3, 100])
def test_an_index_out_of_range_is_nan_and_never_wraps(action):
    assert jnp.isnan(categorical_log_prob(jnp.zeros(3), jnp.array(action)))


@few
@given(logits, logits)
def test_categorical_identities(p, q):
    assert (categorical_kl(p, q) >= -1e-5).all()
    np.testing.assert_allclose(categorical_kl(p, p), 0, atol=1e-6)
    uniform = jnp.zeros_like(p)
    np.testing.assert_allclose(
        categorical_kl(p, uniform), math.log(4) - categorical_entropy(p), atol=1e-5
    )
    np.testing.assert_allclose(categorical_entropy(p + 7.0), categorical_entropy(p), atol=1e-5)
    every = jnp.broadcast_to(jnp.arange(4), p.shape)
    log_prob = jax.vmap(categorical_log_prob, (None, 1), 1)(p, every)
    np.testing.assert_allclose(jnp.exp(log_prob).sum(-1), 1.0, rtol=1e-5)


@few
@given(numbers(), numbers(-1, 1), numbers(), numbers(-1, 1))
def test_kl_is_zero_only_between_equals(loc_p, log_p, loc_q, log_q):
    scale_p, scale_q = jnp.exp(log_p), jnp.exp(log_q)
    np.testing.assert_allclose(tanh_normal_kl(loc_p, scale_p, loc_p, scale_p), 0, atol=1e-6)
    different = jnp.abs(loc_p - loc_q).max(-1) > 0.1
    assert (
        tanh_normal_kl(loc_p, scale_p, loc_q, scale_q) >= jnp.where(different, 1e-5, -1e-5)
    ).all()


def test_the_first_action_out_of_range_is_nan_under_jit():
    """Eagerly it is refused; under jit the last valid and the first invalid one are told apart."""
    log_prob = jax.jit(categorical_log_prob)(jnp.zeros((2, 4)), jnp.array([3, 4]))
    np.testing.assert_allclose(log_prob[0], -np.log(4.0), rtol=1e-6)
    assert np.isnan(log_prob[1])
