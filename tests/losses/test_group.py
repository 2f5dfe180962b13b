import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxagent.losses import (
    gigpo_advantages,
    grpo_advantages,
    hgpo_advantages,
    history_keys,
    rloo_advantages,
)
from tests.losses.strategies import SHAPE, booleans, few, integers, numbers, permutations
from tests.reference import group as reference

LIVE = jnp.ones(SHAPE, bool)
SPREADS = ["population", "sample", "none"]
ids = integers(0, 2)
grpo = jax.jit(grpo_advantages, static_argnames=("num_groups", "spread"))
rloo = jax.jit(rloo_advantages, static_argnames="num_groups")
hgpo = jax.jit(hgpo_advantages, static_argnames=("weight_exponent", "spread"))
gigpo = jax.jit(gigpo_advantages, static_argnames=("num_groups", "step_weight", "spread"))


def test_both_std_conventions_worked_by_hand():
    # returns 1, 3, 8: mean 4, deviations −3, −1, 4, squares 26
    # population √(26/3) = 2.943920, sample √13 = 3.605551
    returns, one_group, live = jnp.array([1.0, 3.0, 8.0]), jnp.zeros(3, int), jnp.ones(3, bool)
    deviation = np.array([-3.0, -1.0, 4.0])
    for spread, std in [("population", 2.943920), ("sample", 3.605551), ("none", 1.0)]:
        found = grpo_advantages(returns, one_group, live, num_groups=1, spread=spread)
        np.testing.assert_allclose(found, deviation / std, rtol=1e-5)
    # others of 1: (3 + 8)/2 = 5.5; of 3: 4.5; of 8: 2
    found = rloo_advantages(returns, one_group, live, num_groups=1)
    np.testing.assert_allclose(found, [-4.5, -1.5, 6.0], rtol=1e-6)


def test_gigpo_worked_by_hand():
    # Two episodes of one task, R = 2 and 6: A_episode = −2, 2. At t = 0 both saw observation 5,
    # returns-to-go 1 and 5: A_step = −2, 2. At t = 1 they saw different ones: 0. ω = ½.
    found = gigpo_advantages(
        jnp.array([2.0, 6.0]),
        jnp.array([[1.0, 5.0], [7.0, 9.0]]),
        jnp.array([0, 0]),
        jnp.array([[5, 5], [6, 7]]),
        jnp.ones((2, 2), bool),
        num_groups=1,
        step_weight=0.5,
        spread="none",
    )
    np.testing.assert_allclose(found, [[-3.0, 3.0], [-2.0, 2.0]])


def test_hgpo_worked_by_hand():
    # Three steps with equal observations, returns 0, 3, 9: level 1 deviations −4, −1, 5.
    # The first two share their last two observations: level 2 deviations −1.5, 1.5; the third
    # is alone there, so only level 1 counts for it. α = 1: weights 2 and 3.
    # (2·(−4) + 3·(−1.5))/5 = −2.5    (2·(−1) + 3·1.5)/5 = 0.5    5
    to_go, task, live = jnp.array([0.0, 3.0, 9.0]), jnp.zeros(3, int), jnp.ones(3, bool)
    keys = jnp.array([[8, 8, 8], [1, 1, 2]])
    found = hgpo_advantages(to_go, task, keys, live, spread="none")
    np.testing.assert_allclose(found, [-2.5, 0.5, 5.0], rtol=1e-6)


def test_an_exactly_average_step_still_counts_its_level():
    # The public code of the paper drops zeros: it would give the middle step 3·1/3 = 1 rather
    # than (2·0 + 3·1)/5 = 0.6.
    to_go, live = jnp.array([0.0, 2.0, 4.0]), jnp.ones(3, bool)
    keys = jnp.array([[8, 8, 8], [1, 1, 2]])
    found = hgpo_advantages(to_go, jnp.zeros(3, int), keys, live, spread="none")
    np.testing.assert_allclose(found[1], 0.6, rtol=1e-6)


