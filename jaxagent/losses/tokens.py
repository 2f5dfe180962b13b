"""Objectives over the tokens of language models, `[B, L]` with a mask of completion tokens."""

from typing import Literal, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxagent.losses.advantages import masked_mean
from jaxagent.losses.contract import Scalar, accumulate, checked
from jaxagent.losses.divergence import importance_ratio, k3
from jaxagent.losses.ppo import clipped_surrogate

Normalisation = Literal["token", "sequence", "constant"]


class TokenLoss(NamedTuple):
    """The token-level clipped objective to be *minimised*, and what to watch."""

    total: Float[Array, ""]
    clip_fraction: Float[Array, ""]
    kl: Float[Array, ""]


@checked
def token_mean(
    x: Float[Array, "*B L"],
    mask: Bool[Array, "*B L"],
    *,
    normalisation: Normalisation,
    normaliser: Scalar | None = None,
) -> Float[Array, ""]:
    """One number from per-token quantities, by one of three conventions.

        token     Σ_{i,l} m x / Σ_{i,l} m                  (every token counts alike)
        sequence  mean_i [Σ_l m x / Σ_l m]                 (every sequence; GRPO, 2402.03300)
        constant  Σ_{i,l} m x / normaliser                 (no length bias; Dr. GRPO, 2503.20783)

    Args:
        x: xᵢₗ of token l of sequence i.
        mask: True on the tokens that count, usually the completion's.
        normalisation: token, sequence or constant.
        normaliser: the divisor of `constant`: number of sequences times the greatest length
            for Dr. GRPO, or the token count of a global batch that is split over devices.

    Returns:
        A scalar, float32 or wider; 0 where nothing is live, and a sequence without a live
        token does not count. Non-finite live input comes out non-finite.

    Raises:
        TypeError: an argument has another dtype, or the axes differ.
        ValueError: normaliser is given without `constant`, or missing with it.

    Example:
        >>> x, mask = jnp.array([[1.0, 1.0], [4.0, 9.0]]), jnp.array([[True, True], [True, False]])
        >>> [token_mean(x, mask, normalisation=n).item() for n in ("token", "sequence")]
        [2.0, 2.5]
        >>> token_mean(x, mask, normalisation="constant", normaliser=4.0).item()
        1.5
    """
    if (normalisation == "constant") != (normaliser is not None):
        fault = "is missing" if normaliser is None else f"({normaliser}) means nothing"
        raise ValueError(f"token_mean: normaliser {fault} with normalisation '{normalisation}'")
    if normalisation == "token":
        return masked_mean(x, mask)
    if normalisation == "sequence":
        return masked_mean(masked_mean(x, mask, axis=-1), jnp.any(mask, axis=-1))
    (x,) = accumulate(x)
    return jnp.sum(jnp.where(mask, x, 0.0)) / jnp.asarray(normaliser, x.dtype)


@checked
def token_clipped_loss(
    log_prob: Float[Array, "*B L"],
    behaviour_log_prob: Float[Array, "*B L"],
    advantage: Float[Array, "*B L"],
    mask: Bool[Array, "*B L"],
    *,
    clip_epsilon: Scalar,
    normalisation: Normalisation,
    normaliser: Scalar | None = None,
) -> TokenLoss:
    """The clipped objective per token (Schulman et al. 2017, eq. 7; GRPO, 2402.03300, eq. 3).

        L = −norm_{i,l}[min(ρ Â, clip(ρ, 1 − ε, 1 + ε) Â)],  ρ = π(tokenₗ) / π_behaviour(tokenₗ)

    Args:
        log_prob: log π of each token under the parameters being updated, nats.
        behaviour_log_prob: the same when the token was generated.
        advantage: Â of each token; broadcast one of a whole sequence over L first.
        mask: True on completion tokens; a dead token is never looked at.
        clip_epsilon: ε.
        normalisation: token, sequence or constant, as in `token_mean`.
        normaliser: the divisor of `constant`.

    Returns:
        The loss to be minimised; clip_fraction and kl = KL(behaviour ‖ π) by k3, both means
        over tokens. A penalty on the KL to a reference is `token_mean` of `k3`. Above
        log ρ = 20 the ratio stays e²⁰, and so does its slope. Non-finite live input comes out
        non-finite.

    Raises:
        TypeError: an argument has another dtype, or the axes differ.
        ValueError: normaliser is given without `constant`, or missing with it.

    Example:
        >>> zero, one, mask = jnp.zeros((2, 3)), jnp.ones((2, 3)), jnp.ones((2, 3), bool)
        >>> options = dict(clip_epsilon=0.2, normalisation="token")
        >>> token_clipped_loss(zero, zero, one, mask, **options).total.item()
        -1.0
    """
    log_prob, behaviour, advantage = (
        jnp.where(mask, x, 0.0) for x in accumulate(log_prob, behaviour_log_prob, advantage)
    )
    surrogate = clipped_surrogate(log_prob, behaviour, advantage, clip_epsilon=clip_epsilon)
    is_clipped = jnp.abs(importance_ratio(log_prob - behaviour) - 1.0) > clip_epsilon
    total = token_mean(surrogate, mask, normalisation=normalisation, normaliser=normaliser)
    return TokenLoss(
        total=-total,
        clip_fraction=masked_mean(is_clipped.astype(surrogate.dtype), mask),
        kl=masked_mean(k3(behaviour, log_prob), mask),
    )
