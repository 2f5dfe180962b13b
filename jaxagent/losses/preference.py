"""Learning from preference pairs: sequence log-probability, DPO, IPO, Bradley-Terry rewards."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxagent.losses.advantages import masked_mean
from jaxagent.losses.contract import (
    Scalar,
    accumulate,
    checked,
    not_hidden,
    require_unit_interval,
)


class PreferenceLoss(NamedTuple):
    """A preference loss to be *minimised*, and means over the live pairs to watch."""

    total: Float[Array, ""]
    accuracy: Float[Array, ""]
    chosen_reward: Float[Array, ""]
    rejected_reward: Float[Array, ""]


@checked
def sequence_log_prob(
    token_log_prob: Float[Array, "*B L"],
    mask: Bool[Array, "*B L"],
    *,
    length_normalised: bool = False,
) -> Float[Array, "*B"]:
    """Log-probability of a completion.

        Σ_l m log π(tokenₗ)   or, length-normalised,   Σ_l m log π(tokenₗ) / Σ_l m

    Args:
        token_log_prob: log π of each token given those before it, nats.
        mask: True on completion tokens; a dead token is never looked at.
        length_normalised: the mean per token; use the same for policy and reference.

    Returns:
        One number per sequence, nats (per token), float32 or wider; 0 without a live token.
        Non-finite live input comes out non-finite.

    Raises:
        TypeError: an argument has another dtype, or the axes differ.

    Example:
        >>> x, mask = jnp.array([[-9.0, -1.0, -2.0]]), jnp.array([[False, True, True]])
        >>> sequence_log_prob(x, mask).item()
        -3.0
        >>> sequence_log_prob(x, mask, length_normalised=True).item()
        -1.5
    """
    if length_normalised:
        return masked_mean(token_log_prob, mask, axis=-1)
    (token_log_prob,) = accumulate(token_log_prob)
    return jnp.sum(jnp.where(mask, token_log_prob, 0.0), axis=-1)


def _log_ratios(policy_chosen, policy_rejected, reference_chosen, reference_rejected, mask):
    """log π/π_ref of chosen and rejected, 0 where dead, the reference's gradient stopped."""
    arrays = accumulate(policy_chosen, policy_rejected, reference_chosen, reference_rejected)
    chosen, rejected, *reference = (jnp.where(mask, x, 0.0) for x in arrays)
    reference_chosen, reference_rejected = jax.lax.stop_gradient(reference)
    return chosen - reference_chosen, rejected - reference_rejected


def _preference_loss(loss, chosen_reward, rejected_reward, mask) -> PreferenceLoss:
    is_right = (chosen_reward > rejected_reward).astype(loss.dtype)
    parts = (loss, is_right, chosen_reward, rejected_reward)
    return PreferenceLoss(*(masked_mean(part, mask) for part in parts))


@checked
def dpo_loss(
    policy_chosen_log_prob: Float[Array, "*S"],
    policy_rejected_log_prob: Float[Array, "*S"],
    reference_chosen_log_prob: Float[Array, "*S"],
    reference_rejected_log_prob: Float[Array, "*S"],
    mask: Bool[Array, "*S"],
    *,
    dpo_beta: Scalar,
    label_smoothing: Scalar = 0.0,
) -> PreferenceLoss:
    """Direct preference optimisation (Rafailov et al. 2023, eq. 7).

        h = β [(log π(c) − log π_ref(c)) − (log π(r) − log π_ref(r))]
        L = mean[−(1 − ε) log σ(h) − ε log σ(−h)]

    Args:
        policy_chosen_log_prob: log π(chosen), from `sequence_log_prob`, nats.
        policy_rejected_log_prob: log π(rejected).
        reference_chosen_log_prob: log π_ref(chosen); its gradient is stopped here.
        reference_rejected_log_prob: log π_ref(rejected); its gradient is stopped here.
        mask: True where the pair counts; a dead pair is never looked at.
        dpo_beta: β > 0. For the length-normalised form pass length-normalised
            log-probabilities, and a larger β.
        label_smoothing: ε in [0, ½], the share of flipped labels (Mitchell 2023).

    Returns:
        The loss; accuracy = share of pairs with h > 0; the implicit rewards β log π/π_ref.
        log 2 where policy = reference; all 0 where nothing is live. Non-finite live input
        comes out non-finite.

    Raises:
        TypeError: an argument has another dtype, or the axes differ.
        ValueError: a static label_smoothing lies outside [0, 1].

    Example:
        >>> x, live = jnp.array([-5.0]), jnp.array([True])
        >>> round(dpo_loss(x, x, x, x, live, dpo_beta=0.1).total.item(), 4)
        0.6931
    """
    require_unit_interval("dpo_loss", "label_smoothing", label_smoothing)
    chosen, rejected = _log_ratios(
        policy_chosen_log_prob,
        policy_rejected_log_prob,
        reference_chosen_log_prob,
        reference_rejected_log_prob,
        mask,
    )
    margin = dpo_beta * (chosen - rejected)
    flipped = label_smoothing * jax.nn.log_sigmoid(-margin)
    loss = -(1.0 - label_smoothing) * jax.nn.log_sigmoid(margin) - flipped
    return _preference_loss(loss, dpo_beta * chosen, dpo_beta * rejected, mask)