@pytest.mark.parametrize("spread", SPREADS)
@few
@given(numbers(), ids, booleans())
def test_advantages_of_a_group_sum_to_zero(spread, returns, group_id, mask):
    found = grpo(returns, group_id, mask, num_groups=3, spread=spread)
    for g in range(3):
        members = mask & (group_id == g)
        np.testing.assert_allclose(jnp.where(members, found, 0).sum(), 0, atol=1e-4)
    assert not jnp.where(mask, 0, found).any()


@few
@given(numbers(), ids, booleans())
def test_population_std_of_a_group_is_one(returns, group_id, mask):
    found = grpo(returns, group_id, mask, num_groups=3, spread="population")
    for g in range(3):
        members = np.asarray(mask & (group_id == g))
        if members.any() and np.asarray(returns)[members].std() > 0.01:
            np.testing.assert_allclose(np.asarray(found)[members].std(), 1.0, rtol=1e-3)


@pytest.mark.parametrize("spread", SPREADS)
@few
@given(numbers(), ids, booleans(), permutations(SHAPE[0]))
def test_order_and_names_of_groups_do_not_matter(spread, returns, group_id, mask, order):
    found = grpo(returns, group_id, mask, num_groups=3, spread=spread)
    moved = grpo(returns[order], group_id[order], mask[order], num_groups=3, spread=spread)
    np.testing.assert_allclose(moved, found[order], atol=2e-3)
    renamed = grpo(returns, 2 - group_id, mask, num_groups=3, spread=spread)
    np.testing.assert_allclose(renamed, found, atol=2e-3)


@few
@given(numbers(), ids, booleans())
def test_rloo_is_dr_grpo_times_n_over_n_minus_one(returns, group_id, mask):
    plain = grpo(returns, group_id, mask, num_groups=3, spread="none")
    size = sum(jnp.where(group_id == g, (mask & (group_id == g)).sum(), 0) for g in range(3))
    expected = jnp.where(size > 1, plain * size / jnp.maximum(size - 1, 1), 0.0)
    found = rloo(returns, group_id, mask, num_groups=3)
    np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("spread", SPREADS)
def test_equal_returns_and_groups_of_one_give_exactly_zero(spread):
    # 1e6/3 is not exact, and the mean of seven of them is rounded.
    returns = jnp.full(9, 1e6 / 3)
    group_id = jnp.array([0] * 7 + [1, 2])
    live = jnp.ones(9, bool)
    options = {"num_groups": 3, "spread": spread}
    assert not grpo_advantages(returns, group_id, live, **options).any()
    slope = jax.grad(lambda r: (grpo(r, group_id, live, **options) * jnp.arange(9.0)).sum())
    assert jnp.isfinite(slope(returns)).all()


@few
@given(numbers(), ids, ids, booleans())
def test_one_level_of_hgpo_is_the_step_term_of_gigpo(to_go, task_of_step, key, mask):
    task = task_of_step[0] % 2
    mask = mask.at[0].set(True)
    broadcast = jnp.broadcast_to(task, SHAPE)
    found = hgpo(to_go, broadcast, key[None], mask, spread="population")
    step = gigpo(
        jnp.zeros(2), to_go, task, key, mask, num_groups=2, step_weight=1.0, spread="population"
    )
    np.testing.assert_allclose(found, step, atol=1e-5)


@few
@given(numbers(), numbers(shape=(2,)), integers(0, 1, shape=(2,)), ids)
def test_without_step_weight_gigpo_is_grpo(to_go, returns, task, key):
    found = gigpo(returns, to_go, task, key, LIVE, num_groups=2, step_weight=0.0, spread="sample")
    episode = grpo(returns, task, jnp.ones(2, bool), num_groups=2, spread="sample")
    np.testing.assert_allclose(found, jnp.broadcast_to(episode, SHAPE), atol=1e-5)


