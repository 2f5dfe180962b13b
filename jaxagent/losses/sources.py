"""Several sources of guidance: mixing, learned weights, and the audit against reward hacking."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxagent.losses.advantages import masked_mean
from jaxagent.losses.contract import Scalar, accumulate, checked


@checked
def mix_by_weights(
    guidance: Float[Array, "S *B"], weights: Float[Array, "S"]
) -> Float[Array, "*B"]:
    """Several guidance sources mixed by given weights.

        R = Σ_s w_s R_s

    Args:
        guidance: R_s of each source.
        weights: w_s; fixed ones, or `softmax_weights` of learned logits.

    Returns:
        R, float32 or wider; the weights are not normalised. Non-finite input comes out
        non-finite, also under weight 0.

    Raises:
        TypeError: an argument is not floating point or the source axes differ.

    Example:
        >>> sources = jnp.array([[1.0], [10.0]])
        >>> print(mix_by_weights(sources, jnp.array([0.5, 0.2])))
        [2.5]
    """
    guidance, weights = accumulate(guidance, weights)
    return jnp.tensordot(weights, guidance, axes=1)


@checked
def mix_by_priority(
    guidance: Float[Array, "S *B"], active: Bool[Array, "S *B"], is_safety: Bool[Array, "S"]
) -> Float[Array, "*B"]:
    """Several guidance sources in order of priority: active safety silences those below it.

        R = Σ_s R_s · active_s · Π_{j<s} (1 − active_j · is_safety_j)

    Args:
        guidance: R_s, highest priority first, each already multiplied by its weight.
        active: where the source has something to say.
        is_safety: which sources silence the ones after them while active. All True: only
            the first active source is heard.

    Returns:
        R, float32 or wider; 0 where no source is active. What an inactive or silenced source
        holds is not looked at; of the others, non-finite input comes out non-finite.

    Raises:
        TypeError: an argument has another dtype, or the axes differ.

    Example:
        >>> sources = jnp.array([[-5.0, -5.0], [1.0, 1.0]])
        >>> active = jnp.array([[True, False], [True, True]])
        >>> print(mix_by_priority(sources, active, jnp.array([True, False])))
        [-5.  1.]
    """
    (guidance,) = accumulate(guidance)
    safety = is_safety.reshape(-1, *[1] * (active.ndim - 1))
    silencing = jnp.cumsum((active & safety).astype(jnp.int32), axis=0)
    silenced = (silencing - (active & safety)) > 0
    return jnp.sum(jnp.where(active & ~silenced, guidance, 0.0), axis=0)


@checked
def softmax_weights(logits: Float[Array, "S"]) -> Float[Array, "S"]:
    """Positive weights of guidance sources that sum to one.

        w = softmax(θ)

    Args:
        logits: θ, learned by `improve_source_logits`.

    Returns:
        w for `mix_by_weights`, float32 or wider; gradient not stopped. NaN comes out NaN.

    Raises:
        TypeError: logits is not a floating-point vector.

    Example:
        >>> print(softmax_weights(jnp.zeros(2)))
        [0.5 0.5]
    """
    return jax.nn.softmax(accumulate(logits)[0])


@checked
def improve_source_logits(
    logits: Float[Array, "S"],
    perturbation: Float[Array, "P S"],
    evaluation_return: Float[Array, "P"],
    *,
    perturbation_std: Scalar,
    learning_rate: Scalar,
) -> Float[Array, "S"]:
    """One ascent step of the source logits on the unguided evaluation (evolution strategies).

        θ ← θ + η · mean_p[(J_p − J̄) ε_p] / σ

    The evaluation has no gradient with respect to θ (training lies between them), so it is
    estimated from P candidates, each trained for a while with softmax(θ + σ ε_p) and then
    evaluated at λ = 0 (Salimans et al. 2017, with the mean as baseline).

    Args:
        logits: θ.
        perturbation: ε_p ~ N(0, I), one row per candidate; P = 1 moves nothing.
        evaluation_return: J_p, mean return of the candidate at λ = 0.
        perturbation_std: σ > 0.
        learning_rate: η; in logits per unit of return.

    Returns:
        The new θ, float32 or wider. Non-finite input comes out non-finite.

    Raises:
        TypeError: an argument is not floating point or the axes differ.

    Example:
        >>> tried, returns = jnp.array([[1.0, 0.0], [0.0, 1.0]]), jnp.array([4.0, 2.0])
        >>> step = dict(perturbation_std=1.0, learning_rate=1.0)
        >>> print(improve_source_logits(jnp.zeros(2), tried, returns, **step))
        [ 0.5 -0.5]
    """
    logits, perturbation, returns = accumulate(logits, perturbation, evaluation_return)
    better = returns - jnp.mean(returns)
    ascent = better @ perturbation / (better.shape[0] * perturbation_std)
    return logits + learning_rate * ascent


@checked
def guidance_correlation(
    env_reward: Float[Array, "*S"], guidance: Float[Array, "*S"], mask: Bool[Array, "*S"]
) -> Float[Array, ""]:
    """Audit: Pearson correlation of guidance with the reward of the task.

        cov(R_env, R_guidance) / √(var R_env · var R_guidance)

    Args:
        env_reward: R_env, per step or per episode.
        guidance: R_guidance over the same, before λ.
        mask: True where the entry counts.

    Returns:
        A number in [−1, 1], float32 or wider; 0, with zero gradient, where either is constant
        or nothing is live. Low or negative on *episode* sums is a sign of reward hacking.
        Non-finite live input comes out non-finite.

    Raises:
        TypeError: an argument has another dtype, or the axes differ.

    Example:
        >>> env, guide, live = jnp.arange(3.0), -jnp.arange(3.0), jnp.ones(3, bool)
        >>> round(guidance_correlation(env, guide, live).item(), 3)
        -1.0
    """
    env, guide = accumulate(env_reward, guidance)
    env, guide = _unit_deviation(env, mask), _unit_deviation(guide, mask)
    return jnp.clip(masked_mean(env * guide, mask), -1.0, 1.0)


def _unit_deviation(x: jax.Array, mask: jax.Array) -> jax.Array:
    """Live deviations from the mean in standard deviations; zero when that is only rounding."""
    mean = masked_mean(x, mask)
    centred = jnp.where(mask, x - mean, 0.0)
    variance = masked_mean(centred**2, mask)
    rounding = (4.0 * jnp.finfo(x.dtype).eps * jnp.abs(mean)) ** 2
    is_constant = variance <= rounding
    return jnp.where(is_constant, 0.0, centred / jnp.sqrt(jnp.where(is_constant, 1.0, variance)))


@checked
def hacking_alarm(
    total_return: Float[Array, "K *B"], env_return: Float[Array, "K *B"]
) -> Bool[Array, "*B"]:
    """Audit: over a window of evaluations the total rises while the task's own return falls.

        slope(R_total) > 0 ∧ slope(R_env) < 0

    Args:
        total_return: R_env + λ·R_guidance per episode, oldest first.
        env_return: R_env per episode over the same window, oldest first.

    Returns:
        True where the least-squares slopes over the window have these signs; False for K = 1.
        A window with NaN raises no alarm.

    Raises:
        TypeError: an argument is not floating point or their axes differ.

    Example:
        >>> bool(hacking_alarm(jnp.array([1.0, 2.0, 3.0]), jnp.array([1.0, 0.5, 0.2])))
        True
    """
    total, env = accumulate(total_return, env_return)
    time = jnp.arange(total.shape[0], dtype=total.dtype)
    time = time - jnp.mean(time)
    return (jnp.tensordot(time, total, 1) > 0) & (jnp.tensordot(time, env, 1) < 0)
