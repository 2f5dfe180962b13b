import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given

from jaxagent.losses import bradley_terry_loss, dpo_loss, ipo_loss, sequence_log_prob
from tests.losses.strategies import SHAPE, booleans, few, numbers

LIVE = jnp.ones(1, bool)
log_probs = numbers(-20, 0)


def one(*values):
    return [jnp.full(1, v) for v in values]


def test_dpo_worked_by_hand():
    # β = 0.5, log-ratios 2 and −1: h = 1.5, rewards 1 and −0.5, −log σ(1.5) = 0.2014133
    found = dpo_loss(*one(-3.0, -6.0, -5.0, -5.0), LIVE, dpo_beta=0.5)
    np.testing.assert_allclose(jnp.stack(found), [0.2014133, 1.0, 1.0, -0.5], rtol=1e-5)
    # ε = 0.1: 0.9·0.2014133 + 0.1·1.7014133 = 0.3514133
    smoothed = dpo_loss(*one(-3.0, -6.0, -5.0, -5.0), LIVE, dpo_beta=0.5, label_smoothing=0.1)
    np.testing.assert_allclose(smoothed.total, 0.3514133, rtol=1e-5)


def test_ipo_worked_by_hand():
    # h = 3, 1/(2·0.25) = 2: (3 − 2)² = 1; rewards 0.25·2 and 0.25·(−1)
    found = ipo_loss(*one(-3.0, -6.0, -5.0, -5.0), LIVE, ipo_tau=0.25)
    np.testing.assert_allclose(jnp.stack(found), [1.0, 1.0, 0.5, -0.25], rtol=1e-6)


def test_bradley_terry_worked_by_hand():
    # −log σ(3 − 1) = 0.1269280, with margin 1: −log σ(1) = 0.3132617
    found = bradley_terry_loss(*one(3.0, 1.0), LIVE)
    np.testing.assert_allclose(jnp.stack(found), [0.1269280, 1.0, 3.0, 1.0], rtol=1e-5)
    np.testing.assert_allclose(
        bradley_terry_loss(*one(3.0, 1.0), LIVE, margin=1.0).total, 0.3132617, rtol=1e-5
    )


def test_sequence_log_prob_worked_by_hand():
    x = jnp.array([[-1.0, -2.0, -9.0], [-4.0, -5.0, -6.0]])
    mask = jnp.array([[True, True, False], [False, False, False]])
    np.testing.assert_allclose(sequence_log_prob(x, mask), [-3.0, 0.0])
    np.testing.assert_allclose(sequence_log_prob(x, mask, length_normalised=True), [-1.5, 0.0])


@few
@given(log_probs, log_probs)
def test_dpo_is_log_two_where_policy_is_reference(chosen, rejected):
    mask = jnp.ones(SHAPE, bool)
    found = dpo_loss(chosen, rejected, chosen, rejected, mask, dpo_beta=0.3)
    np.testing.assert_allclose(found.total, math.log(2), rtol=1e-6)
    assert found.accuracy == 0.0
    # and its gradient is −β/2 per log-ratio, shared among the pairs
    slope = jax.grad(lambda x: dpo_loss(x, rejected, chosen, rejected, mask, dpo_beta=0.3).total)
    np.testing.assert_allclose(slope(chosen), -0.15 / 12, rtol=1e-5)


@few
@given(log_probs, log_probs, log_probs, log_probs, booleans())
def test_dpo_is_antisymmetric_in_chosen_and_rejected(pc, pr, rc, rr, mask):
    there = dpo_loss(pc, pr, rc, rr, mask, dpo_beta=0.3)
    back = dpo_loss(pr, pc, rr, rc, mask, dpo_beta=0.3)
    # −log σ(h) + log σ(−h) = −h, and the rewards change places
    margin = there.chosen_reward - there.rejected_reward
    np.testing.assert_allclose(there.total - back.total, -margin, atol=1e-4)
    np.testing.assert_allclose(there.chosen_reward, back.rejected_reward, atol=1e-5)


@few
@given(log_probs, log_probs, log_probs, log_probs)
def test_flipping_every_label_swaps_chosen_and_rejected(pc, pr, rc, rr):
    mask = jnp.ones(SHAPE, bool)
    flipped = dpo_loss(pc, pr, rc, rr, mask, dpo_beta=0.3, label_smoothing=1.0)
    swapped = dpo_loss(pr, pc, rr, rc, mask, dpo_beta=0.3)
    np.testing.assert_allclose(flipped.total, swapped.total, rtol=1e-5)


def test_the_reference_carries_no_gradient():
    arrays = one(-3.0, -6.0, -5.0, -4.0)
    for loss in (
        lambda *x: dpo_loss(*x, LIVE, dpo_beta=0.5).total,
        lambda *x: ipo_loss(*x, LIVE, ipo_tau=0.05).total,
    ):
        chosen, rejected, *reference = jax.grad(loss, argnums=(0, 1, 2, 3))(*arrays)
        assert chosen < 0 < rejected
        assert not any(g.any() for g in reference)


def test_ipo_stops_at_its_margin_where_dpo_goes_on():
    arrays = one(0.0, -5.0, 0.0, 0.0)
    ipo = jax.grad(lambda x: ipo_loss(x, *arrays[1:], LIVE, ipo_tau=0.1).total)(arrays[0])
    dpo = jax.grad(lambda x: dpo_loss(x, *arrays[1:], LIVE, dpo_beta=0.1).total)(arrays[0])
    assert abs(ipo.item()) < 1e-6  # h = 5 = 1/(2τ)
    assert dpo.item() < 0


@few
@given(numbers(), numbers(), numbers(-3, 3, shape=()))
def test_bradley_terry_only_knows_differences(chosen, rejected, shift):
    mask = jnp.ones(SHAPE, bool)
    plain = bradley_terry_loss(chosen, rejected, mask)
    moved = bradley_terry_loss(chosen + shift, rejected + shift, mask)
    np.testing.assert_allclose(plain.total, moved.total, rtol=1e-4, atol=1e-5)


def test_label_smoothing_outside_the_unit_interval():
    with pytest.raises(ValueError, match=r"dpo_loss: label_smoothing must lie in \[0, 1\], found"):
        dpo_loss(*one(0.0, 0.0, 0.0, 0.0), LIVE, dpo_beta=0.1, label_smoothing=-0.1)


@pytest.mark.parametrize("rewards", [(np.inf, 0.0), (0.0, -np.inf)])
def test_an_infinite_reward_is_not_a_won_pair(rewards):
    chosen, rejected = (jnp.array([x]) for x in rewards)
    assert not jnp.isfinite(bradley_terry_loss(chosen, rejected, jnp.ones(1, bool)).total)
