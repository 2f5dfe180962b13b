"""Per-sample estimators of KL(policy ‖ reference) from log-probabilities (Schulman 2020)."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxagent.losses.contract import accumulate, checked

LOG_RATIO_BOUND = 20.0
"""Nats beyond which eˣ is continued along its tangent; e²⁰ is about 4.9e8."""


def importance_ratio(log_ratio: jax.Array) -> jax.Array:
    """eˣ, continued along its tangent above 20 nats.

    A saturated sample keeps a finite ratio and a finite gradient of the right sign, where eˣ
    overflows and clipping would lose the gradient. Below the bound it is eˣ exactly. Of ±∞ it
    is NaN, which no clip hides.
    """
    bounded = jnp.minimum(log_ratio, LOG_RATIO_BOUND)
    return jnp.exp(bounded) * (1.0 + (log_ratio - bounded) + 0.0 * log_ratio)


@checked
def k1(
    policy_log_prob: Float[Array, "*S"], reference_log_prob: Float[Array, "*S"]
) -> Float[Array, "*S"]:
    """The k1 estimator of KL(policy ‖ reference) (Schulman 2020).

        k1 = log π − log π_ref,  samples drawn from π

    Unbiased; high variance, and negative on about half the samples when the two are close. As
    a *loss* on samples of π its expected gradient is zero: use it in the reward instead.

    Args:
        policy_log_prob: log π(a) of samples drawn from π, nats.
        reference_log_prob: log π_ref(a) of the same samples, nats.

    Returns:
        One estimate per sample, nats, float32 or wider; not averaged, gradient not stopped.
        Non-finite input comes out non-finite.

    Raises:
        TypeError: an argument is not floating point or their axes differ.

    Example:
        >>> print(k1(jnp.log(jnp.array([0.5])), jnp.log(jnp.array([0.25]))).round(4))
        [0.6931]
    """
    policy, reference = accumulate(policy_log_prob, reference_log_prob)
    return policy - reference


@checked
def k2(
    policy_log_prob: Float[Array, "*S"], reference_log_prob: Float[Array, "*S"]
) -> Float[Array, "*S"]:
    """The k2 estimator of KL(policy ‖ reference) (Schulman 2020).

        k2 = ½ (log π − log π_ref)²,  samples drawn from π

    Biased (the bias is of third order in the distance), low variance, never negative. As a
    loss on samples of π its expected gradient is the gradient of KL(π ‖ π_ref).

    Args:
        policy_log_prob: log π(a) of samples drawn from π, nats.
        reference_log_prob: log π_ref(a) of the same samples, nats.

    Returns:
        One estimate per sample, float32 or wider; not averaged, gradient not stopped.
        Non-finite input comes out non-finite.

    Raises:
        TypeError: an argument is not floating point or their axes differ.

    Example:
        >>> k2(jnp.array([-1.0]), jnp.array([-3.0])).tolist()
        [2.0]
    """
    policy, reference = accumulate(policy_log_prob, reference_log_prob)
    return 0.5 * (policy - reference) ** 2


@checked
def k3(
    policy_log_prob: Float[Array, "*S"], reference_log_prob: Float[Array, "*S"]
) -> Float[Array, "*S"]:
    """The k3 estimator of KL(policy ‖ reference) (Schulman 2020).

        k3 = (ρ − 1) − log ρ,  ρ = π_ref / π,  samples drawn from π

    Unbiased, never negative, lower variance than k1 while the two are close (ρ has a heavy
    tail when they are not). As a loss on samples of π its expected gradient is that of the
    *other* direction, KL(π_ref ‖ π).

    Args:
        policy_log_prob: log π(a) of samples drawn from π, nats.
        reference_log_prob: log π_ref(a) of the same samples, nats.

    Returns:
        One estimate per sample, float32 or wider; not averaged, gradient not stopped. Above
        log ρ = 20 the exponential is continued along its tangent, so that value and gradient
        stay finite. Non-finite input comes out non-finite.

    Raises:
        TypeError: an argument is not floating point or their axes differ.

    Example:
        >>> k3(jnp.array([0.0]), jnp.array([0.0])).tolist()
        [0.0]
    """
    policy, reference = accumulate(policy_log_prob, reference_log_prob)
    return bregman_k3(reference - policy)


def bregman_k3(log_ratio: jax.Array) -> jax.Array:
    """(ρ − 1) − log ρ of log ρ, without cancellation near ρ = 1."""
    small = jnp.clip(log_ratio, -1.0, 1.0)
    near = jnp.expm1(small) - small
    return jnp.where(jnp.abs(log_ratio) < 1.0, near, importance_ratio(log_ratio) - 1.0 - log_ratio)
