import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given

from jaxagent.losses import (
    behaviour_cloning_loss,
    behaviour_cloning_squared_error,
    categorical_distillation_loss,
    categorical_entropy,
    categorical_log_prob,
    tanh_normal_distillation_loss,
    token_clipped_loss,
    token_cross_entropy,
    token_mean,
)
from tests.losses.strategies import booleans, few, numbers

CONVENTIONS = [
    {"normalisation": "token"},
    {"normalisation": "sequence"},
    {"normalisation": "constant", "normaliser": 12.0},
]


def test_three_conventions_worked_by_hand():
    # rows (1, 2, 3) with three live tokens, (10, ·, ·) with one, and one without any
    # token 16/4, sequence (2 + 10)/2, constant 16/8
    x = jnp.array([[1.0, 2.0, 3.0], [10.0, 5.0, 5.0], [7.0, 7.0, 7.0]])
    mask = jnp.array([[True, True, True], [True, False, False], [False, False, False]])
    assert token_mean(x, mask, normalisation="token").item() == 4.0
    assert token_mean(x, mask, normalisation="sequence").item() == 6.0
    assert token_mean(x, mask, normalisation="constant", normaliser=8).item() == 2.0


def test_token_clipped_loss_worked_by_hand():
    # ε = 0.2, Â = 1 then −1. Tokens ρ = 1.5, 1, 0.5 and 0.5 (live), 9 (dead).
    # row 0: 1.2, 1, 0.5: sum 2.7      row 1: max(0.5, 0.8)·(−1) = −0.8
    # token −1.9/4      sequence −(0.9 − 0.8)/2      clipped 3 of 4
    # k3: 0.5 − log 1.5, 0, −0.5 − log 0.5 twice
    log_prob = jnp.log(jnp.array([[1.5, 1.0, 0.5], [0.5, 9.0, 9.0]]))
    advantage = jnp.array([[1.0] * 3, [-1.0] * 3])
    mask = jnp.array([[True, True, True], [True, False, False]])
    arrays = (log_prob, jnp.zeros((2, 3)), advantage, mask)
    found = token_clipped_loss(*arrays, clip_epsilon=0.2, normalisation="token")
    kl = (0.5 - math.log(1.5) + 2 * (-0.5 + math.log(2))) / 4
    np.testing.assert_allclose(jnp.stack(found), [-0.475, 0.75, kl], rtol=1e-5)
    found = token_clipped_loss(*arrays, clip_epsilon=0.2, normalisation="sequence")
    np.testing.assert_allclose(found.total, -0.05, rtol=1e-5)


def test_a_ratio_on_the_edge_of_the_clip_is_not_clipped():
    zero, mask = jnp.zeros((2, 3)), jnp.ones((2, 3), bool)
    found = token_clipped_loss(zero, zero, zero, mask, clip_epsilon=0.0, normalisation="token")
    assert found.clip_fraction == 0.0


def test_cross_entropy_worked_by_hand():
    # probabilities (½, ¼, ¼): −log ¼ and −log ½, mean 1.5 log 2
    logits = jnp.log(jnp.array([[[2.0, 1.0, 1.0]] * 3]))
    token, mask = jnp.array([[1, 0, -100]]), jnp.array([[True, True, False]])
    found = token_cross_entropy(logits, token, mask)
    np.testing.assert_allclose(found, 1.5 * math.log(2), rtol=1e-6)
    # 3 log 2 over a global count of 10
    found = token_cross_entropy(logits, token, mask, normalisation="constant", normaliser=10.0)
    np.testing.assert_allclose(found, 0.3 * math.log(2), rtol=1e-6)


def test_cloning_worked_by_hand():
    mask = jnp.array([True, True, False])
    assert behaviour_cloning_loss(jnp.array([-1.0, -2.0, 9.0]), mask).item() == 1.5
    action, expert = jnp.array([[1.0, 2], [0, 0], [9, 9]]), jnp.array([[0.0, 0], [0, 1], [0, 0]])
    # ½(1 + 4) and ½·1, mean 1.5
    assert behaviour_cloning_squared_error(action, expert, mask).item() == 1.5


