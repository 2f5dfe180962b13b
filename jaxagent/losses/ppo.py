"""Proximal policy optimisation: clipped surrogate, clipped value error, their sum."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxagent.losses.advantages import masked_mean
from jaxagent.losses.contract import Scalar, accumulate, checked
from jaxagent.losses.divergence import importance_ratio, k3


class PPOLoss(NamedTuple):
    """The PPO objective and its parts, each a scalar to be *minimised* or watched."""

    total: Float[Array, ""]
    policy: Float[Array, ""]
    value: Float[Array, ""]
    entropy: Float[Array, ""]
    clip_fraction: Float[Array, ""]
    kl: Float[Array, ""]


@checked
def clipped_surrogate(
    log_prob: Float[Array, "*S"],
    behaviour_log_prob: Float[Array, "*S"],
    advantage: Float[Array, "*S"],
    *,
    clip_epsilon: Scalar,
) -> Float[Array, "*S"]:
    """The clipped surrogate objective (Schulman et al. 2017, eq. 7), per sample.

        min(ρ Â, clip(ρ, 1 − ε, 1 + ε) Â),  ρ = π(a) / π_behaviour(a)

    Args:
        log_prob: log π(aₜ | sₜ) under the parameters being updated, nats.
        behaviour_log_prob: log-probability of the same action when it was taken, nats.
        advantage: Âₜ; whiten it first if that is wanted.
        clip_epsilon: ε > 0, the half-width of the trust interval of ρ.

    Returns:
        The objective per sample, to be *maximised*, float32 or wider; not averaged. Above
        log ρ = 20 the ratio stays e²⁰, and so does its slope, so that value and gradient stay
        finite; non-finite input comes out non-finite.

    Raises:
        TypeError: an argument is not floating point or their axes differ.

    Example:
        >>> old, new = jnp.zeros(2), jnp.log(jnp.array([2.0, 2.0]))
        >>> advantage = jnp.array([1.0, -1.0])
        >>> print(clipped_surrogate(new, old, advantage, clip_epsilon=0.5))
        [ 1.5 -2. ]
    """
    log_prob, behaviour, advantage = accumulate(log_prob, behaviour_log_prob, advantage)
    free = importance_ratio(log_prob - behaviour, advantage)
    # min(ρ Â, clip(ρ) Â) = min(ρ Â, Â + ε |Â|), whose bound need not wait for ρ.
    bound = advantage + clip_epsilon * jnp.abs(advantage)
    # A select is one instruction on a CPU where jnp.minimum is four; it keeps a NaN of `free`.
    return jnp.where(bound < free, bound, free)


@checked
def clipped_value_error(
    value: Float[Array, "*S"],
    behaviour_value: Float[Array, "*S"],
    value_target: Float[Array, "*S"],
    *,
    value_clip_epsilon: Scalar | None,
) -> Float[Array, "*S"]:
    """Half the squared value error, pessimistic over a clipped step (Schulman et al. 2017).

        ½ max((V − G)², (V_old + clip(V − V_old, −ε, ε) − G)²)

    Args:
        value: V(sₜ) under the parameters being updated, reward units.
        behaviour_value: V_old(sₜ) when the data was collected.
        value_target: Gₜ, usually `lambda_returns`.
        value_clip_epsilon: ε in reward units; None leaves the plain ½ (V − G)².

    Returns:
        The error per sample, float32 or wider; not averaged, gradient of the target not
        stopped. Non-finite input comes out non-finite.

    Raises:
        TypeError: an argument is not floating point or their axes differ.

    Example:
        >>> old, new, target = jnp.zeros(1), jnp.full(1, 3.0), jnp.full(1, 2.0)
        >>> clipped_value_error(new, old, target, value_clip_epsilon=0.5).tolist()
        [1.125]
    """
    value, behaviour, target = accumulate(value, behaviour_value, value_target)
    error = (value - target) ** 2
    if value_clip_epsilon is not None:
        step = jnp.clip(value - behaviour, -value_clip_epsilon, value_clip_epsilon)
        error = jnp.maximum(error, (behaviour + step - target) ** 2)
    return 0.5 * error


@checked
def ppo_loss(
    log_prob: Float[Array, "*S"],
    behaviour_log_prob: Float[Array, "*S"],
    advantage: Float[Array, "*S"],
    value: Float[Array, "*S"],
    behaviour_value: Float[Array, "*S"],
    value_target: Float[Array, "*S"],
    entropy: Float[Array, "*S"],
    mask: Bool[Array, "*S"],
    *,
    clip_epsilon: Scalar,
    value_clip_epsilon: Scalar | None,
    value_cost: Scalar,
    entropy_cost: Scalar,
) -> PPOLoss:
    """The PPO loss (Schulman et al. 2017, eq. 9), averaged over live samples.

        L = −mean[surrogate] + c_v mean[value error] − c_e mean[entropy]

    Args:
        log_prob: log π(aₜ | sₜ) under the parameters being updated, nats.
        behaviour_log_prob: log-probability of the same action when it was taken, nats.
        advantage: Âₜ; whiten it first if that is wanted.
        value: V(sₜ) under the parameters being updated, reward units.
        behaviour_value: V(sₜ) when the data was collected.
        value_target: Gₜ, usually `lambda_returns`.
        entropy: entropy of π(· | sₜ), exact or a one-sample estimate, nats.
        mask: True where the sample counts; a dead sample is never looked at.
        clip_epsilon: ε of the surrogate.
        value_clip_epsilon: ε of the value error; None does not clip it.
        value_cost: c_v.
        entropy_cost: c_e; may be traced, so that a schedule can move it.

    Returns:
        The total to be minimised, and its parts before their costs. clip_fraction is the
        share of samples with |ρ − 1| > ε; kl is KL(behaviour ‖ π) by k3. With nothing live
        all are 0. Advantage and target gradients are not stopped. Non-finite live input
        comes out non-finite (behaviour_value is not read where value_clip_epsilon is None).

    Raises:
        TypeError: an argument has another dtype, or the axes differ.

    Example:
        >>> zero, one, live = jnp.zeros(4), jnp.ones(4), jnp.ones(4, bool)
        >>> costs = dict(value_clip_epsilon=None, value_cost=0.5, entropy_cost=0.0)
        >>> arrays = (zero, zero, one, zero, zero, one, zero, live)
        >>> ppo_loss(*arrays, clip_epsilon=0.2, **costs).total.item()
        -0.75
    """
    per_sample = accumulate(
        log_prob, behaviour_log_prob, advantage, value, behaviour_value, value_target, entropy
    )
    log_prob, behaviour_log_prob, advantage, value, behaviour_value, value_target, entropy = (
        jnp.where(mask, x, 0.0) for x in per_sample
    )
    surrogate = clipped_surrogate(
        log_prob, behaviour_log_prob, advantage, clip_epsilon=clip_epsilon
    )
    error = clipped_value_error(
        value, behaviour_value, value_target, value_clip_epsilon=value_clip_epsilon
    )
    is_clipped = jnp.abs(importance_ratio(log_prob - behaviour_log_prob) - 1.0) > clip_epsilon
    policy = -masked_mean(surrogate, mask)
    value_error = masked_mean(error, mask)
    mean_entropy = masked_mean(entropy, mask)
    return PPOLoss(
        total=policy + value_cost * value_error - entropy_cost * mean_entropy,
        policy=policy,
        value=value_error,
        entropy=mean_entropy,
        clip_fraction=masked_mean(is_clipped.astype(policy.dtype), mask),
        kl=masked_mean(k3(behaviour_log_prob, log_prob), mask),
    )
