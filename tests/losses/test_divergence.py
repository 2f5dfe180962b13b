import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given

from jaxagent.losses import categorical_kl, k1, k2, k3
from jaxagent.losses.divergence import importance_ratio
from tests.losses.strategies import few, numbers

P = jnp.log(jnp.array([0.5, 0.3, 0.2]))
Q = jnp.log(jnp.array([0.4, 0.4, 0.2]))


def test_worked_by_hand():
    # log π = 0, log π_ref = log 2: k1 = −0.693, k2 = ½·0.48045, k3 = 2 − 1 − 0.693
    zero, two = jnp.zeros(1), jnp.log(jnp.full(1, 2.0))
    np.testing.assert_allclose(k1(zero, two), [-0.6931472], rtol=1e-6)
    np.testing.assert_allclose(k2(zero, two), [0.2402265], rtol=1e-6)
    np.testing.assert_allclose(k3(zero, two), [0.3068528], rtol=1e-6)


def expectation(estimator, p, q):
    return jnp.sum(jnp.exp(p) * estimator(p, q))


def test_k1_and_k3_are_unbiased_and_k2_is_not():
    exact = categorical_kl(P, Q)
    np.testing.assert_allclose(expectation(k1, P, Q), exact, rtol=1e-5)
    np.testing.assert_allclose(expectation(k3, P, Q), exact, rtol=1e-5)
    assert abs(expectation(k2, P, Q) - exact) > 1e-4


def test_k3_varies_less_than_k1():
    def variance(estimator):
        return expectation(lambda p, q: estimator(p, q) ** 2, P, Q) - categorical_kl(P, Q) ** 2

    assert variance(k3) < 0.2 * variance(k1)


def test_expected_gradients_as_losses_are_what_the_docstrings_say():
    reference = jax.nn.log_softmax(jnp.array([0.3, 0.1, -0.4]))
    logits = jnp.array([0.5, -0.2, 0.1])

    def of(estimator):
        def loss(logits):
            log_p = jax.nn.log_softmax(logits)
            weight = jax.lax.stop_gradient(jnp.exp(log_p))  # samples do not move
            return jnp.sum(weight * estimator(log_p, reference))

        return jax.grad(loss)(logits)

    forward = jax.grad(lambda x: categorical_kl(x, reference))(logits)
    backward = jax.grad(lambda x: categorical_kl(reference, x))(logits)
    np.testing.assert_allclose(of(k1), 0, atol=1e-6)
    np.testing.assert_allclose(of(k2), forward, atol=1e-6)
    np.testing.assert_allclose(of(k3), backward, atol=1e-6)


@few
@given(numbers(-8, 0), numbers(-8, 0))
def test_signs_and_symmetries(p, q):
    assert (k2(p, q) >= 0).all()
    assert (k3(p, q) >= 0).all()
    np.testing.assert_array_equal(k1(p, q), -k1(q, p))
    np.testing.assert_array_equal(k2(p, q), k2(q, p))
    assert not k3(p, p).any()


def test_k3_does_not_cancel_near_equality():
    # (ρ − 1) − log ρ ≈ x²/2 at x = 1e-3; written as exp − 1 − x it loses all digits in float32.
    np.testing.assert_allclose(k3(jnp.zeros(1), jnp.full(1, 1e-3)), [5.001667e-07], rtol=1e-3)


@pytest.mark.parametrize("distance", [-1e4, -30.0, 30.0, 1e4])
@pytest.mark.parametrize("estimator", [k1, k2, k3])
def test_finite_far_apart_and_pulling_together(estimator, distance):
    x = jnp.full(1, distance)
    value, slope = jax.value_and_grad(lambda x: estimator(x, jnp.zeros(1)).sum())(x)
    assert jnp.isfinite(value)
    assert jnp.isfinite(slope).all()
    if estimator is not k1:
        assert jnp.sign(slope) == np.sign(distance)


def test_ratio_is_the_exponential_up_to_its_bound():
    x = jnp.array([-50.0, -1.0, 0.0, 3.0, 20.0])
    np.testing.assert_allclose(importance_ratio(x), np.exp(np.asarray(x)), rtol=1e-6)
    # Held above 20, where its slope is e²⁰ still; below, the slope is eˣ.
    np.testing.assert_allclose(importance_ratio(jnp.array(25.0)), np.exp(20.0), rtol=1e-6)
    slopes = jax.vmap(jax.grad(importance_ratio))(jnp.array([3.0, 20.0, 25.0]))
    np.testing.assert_allclose(slopes, np.exp([3.0, 20.0, 20.0]), rtol=1e-6)


def test_a_weighted_ratio_is_the_ratio_times_the_weight():
    x = jnp.array([-1.0, 2.0, 25.0, jnp.inf, -jnp.inf])
    weighted = importance_ratio(x, jnp.full(5, -3.0))
    np.testing.assert_allclose(weighted[:3], -3.0 * importance_ratio(x)[:3], rtol=1e-6)
    assert jnp.isnan(weighted[3:]).all()
