import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxagent.losses import (
    conserve_return,
    decayed_credit,
    difference_credit,
    duration_credit,
    eligibility_credit,
    gae,
    segment_gae,
    sum_segments,
    td_credit,
    uniform_credit,
)
from tests.losses.strategies import SHAPE, few, integers, numbers

N = SHAPE[0]
LIVE = jnp.ones(SHAPE, bool)
returns = numbers(shape=(2,))
prefixes = st.lists(st.integers(1, N), min_size=2, max_size=2).map(
    lambda lengths: jnp.asarray(np.arange(N)[:, None] < np.array(lengths))
)
# Ids that start at 0, never go back and skip none.
segments = integers(0, 1).map(lambda step: jnp.cumsum(step.at[0].set(0), axis=0))
options = {"num_segments": N}
jit_td = jax.jit(lambda *x: td_credit(*x, **options))
jit_sums = jax.jit(lambda *x: sum_segments(*x, **options))


def test_shares_worked_by_hand():
    mask = jnp.array([True, True, False])
    # R = 8 over durations 1, 3 (and a dead one): 2, 6
    np.testing.assert_allclose(uniform_credit(jnp.array(8.0), mask), [4.0, 4.0, 0.0])
    np.testing.assert_allclose(
        duration_credit(jnp.array(8.0), jnp.array([1, 3, 9]), mask), [2.0, 6.0, 0.0]
    )


def test_decayed_worked_by_hand():
    # ρ = ½, r = 1, 2, 4, R = 8 at the third: 4 + 8 = 12, 2 + 6 = 8, 1 + 4 = 5
    reward, mask = jnp.array([1.0, 2.0, 4.0, 99.0]), jnp.array([True, True, True, False])
    found = decayed_credit(reward, jnp.array(8.0), mask, credit_decay=0.5)
    np.testing.assert_allclose(found, [5.0, 8.0, 12.0, 0.0])


def test_segment_traces_worked_by_hand():
    # r = 1, 2; γ^d = 0.5, 0.25; V next = 4, 8; V = 1, 2; λ = ½
    # λ-return: G₁ = 2 + 0.25·8 = 4, G₀ = 1 + 0.5·(0.5·4 + 0.5·4) = 3
    # δ₀ = 1 + 2 − 1 = 2, δ₁ = 2 + 2 − 2 = 2: A₁ = 2, A₀ = 2 + 0.25·2 = 2.5
    reward, discount = jnp.array([1.0, 2.0, 7.0]), jnp.array([0.5, 0.25, 7.0])
    value, next_value = jnp.array([1.0, 2.0, 7.0]), jnp.array([4.0, 8.0, 7.0])
    mask = jnp.array([True, True, False])
    found = eligibility_credit(reward, discount, next_value, mask, segment_lambda=0.5)
    np.testing.assert_allclose(found, [3.0, 4.0, 0.0])
    found = segment_gae(reward, discount, value, next_value, mask, segment_lambda=0.5)
    np.testing.assert_allclose(found, [2.5, 2.0, 0.0])


def test_difference_and_conservation_worked_by_hand():
    mask = jnp.array([True, True, False])
    found = difference_credit(jnp.array(10.0), jnp.array([4.0, 10.0, 0.0]), mask)
    np.testing.assert_allclose(found, [6.0, 0.0, 0.0])
    # 10 − 6 = 4 is missing, 2 for each
    np.testing.assert_allclose(conserve_return(found, jnp.array(10.0), mask), [8.0, 2.0, 0.0])


def test_segment_sums_worked_by_hand():
    # γ = ½. Segment 0: steps 1, 2 -> 1 + ½·2 = 2, γ² = ¼. Segment 1: 3, 4, terminated:
    # 3 + ½·4 = 5, discount ½·0 = 0. The fifth step is padding.
    reward = jnp.array([1.0, 2.0, 3.0, 4.0, 99.0])
    discount = jnp.array([0.5, 0.5, 0.5, 0.0, 0.5])
    mask = jnp.arange(5) < 4
    found = sum_segments(reward, discount, jnp.array([0, 0, 1, 1, -7]), mask, num_segments=3)
    np.testing.assert_allclose(found.reward, [2.0, 5.0, 0.0])
    np.testing.assert_allclose(found.discount, [0.25, 0.0, 0.0])
    np.testing.assert_array_equal(found.duration, [2, 2, 0])
    np.testing.assert_array_equal(found.mask, [True, True, False])


