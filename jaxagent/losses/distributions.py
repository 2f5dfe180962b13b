"""Tanh-normal and categorical policies: sample, log-probability, entropy, divergence.

Parameters of one distribution lie along the last axis; `loc` and `scale` have equal shapes
(broadcast a state-independent scale first: silent rank promotion hides bugs).
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from jaxagent.losses.contract import accumulate, checked, not_hidden


class TanhNormalSample(NamedTuple):
    """A squashed action and the normal variate it came from."""

    action: Float[Array, "*B A"]
    pre_tanh: Float[Array, "*B A"]


def _log_det_tanh(pre_tanh: jax.Array) -> jax.Array:
    # log(1 − tanh² u) cancels to log 0 beyond |u| = 9 in float32; this form never does.
    return 2.0 * (math.log(2.0) - pre_tanh - jax.nn.softplus(-2.0 * pre_tanh))


@checked
def tanh_normal_sample(
    key: PRNGKeyArray, loc: Float[Array, "*B A"], scale: Float[Array, "*B A"]
) -> TanhNormalSample:
    """A reparameterised sample of a tanh-squashed normal (Haarnoja et al. 2018, app. C).

        a = tanh(u),  u = μ + σ ε,  ε ~ N(0, I)

    Args:
        key: consumed.
        loc: μ, before the squashing.
        scale: σ > 0, before the squashing.

    Returns:
        The action in [−1, 1] and u. Keep u: recovering it from a saturated action is
        ill-conditioned. Gradients flow into loc and scale. Computed in float32 or wider.
        Non-finite input makes u non-finite.

    Raises:
        TypeError: loc or scale is not floating point or their axes differ.

    Example:
        >>> sample = tanh_normal_sample(jax.random.key(0), jnp.zeros(3), jnp.ones(3))
        >>> bool((sample.action == jnp.tanh(sample.pre_tanh)).all())
        True
    """
    loc, scale = accumulate(loc, scale)
    pre_tanh = loc + scale * jax.random.normal(key, loc.shape, loc.dtype)
    return TanhNormalSample(jnp.tanh(pre_tanh), pre_tanh)


@checked
def tanh_normal_log_prob(
    pre_tanh: Float[Array, "*B A"], loc: Float[Array, "*B A"], scale: Float[Array, "*B A"]
) -> Float[Array, "*B"]:
    """Exact log-density of a tanh-squashed normal (Haarnoja et al. 2018, eq. 21).

        log p(a) = Σ_A [log N(u; μ, σ) − log(1 − tanh² u)]
        log(1 − tanh² u) = 2 (log 2 − u − softplus(−2u))

    Args:
        pre_tanh: u with a = tanh(u).
        loc: μ.
        scale: σ > 0; anything else comes out non-finite.

    Returns:
        Log-density of a with respect to the volume of [−1, 1]ᴬ, nats, summed over the action
        axis, float32 or wider; finite wherever ((u − μ)/σ)² is. Non-finite input comes out
        non-finite.

    Raises:
        TypeError: an argument is not floating point or their axes differ.

    Example:
        >>> zero, one = jnp.zeros(1), jnp.ones(1)
        >>> round(tanh_normal_log_prob(zero, zero, one).item(), 4)
        -0.9189
    """
    pre_tanh, loc, scale = accumulate(pre_tanh, loc, scale)
    standard = (pre_tanh - loc) / scale
    normal = -0.5 * standard**2 - jnp.log(scale) - 0.5 * math.log(2.0 * math.pi)
    return jnp.sum(normal - _log_det_tanh(pre_tanh), axis=-1)


@checked
def tanh_normal_entropy(
    key: PRNGKeyArray, loc: Float[Array, "*B A"], scale: Float[Array, "*B A"]
) -> Float[Array, "*B"]:
    """One-sample estimate of the entropy of a tanh-squashed normal, which has no closed form.

        H = Σ_A [½ log(2πe σ²) + log(1 − tanh² u)],  u = μ + σ ε

    Args:
        key: consumed.
        loc: μ.
        scale: σ > 0.

    Returns:
        Differential entropy, nats, float32 or wider: the normal part exact, the squashing
        part from one reparameterised sample, so unbiased with unbiased gradients. Against
        −log p of a sample it varies less for narrow policies and more for wide ones. May be
        negative. Non-finite input comes out non-finite.

    Raises:
        TypeError: loc or scale is not floating point or their axes differ.

    Example:
        >>> narrow = tanh_normal_entropy(jax.random.key(0), jnp.zeros(1), jnp.full(1, 1e-3))
        >>> round(narrow.item(), 3)  # ½ log(2πe) + log 1e-3
        -5.489
    """
    loc, scale = accumulate(loc, scale)
    normal = 0.5 * math.log(2.0 * math.pi * math.e) + jnp.log(scale)
    pre_tanh = tanh_normal_sample(key, loc, scale).pre_tanh
    return jnp.sum(normal + _log_det_tanh(pre_tanh), axis=-1)


@checked
def tanh_normal_kl(
    loc_p: Float[Array, "*B A"],
    scale_p: Float[Array, "*B A"],
    loc_q: Float[Array, "*B A"],
    scale_q: Float[Array, "*B A"],
) -> Float[Array, "*B"]:
    """Exact KL(p ‖ q) of two tanh-squashed normals: that of the normals underneath.

        Σ_A [log(σ_q / σ_p) + (σ_p² + (μ_p − μ_q)²) / (2 σ_q²) − ½]

    tanh is a bijection and squashes both alike, so its Jacobian cancels in log p − log q.

    Args:
        loc_p: μ of p, from which the expectation is taken.
        scale_p: σ > 0 of p.
        loc_q: μ of q.
        scale_q: σ > 0 of q.

    Returns:
        KL(p ‖ q), nats, summed over the action axis, float32 or wider; gradient not stopped.
        Non-finite input comes out non-finite.

    Raises:
        TypeError: an argument is not floating point or their axes differ.

    Example:
        >>> zero, one = jnp.zeros(2), jnp.ones(2)
        >>> tanh_normal_kl(one, one, zero, one).item()
        1.0
    """
    loc_p, scale_p, loc_q, scale_q = accumulate(loc_p, scale_p, loc_q, scale_q)
    ratio = scale_p / scale_q
    shift = (loc_p - loc_q) / scale_q
    return jnp.sum(0.5 * (ratio**2 + shift**2 - 1.0) - jnp.log(ratio), axis=-1)


@checked
def tanh_normal_mode(loc: Float[Array, "*B A"]) -> Float[Array, "*B A"]:
    """The deterministic action of a tanh-squashed normal: the image of the normal's mode.

        a = tanh(μ)

    This is the median of each component. The mode of the squashed density itself differs, and
    for σ² > ½ there can be two of them; everyone evaluates with this one.

    Args:
        loc: μ.

    Returns:
        The action in [−1, 1], float32 or wider. Non-finite input comes out non-finite.

    Raises:
        TypeError: loc is not floating point.

    Example:
        >>> tanh_normal_mode(jnp.array([0.0, 100.0])).tolist()
        [0.0, 1.0]
    """
    (loc,) = accumulate(loc)
    return not_hidden(jnp.tanh(loc), loc)


@checked
def categorical_sample(key: PRNGKeyArray, logits: Float[Array, "*B A"]) -> Int[Array, "*B"]:
    """A sample of softmax(logits).

    Args:
        key: consumed.
        logits: unnormalised log-probabilities; −inf forbids an action.

    Returns:
        Indices in [0, A), int32. A row without any finite logit gives an arbitrary index.

    Raises:
        TypeError: logits is not floating point.

    Example:
        >>> categorical_sample(jax.random.key(0), jnp.array([-jnp.inf, 0.0])).item()
        1
    """
    (logits,) = accumulate(logits)
    return jax.random.categorical(key, logits)


@checked
def categorical_log_prob(
    logits: Float[Array, "*B A"], action: Int[Array, "*B"]
) -> Float[Array, "*B"]:
    """log softmax(logits)[action].

    Args:
        logits: unnormalised log-probabilities; −inf forbids an action.
        action: indices in [0, A).

    Returns:
        Log-probabilities, nats, float32 or wider; −inf for a forbidden action, NaN for an
        index out of range (never a clamped or wrapped one). Non-finite input otherwise comes
        out non-finite.

    Raises:
        TypeError: logits is not floating point, action not integer, or the axes differ.

    Example:
        >>> round(categorical_log_prob(jnp.zeros(4), jnp.array(2)).item(), 4)
        -1.3863
    """
    (logits,) = accumulate(logits)
    log_prob = jax.nn.log_softmax(logits)
    # JAX counts a negative index from the end; past the end it can be told to give NaN.
    index = jnp.where(action < 0, logits.shape[-1], action)[..., None]
    found = jnp.take_along_axis(log_prob, index, axis=-1, mode="fill", fill_value=jnp.nan)
    return found[..., 0]


def _expected_under(log_prob: jax.Array, quantity: jax.Array) -> jax.Array:
    """Σ_A p·quantity with the limit 0 where p = 0, also in the gradient."""
    return jnp.sum(jnp.exp(log_prob) * jnp.where(log_prob > -jnp.inf, quantity, 0.0), axis=-1)


@checked
def categorical_entropy(logits: Float[Array, "*B A"]) -> Float[Array, "*B"]:
    """Entropy of softmax(logits).

        H = −Σ_A p log p,  0 log 0 = 0

    Args:
        logits: unnormalised log-probabilities; −inf forbids an action.

    Returns:
        Entropy, nats, in [0, log A], float32 or wider. A row without any finite logit, or with
        NaN, is NaN.

    Raises:
        TypeError: logits is not floating point.

    Example:
        >>> round(categorical_entropy(jnp.array([0.0, 0.0, -jnp.inf])).item(), 4)
        0.6931
    """
    (logits,) = accumulate(logits)
    log_prob = jax.nn.log_softmax(logits)
    return -_expected_under(log_prob, log_prob)


@checked
def categorical_kl(
    logits_p: Float[Array, "*B A"], logits_q: Float[Array, "*B A"]
) -> Float[Array, "*B"]:
    """KL(p ‖ q) of softmax(logits_p) and softmax(logits_q).

        Σ_A p (log p − log q),  terms with p = 0 are 0

    Args:
        logits_p: of p, from which the expectation is taken; −inf forbids an action.
        logits_q: of q.

    Returns:
        KL(p ‖ q), nats, float32 or wider; +inf where q forbids what p allows. Gradient not
        stopped. A row without any finite logit, or with NaN, is NaN.

    Raises:
        TypeError: an argument is not floating point or their axes differ.

    Example:
        >>> p, q = jnp.array([0.0, -jnp.inf]), jnp.array([0.0, 0.0])
        >>> round(categorical_kl(p, q).item(), 4)
        0.6931
    """
    logits_p, logits_q = accumulate(logits_p, logits_q)
    log_p, log_q = jax.nn.log_softmax(logits_p), jax.nn.log_softmax(logits_q)
    return _expected_under(log_p, log_p - log_q)
