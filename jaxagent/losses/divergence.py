"""Per-sample estimators of KL(policy ‖ reference) from log-probabilities (Schulman 2020)."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxagent.losses.contract import accumulate, checked

LOG_RATIO_BOUND = 20.0
"""Nats beyond which eˣ no longer grows; e²⁰ is about 4.9e8."""


@jax.custom_jvp
def saturating_exp(x: jax.Array) -> jax.Array:
    """eˣ, held at e²⁰ above 20 nats; its slope is its value, there too."""
    return jnp.exp(jnp.minimum(x, LOG_RATIO_BOUND))


@saturating_exp.defjvp
def _slope_is_value(
    primals: tuple[jax.Array], tangents: tuple[jax.Array]
) -> tuple[jax.Array, jax.Array]:
    value = saturating_exp(primals[0])
    return value, value * tangents[0]


def importance_ratio(log_ratio: jax.Array, weight: jax.Array | float = 1.0) -> jax.Array:
    """weight · eˣ, with the exponential held above 20 nats.

    A saturated sample keeps a finite ratio, and a finite gradient of the right sign: where eˣ
    overflows, or a clip of x would lose the gradient. Of ±∞ it is NaN, which no clip hides.
    """
    # The guard is the weight's, so that nothing but one product waits for eˣ.
    return saturating_exp(log_ratio) * (weight + 0.0 * log_ratio)


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
        log ρ = 20 ρ stays e²⁰, and so does its slope, so that value and gradient stay finite.
        Non-finite input comes out non-finite.

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
