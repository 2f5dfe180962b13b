"""Running mean and variance of observations, safe in float32."""

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float


class Normaliser(struct.PyTreeNode, kw_only=True):
    """What has been seen so far: count, mean, and the sum of squared deviations from it.

    A float32 count of batches of one stands still at 2^24, and so does a sum: each is kept as a
    pair, whose second part holds what the first cannot. The pair counts to 2^48.
    """

    count: Float[Array, ""]
    mean: Float[Array, " O"]
    squared_deviation: Float[Array, " O"]
    lost: tuple[Float[Array, ""], Float[Array, " O"], Float[Array, " O"]]  # second parts of the 3


def known_normaliser(
    count: Float[Array, ""], mean: Float[Array, " O"], squared_deviation: Float[Array, " O"]
) -> Normaliser:
    """These statistics, with nothing lost."""
    lost = (jnp.zeros_like(count), jnp.zeros_like(mean), jnp.zeros_like(squared_deviation))
    return Normaliser(count=count, mean=mean, squared_deviation=squared_deviation, lost=lost)


def init_normaliser(size: int) -> Normaliser:
    """Nothing seen yet; `normalise` is then the identity up to clipping."""
    zeros = jnp.zeros(size, jnp.float32)
    return known_normaliser(jnp.zeros((), jnp.float32), zeros, zeros)


def update_normaliser(
    normaliser: Normaliser, observation: Float[Array, "... O"], axis_name: str | None = None
) -> Normaliser:
    """Merge a batch into the statistics (Chan, Golub & LeVeque 1983; Welford's for batches).

    The batch variance is taken in two passes around its own mean, with the rounding error of that
    mean corrected, so that observations around 1e6 with a spread of 1 keep their variance. A batch
    that holds a non-finite number is left out whole. However long a run is, a batch counts by its
    size: each sum is one of pairs (Knuth, The Art of Computer Programming 2, sec. 4.2.2, th. B).

    Args:
        normaliser: statistics so far.
        observation: any leading axes, all averaged over.
        axis_name: mapped device axis to merge over as well.
    """

    def total(x):
        x = x.sum(tuple(range(x.ndim - 1)))
        return jax.lax.psum(x, axis_name) if axis_name else x

    size = total(jnp.ones(observation.shape[:-1] + (1,), jnp.float32))[0]
    rough_mean = total(observation) / size
    centred = observation - jnp.broadcast_to(rough_mean, observation.shape)
    correction = total(centred) / size
    batch_mean = rough_mean + correction
    batch_deviation = total(centred**2) - size * correction**2

    lost_count, lost_mean, lost_deviation = normaliser.lost
    count, lost_count = _add(normaliser.count, lost_count, size)
    delta = (batch_mean - normaliser.mean) - lost_mean
    mean, lost_mean = _add(normaliser.mean, lost_mean, delta * (size / count))
    squared_deviation, lost_deviation = _add(
        normaliser.squared_deviation,
        lost_deviation,
        batch_deviation + delta**2 * (normaliser.count / count * size),
    )
    merged = Normaliser(
        count=count,
        mean=mean,
        squared_deviation=squared_deviation,
        lost=(lost_count, lost_mean, lost_deviation),
    )
    finite = jnp.isfinite(merged.mean).all() & jnp.isfinite(merged.squared_deviation).all()
    return jax.tree.map(lambda new, old: jnp.where(finite, new, old), merged, normaliser)


def normalise(
    normaliser: Normaliser, observation: Float[Array, "... O"], limit: float = 10.0
) -> Float[Array, "... O"]:
    """Centre, divide by the standard deviation, clip to ±limit.

    Components that never varied are only centred.
    """
    variance = normaliser.squared_deviation / jnp.maximum(normaliser.count, 1.0)
    scale = jnp.where(variance > 1e-8, jax.lax.rsqrt(jnp.maximum(variance, 1e-8)), 1.0)
    mean = jnp.broadcast_to(normaliser.mean, observation.shape)
    return jnp.clip((observation - mean) * jnp.broadcast_to(scale, mean.shape), -limit, limit)


def _add(high: Array, low: Array, x: Array) -> tuple[Array, Array]:
    """high + low + x as a pair of the rounded sum and its error."""
    total = high + x
    of_x = total - high
    low = low + ((high - (total - of_x)) + (x - of_x))
    rounded = total + low
    return rounded, low - (rounded - total)