def test_td_credit_worked_by_hand():
    # γ = ½, V = 1, 2, 3, V′ = 2, 3, 0: δ = 1 + 1 − 1 = 1, 1 + 1.5 − 2 = 0.5, 1 − 3 = −2
    # C₀ = 1 + ½·0.5 = 1.25, C₁ = −2
    one = jnp.ones(3)
    found = td_credit(
        one, 0.5 * one, jnp.array([1.0, 2.0, 3.0]), jnp.array([2.0, 3.0, 0.0]),
        jnp.array([0, 0, 1]), one > 0, num_segments=2,
    )  # fmt: skip
    np.testing.assert_allclose(found, [1.25, -2.0])


@few
@given(returns, integers(1, 9), numbers(), prefixes)
def test_redistribution_conserves_the_return(task_return, duration, credit, mask):
    for found in (
        uniform_credit(task_return, mask),
        duration_credit(task_return, duration, mask),
        conserve_return(credit, task_return, mask),
    ):
        np.testing.assert_allclose(found.sum(0), task_return, atol=1e-4)
        assert not jnp.where(mask, 0, found).any()


@few
@given(numbers(), returns, prefixes)
def test_conserving_keeps_the_differences_between_credits(credit, task_return, mask):
    found = conserve_return(credit, task_return, mask)
    both = mask[1:] & mask[:-1]
    np.testing.assert_allclose(
        jnp.where(both, jnp.diff(found, axis=0), 0),
        jnp.where(both, jnp.diff(credit, axis=0), 0),
        atol=1e-4,
    )
    np.testing.assert_allclose(conserve_return(found, task_return, mask), found, atol=1e-4)


@few
@given(numbers(), numbers(shape=(N + 1, 2)), segments)
def test_undiscounted_td_credits_sum_to_return_minus_first_value(reward, value, segment_id):
    terminal = value.at[-1].set(0.0)
    one = jnp.ones(SHAPE)
    found = jit_td(reward, one, terminal[:-1], terminal[1:], segment_id, LIVE)
    np.testing.assert_allclose(found.sum(0), reward.sum(0) - value[0], atol=1e-3)


@few
@given(numbers(), numbers(0, 1), numbers(), numbers())
def test_a_segment_of_one_step_is_that_steps_td_error(reward, discount, value, next_value):
    each = jnp.broadcast_to(jnp.arange(N)[:, None], SHAPE)
    found = jit_td(reward, discount, value, next_value, each, LIVE)
    np.testing.assert_allclose(found, reward + discount * next_value - value, atol=1e-5)
    whole = jit_td(reward, discount, value, next_value, 0 * each, LIVE)
    end = jnp.zeros(SHAPE, bool)
    plain = gae(reward, discount, value, next_value, end, gae_lambda=1.0)
    np.testing.assert_allclose(whole[0], plain[0], atol=1e-3)
    assert not whole[1:].any()


@few
@given(numbers(), numbers(shape=(N + 1, 2)), segments, st.floats(0.5, 1, width=32))
def test_summed_segments_with_lambda_one_telescope_like_single_steps(
    reward, value, segment_id, gamma
):
    # Over whole episodes both are Σ γᵗ r + γᵀ V(s_T) − V(s₀).
    discount = jnp.full(SHAPE, gamma)
    found = jit_sums(reward, discount, segment_id, LIVE)
    start = jnp.concatenate([jnp.zeros((1, 2), int), jnp.cumsum(found.duration, 0)])
    at_start = jnp.take_along_axis(value, start, axis=0)
    advantage = segment_gae(
        found.reward, found.discount, at_start[:-1], at_start[1:], found.mask, segment_lambda=1.0
    )
    end = jnp.zeros(SHAPE, bool)
    plain = gae(reward, discount, value[:-1], value[1:], end, gae_lambda=1.0)
    np.testing.assert_allclose(advantage[0], plain[0], atol=1e-3)
    np.testing.assert_array_equal(found.duration.sum(0), [N, N])


