"""Advantages and returns over time-major `[T, *B]` arrays, and means over live entries."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxagent.losses.contract import Scalar, accumulate, checked, require_unit_interval

# Measured on two CPU cores. Few steps over few columns are all overhead: in blocks [128, 64] takes
# 13 µs instead of 20, but [128, 256] takes 2.5 times as long as by a plain scan.
_BLOCK = 16
_SMALL = 8_192


def backward_recurrence(increment: jax.Array, decay: jax.Array) -> jax.Array:
    """yₜ = incrementₜ + decayₜ yₜ₊₁ with y_T = 0, over the leading axis.

    A plain scan: on two CPU cores it beats an associative one from T = 128 to 10,000 (705 against
    2582 µs at [1000, 1024], 55 against 103 µs at [10000]) and compiles in a fifth of the time.
    """

    def step(following, at_t):
        increment_t, decay_t = at_t
        current = increment_t + decay_t * following
        return current, current

    start = jnp.zeros(increment.shape[1:], increment.dtype)
    return jax.lax.scan(step, start, (increment, decay), reverse=True)[1]


def _is_small(increment: jax.Array) -> bool:
    return increment.shape[0] > _BLOCK and increment.size <= _SMALL


def _by_blocks(
    increment: jax.Array, decay: jax.Array, end: jax.Array, start: jax.Array
) -> jax.Array:
    """yₜ = incrementₜ + (1 − endₜ) decayₜ yₜ₊₁ with y_T = start, in fewer, larger steps.

    All blocks of 16 at once as if nothing followed them, with the product of their decays; then a
    scan over the blocks; then what follows each block is added. An end stops what is not finite,
    as it does in a plain scan.
    """
    length, tail = increment.shape[0], increment.shape[1:]
    blocks = -(-length // _BLOCK)

    def cut(x: jax.Array, fill: float | bool) -> jax.Array:
        spare = jnp.full((blocks * _BLOCK - length, *tail), fill, x.dtype)
        return jnp.concatenate([x, spare]).reshape(blocks, _BLOCK, *tail)

    # Behind the last step stands its successor's value, carried on unchanged.
    increment, decay, end = cut(increment, 0.0), cut(decay, 1.0), cut(end, False)
    y, product, ends = (
        jnp.zeros_like(increment[:, 0]),
        jnp.ones_like(decay[:, 0]),
        end[:, 0] & False,
    )
    columns = []
    for k in reversed(range(_BLOCK)):
        y = increment[:, k] + jnp.where(end[:, k], 0.0, decay[:, k] * y)
        product, ends = decay[:, k] * product, end[:, k] | ends
        columns.append((y, product, ends))

    def step(following, block):
        first, product, ends = block
        return first + jnp.where(ends, 0.0, product * following), following

    _, following = jax.lax.scan(step, start, columns[-1], reverse=True)
    y, product, ends = (jnp.stack(column[::-1], axis=1) for column in zip(*columns))
    whole = y + jnp.where(ends, 0.0, product * following[:, None])
    return whole.reshape(blocks * _BLOCK, *tail)[:length]


@checked
def gae(
    reward: Float[Array, "T *B"],
    discount: Float[Array, "T *B"],
    value: Float[Array, "T *B"],
    next_value: Float[Array, "T *B"],
    episode_end: Bool[Array, "T *B"],
    *,
    gae_lambda: Scalar,
) -> Float[Array, "T *B"]:
    """Generalised advantage estimates (Schulman et al. 2016, eq. 16).

        δₜ = rₜ + γₜ V(s′ₜ) − V(sₜ)
        Âₜ = δₜ + γₜ λ (1 − endₜ) Âₜ₊₁

    Args:
        reward: rₜ, in the environment's reward units.
        discount: γₜ = γ·(1 − terminatedₜ); 0 only where the task truly ends.
        value: V(sₜ) under the behaviour parameters.
        next_value: V(s′ₜ), s′ₜ the successor seen *before* any auto-reset.
        episode_end: terminated | truncated; cuts the trace, never the bootstrap.
        gae_lambda: λ in [0, 1]; 0 is one-step TD, 1 is Monte Carlo.

    Returns:
        Âₜ in float32 or wider, not whitened, gradient not stopped (the caller decides both).
        Steps padded with zeros after the last one change nothing. Non-finite input comes out
        non-finite.

    Raises:
        TypeError: an argument has another dtype, rank or axes.
        ValueError: a static gae_lambda lies outside [0, 1].

    Example:
        >>> one, zero = jnp.ones(3), jnp.zeros(3)
        >>> end = jnp.array([False, False, True])
        >>> gae(one, 0.5 * one, zero, zero, end, gae_lambda=1.0).tolist()
        [1.75, 1.5, 1.0]
    """
    require_unit_interval("gae", "gae_lambda", gae_lambda)
    reward, discount, value, next_value = accumulate(reward, discount, value, next_value)
    if _is_small(reward):
        td_error = reward - value + discount * next_value
        decay = (gae_lambda * discount).astype(reward.dtype)
        return _by_blocks(td_error, decay, episode_end, jnp.zeros_like(reward[0]))

    def step(following, at_t):
        # One pass over the inputs: δ and γλ as arrays of their own cost a third more time.
        r, g, v, nv, end = at_t
        later = jnp.where(end, 0.0, gae_lambda * following)
        advantage = (r - v + g * (nv + later)).astype(r.dtype)
        return advantage, advantage

    inputs = (reward, discount, value, next_value, episode_end)
    return jax.lax.scan(step, jnp.zeros_like(reward[0]), inputs, reverse=True)[1]


@checked
def lambda_returns(
    reward: Float[Array, "T *B"],
    discount: Float[Array, "T *B"],
    next_value: Float[Array, "T *B"],
    episode_end: Bool[Array, "T *B"],
    *,
    gae_lambda: Scalar,
) -> Float[Array, "T *B"]:
    """λ-returns (Sutton & Barto 2018, eq. 12.18), the value target of the same λ as `gae`.

        Gₜ = rₜ + γₜ [(1 − λₜ) V(s′ₜ) + λₜ Gₜ₊₁],  λₜ = λ (1 − endₜ),  G_T = V(s′_{T−1})

    Args:
        reward: rₜ, in the environment's reward units.
        discount: γₜ = γ·(1 − terminatedₜ).
        next_value: V(s′ₜ), s′ₜ the successor seen before any auto-reset.
        episode_end: terminated | truncated; from there on the return is V(s′ₜ).
        gae_lambda: λ in [0, 1].

    Returns:
        Gₜ = Âₜ + V(sₜ) in float32 or wider, gradient not stopped. Non-finite input comes out
        non-finite.

    Raises:
        TypeError: an argument has another dtype, rank or axes.
        ValueError: a static gae_lambda lies outside [0, 1].

    Example:
        >>> one = jnp.ones(2)
        >>> end = jnp.array([False, False])
        >>> lambda_returns(one, 0.5 * one, 4.0 * one, end, gae_lambda=1.0).tolist()
        [2.5, 3.0]
    """
    require_unit_interval("lambda_returns", "gae_lambda", gae_lambda)
    reward, discount, next_value = accumulate(reward, discount, next_value)
    if _is_small(reward):
        bootstrap = jnp.where(episode_end, next_value, (1.0 - gae_lambda) * next_value)
        increment = (reward + discount * bootstrap).astype(reward.dtype)
        decay = (gae_lambda * discount).astype(reward.dtype)
        return _by_blocks(increment, decay, episode_end, next_value[-1])

    def step(following, at_t):
        r, g, nv, end = at_t
        bootstrap = (1.0 - gae_lambda) * nv + gae_lambda * following
        current = (r + g * jnp.where(end, nv, bootstrap)).astype(r.dtype)
        return current, current

    inputs = (reward, discount, next_value, episode_end)
    return jax.lax.scan(step, next_value[-1], inputs, reverse=True)[1]


@checked
def masked_mean(
    x: Float[Array, "*S"],
    mask: Bool[Array, "*S"],
    axis: int | tuple[int, ...] | None = None,
) -> Float[Array, "..."]:
    """Mean over the live entries of an array.

        Σ maskᵢ xᵢ / max(Σ maskᵢ, 1)

    Args:
        x: any quantity.
        mask: True where the entry counts; what a dead entry holds is never looked at.
        axis: axes to average over; None is all of them.

    Returns:
        The mean in float32 or wider, 0 where nothing is live. A non-finite live entry comes
        out non-finite.

    Raises:
        TypeError: x is not floating point, mask is not boolean, or their axes differ.

    Example:
        >>> x = jnp.array([1.0, 3.0, jnp.nan])
        >>> masked_mean(x, jnp.array([True, True, False])).item()
        2.0
    """
    (x,) = accumulate(x)
    total = jnp.sum(jnp.where(mask, x, 0.0), axis)
    return total / jnp.maximum(jnp.sum(mask, axis), 1).astype(x.dtype)


@checked
def masked_whiten(x: Float[Array, "*S"], mask: Bool[Array, "*S"]) -> Float[Array, "*S"]:
    """Live entries with zero mean and unit population variance, dead entries 0.

        (xᵢ − mean) / √(var + 1e−8)

    Args:
        x: any quantity.
        mask: True where the entry counts.

    Returns:
        The whitened array in float32 or wider; all 0 when at most one entry is live or when
        all live entries are equal. Gradient not stopped, finite in each of these cases.
        Non-finite live input comes out non-finite; squares have to fit the dtype.

    Raises:
        TypeError: x is not floating point, mask is not boolean, or their axes differ.

    Example:
        >>> x = jnp.array([1.0, 3.0, 100.0])
        >>> masked_whiten(x, jnp.array([True, True, False])).round(3).tolist()
        [-1.0, 1.0, 0.0]
    """
    (x,) = accumulate(x)
    centred = jnp.where(mask, x - masked_mean(x, mask), 0.0)
    # The first mean of large values is rounded; without a second pass a constant 1e6 would
    # whiten to plus or minus one.
    centred = jnp.where(mask, centred - masked_mean(centred, mask), 0.0)
    return centred * jax.lax.rsqrt(masked_mean(centred**2, mask) + 1e-8)
