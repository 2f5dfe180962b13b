"""Hierarchical advantage estimation of one policy that plans, acts and decides when to replan."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxagent.losses.advantages import backward_recurrence, gae
from jaxagent.losses.contract import Scalar, accumulate, checked, require_unit_interval


class HAEAdvantages(NamedTuple):
    """Advantages of the action, the sub-goal and the switch decision of each turn."""

    low: Float[Array, "T *B"]
    high: Float[Array, "T *B"]
    switch: Float[Array, "T *B"]
    is_boundary: Bool[Array, "T *B"]


@checked
def hae_advantages(
    reward: Float[Array, "T *B"],
    discount: Float[Array, "T *B"],
    low_value: Float[Array, "T *B"],
    next_low_value: Float[Array, "T *B"],
    high_value: Float[Array, "T *B"],
    next_high_value: Float[Array, "T *B"],
    switch_value: Float[Array, "T *B"],
    switch: Bool[Array, "T *B"],
    episode_end: Bool[Array, "T *B"],
    mask: Bool[Array, "T *B"],
    *,
    turn_lambda: Scalar,
    segment_lambda: Scalar,
) -> HAEAdvantages:
    """Hierarchical advantage estimates (HiPER, 2602.16165).

        low     δₜ = rₜ + γₜ V′ − V_low(sₜ),  V′ = V_low(s′ₜ) inside, V_high(s′ₜ) at the end
                A_low,t = δₜ + γₜ λ_turn A_low,t+1, cut at the segment's end
        high    A_high,i = Rᵢ + γ^{dᵢ} (V_high(sᵢ₊₁) + λ_segment A_high,i+1) − V_high(sᵢ)
        switch  A_switch,t = Σ_{j≥t in segment} γ^{j−t} rⱼ + γ^{…} V_high(sᵢ₊₁) − V_switch(sₜ)

    Segments begin at turn 0, at every switch and after every episode end; segment i, from sᵢ,
    lasts dᵢ turns and earns Rᵢ = Σⱼ γʲ r.

    Args:
        reward: rₜ of the turn.
        discount: γₜ = γ·(1 − terminatedₜ).
        low_value: V_low(sₜ) of the sub-goal in force.
        next_low_value: V_low(s′ₜ), s′ₜ seen before any reset; also where the window cuts.
        high_value: V_high(sₜ).
        next_high_value: V_high(s′ₜ); its gradient is stopped in `low`.
        switch_value: V_switch(sₜ).
        switch: True where turn t chose a new sub-goal.
        episode_end: terminated | truncated.
        mask: True on real turns; padding follows the turns of its column.
        turn_lambda: λ_turn in [0, 1]; 1 in the paper.
        segment_lambda: λ_segment in [0, 1]; 0.95 in the paper.

    Returns:
        low and switch at every live turn, high where a segment begins, 0 elsewhere, float32 or
        wider. None is whitened: each goes to its own tokens (action; sub-goal; switch) and is
        whitened over those. Non-finite live input comes out non-finite where it is read:
        of next_high_value at the ends of segments, of high_value at their beginnings, of
        next_low_value elsewhere.

    Raises:
        TypeError: an argument has another dtype, or the axes differ.
        ValueError: a static turn_lambda or segment_lambda lies outside [0, 1].

    Example:
        >>> one, zero, live = jnp.ones(2), jnp.zeros(2), jnp.ones(2, bool)
        >>> kept, end = jnp.array([True, False]), jnp.array([False, True])
        >>> arrays = (one, one, zero, zero, zero, zero, zero, kept, end, live)
        >>> print(hae_advantages(*arrays, turn_lambda=1.0, segment_lambda=0.95).high)
        [2. 0.]
    """
    require_unit_interval("hae_advantages", "turn_lambda", turn_lambda)
    require_unit_interval("hae_advantages", "segment_lambda", segment_lambda)
    values = (low_value, next_low_value, high_value, next_high_value, switch_value)
    reward, discount, low_value, next_low_value, high_value, next_high_value, switch_value = (
        jnp.where(mask, x, 0.0) for x in accumulate(reward, discount, *values)
    )
    cut = _cut(switch, episode_end, mask)
    handed_over = jnp.where(cut.hands_over, jax.lax.stop_gradient(next_high_value), next_low_value)
    low = gae(reward, discount, low_value, handed_over, cut.leaves, gae_lambda=turn_lambda)
    to_end = backward_recurrence(
        reward + jnp.where(cut.leaves, discount * next_high_value, 0.0),
        jnp.where(cut.leaves, 0.0, discount),
    )
    # The high advantage of the next boundary enters as λ (H − V_high) of its own return H.
    carried = jnp.where(cut.leaves, jnp.where(cut.is_last, 0.0, segment_lambda), 1.0)
    following_value = jnp.concatenate([high_value[1:], jnp.zeros_like(high_value[:1])])
    bootstrap = jnp.where(cut.leaves, next_high_value - carried * following_value, 0.0)
    high_return = backward_recurrence(reward + discount * bootstrap, discount * carried)
    return HAEAdvantages(
        low=jnp.where(mask, low, 0.0),
        high=jnp.where(cut.is_boundary, high_return - high_value, 0.0),
        switch=jnp.where(mask, to_end - switch_value, 0.0),
        is_boundary=cut.is_boundary,
    )


class _Cut(NamedTuple):
    """Where segments begin, where they end, and why."""

    is_boundary: jax.Array
    leaves: jax.Array
    is_last: jax.Array
    hands_over: jax.Array


def _cut(switch: jax.Array, episode_end: jax.Array, mask: jax.Array) -> _Cut:
    nothing = jnp.zeros_like(mask[:1])
    is_last = episode_end | ~jnp.concatenate([mask[1:], nothing])
    is_boundary = mask & (switch | jnp.concatenate([~nothing, is_last[:-1]]))
    begins_next = jnp.concatenate([is_boundary[1:], nothing])
    return _Cut(is_boundary, begins_next | is_last, is_last, begins_next | episode_end)