@few
@given(numbers(), integers(-(2**31), 2**31 - 1), booleans(), st.integers(0, 2**31 - 1))
def test_step_keys_may_be_any_integers(to_go, key, mask, noise):
    task = jnp.zeros(SHAPE, int)
    found = hgpo(to_go, task, key[None], mask, spread="none")
    # xor is one-to-one: the same groups under other names
    renamed = hgpo(to_go, task, (key ^ noise)[None], mask, spread="none")
    np.testing.assert_allclose(found, renamed, atol=1e-5)
    expected = reference.hgpo_advantages(
        np.asarray(to_go, float), np.zeros(SHAPE, int), np.asarray(key)[None], np.asarray(mask),
        1.0, "none",
    )  # fmt: skip
    np.testing.assert_allclose(found, expected, atol=1e-4)


@few
@given(ids, booleans())
def test_history_keys_are_equal_exactly_for_equal_histories(observation, end):
    found = jax.jit(history_keys, static_argnames="num_levels")(observation, end, num_levels=3)
    for level in (1, 2, 3):
        seen = reference.histories(np.asarray(observation), np.asarray(end), level).ravel()
        keys = np.asarray(found[level - 1]).ravel()
        for i in range(len(keys)):
            for j in range(i):
                assert (keys[i] == keys[j]) == (seen[i] == seen[j])


def test_history_needs_a_level():
    with pytest.raises(ValueError, match="num_levels must be at least 1, found 0"):
        history_keys(jnp.zeros((2, 2), int), jnp.zeros((2, 2), bool), num_levels=0)


@pytest.mark.parametrize("bad", [-1, 3])
def test_group_id_out_of_range(bad):
    returns, live = jnp.ones(3), jnp.ones(3, bool)
    group_id = jnp.array([0, bad, 2])
    expected = rf"group_id must lie in \[0, 3\), found {bad}"
    with pytest.raises(ValueError, match="grpo_advantages: " + expected):
        grpo_advantages(returns, group_id, live, num_groups=3, spread="none")
    with pytest.raises(ValueError, match="rloo_advantages: " + expected):
        rloo_advantages(returns, group_id, live, num_groups=3)
    with pytest.raises(ValueError, match="gigpo_advantages: " + expected):
        gigpo_advantages(
            returns, returns[None], group_id, group_id[None], live[None],
            num_groups=3, step_weight=1.0, spread="none",
        )  # fmt: skip
    # Under jit the ids have no values: the entry is NaN and disturbs no other.
    found = grpo(returns, group_id, live, num_groups=3, spread="none")
    np.testing.assert_array_equal(jnp.isnan(found), [False, True, False])
    found = rloo(returns, group_id, live, num_groups=3)
    np.testing.assert_array_equal(jnp.isnan(found), [False, True, False])
    found = gigpo(
        returns, returns[None], group_id, group_id[None], live[None],
        num_groups=3, step_weight=1.0, spread="none",
    )  # fmt: skip
    np.testing.assert_array_equal(jnp.isnan(found[0]), [False, True, False])


def test_a_dead_entry_may_hold_any_group_id():
    found = grpo_advantages(
        jnp.array([1.0, 3.0, 99.0]), jnp.array([0, 0, -100]), jnp.array([True, True, False]),
        num_groups=1, spread="none",
    )  # fmt: skip
    np.testing.assert_array_equal(found, [-1.0, 1.0, 0.0])


def test_large_returns_keep_their_exact_differences():
    # 2²⁵ + 0, 4, 8: representable in float32, where their doubles, 8 apart, lose the middle one
    returns = jnp.array([2.0**25, 2.0**25 + 4, 2.0**25 + 8])
    found = grpo_advantages(
        returns, jnp.zeros(3, int), jnp.ones(3, bool), num_groups=1, spread="none"
    )
    np.testing.assert_array_equal(found, [-4.0, 0.0, 4.0])


def test_unknown_spread_is_named():
    with pytest.raises(TypeError, match=r"'spread' must be population \| sample \| none"):
        grpo_advantages(
            jnp.ones(1), jnp.zeros(1, int), jnp.ones(1, bool), num_groups=1, spread="std"
        )


def test_history_keys_have_as_many_levels_as_asked_for():
    observation_id, end = jnp.array([5, 5, 7]), jnp.zeros(3, bool)
    for num_levels in (1, 2, 3):
        found = history_keys(observation_id, end, num_levels=num_levels)
        assert found.shape == (num_levels, 3)
