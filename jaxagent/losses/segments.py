"""From steps to segments: the steps of each sub-goal summed up, `[T, *B]` to `[N, *B]`."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxagent.losses.advantages import backward_recurrence
from jaxagent.losses.contract import accumulate, checked, require_forward, require_range


class Segments(NamedTuple):
    """What segment-level estimators need of each segment; `mask` is False where it has no step."""

    reward: Float[Array, "N *B"]
    discount: Float[Array, "N *B"]
    duration: Int[Array, "N *B"]
    mask: Bool[Array, "N *B"]


class _Cut(NamedTuple):
    """Where segments go on after a step, where they begin, and which columns are sound."""

    continues: jax.Array
    is_first: jax.Array
    is_sound: jax.Array


def _cut(function: str, segment_id: jax.Array, mask: jax.Array, num_segments: int) -> _Cut:
    inside = require_range(function, "segment_id", segment_id, mask, num_segments)
    is_sound = require_forward(function, "segment_id", segment_id, mask) & inside.all(axis=0)
    same = mask[1:] & (segment_id[1:] == segment_id[:-1])
    nothing = jnp.zeros_like(mask[:1])
    return _Cut(
        continues=jnp.concatenate([same, nothing]),
        is_first=mask & ~jnp.concatenate([nothing, same]),
        is_sound=is_sound,
    )


def _sum_by_segment(x: jax.Array, ids: jax.Array, num_segments: int) -> jax.Array:
    """Sums over the steps of each id, column by column; what is 0 may have any id."""

    def column(values, column_ids):
        return jax.ops.segment_sum(values, column_ids, num_segments)

    flat = jax.vmap(column, 1, 1)(x.reshape(len(x), -1), ids.reshape(len(x), -1))
    return flat.reshape(num_segments, *x.shape[1:])


@checked
def sum_segments(
    reward: Float[Array, "T *B"],
    discount: Float[Array, "T *B"],
    segment_id: Int[Array, "T *B"],
    mask: Bool[Array, "T *B"],
    *,
    num_segments: int,
) -> Segments:
    """Reward, discount and duration of each segment (options: Sutton et al. 1999, sec. 2).

        Rᵢ = Σ_{j<dᵢ} γʲ r_{i+j},  discountᵢ = γ^{dᵢ}·(1 − terminated)

    Args:
        reward: rₜ.
        discount: γₜ = γ·(1 − terminatedₜ).
        segment_id: the sub-goal at step t, counting 0, 1, 2, ... within the episode of its
            column, less than num_segments.
        mask: True on real steps; padding follows them and is never looked at.
        num_segments: N, static.

    Returns:
        The sums, float32 or wider; 0 where a segment has no step. Non-finite live input comes
        out non-finite.

    Raises:
        TypeError: an argument has another dtype, or the axes differ.
        ValueError: a live segment_id is out of range or goes backwards. Under jit, grad or
            vmap, where ids have no values yet, the rewards and discounts of such an episode
            come out NaN instead.

    Example:
        >>> one, ids, live = jnp.ones(3), jnp.array([0, 0, 1]), jnp.ones(3, bool)
        >>> found = sum_segments(one, 0.5 * one, ids, live, num_segments=2)
        >>> print(found.reward, found.discount, found.duration)
        [1.5 1. ] [0.25 0.5 ] [2 1]
    """
    cut = _cut("sum_segments", segment_id, mask, num_segments)
    reward, discount = (jnp.where(mask, x, 0.0) for x in accumulate(reward, discount))
    inner = jnp.where(cut.continues, discount, 0.0)
    per_step = (
        backward_recurrence(reward, inner),
        backward_recurrence(jnp.where(cut.continues, 0.0, discount), inner),
    )
    total_reward, total_discount = (
        jnp.where(cut.is_sound, _at_start(x, cut, segment_id, num_segments), jnp.nan)
        for x in per_step
    )
    duration = _sum_by_segment(mask.astype(jnp.int32), segment_id, num_segments)
    return Segments(total_reward, total_discount, duration, duration > 0)


def _at_start(x: jax.Array, cut: _Cut, segment_id: jax.Array, num_segments: int) -> jax.Array:
    """The value of each segment's first step."""
    return _sum_by_segment(jnp.where(cut.is_first, x, 0.0), segment_id, num_segments)


@checked
def td_credit(
    reward: Float[Array, "T *B"],
    discount: Float[Array, "T *B"],
    value: Float[Array, "T *B"],
    next_value: Float[Array, "T *B"],
    segment_id: Int[Array, "T *B"],
    mask: Bool[Array, "T *B"],
    *,
    num_segments: int,
) -> Float[Array, "N *B"]:
    """Credit by the TD errors of each segment's steps.

        δₜ = rₜ + γₜ V(s′ₜ) − V(sₜ)
        Cᵢ = Σ_{j<dᵢ} γʲ δ_{i+j}

    Args:
        reward: rₜ.
        discount: γₜ = γ·(1 − terminatedₜ).
        value: V(sₜ).
        next_value: V(s′ₜ), s′ₜ the successor seen before any auto-reset.
        segment_id: the sub-goal at step t, counting 0, 1, 2, ... within the episode of its
            column, less than num_segments.
        mask: True on real steps; padding follows them and is never looked at.
        num_segments: N, static.

    Returns:
        Credits, float32 or wider; 0 where a segment has no step. With γ = 1 until the episode
        terminates they sum to R − V(s₀). Gradient not stopped. Non-finite live input comes
        out non-finite.

    Raises:
        TypeError: an argument has another dtype, or the axes differ.
        ValueError: a live segment_id is out of range or goes backwards. Under jit, grad or
            vmap, where ids have no values yet, the credits of such an episode come out NaN
            instead.

    Example:
        >>> one, zero, live = jnp.ones(3), jnp.zeros(3), jnp.ones(3, bool)
        >>> print(td_credit(one, one, zero, zero, jnp.array([0, 0, 1]), live, num_segments=2))
        [2. 1.]
    """
    cut = _cut("td_credit", segment_id, mask, num_segments)
    arrays = accumulate(reward, discount, value, next_value)
    reward, discount, value, next_value = (jnp.where(mask, x, 0.0) for x in arrays)
    td_error = reward + discount * next_value - value
    discounted = backward_recurrence(td_error, jnp.where(cut.continues, discount, 0.0))
    credit = _at_start(discounted, cut, segment_id, num_segments)
    return jnp.where(cut.is_sound, credit, jnp.nan)
