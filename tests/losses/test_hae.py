import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxagent.losses import gae, hae_advantages, segment_gae, sum_segments
from tests.losses.strategies import SHAPE, booleans, few, numbers

LIVE = jnp.ones(SHAPE, bool)
unit = numbers(0, 1)
lambdas = st.floats(0, 1, width=32)


@jax.jit
def hae(turn_lambda, segment_lambda, *arrays):
    return hae_advantages(*arrays, turn_lambda=turn_lambda, segment_lambda=segment_lambda)


def test_worked_by_hand():
    # γ = ½, λ_turn = ½, λ_segment = ½. Turns 0, 1 are segment 0; turn 2 switches; then the end.
    # r = 1, 2, 4; V_low = 0, 1, 2; V_high = 3, ·, 8; V_switch = 1, 1, 1; terminated at turn 2.
    # low:   δ₂ = 4 − 2 = 2
    #        δ₁ = 2 + ½·8 − 1 = 5 (V_high of the next segment)
    #        δ₀ = 1 + ½·1 − 0 = 1.5;  A₀ = 1.5 + ¼·5 = 2.75
    # high:  A₁ = 4 − 8 = −4;  A₀ = 1 + ½·2 + ¼·(8 + ½·(−4)) − 3 = 0.5
    # switch: 1 + ½·2 + ¼·8 − 1 = 3;  2 + ½·8 − 1 = 5;  4 − 1 = 3
    found = hae_advantages(
        jnp.array([1.0, 2.0, 4.0]),
        jnp.array([0.5, 0.5, 0.0]),
        jnp.array([0.0, 1.0, 2.0]),
        jnp.array([1.0, 77.0, 99.0]),
        jnp.array([3.0, 55.0, 8.0]),
        jnp.array([55.0, 8.0, 99.0]),
        jnp.ones(3),
        jnp.array([True, False, True]),
        jnp.array([False, False, True]),
        jnp.ones(3, bool),
        turn_lambda=0.5,
        segment_lambda=0.5,
    )
    np.testing.assert_allclose(found.low, [2.75, 5.0, 2.0])
    np.testing.assert_allclose(found.high, [0.5, 0.0, -4.0])
    np.testing.assert_allclose(found.switch, [3.0, 5.0, 3.0])
    np.testing.assert_array_equal(found.is_boundary, [True, False, True])


@few
@given(numbers(), unit, numbers(), numbers(), booleans(), lambdas)
def test_with_a_switch_at_every_turn_the_high_level_is_gae(reward, discount, value, last, end, lam):
    next_value = jnp.concatenate([value[1:], last[:1]])
    zero = jnp.zeros(SHAPE)
    found = hae(1.0, lam, reward, discount, zero, zero, value, next_value, zero, LIVE, end, LIVE)
    plain = gae(reward, discount, value, next_value, end, gae_lambda=lam)
    np.testing.assert_allclose(found.high, plain, atol=1e-3)
    assert found.is_boundary.all()


@few
@given(numbers(), unit, numbers(), numbers(), lambdas)
def test_inside_one_segment_the_low_level_is_gae(reward, discount, value, last, lam):
    next_value = jnp.concatenate([value[1:], last[:1]])
    zero, never = jnp.zeros(SHAPE), jnp.zeros(SHAPE, bool)
    found = hae(lam, 1.0, reward, discount, value, next_value, zero, zero, zero, never, never, LIVE)
    plain = gae(reward, discount, value, next_value, never, gae_lambda=lam)
    np.testing.assert_allclose(found.low, plain, atol=1e-3)


@few
@given(numbers(), unit, numbers(), numbers(), booleans(), lambdas)
def test_the_high_level_is_gae_over_summed_segments(reward, discount, value, last, switch, lam):
    switch = switch.at[0].set(True)
    next_value = jnp.concatenate([value[1:], last[:1]])
    zero, never = jnp.zeros(SHAPE), jnp.zeros(SHAPE, bool)
    found = hae(
        1.0, lam, reward, discount, zero, zero, value, next_value, zero, switch, never, LIVE
    )
    segment_id = jnp.cumsum(switch, axis=0) - 1
    sums = sum_segments(reward, discount, segment_id, LIVE, num_segments=SHAPE[0])
    start = jnp.cumsum(sums.duration, 0) - sums.duration
    stop = start + sums.duration - 1
    at = lambda x, i: jnp.take_along_axis(x, jnp.minimum(i, SHAPE[0] - 1), axis=0)  # noqa: E731
    expected = segment_gae(
        sums.reward, sums.discount, at(value, start), at(next_value, stop), sums.mask,
        segment_lambda=lam,
    )  # fmt: skip
    where = jnp.where(switch, segment_id, 0)
    gathered = jnp.take_along_axis(expected, where, axis=0)
    np.testing.assert_allclose(found.high, jnp.where(switch, gathered, 0), atol=1e-3)


@few
@given(numbers(), unit, numbers(), numbers(), numbers(), booleans(), booleans())
def test_switch_advantage_at_a_boundary_is_the_high_one_without_trace(
    reward, discount, high, last, low, switch, end
):
    next_high = jnp.concatenate([high[1:], last[:1]])
    found = hae(0.9, 0.0, reward, discount, low, low, high, next_high, high, switch, end, LIVE)
    boundary = found.is_boundary
    np.testing.assert_allclose(jnp.where(boundary, found.switch, 0), found.high, atol=1e-3)


@few
@given(numbers(), unit, numbers(), numbers(), booleans(), booleans())
def test_padding_changes_nothing(reward, discount, value, next_value, switch, end):
    arrays = (reward, discount, value, next_value, value, next_value, value)
    found = hae(0.9, 0.8, *arrays, switch, end, LIVE)
    padded = [jnp.pad(x, ((0, 2), (0, 0)), constant_values=jnp.nan) for x in arrays]
    flags = [jnp.pad(x, ((0, 2), (0, 0)), constant_values=True) for x in (switch, end)]
    wider = hae(0.9, 0.8, *padded, *flags, jnp.pad(LIVE, ((0, 2), (0, 0))))
    for a, b in zip(found, wider):
        np.testing.assert_allclose(b[: SHAPE[0]], a, atol=1e-5)
        assert not b[SHAPE[0] :].any()


def test_the_high_value_is_not_trained_through_the_low_level():
    one, never = jnp.ones((4, 1)), jnp.zeros((4, 1), bool)
    switch = never.at[2].set(True)

    def total(next_high, part):
        found = hae(0.9, 0.8, one, one, one, one, one, next_high, one, switch, never, one > 0)
        return getattr(found, part).sum()

    assert not jax.grad(total)(one, "low").any()
    assert jax.grad(total)(one, "high").any()
    assert jax.grad(total)(one, "switch").any()


@pytest.mark.parametrize("name", ["turn_lambda", "segment_lambda"])
def test_lambdas_outside_the_unit_interval(name):
    x, flag = jnp.ones(2), jnp.ones(2, bool)
    options = {"turn_lambda": 1.0, "segment_lambda": 1.0} | {name: 1.5}
    with pytest.raises(ValueError, match=rf"hae_advantages: {name} must lie in \[0, 1\], found"):
        hae_advantages(*[x] * 7, *[flag] * 3, **options)
