import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxagent.losses import advantages, gae, lambda_returns, masked_mean, masked_whiten
from jaxagent.losses.advantages import backward_recurrence
from tests.losses.strategies import SHAPE, booleans, few, numbers, permutations

jit_gae = jax.jit(lambda *arrays: gae(*arrays[:-1], gae_lambda=arrays[-1]))
jit_returns = jax.jit(lambda *arrays: lambda_returns(*arrays[:-1], gae_lambda=arrays[-1]))
unit = numbers(0.0, 1.0)


def test_gae_worked_by_hand():
    # γ = 0.9, λ = 0.5. Step 1 is truncated, step 2 terminated.
    # δ₀ = 1 + 0.9·1 − 0.5 = 1.4     δ₁ = 2 + 0.9·3 − 1 = 3.7     δ₂ = 3 + 0·9 − 2 = 1
    # Â₂ = 1     Â₁ = 3.7, trace cut, bootstrap kept     Â₀ = 1.4 + 0.45·3.7 = 3.065
    found = gae(
        jnp.array([1.0, 2.0, 3.0]),
        jnp.array([0.9, 0.9, 0.0]),
        jnp.array([0.5, 1.0, 2.0]),
        jnp.array([1.0, 3.0, 9.0]),
        jnp.array([False, True, True]),
        gae_lambda=0.5,
    )
    np.testing.assert_allclose(found, [3.065, 3.7, 1.0], rtol=1e-6)


def test_lambda_returns_worked_by_hand():
    # γ = λ = 0.5, V(s′) = 4, 8. G₁ = 2 + 0.5·8 = 6. G₀ = 1 + 0.5·(0.5·4 + 0.5·6) = 3.5
    found = lambda_returns(
        jnp.array([1.0, 2.0]),
        jnp.array([0.5, 0.5]),
        jnp.array([4.0, 8.0]),
        jnp.array([False, False]),
        gae_lambda=0.5,
    )
    np.testing.assert_allclose(found, [3.5, 6.0])


def test_backward_recurrence_worked_by_hand():
    # 3, then 2 + 0.5·3 = 3.5, then 1 + 2·3.5 = 8; the last decay has nothing to act on
    found = backward_recurrence(jnp.array([1.0, 2.0, 3.0]), jnp.array([2.0, 0.5, 9.0]))
    np.testing.assert_allclose(found, [8.0, 3.5, 3.0])


def test_masked_statistics_worked_by_hand():
    # live 1, 2, 6: mean 3, deviations −2, −1, 3, variance (4 + 1 + 9)/3 = 14/3
    x, mask = jnp.array([1.0, 2.0, 6.0, 50.0]), jnp.array([True, True, True, False])
    assert masked_mean(x, mask).item() == 3.0
    expected = np.array([-2.0, -1.0, 3.0, 0.0]) / np.sqrt(14 / 3)
    np.testing.assert_allclose(masked_whiten(x, mask), expected, rtol=1e-6)


@pytest.mark.parametrize("length", [17, 32, 128, 8_192])
def test_small_arrays_in_blocks_are_as_large_ones(length, monkeypatch):
    rng = np.random.default_rng(length)
    shape = (length, 8_192 // length)
    reward, value, next_value = (jnp.asarray(rng.normal(size=shape), jnp.float32) for _ in "rvn")
    end = jnp.asarray(rng.random(shape) < 0.05)
    discount = jnp.where(jnp.asarray(rng.random(shape) < 0.02), 0.0, 0.99)

    def both(discount, gae_lambda):
        advantage = gae(reward, discount, value, next_value, end, gae_lambda=gae_lambda)
        returns = lambda_returns(reward, discount, next_value, end, gae_lambda=gae_lambda)
        return jnp.stack([advantage, returns])

    def values_and_gradients():
        weight = jnp.cos(jnp.arange(reward.size)).reshape(reward.shape)
        gradient = jax.grad(lambda *a: jnp.sum(weight[None] * both(*a)), argnums=(0, 1))
        return [both(discount, lam) for lam in (0.0, 0.95, 1.0)], gradient(discount, 0.0)

    small = values_and_gradients()
    monkeypatch.setattr(advantages, "_SMALL", 0)
    large = values_and_gradients()
    for a, b in zip(jax.tree.leaves(small), jax.tree.leaves(large)):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("shape", "steps"), [((128, 64), 8), ((128, 65), 128), ((17, 4), 2), ((16, 4), 16)]
)
def test_only_small_arrays_of_more_than_one_block_go_in_blocks(shape, steps):
    x, end = jnp.zeros(shape), jnp.zeros(shape, bool)
    for traced in (
        jax.make_jaxpr(lambda *a: gae(*a, gae_lambda=0.9))(x, x, x, x, end),
        jax.make_jaxpr(lambda *a: lambda_returns(*a, gae_lambda=0.9))(x, x, x, end),
    ):
        assert f"length={steps}\n" in str(traced)