def test_distillation_worked_by_hand():
    # teacher (½, ¼, ¼), student (¼, ¼, ½): KL = ¼ log 2. At τ = 2 on doubled logits, 4 times it.
    teacher, student = jnp.log(jnp.array([[2.0, 1, 1]])), jnp.log(jnp.array([[1.0, 1, 2]]))
    live = jnp.ones(1, bool)
    found = categorical_distillation_loss(teacher, student, live)
    np.testing.assert_allclose(found, 0.25 * math.log(2), rtol=1e-5)
    hot = categorical_distillation_loss(2 * teacher, 2 * student, live, softmax_temperature=2.0)
    np.testing.assert_allclose(hot, math.log(2), rtol=1e-5)
    # μ 1 against 0, σ 2 against 1: 2 − log 2 in each of two dimensions
    one = jnp.ones((1, 2))
    found = tanh_normal_distillation_loss(one, 2 * one, 0 * one, one, live)
    np.testing.assert_allclose(found, 2 * (2 - math.log(2)), rtol=1e-5)


def test_teachers_carry_no_gradient():
    x, live = jnp.array([[0.3, 0.9]]), jnp.ones(1, bool)
    assert not jax.grad(categorical_distillation_loss)(x, 2 * x, live).any()
    assert jax.grad(categorical_distillation_loss, argnums=1)(x, 2 * x, live).any()
    teacher = jax.grad(tanh_normal_distillation_loss, argnums=(0, 1))(x, x, 2 * x, 3 * x, live)
    assert not any(g.any() for g in teacher)


@pytest.mark.parametrize("options", CONVENTIONS, ids=str)
@few
@given(numbers(), booleans())
def test_padding_with_dead_tokens_and_sequences_changes_nothing(options, x, mask):
    found = token_mean(x, mask, **options)
    wider = jnp.pad(x, ((0, 2), (0, 3)), constant_values=jnp.nan)
    padded = token_mean(wider, jnp.pad(mask, ((0, 2), (0, 3))), **options)
    np.testing.assert_allclose(padded, found, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("options", CONVENTIONS, ids=str)
@few
@given(numbers(-3, 0), numbers(), booleans())
def test_on_policy_gradient_is_the_policy_gradient(options, log_prob, advantage, mask):
    def clipped(x):
        return token_clipped_loss(x, log_prob, advantage, mask, clip_epsilon=0.2, **options).total

    def policy_gradient(x):
        return -token_mean(x * advantage, mask, **options)

    np.testing.assert_allclose(
        jax.grad(clipped)(log_prob), jax.grad(policy_gradient)(log_prob), atol=1e-5
    )


def test_equal_lengths_make_token_and_sequence_agree():
    x, mask = jnp.arange(6.0).reshape(2, 3), jnp.ones((2, 3), bool)
    token, sequence = (token_mean(x, mask, normalisation=n) for n in ("token", "sequence"))
    np.testing.assert_allclose(token, sequence)


@few
@given(numbers(shape=(6, 2, 4)))
def test_cross_entropy_under_the_models_own_distribution_is_its_entropy(logits):
    probability = jax.nn.softmax(logits)
    every = jnp.moveaxis(jnp.broadcast_to(jnp.arange(4), logits.shape), -1, 0)
    log_prob = jax.vmap(categorical_log_prob, (None, 0), -1)(logits, every)
    np.testing.assert_allclose(
        -jnp.sum(probability * log_prob, -1), categorical_entropy(logits), atol=1e-4
    )


def test_a_live_token_out_of_range_is_nan():
    logits, mask = jnp.zeros((1, 2, 4)), jnp.array([[True, False]])
    assert jnp.isnan(token_cross_entropy(logits, jnp.array([[4, 0]]), mask))
    assert jnp.isnan(token_cross_entropy(logits, jnp.array([[-1, 0]]), mask))
    assert jnp.isfinite(token_cross_entropy(logits, jnp.array([[3, 4]]), mask))


@pytest.mark.parametrize("normalisation", ["token", "sequence", "constant"])
def test_normaliser_goes_with_constant(normalisation):
    normaliser = None if normalisation == "constant" else 3.0
    fault = "is missing" if normaliser is None else r"\(3.0\) means nothing"
    with pytest.raises(ValueError, match=f"{fault} with normalisation '{normalisation}'"):
        token_mean(
            jnp.ones((2, 2)), jnp.ones((2, 2), bool),
            normalisation=normalisation, normaliser=normaliser,
        )  # fmt: skip


def test_sharded_token_means_add_up_with_a_global_count():
    x, mask = jnp.arange(12.0).reshape(4, 3), jnp.arange(12).reshape(4, 3) % 5 != 0
    count = mask.sum().astype(jnp.float32)
    parts = [
        token_mean(x[i], mask[i], normalisation="constant", normaliser=count)
        for i in (slice(2), slice(2, 4))
    ]
    np.testing.assert_allclose(sum(parts), token_mean(x, mask, normalisation="token"), rtol=1e-6)
