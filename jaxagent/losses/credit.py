"""Credit of sub-goals: what each segment of an episode contributed to its return.

Segment arrays are `[N, *B]`: segment i of each episode, dead segments after the live ones, the
sub-goal i starting at sᵢ and lasting dᵢ steps.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxagent.losses.advantages import backward_recurrence, gae, lambda_returns
from jaxagent.losses.contract import Scalar, accumulate, checked, require_unit_interval


def _is_last(mask: jax.Array) -> jax.Array:
    return mask & ~jnp.concatenate([mask[1:], jnp.zeros_like(mask[:1])])


@checked
def uniform_credit(
    task_return: Float[Array, "*B"], mask: Bool[Array, "N *B"]
) -> Float[Array, "N *B"]:
    """The same credit for every sub-goal.

        Cᵢ = R / N

    Args:
        task_return: R of the episode.
        mask: True on its N live segments.

    Returns:
        Credits that sum to R (if any segment is live), 0 where dead, float32 or wider.
        Non-finite input comes out non-finite.

    Raises:
        TypeError: an argument has another dtype, or the axes differ.

    Example:
        >>> print(uniform_credit(jnp.array(6.0), jnp.array([True, True, False])))
        [3. 3. 0.]
    """
    return duration_credit(task_return, mask.astype(jnp.int32), mask)


@checked
def duration_credit(
    task_return: Float[Array, "*B"], duration: Int[Array, "N *B"], mask: Bool[Array, "N *B"]
) -> Float[Array, "N *B"]:
    """Credit in proportion to how long each sub-goal lasted.

        Cᵢ = R dᵢ / Σⱼ dⱼ

    Args:
        task_return: R of the episode.
        duration: dᵢ ≥ 0, environment steps.
        mask: True on live segments; what a dead one holds is not looked at.

    Returns:
        Credits that sum to R (if Σ d > 0), 0 where dead, float32 or wider. Non-finite input
        comes out non-finite.

    Raises:
        TypeError: an argument has another dtype, or the axes differ.

    Example:
        >>> print(duration_credit(jnp.array(8.0), jnp.array([1, 3]), jnp.array([True, True])))
        [2. 6.]
    """
    (task_return,) = accumulate(task_return)
    lasting = jnp.where(mask, duration, 0)
    share = lasting / jnp.maximum(jnp.sum(lasting, axis=0, keepdims=True), 1)
    return jnp.where(mask, task_return[None] * share.astype(task_return.dtype), 0.0)


@checked
def decayed_credit(
    segment_reward: Float[Array, "N *B"],
    task_return: Float[Array, "*B"],
    mask: Bool[Array, "N *B"],
    *,
    credit_decay: Scalar,
) -> Float[Array, "N *B"]:
    """Rewards of later sub-goals and the task's return, decaying with distance in segments.

        Cᵢ = Σ_{j≥i} ρ^{j−i} rⱼ + ρ^{N−i} R

    Args:
        segment_reward: rⱼ, the sub-goal's own reward.
        task_return: R, counted at the last live segment.
        mask: True on live segments.
        credit_decay: ρ in [0, 1], per segment.

    Returns:
        Credits, 0 where dead, float32 or wider. Non-finite live input comes out non-finite.

    Raises:
        TypeError: an argument has another dtype, or the axes differ.
        ValueError: a static credit_decay lies outside [0, 1].

    Example:
        >>> reward, mask = jnp.array([1.0, 2.0]), jnp.array([True, True])
        >>> print(decayed_credit(reward, jnp.array(4.0), mask, credit_decay=0.5))
        [4. 6.]
    """
    require_unit_interval("decayed_credit", "credit_decay", credit_decay)
    reward, task_return = accumulate(segment_reward, task_return)
    earned = jnp.where(mask, reward, 0.0) + jnp.where(_is_last(mask), task_return[None], 0.0)
    return backward_recurrence(earned, jnp.full_like(earned, credit_decay))


@checked
def eligibility_credit(
    segment_reward: Float[Array, "N *B"],
    segment_discount: Float[Array, "N *B"],
    next_value: Float[Array, "N *B"],
    mask: Bool[Array, "N *B"],
    *,
    segment_lambda: Scalar,
) -> Float[Array, "N *B"]:
    """Credit by eligibility: the λ-return over segments.

        Cᵢ = Rᵢ + γ^{dᵢ} [(1 − λ) Vᵢ₊₁ + λ Cᵢ₊₁],  after the last one C = V

    Args:
        segment_reward: Rᵢ = Σⱼ γʲ r over the segment.
        segment_discount: γ^{dᵢ}·(1 − terminated).
        next_value: Vᵢ₊₁ of the state in which the segment ended.
        mask: True on live segments; a dead one is never looked at.
        segment_lambda: λ in [0, 1].

    Returns:
        Credits, 0 where dead, float32 or wider, gradient not stopped. Non-finite live input
        comes out non-finite.

    Raises:
        TypeError: an argument has another dtype, or the axes differ.
        ValueError: a static segment_lambda lies outside [0, 1].

    Example:
        >>> one, mask = jnp.ones(2), jnp.array([True, True])
        >>> print(eligibility_credit(one, 0.5 * one, 4.0 * one, mask, segment_lambda=1.0))
        [2.5 3. ]
    """
    require_unit_interval("eligibility_credit", "segment_lambda", segment_lambda)
    reward, discount, next_value = (
        jnp.where(mask, x, 0.0) for x in accumulate(segment_reward, segment_discount, next_value)
    )
    return lambda_returns(reward, discount, next_value, _is_last(mask), gae_lambda=segment_lambda)


@checked
def segment_gae(
    segment_reward: Float[Array, "N *B"],
    segment_discount: Float[Array, "N *B"],
    value: Float[Array, "N *B"],
    next_value: Float[Array, "N *B"],
    mask: Bool[Array, "N *B"],
    *,
    segment_lambda: Scalar,
) -> Float[Array, "N *B"]:
    """Advantages of sub-goals by TD over segments, a semi-Markov `gae` (Sutton et al. 1999).

        δᵢ = Rᵢ + γ^{dᵢ} Vᵢ₊₁ − Vᵢ
        Aᵢ = δᵢ + γ^{dᵢ} λ Aᵢ₊₁

    Args:
        segment_reward: Rᵢ = Σⱼ γʲ r over the segment.
        segment_discount: γ^{dᵢ}·(1 − terminated).
        value: Vᵢ of the state in which the segment began.
        next_value: Vᵢ₊₁ of the state in which it ended.
        mask: True on live segments; a dead one is never looked at.
        segment_lambda: λ in [0, 1].

    Returns:
        Advantages, 0 where dead, float32 or wider, neither whitened nor stopped. Non-finite
        live input comes out non-finite.

    Raises:
        TypeError: an argument has another dtype, or the axes differ.
        ValueError: a static segment_lambda lies outside [0, 1].

    Example:
        >>> one, mask = jnp.ones(2), jnp.array([True, True])
        >>> print(segment_gae(one, 0.5 * one, 0 * one, 4.0 * one, mask, segment_lambda=1.0))
        [4.5 3. ]
    """
    require_unit_interval("segment_gae", "segment_lambda", segment_lambda)
    inputs = accumulate(segment_reward, segment_discount, value, next_value)
    reward, discount, value, next_value = (jnp.where(mask, x, 0.0) for x in inputs)
    return gae(reward, discount, value, next_value, _is_last(mask), gae_lambda=segment_lambda)


@checked
def difference_credit(
    task_return: Float[Array, "*B"],
    counterfactual_return: Float[Array, "N *B"],
    mask: Bool[Array, "N *B"],
) -> Float[Array, "N *B"]:
    """Difference credit: what would be missing without the sub-goal (Wolpert & Tumer 2002).

        Cᵢ = R(τ) − E[R(τ without gᵢ)]

    Args:
        task_return: R(τ) of the episode as it went.
        counterfactual_return: E[R] with sub-goal i replaced by a default: predicted, or
            computed by replaying from sᵢ.
        mask: True on live segments; what a dead one holds is not looked at.

    Returns:
        Credits, 0 where dead, float32 or wider; they need not sum to R. Non-finite live input
        comes out non-finite.

    Raises:
        TypeError: an argument has another dtype, or the axes differ.

    Example:
        >>> without, mask = jnp.array([4.0, 10.0]), jnp.array([True, True])
        >>> print(difference_credit(jnp.array(10.0), without, mask))
        [6. 0.]
    """
    task_return, counterfactual = accumulate(task_return, counterfactual_return)
    return jnp.where(mask, task_return[None] - counterfactual, 0.0)


@checked
def conserve_return(
    credit: Float[Array, "N *B"], task_return: Float[Array, "*B"], mask: Bool[Array, "N *B"]
) -> Float[Array, "N *B"]:
    """Return-equivalent normalisation of credits (RUDDER, Arjona-Medina et al. 2019).

        C′ᵢ = Cᵢ + (R − Σⱼ Cⱼ) / N

    Args:
        credit: Cᵢ of any estimator.
        task_return: R of the episode.
        mask: True on live segments; what a dead one holds is not looked at.

    Returns:
        Credits that sum to R and differ from each other as before, 0 where dead, float32 or
        wider. Non-finite live input comes out non-finite.

    Raises:
        TypeError: an argument has another dtype, or the axes differ.

    Example:
        >>> print(conserve_return(jnp.array([1.0, 3.0]), jnp.array(10.0), jnp.ones(2, bool)))
        [4. 6.]
    """
    credit, task_return = accumulate(credit, task_return)
    credit = jnp.where(mask, credit, 0.0)
    missing = task_return - jnp.sum(credit, axis=0)
    share = missing / jnp.maximum(jnp.sum(mask, axis=0), 1).astype(credit.dtype)
    return jnp.where(mask, credit + share[None], 0.0)
