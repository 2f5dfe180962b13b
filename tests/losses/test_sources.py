import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given

from jaxagent.losses import (
    guidance_correlation,
    hacking_alarm,
    improve_source_logits,
    mix_by_priority,
    mix_by_weights,
    softmax_weights,
)
from tests.losses.strategies import booleans, few, numbers


def test_mixing_worked_by_hand():
    # 0.5·(1, 2) + 2·(10, 20) = (20.5, 41)
    sources = jnp.array([[1.0, 2.0], [10.0, 20.0]])
    np.testing.assert_allclose(mix_by_weights(sources, jnp.array([0.5, 2.0])), [20.5, 41.0])


def test_priority_worked_by_hand():
    # Sources: walk (no safety), stay upright (safety), explore, edge (safety), shine.
    # Column 0: upright active, so walk + upright = 1 + 10. Column 1: upright silent, edge active:
    # walk + explore + edge = 1 + 100 + 1000. Column 2: nothing active.
    sources = jnp.broadcast_to(jnp.array([[1.0], [10.0], [100.0], [1000.0], [1e4]]), (5, 3))
    active = jnp.array(
        [[1, 1, 0], [1, 0, 0], [1, 1, 0], [1, 1, 0], [1, 1, 0]],
    ).astype(bool)
    safety = jnp.array([False, True, False, True, False])
    np.testing.assert_allclose(mix_by_priority(sources, active, safety), [11.0, 1101.0, 0.0])


@few
@given(numbers(), booleans())
def test_all_safety_means_the_first_active_source_alone(sources, active):
    found = mix_by_priority(sources, active, jnp.ones(6, bool))
    first = jnp.argmax(active, axis=0)
    expected = jnp.where(active.any(0), sources[first, jnp.arange(2)], 0.0)
    np.testing.assert_array_equal(found, expected)


@few
@given(numbers(), booleans(), numbers())
def test_what_a_silenced_source_says_does_not_matter(sources, active, other):
    safety = jnp.zeros(6, bool).at[0].set(True)
    active = active.at[0].set(True)
    changed = other.at[0].set(sources[0])
    np.testing.assert_array_equal(
        mix_by_priority(sources, active, safety), mix_by_priority(changed, active, safety)
    )


def test_logit_step_worked_by_hand():
    # J̄ = 3: θ₀ += 0.1·(1·1 + (−1)·0)/(2·0.5) = 0.1, θ₁ += 0.1·(−1)·1/(2·0.5) = −0.1
    found = improve_source_logits(
        jnp.zeros(2),
        jnp.array([[1.0, 0.0], [0.0, 1.0]]),
        jnp.array([4.0, 2.0]),
        perturbation_std=0.5,
        learning_rate=0.1,
    )
    np.testing.assert_allclose(found, [0.1, -0.1], rtol=1e-6)


def test_learning_finds_the_source_that_raises_the_evaluation():
    # Only the middle source helps: the evaluation is its weight.
    def step(logits, key):
        noise = jax.random.normal(key, (8, 3))
        returns = jax.vmap(lambda e: softmax_weights(logits + 0.3 * e)[1])(noise)
        improved = improve_source_logits(
            logits, noise, returns, perturbation_std=0.3, learning_rate=5.0
        )
        return improved, returns.mean()

    logits, returns = jax.lax.scan(step, jnp.zeros(3), jax.random.split(jax.random.key(0), 60))
    assert returns[0] < 0.45
    assert softmax_weights(logits)[1] > 0.9
    np.testing.assert_allclose(softmax_weights(logits).sum(), 1.0, rtol=1e-6)


def test_correlation_worked_by_hand():
    # (1, 2, 3) and (1, 3, 2): deviations (−1, 0, 1), (−1, 1, 0), covariance 1, both variances 2
    x, y = jnp.array([1.0, 2.0, 3.0, 99.0]), jnp.array([1.0, 3.0, 2.0, -99.0])
    mask = jnp.array([True, True, True, False])
    np.testing.assert_allclose(guidance_correlation(x, y, mask), 0.5, rtol=1e-5)


@few
@given(numbers(), numbers(), booleans())
def test_correlation_is_symmetric_and_blind_to_scale(x, y, mask):
    found = guidance_correlation(x, y, mask)
    assert -1 <= found <= 1
    np.testing.assert_allclose(guidance_correlation(y, x, mask), found, atol=1e-5)
    np.testing.assert_allclose(guidance_correlation(4.0 * x, y, mask), found, atol=1e-3)
    np.testing.assert_allclose(guidance_correlation(-x, y, mask), -found, atol=1e-5)


def test_correlation_of_a_constant_is_zero_with_zero_gradient():
    # The mean of 15 times 1e6/3 is rounded in float32: that must not count as variation.
    constant, mask = jnp.full(15, 1e6 / 3), jnp.ones(15, bool)
    value, slope = jax.value_and_grad(guidance_correlation)(constant, jnp.arange(15.0), mask)
    assert value == 0
    assert not slope.any()


def test_correlation_of_many_constants_is_exactly_zero():
    constants = jnp.broadcast_to(jnp.linspace(1.0, 1e6, 97)[:, None], (97, 77))
    other, mask = jnp.arange(77.0), jnp.ones(77, bool)
    found = jax.vmap(lambda x: guidance_correlation(x, other, mask))(constants)
    assert not found.any()


def test_correlation_of_large_values_that_do_vary():
    # A spread of 0.1 around 1e4 is far above the rounding of float32, some 1e-3.
    mask = jnp.ones(8, bool)
    for step in (1.0, 1 / 32):
        x = 1e4 + step * jnp.arange(8.0)
        np.testing.assert_allclose(guidance_correlation(x, jnp.arange(8.0), mask), 1.0, rtol=1e-3)


def test_alarm_truth_table():
    up, down, flat = jnp.array([1.0, 2.0, 4.0]), jnp.array([3.0, 1.0, 0.5]), jnp.ones(3)
    assert hacking_alarm(up, down)
    for total, env in [(up, up), (down, down), (down, up), (up, flat), (flat, down)]:
        assert not hacking_alarm(total, env)
    assert not hacking_alarm(up[:1], down[:1])
    # The slope is of the whole window, not of its ends: 0, 9, 9, 1 rises, 0, −9, −9, −1 falls.
    assert hacking_alarm(jnp.array([0.0, 2.0, 9.0, 1.0]), jnp.array([1.0, -2.0, -9.0, 0.0]))