@checked
def ipo_loss(
    policy_chosen_log_prob: Float[Array, "*S"],
    policy_rejected_log_prob: Float[Array, "*S"],
    reference_chosen_log_prob: Float[Array, "*S"],
    reference_rejected_log_prob: Float[Array, "*S"],
    mask: Bool[Array, "*S"],
    *,
    ipo_tau: Scalar,
) -> PreferenceLoss:
    """Identity preference optimisation (Azar et al. 2023, eq. 17).

        L = mean[(h − 1/(2τ))²],  h = log π(c)/π_ref(c) − log π(r)/π_ref(r)

    Unlike DPO it does not push the margin to infinity on pairs that are always won.

    Args:
        policy_chosen_log_prob: log π(chosen), from `sequence_log_prob`, nats.
        policy_rejected_log_prob: log π(rejected).
        reference_chosen_log_prob: log π_ref(chosen); its gradient is stopped here.
        reference_rejected_log_prob: log π_ref(rejected); its gradient is stopped here.
        mask: True where the pair counts; a dead pair is never looked at.
        ipo_tau: τ > 0, the strength of the regularisation.

    Returns:
        The loss; accuracy = share of pairs with h > 0; the rewards τ log π/π_ref. All 0
        where nothing is live. Non-finite live input comes out non-finite.

    Raises:
        TypeError: an argument has another dtype, or the axes differ.

    Example:
        >>> x, live = jnp.array([-5.0]), jnp.array([True])
        >>> ipo_loss(x, x, x, x, live, ipo_tau=0.5).total.item()
        1.0
    """
    chosen, rejected = _log_ratios(
        policy_chosen_log_prob,
        policy_rejected_log_prob,
        reference_chosen_log_prob,
        reference_rejected_log_prob,
        mask,
    )
    loss = (chosen - rejected - 0.5 / ipo_tau) ** 2
    return _preference_loss(loss, ipo_tau * chosen, ipo_tau * rejected, mask)


@checked
def bradley_terry_loss(
    chosen_reward: Float[Array, "*S"],
    rejected_reward: Float[Array, "*S"],
    mask: Bool[Array, "*S"],
    *,
    margin: Scalar = 0.0,
) -> PreferenceLoss:
    """The loss of a Bradley-Terry reward model (Bradley & Terry 1952; Ouyang et al. 2022).

        L = mean[−log σ(r(c) − r(r) − margin)]

    Args:
        chosen_reward: r(chosen), the model's scalar for the preferred completion.
        rejected_reward: r(rejected).
        mask: True where the pair counts; a dead pair is never looked at.
        margin: by how much the chosen one must win (Touvron et al. 2023); 0 for none.

    Returns:
        The loss; accuracy = share of pairs with r(c) > r(r); the mean rewards, which are
        only determined up to a constant. All 0 where nothing is live. Non-finite live input
        comes out non-finite.

    Raises:
        TypeError: an argument has another dtype, or the axes differ.

    Example:
        >>> won, lost, live = jnp.array([3.0]), jnp.array([1.0]), jnp.array([True])
        >>> round(bradley_terry_loss(won, lost, live).total.item(), 4)
        0.1269
    """
    chosen, rejected = (jnp.where(mask, x, 0.0) for x in accumulate(chosen_reward, rejected_reward))
    loss = not_hidden(-jax.nn.log_sigmoid(chosen - rejected - margin), chosen, rejected)
    return _preference_loss(loss, chosen, rejected, mask)
