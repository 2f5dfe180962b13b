"""Schedules of λ in R_env + λ·R_guidance, as pure functions of the training progress."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxagent.losses.contract import Scalar, accumulate, checked, not_hidden, require_array

Fraction = float | int | Float[Array, "*B"]


@checked
def constant_lambda(fraction: Fraction, *, guidance_lambda: Scalar) -> Float[Array, "*B"]:
    """λ that never changes.

    Args:
        fraction: share of the training done, in [0, 1]; only its shape matters, not even NaN.
        guidance_lambda: λ ≥ 0.

    Returns:
        λ, float32 or wider.

    Raises:
        TypeError: fraction is not floating point.

    Example:
        >>> constant_lambda(0.7, guidance_lambda=0.5).item()
        0.5
    """
    done = _done(fraction)
    return jnp.full_like(done, guidance_lambda)


@checked
def linear_lambda(fraction: Fraction, *, start: Scalar, end: Scalar) -> Float[Array, "*B"]:
    """λ on a straight line.

        λ = start + (end − start) x,  x = clip(fraction, 0, 1)

    Args:
        fraction: share of the training done; held at the ends outside [0, 1].
        start: λ at 0.
        end: λ at 1.

    Returns:
        λ, float32 or wider. Non-finite input comes out non-finite.

    Raises:
        TypeError: fraction is not floating point.

    Example:
        >>> linear_lambda(0.25, start=1.0, end=0.0).item()
        0.75
    """
    return start + (end - start) * _shown(fraction)


@checked
def cosine_lambda(fraction: Fraction, *, start: Scalar, end: Scalar) -> Float[Array, "*B"]:
    """λ on half a cosine: flat at both ends.

        λ = end + (start − end) (1 + cos πx) / 2,  x = clip(fraction, 0, 1)

    Args:
        fraction: share of the training done; held at the ends outside [0, 1].
        start: λ at 0.
        end: λ at 1.

    Returns:
        λ, float32 or wider. Non-finite input comes out non-finite.

    Raises:
        TypeError: fraction is not floating point.

    Example:
        >>> round(cosine_lambda(0.5, start=1.0, end=0.0).item(), 4)
        0.5
    """
    return end + (start - end) * 0.5 * (1.0 + jnp.cos(jnp.pi * _shown(fraction)))


@checked
def staged_lambda(
    fraction: Fraction,
    *,
    explore_lambda: Scalar,
    refine_lambda: Scalar,
    refine_from: Scalar,
    zero_from: Scalar,
) -> Float[Array, "*B"]:
    """λ in three stages: explore, refine, then learn from the task alone.

        λ = explore_lambda   for fraction < refine_from
            refine_lambda    for refine_from ≤ fraction < zero_from
            0                for zero_from ≤ fraction

    Args:
        fraction: share of the training done, in [0, 1].
        explore_lambda: λ of the first stage; the article uses 0.8 to 1.2.
        refine_lambda: λ of the second stage; the article uses 0.2 to 0.5.
        refine_from: fraction at which the second stage begins.
        zero_from: fraction at which guidance stops.

    Returns:
        λ, float32 or wider. A NaN fraction is 0.

    Raises:
        TypeError: fraction is not floating point.
        ValueError: static refine_from exceeds static zero_from.

    Example:
        >>> stages = dict(explore_lambda=1.0, refine_lambda=0.25, refine_from=0.4, zero_from=0.8)
        >>> [staged_lambda(x, **stages).item() for x in (0.0, 0.4, 0.8)]
        [1.0, 0.25, 0.0]
    """
    static = isinstance(refine_from, float | int) and isinstance(zero_from, float | int)
    if static and refine_from > zero_from:
        raise ValueError(
            f"staged_lambda: refine_from ({refine_from}) must not exceed zero_from ({zero_from})"
        )
    done = _done(fraction)
    late = jnp.where(done < zero_from, refine_lambda, 0.0)
    return jnp.where(done < refine_from, explore_lambda, late).astype(done.dtype)


def _shown(fraction: Fraction) -> Array:
    """The share done, NaN where it is not finite."""
    return not_hidden(_done(fraction), *accumulate(jnp.asarray(fraction)))


def _done(fraction: Fraction) -> Array:
    (done,) = accumulate(jnp.asarray(fraction))
    return jnp.clip(done, 0.0, 1.0)


class AdaptiveLambda(NamedTuple):
    """State of the adaptive schedule."""

    guidance_lambda: Float[Array, ""]
    window: Float[Array, "K"]
    count: Int[Array, ""]


@checked
def adaptive_lambda(guidance_lambda: Scalar, *, window_size: int) -> AdaptiveLambda:
    """The adaptive schedule before its first evaluation.

    Args:
        guidance_lambda: the first λ.
        window_size: K ≥ 1, evaluations in the mean.

    Returns:
        A state with an empty window, for `adapt_lambda`.

    Raises:
        TypeError: guidance_lambda is not a number.
        ValueError: window_size is below 1.

    Example:
        >>> adaptive_lambda(0.5, window_size=3).window.shape
        (3,)
    """
    if window_size < 1:
        raise ValueError(f"adaptive_lambda: window_size must be at least 1, found {window_size}")
    first = jnp.asarray(guidance_lambda, jnp.result_type(float))
    return AdaptiveLambda(first, jnp.zeros(window_size, first.dtype), jnp.zeros((), jnp.int32))


@checked
def adapt_lambda(
    state: AdaptiveLambda,
    evaluation_return: Float[Array, ""],
    *,
    decay: Scalar = 0.99,
    growth: Scalar = 1.0,
    cap: Scalar,
) -> AdaptiveLambda:
    """One step of the adaptive schedule, after one evaluation without guidance.

        λ ← decay·λ                     when the mean of the last K evaluations rises
        λ ← max(λ, min(cap, growth·λ))  when it stalls or falls

    Args:
        state: from `adaptive_lambda` or the step before.
        evaluation_return: mean return of this evaluation at λ = 0.
        decay: 0.99 in the article.
        growth: 1 holds λ; above 1 raises it.
        cap: λ is never *raised* above it.

    Returns:
        The next state. λ stays as it is until K evaluations have come before this one. A
        non-finite return counts as a stall and stays in the window for K evaluations.

    Raises:
        TypeError: state or evaluation_return is of another kind.

    Example:
        >>> state = adaptive_lambda(1.0, window_size=1)
        >>> for evaluation in (10.0, 20.0, 15.0):
        ...     state = adapt_lambda(state, jnp.array(evaluation), growth=2.0, cap=1.5)
        >>> state.guidance_lambda.item()
        1.5
    """
    for name, kind, shape in (
        ("guidance_lambda", jnp.floating, ()),
        ("window", jnp.floating, state.window.shape[:1]),
        ("count", jnp.integer, ()),
    ):
        require_array("adapt_lambda", f"state.{name}", getattr(state, name), kind, shape)
    window = jnp.append(state.window[1:], evaluation_return.astype(state.window.dtype))
    rises = jnp.mean(window) > jnp.mean(state.window)
    current = state.guidance_lambda
    raised = jnp.maximum(current, jnp.minimum(cap, growth * current))
    moved = jnp.where(rises, decay * current, raised)
    known = state.count >= window.shape[0]
    return AdaptiveLambda(
        jnp.where(known, moved, current).astype(current.dtype), window, state.count + 1
    )


@checked
def scale_matched_lambda(
    guidance_lambda: Scalar | Float[Array, "*B"],
    env_std: Float[Array, "*B"],
    guidance_std: Float[Array, "*B"],
    *,
    ratio: Scalar,
) -> Float[Array, "*B"]:
    """λ bounded so that guidance cannot drown the reward of the task.

        λ_effective = min(λ, c · std(R_env) / std(R_guidance))

    Args:
        guidance_lambda: λ of the schedule.
        env_std: running standard deviation of R_env, per step.
        guidance_std: running standard deviation of R_guidance before λ, per step.
        ratio: c in (0, 1).

    Returns:
        λ_effective, float32 or wider: λ itself where guidance_std is 0 (there is nothing to
        bound), and 0 where only env_std is 0. On a sparse task R_env does not vary before the
        first success: match scales only once it has. Non-finite input comes out non-finite.

    Raises:
        TypeError: an argument is not floating point or the axes differ.

    Example:
        >>> env, guide = jnp.array(1.0), jnp.array(4.0)
        >>> scale_matched_lambda(1.0, env, guide, ratio=0.5).item()
        0.125
    """
    env_std, guidance_std = accumulate(env_std, guidance_std)
    silent = guidance_std == 0
    bound = ratio * env_std / jnp.where(silent, 1.0, guidance_std)
    least = jnp.where(silent, guidance_lambda, jnp.minimum(guidance_lambda, bound))
    return not_hidden(least, jnp.asarray(guidance_lambda), env_std, guidance_std)
