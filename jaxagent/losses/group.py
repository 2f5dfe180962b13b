"""Advantages relative to a group of attempts at the same thing, without a critic."""

from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxagent.losses.contract import Scalar, accumulate, checked, require_range

Spread = Literal["population", "sample", "none"]
"""What a deviation is divided by: √(Σd²/n), √(Σd²/(n − 1)), or nothing."""


def _deviations(
    x: jax.Array, group_id: jax.Array, mask: jax.Array, num_groups: int
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Per entry: its deviation from the group's mean, the group's Σ of squares and its size."""

    def group_sum(values):
        return jax.ops.segment_sum(jnp.where(mask, values, 0.0), group_id, num_groups)[group_id]

    size = group_sum(jnp.ones_like(x))
    # Deviations do not depend on the shift; from the smallest member on, equal members give
    # exactly zero, where the rounded mean of large ones would not.
    lowest = jax.ops.segment_min(jnp.where(mask, x, jnp.inf), group_id, num_groups)[group_id]
    above = jnp.where(mask, x - jax.lax.stop_gradient(lowest), 0.0)
    deviation = jnp.where(mask, above - group_sum(above) / jnp.maximum(size, 1.0), 0.0)
    return deviation, group_sum(deviation**2), size


def _normalised(
    deviation: jax.Array, squares: jax.Array, size: jax.Array, spread: Spread
) -> jax.Array:
    if spread == "none":
        return deviation
    freedom = size if spread == "population" else size - 1.0
    variance = squares / jnp.maximum(freedom, 1.0)
    is_zero = variance == 0
    std = jnp.where(is_zero, 0.0, jnp.sqrt(jnp.where(is_zero, 1.0, variance)))
    return deviation / (std + 1e-6)


@checked
def grpo_advantages(
    episode_return: Float[Array, "*S"],
    group_id: Int[Array, "*S"],
    mask: Bool[Array, "*S"],
    *,
    num_groups: int,
    spread: Spread,
) -> Float[Array, "*S"]:
    """Group-relative advantages (GRPO, 2402.03300, sec. 4.1; Dr. GRPO, 2503.20783).

        A = (R − mean_group) / (std_group + 1e−6)

    Args:
        episode_return: R of each attempt.
        group_id: which task it attempted, in [0, num_groups).
        mask: True where the attempt counts; a dead one is never looked at.
        num_groups: static.
        spread: "population" (torch's correction=0, NumPy's default), "sample" (n − 1,
            torch's default and that of most GRPO code), or "none" for Dr. GRPO.

    Returns:
        A per attempt, float32 or wider, gradient not stopped; 0 for dead entries, for a
        group of one and for a group of equals. Non-finite live input comes out non-finite in
        its own group.

    Raises:
        TypeError: an argument has another dtype, or the axes differ.
        ValueError: a live group_id is out of range. Under jit, grad or vmap, where ids have
            no values yet, such an entry comes out NaN instead.

    Example:
        >>> returns, task = jnp.array([1.0, 3.0, 5.0]), jnp.array([0, 0, 1])
        >>> options = dict(num_groups=2, spread="none")
        >>> print(grpo_advantages(returns, task, jnp.ones(3, bool), **options))
        [-1.  1.  0.]
    """
    inside = require_range("grpo_advantages", "group_id", group_id, mask, num_groups)
    (returns,) = accumulate(episode_return)
    # A dead entry adds nothing to the group that its id names, nor does it read from it.
    ids, live = group_id.ravel(), (inside & mask).ravel()
    found = _normalised(*_deviations(returns.ravel(), ids, live, num_groups), spread)
    return jnp.where(inside, found.reshape(returns.shape), jnp.nan)


@checked
def rloo_advantages(
    episode_return: Float[Array, "*S"],
    group_id: Int[Array, "*S"],
    mask: Bool[Array, "*S"],
    *,
    num_groups: int,
) -> Float[Array, "*S"]:
    """REINFORCE leave-one-out advantages (Kool et al. 2019; Ahmadian et al. 2024, 2402.14740).

        A = R − mean of the others = n/(n − 1) · (R − mean_group)

    Args:
        episode_return: R of each attempt.
        group_id: which task it attempted, in [0, num_groups).
        mask: True where the attempt counts; a dead one is never looked at.
        num_groups: static.

    Returns:
        A per attempt, float32 or wider, gradient not stopped; 0 for dead entries and for a
        group of one, which has no others. Non-finite live input comes out non-finite in its
        own group.

    Raises:
        TypeError: an argument has another dtype, or the axes differ.
        ValueError: a live group_id is out of range. Under jit, grad or vmap, where ids have
            no values yet, such an entry comes out NaN instead.

    Example:
        >>> returns, task = jnp.array([1.0, 3.0, 5.0]), jnp.array([0, 0, 0])
        >>> print(rloo_advantages(returns, task, jnp.ones(3, bool), num_groups=1))
        [-3.  0.  3.]
    """
    inside = require_range("rloo_advantages", "group_id", group_id, mask, num_groups)
    (returns,) = accumulate(episode_return)
    # A dead entry adds nothing to the group that its id names, nor does it read from it.
    ids, live = group_id.ravel(), (inside & mask).ravel()
    deviation, _, size = _deviations(returns.ravel(), ids, live, num_groups)
    found = deviation * size / jnp.maximum(size - 1.0, 1.0)
    return jnp.where(inside, found.reshape(returns.shape), jnp.nan)


def _dense_ids(*keys: jax.Array) -> jax.Array:
    """Equal rows of keys get equal ids in [0, size), whatever integers the keys are."""
    flat = [key.ravel() for key in keys]
    order = jnp.lexsort(flat)
    is_new = jnp.zeros(order.shape[0] - 1, bool)
    for key in flat:
        is_new = is_new | (key[order][1:] != key[order][:-1])
    rank = jnp.concatenate([jnp.zeros(1, jnp.int32), jnp.cumsum(is_new, dtype=jnp.int32)])
    return jnp.zeros_like(rank).at[order].set(rank).reshape(keys[0].shape)


def _step_term(
    return_to_go: jax.Array, ids: jax.Array, mask: jax.Array, spread: Spread
) -> tuple[jax.Array, jax.Array]:
    """Normalised return-to-go inside step groups, and where the group has at least two."""
    deviation, squares, size = _deviations(
        return_to_go.ravel(), ids.ravel(), mask.ravel(), ids.size
    )
    is_shared = (size >= 2).reshape(mask.shape) & mask
    found = _normalised(deviation, squares, size, spread).reshape(mask.shape)
    # A group of one deviates by exactly zero, unless its only member is not finite.
    return found, is_shared


@checked
def gigpo_advantages(
    episode_return: Float[Array, "*B"],
    return_to_go: Float[Array, "T *B"],
    group_id: Int[Array, "*B"],
    step_key: Int[Array, "T *B"],
    mask: Bool[Array, "T *B"],
    *,
    num_groups: int,
    step_weight: Scalar,
    spread: Spread,
) -> Float[Array, "T *B"]:
    """Group-in-group advantages (GiGPO, 2505.10978, eq. 3, 7 and 8).

        A = A_episode + ω A_step
        A_episode = norm of R over the episodes of the task
        A_step = norm of Rₜ over the steps with the same task and the same anchor observation

    Args:
        episode_return: R, one episode per column.
        return_to_go: Rₜ, discounted rewards from t on.
        group_id: which task the episode attempted, in [0, num_groups).
        step_key: the anchor observation of step t, hashed on the host; any integer.
        mask: True on real steps; an episode without any does not count.
        num_groups: static.
        step_weight: ω; 1 in the paper.
        spread: "population", "sample" or "none", for both terms.

    Returns:
        A per step, float32 or wider, gradient not stopped; 0 where dead. A step whose
        observation was seen once has A_step = 0. Non-finite live input comes out non-finite.

    Raises:
        TypeError: an argument has another dtype, or the axes differ.
        ValueError: a live group_id is out of range. Under jit, grad or vmap such an episode
            comes out NaN instead.

    Example:
        >>> to_go, key = jnp.array([[1.0, 3.0], [1.0, 3.0]]), jnp.array([[7, 7], [8, 9]])
        >>> arrays = (to_go[0], to_go, jnp.zeros(2, int), key, jnp.ones((2, 2), bool))
        >>> print(gigpo_advantages(*arrays, num_groups=1, step_weight=0.5, spread="none"))
        [[-1.5  1.5]
         [-1.   1. ]]
    """
    episode_return, return_to_go = accumulate(episode_return, return_to_go)
    is_attempt = mask.any(axis=0)
    require_range("gigpo_advantages", "group_id", group_id, is_attempt, num_groups)
    episode = grpo_advantages(
        episode_return, group_id, is_attempt, num_groups=num_groups, spread=spread
    )
    task = jnp.broadcast_to(group_id, mask.shape)
    step, _ = _step_term(return_to_go, _dense_ids(step_key, task), mask, spread)
    return jnp.where(mask, episode[None] + step_weight * step, 0.0)


@checked
def history_keys(
    observation_id: Int[Array, "T *B"], episode_end: Bool[Array, "T *B"], *, num_levels: int
) -> Int[Array, "K T *B"]:
    """Keys of the last k observations of each step, for k = 1, ..., num_levels.

        keyₖ(t) = id of (keyₖ₋₁(t − 1), observation(t)),  key₁(t) = id of observation(t)

    Args:
        observation_id: the observation at step t, hashed on the host; any integer.
        episode_end: terminated | truncated; a history does not reach over it.
        num_levels: K + 1 of HGPO, at least 1; static.

    Returns:
        `step_key` for `hgpo_advantages`: two steps share keyₖ exactly if their last k
        observations are equal, a shorter history at an episode's start being equal only to
        one of the same length.

    Raises:
        TypeError: an argument has another dtype, or the axes differ.
        ValueError: num_levels is below 1.

    Example:
        >>> seen = jnp.array([[1, 2], [5, 5]])
        >>> print(history_keys(seen, jnp.zeros((2, 2), bool), num_levels=2)[:, 1])
        [[2 2]
         [2 3]]
    """
    if num_levels < 1:
        raise ValueError(f"history_keys: num_levels must be at least 1, found {num_levels}")
    is_first = jnp.concatenate([jnp.ones_like(episode_end[:1]), episode_end[:-1]])
    keys = [_dense_ids(observation_id)]
    for _ in range(num_levels - 1):
        earlier = jnp.concatenate([keys[-1][:1], keys[-1][:-1]])
        keys.append(_dense_ids(observation_id, jnp.where(is_first, -1, earlier)))
    return jnp.stack(keys)


@checked
def hgpo_advantages(
    return_to_go: Float[Array, "*S"],
    group_id: Int[Array, "*S"],
    step_key: Int[Array, "K *S"],
    mask: Bool[Array, "*S"],
    *,
    weight_exponent: Scalar = 1.0,
    spread: Spread,
) -> Float[Array, "*S"]:
    """Advantages over a hierarchy of step groups (HGPO, 2602.22817).

        Aₖ = norm of Rₜ over the steps of the task with the same last k observations
        A = Σₖ wₖ Aₖ,  wₖ ∝ (k + 1)^α over the k whose group has at least two members

    Args:
        return_to_go: Rₜ, discounted rewards from t on.
        group_id: which task the step belongs to; any integer.
        step_key: row k − 1 is the key of the last k observations, k = 1, ..., K; any
            integers, such as `history_keys`.
        mask: True on real steps; a dead one is never looked at.
        weight_exponent: α ≥ 0; 1 in the paper.
        spread: "population" in the paper, or "sample", "none".

    Returns:
        A per step, float32 or wider, gradient not stopped; 0 where dead or where no level has
        a second member. With one level it is the step term of GiGPO. The paper's public code
        drops levels whose advantage is exactly zero, which also drops a step that is exactly
        average; here a level is dropped only for a group of one. Non-finite live input comes
        out non-finite.

    Raises:
        TypeError: an argument has another dtype, or the axes differ.

    Example:
        >>> to_go, task, live = jnp.array([1.0, 3.0]), jnp.array([0, 0]), jnp.ones(2, bool)
        >>> key = jnp.array([[4, 4], [1, 2]])  # the longer histories differ
        >>> print(hgpo_advantages(to_go, task, key, live, spread="none"))
        [-1.  1.]
    """
    (to_go,) = accumulate(return_to_go)
    total, weights = jnp.zeros_like(to_go), jnp.zeros_like(to_go)
    for level, keys in enumerate(step_key, start=1):
        term, is_shared = _step_term(to_go, _dense_ids(keys, group_id), mask, spread)
        weight = jnp.where(is_shared, (level + 1.0) ** weight_exponent, 0.0)
        total, weights = total + weight * term, weights + weight
    return total / jnp.where(weights == 0, 1.0, weights)
