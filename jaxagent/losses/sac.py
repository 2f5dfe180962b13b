"""Soft actor-critic: target, critic error, actor loss, temperature loss."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxagent.losses.advantages import masked_mean
from jaxagent.losses.contract import Scalar, accumulate, checked, not_hidden


@checked
def soft_target(
    reward: Float[Array, "*S"],
    discount: Float[Array, "*S"],
    next_action_value: Float[Array, "K *S"],
    next_log_prob: Float[Array, "*S"],
    *,
    temperature: Scalar,
) -> Float[Array, "*S"]:
    """The soft Bellman target with a minimum over critics (Haarnoja et al. 2018, eq. 3 and 5).

        y = r + γₜ [min_k Q_k(s′, a′) − α log π(a′ | s′)],  a′ ~ π(· | s′)

    Args:
        reward: rₜ.
        discount: γₜ = γ·(1 − terminatedₜ): a truncated step bootstraps like any other.
        next_action_value: Q_k(s′ₜ, a′) of the K target critics, s′ₜ seen before any auto-reset.
        next_log_prob: log π(a′ | s′ₜ) of the same fresh action, nats.
        temperature: α ≥ 0.

    Returns:
        y, float32 or wider, gradient not stopped (`critic_error` stops it). Non-finite input
        comes out non-finite, also where the discount is 0.

    Raises:
        TypeError: an argument is not floating point or the axes differ.

    Example:
        >>> q, one = jnp.array([[4.0], [2.0]]), jnp.ones(1)
        >>> soft_target(one, 0.5 * one, q, -one, temperature=1.0).item()
        2.5
    """
    reward, discount, next_action_value, next_log_prob = accumulate(
        reward, discount, next_action_value, next_log_prob
    )
    soft_value = _least(next_action_value) - temperature * next_log_prob
    return reward + discount * soft_value


@checked
def critic_error(
    action_value: Float[Array, "K *S"], target: Float[Array, "*S"], mask: Bool[Array, "*S"]
) -> Float[Array, ""]:
    """Squared error of every critic to one target (Haarnoja et al. 2018, eq. 5).

        L = Σ_k mean[½ (Q_k(s, a) − y)²]

    Args:
        action_value: Q_k(sₜ, aₜ) of the K critics being updated.
        target: yₜ, usually `soft_target`; its gradient is stopped here.
        mask: True where the sample counts; a dead sample is never looked at.

    Returns:
        The loss, summed over critics so that each learns as fast as it would alone; float32
        or wider, 0 where nothing is live. Non-finite live input comes out non-finite.

    Raises:
        TypeError: an argument has another dtype, or the axes differ.

    Example:
        >>> q, y = jnp.array([[1.0], [4.0]]), jnp.array([2.0])
        >>> critic_error(q, y, jnp.array([True])).item()
        2.5
    """
    # Replaced before the square: 0 · NaN in its gradient would be NaN.
    action_value, target = (jnp.where(mask, x, 0.0) for x in accumulate(action_value, target))
    error = 0.5 * (action_value - jax.lax.stop_gradient(target)[None]) ** 2
    return masked_mean(jnp.sum(error, axis=0), mask)


@checked
def soft_actor_loss(
    log_prob: Float[Array, "*S"],
    action_value: Float[Array, "K *S"],
    mask: Bool[Array, "*S"],
    *,
    temperature: Scalar,
) -> Float[Array, ""]:
    """The loss of the soft policy (Haarnoja et al. 2018, eq. 9).

        L = mean[α log π(a | s) − min_k Q_k(s, a)],  a ~ π(· | s) reparameterised

    Args:
        log_prob: log π(a | sₜ) of the fresh action, nats, with its gradient.
        action_value: Q_k(sₜ, a) of the same action; the gradient flows through a.
        mask: True where the sample counts; a dead sample is never looked at.
        temperature: α; its gradient is stopped here.

    Returns:
        The loss, float32 or wider, 0 where nothing is live. Differentiate with respect to
        the policy only: the critics' own gradient is not stopped. Non-finite live input
        comes out non-finite.

    Raises:
        TypeError: an argument has another dtype, or the axes differ.

    Example:
        >>> q = jnp.array([[4.0], [2.0]])
        >>> soft_actor_loss(jnp.array([-1.0]), q, jnp.array([True]), temperature=0.5).item()
        -2.5
    """
    log_prob, action_value = accumulate(log_prob, action_value)
    # Dead values are replaced before the minimum, whose gradient at NaN is NaN.
    live_value = jnp.where(mask[None], action_value, 0.0)
    live_log_prob = jnp.where(mask, log_prob, 0.0)
    loss = jax.lax.stop_gradient(temperature) * live_log_prob - _least(live_value)
    return masked_mean(loss, mask)


@checked
def temperature_loss(
    log_temperature: Float[Array, ""],
    log_prob: Float[Array, "*S"],
    mask: Bool[Array, "*S"],
    *,
    target_entropy: Scalar,
) -> Float[Array, ""]:
    """The loss of the temperature (Haarnoja et al. 2018b, eq. 18).

        L = −α · mean[log π(a | s) + H̄],  α = exp(log α)

    Args:
        log_temperature: log α, the parameter.
        log_prob: log π(a | sₜ) of fresh actions, nats; its gradient is stopped here.
        mask: True where the sample counts; a dead sample is never looked at.
        target_entropy: H̄ in nats; often minus the number of action dimensions.

    Returns:
        The loss, float32 or wider, 0 where nothing is live: descending it raises α while the
        policy's entropy is below H̄. Non-finite live input comes out non-finite.

    Raises:
        TypeError: an argument has another dtype, or the axes differ.

    Example:
        >>> log_prob, live = jnp.array([3.0]), jnp.array([True])
        >>> temperature_loss(jnp.zeros(()), log_prob, live, target_entropy=-1.0).item()
        -2.0
    """
    log_temperature, log_prob = accumulate(log_temperature, log_prob)
    surplus = masked_mean(jax.lax.stop_gradient(log_prob) + target_entropy, mask)
    return not_hidden(-jnp.exp(log_temperature) * surplus, log_temperature)


def _least(action_value: jax.Array) -> jax.Array:
    """The minimum over critics."""
    return not_hidden(jnp.min(action_value, axis=0), *action_value)