def test_in_blocks_too_nothing_crosses_the_end_of_an_episode():
    one = jnp.ones(40)
    end = jnp.zeros(40, bool).at[jnp.array([5, 20])].set(True)
    reward = one.at[jnp.array([21, 39])].set(jnp.array([jnp.nan, jnp.inf]))
    found = gae(reward, 0.9 * one, one, one, end, gae_lambda=0.9)
    assert jnp.isfinite(found[:21]).all()
    assert jnp.isnan(found[21])
    assert jnp.isinf(found[22:]).all()


@few
@given(numbers(), unit, numbers(), numbers(), booleans())
def test_lambda_zero_is_one_step_td(reward, discount, value, next_value, end):
    found = jit_gae(reward, discount, value, next_value, end, 0.0)
    np.testing.assert_allclose(found, reward + discount * next_value - value, atol=1e-5)


@few
@given(numbers(), unit, numbers(), numbers())
def test_lambda_one_is_return_minus_value(reward, discount, value, last_value):
    # Successive values agree inside one episode, as they do without auto-reset.
    next_value = jnp.concatenate([value[1:], last_value[:1]])
    end = jnp.zeros(SHAPE, bool)
    found = jit_gae(reward, discount, value, next_value, end, 1.0)
    following, returns = last_value[0], []
    for t in reversed(range(SHAPE[0])):
        following = reward[t] + discount[t] * following
        returns.insert(0, following)
    np.testing.assert_allclose(found, jnp.stack(returns) - value, atol=1e-3)


@few
@given(numbers(), unit, numbers(), numbers(), booleans(), st.floats(0, 1, width=32))
def test_advantage_plus_value_is_lambda_return(reward, discount, value, last, end, lam):
    next_value = jnp.concatenate([value[1:], last[:1]])
    advantage = jit_gae(reward, discount, value, next_value, end, lam)
    returns = jit_returns(reward, discount, next_value, end, lam)
    np.testing.assert_allclose(advantage + value, returns, atol=1e-3)


@few
@given(numbers(), unit, numbers(), numbers(), numbers(), st.integers(0, SHAPE[0] - 2))
def test_nothing_leaks_back_over_an_episode_end(reward, discount, value, next_value, other, cut):
    end = jnp.zeros(SHAPE, bool).at[cut].set(True)
    later = jnp.arange(SHAPE[0])[:, None] > cut
    later = jnp.broadcast_to(later, SHAPE)
    before = jit_gae(reward, discount, value, next_value, end, 0.9)
    after = jit_gae(jnp.where(later, other, reward), discount, value, next_value, end, 0.9)
    np.testing.assert_array_equal(before[: cut + 1], after[: cut + 1])


@few
@given(numbers(), numbers(), booleans())
def test_truncation_bootstraps_and_termination_does_not(reward, next_value, end):
    value = jnp.zeros(SHAPE)
    always = jnp.ones(SHAPE, bool)
    truncated = jit_gae(reward, jnp.full(SHAPE, 0.9), value, next_value, always, 0.9)
    terminated = jit_gae(reward, jnp.zeros(SHAPE), value, next_value, always, 0.9)
    np.testing.assert_allclose(truncated, reward + 0.9 * next_value, atol=1e-5)
    np.testing.assert_array_equal(terminated, reward)


@few
@given(numbers(), unit, numbers(), numbers(), booleans())
def test_padding_with_zeros_changes_nothing(reward, discount, value, next_value, end):
    def pad(x):
        return jnp.pad(x, ((0, 3), (0, 0)))

    padded = jit_gae(*map(pad, (reward, discount, value, next_value, end)), 0.9)
    plain = jit_gae(reward, discount, value, next_value, end, 0.9)
    np.testing.assert_allclose(padded[: SHAPE[0]], plain, atol=1e-5)
    assert not padded[SHAPE[0] :].any()


@few
@given(numbers(), booleans(), permutations(SHAPE[0]))
def test_masked_statistics_ignore_order(x, mask, order):
    np.testing.assert_allclose(masked_mean(x[order], mask[order]), masked_mean(x, mask), atol=1e-5)
    np.testing.assert_allclose(
        masked_whiten(x[order], mask[order]), masked_whiten(x, mask)[order], atol=2e-3
    )


def test_a_large_constant_is_whitened_to_zero():
    found = masked_whiten(jnp.full((7, 11), 1e6 / 3), jnp.ones((7, 11), bool))
    assert jnp.abs(found).max() < 1e-3


def test_whitening_a_large_offset_keeps_the_deviations():
    # 1e6 ± 1 is exact in float32, and its population deviation is 1.
    x = 1e6 + jnp.array([1.0, -1.0, 1.0, -1.0])
    np.testing.assert_allclose(masked_whiten(x, jnp.ones(4, bool)), [1, -1, 1, -1], rtol=1e-5)


def test_long_horizon_of_bfloat16_rewards_does_not_stall():
    # In bfloat16 1000 ones sum to 256: 256 + 1 rounds back to 256.
    one = jnp.ones(1000, jnp.bfloat16)
    zero, end = jnp.zeros_like(one), jnp.zeros(1000, bool)
    assert gae(one, one, zero, zero, end, gae_lambda=1.0)[0] == 1000.0
    assert masked_mean(one, ~end).item() == 1.0