@few
@given(numbers(), numbers(0, 1), numbers(), numbers(), prefixes, st.floats(0, 1, width=32))
def test_segment_advantage_plus_value_is_eligibility_credit(r, g, value, last, mask, lam):
    next_value = jnp.concatenate([value[1:], last[:1]])
    advantage = segment_gae(r, g, value, next_value, mask, segment_lambda=lam)
    credit = eligibility_credit(r, g, next_value, mask, segment_lambda=lam)
    np.testing.assert_allclose(jnp.where(mask, advantage + value, 0), credit, atol=1e-3)


@few
@given(numbers(), returns, prefixes)
def test_decayed_credit_without_decay_is_the_sum_of_all_that_follows(reward, task_return, mask):
    found = decayed_credit(reward, task_return, mask, credit_decay=1.0)
    live = jnp.where(mask, reward, 0)
    expected = jnp.cumsum(live[::-1], 0)[::-1] + task_return[None]
    np.testing.assert_allclose(found, jnp.where(mask, expected, 0), atol=1e-4)
    myopic = decayed_credit(reward, 0 * task_return, mask, credit_decay=0.0)
    np.testing.assert_allclose(myopic, live, atol=1e-6)


def arrays(shape=(4,)):
    return jnp.ones(shape), jnp.ones(shape), jnp.zeros(shape), jnp.zeros(shape)


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([0, 1, 0, 1], "must not decrease along its leading axis, found 1 followed by 0 at step 2"),
        ([0, -1, 0, 1], r"must lie in \[0, 3\), found -1"),
        ([0, 1, 2, 3], r"must lie in \[0, 3\), found 3"),
    ],
)
def test_bad_segment_ids(ids, message):
    ids, live = jnp.array(ids), jnp.ones(4, bool)
    reward, discount, value, next_value = arrays()
    with pytest.raises(ValueError, match="td_credit: segment_id " + message):
        td_credit(reward, discount, value, next_value, ids, live, num_segments=3)
    with pytest.raises(ValueError, match="sum_segments: segment_id " + message):
        sum_segments(reward, discount, ids, live, num_segments=3)
    # Under jit the values are not known: that episode is NaN, the other is not.
    two = jnp.stack([ids, jnp.array([0, 0, 1, 2])], axis=1)
    wide = arrays((4, 2))
    found = jax.jit(lambda i: td_credit(*wide, i, jnp.ones((4, 2), bool), num_segments=3))(two)
    np.testing.assert_array_equal(jnp.isnan(found).all(0), [True, False])
    assert not jnp.isnan(found[:, 1]).any()
    sums = jax.jit(lambda i: sum_segments(*wide[:2], i, jnp.ones((4, 2), bool), num_segments=3))(
        two
    )
    for part in (sums.reward, sums.discount):
        np.testing.assert_array_equal(jnp.isnan(part).all(0), [True, False])


def test_bad_segment_ids_name_the_column():
    ids = jnp.array([[0, 0], [1, 2], [1, 1]])
    with pytest.raises(ValueError, match="found 2 followed by 1 at step 2"):
        sum_segments(
            jnp.ones((3, 2)), jnp.ones((3, 2)), ids, jnp.ones((3, 2), bool), num_segments=3
        )


def test_ids_of_padding_are_not_looked_at():
    reward, discount, value, next_value = arrays()
    live = jnp.array([True, True, False, False])
    found = td_credit(
        reward, discount, value, next_value, jnp.array([0, 1, 0, 99]), live, num_segments=2
    )
    np.testing.assert_array_equal(found, [1.0, 1.0])


@pytest.mark.parametrize("value", [-0.1, 1.1])
def test_static_lambdas_outside_the_unit_interval(value):
    x, live = jnp.ones(2), jnp.ones(2, bool)
    for name, call in {
        "decayed_credit: credit_decay": lambda: decayed_credit(
            x, jnp.ones(()), live, credit_decay=value
        ),
        "eligibility_credit: segment_lambda": lambda: eligibility_credit(
            x, x, x, live, segment_lambda=value
        ),
        "segment_gae: segment_lambda": lambda: segment_gae(x, x, x, x, live, segment_lambda=value),
    }.items():
        with pytest.raises(ValueError, match=rf"{name} must lie in \[0, 1\], found {value}"):
            call()
