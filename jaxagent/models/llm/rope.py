"""Rotary position embeddings and the ways to stretch them."""

import math

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from jaxagent.models.llm.config import LlamaConfig, RopeScaling


def rotation(
    config: LlamaConfig, positions: Int[Array, "B L"], live: Bool[Array, "B L"]
) -> tuple[Float[Array, "B L H"], Float[Array, "B L H"]]:
    """(cos, sin) of the rotary angles (Su et al. 2021), one angle for each pair of dimensions.

        angle[b, l, i] = positions[b, l] · ωᵢ,    ωᵢ = θ^(−2i / head_dim), stretched as configured

    Args:
        config: head_dim, rope_theta and rope_scaling.
        positions: of the tokens in their own episodes, from 0.
        live: False on padding, which must not stretch a row.

    Returns:
        Both float32, last axis head_dim / 2, times the attention factor where the scaling has
        one. With `dynamic` scaling each row is stretched by its own length so far, so that what a
        row yields does not depend on its neighbours in the batch.
    """
    scaling = config.rope_scaling
    if scaling is not None and scaling.kind == "dynamic":
        frequencies = _dynamic_frequencies(config, scaling, jnp.where(live, positions, 0))[
            :, None, :
        ]
    else:
        frequencies = jnp.asarray(inverse_frequencies(config))[None, None, :]
    angles = positions.astype(jnp.float32)[:, :, None] * frequencies
    factor = attention_factor(scaling)
    return jnp.cos(angles) * factor, jnp.sin(angles) * factor


def rotate(
    x: Float[Array, "B L N H"],
    cos: Float[Array, "B L H2"],
    sin: Float[Array, "B L H2"],
) -> Float[Array, "B L N H"]:
    """Turn the pairs (xᵢ, xᵢ₊ₕ), h = head_dim / 2, by their angles, in float32."""
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    cos, sin = cos[:, :, None, :], sin[:, :, None, :]
    turned = jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
    return turned.astype(x.dtype)


def inverse_frequencies(config: LlamaConfig) -> np.ndarray:
    """ω of each pair, float32 throughout: the published models were trained with that rounding."""
    exponents = np.arange(0, config.head_dim, 2).astype(np.float32) / np.float32(config.head_dim)
    plain = np.float32(1) / np.float32(config.rope_theta) ** exponents
    scaling = config.rope_scaling
    if scaling is None or scaling.kind == "dynamic":
        return plain
    if scaling.kind == "linear":
        return plain / np.float32(scaling.factor)
    if scaling.kind == "llama3":
        return _llama3(plain, scaling)
    return _yarn(plain, config, scaling)


def attention_factor(scaling: RopeScaling | None) -> float:
    """What YaRN multiplies rotated queries and keys by; 1 for every other scaling."""
    if scaling is None or scaling.kind != "yarn":
        return 1.0
    if scaling.attention_factor is not None:
        return scaling.attention_factor
    return 0.1 * math.log(scaling.factor) + 1.0 if scaling.factor > 1 else 1.0


def _llama3(plain: np.ndarray, scaling: RopeScaling) -> np.ndarray:
    turns = scaling.original_max_positions * plain / np.float32(2 * math.pi)
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    kept = np.clip((turns - low) / (high - low), 0, 1).astype(np.float32)
    return (1 - kept) * plain / np.float32(scaling.factor) + kept * plain


def _yarn(plain: np.ndarray, config: LlamaConfig, scaling: RopeScaling) -> np.ndarray:
    def dimension(turns: float) -> float:
        wavelength = scaling.original_max_positions / (turns * 2 * math.pi)
        return config.head_dim * math.log(wavelength) / (2 * math.log(config.rope_theta))

    low = max(math.floor(dimension(scaling.beta_fast)), 0)
    high = min(math.ceil(dimension(scaling.beta_slow)), config.head_dim - 1)
    width = max(high - low, 0.001)
    ramp = np.clip((np.arange(config.head_dim // 2) - low) / width, 0, 1).astype(np.float32)
    return plain / np.float32(scaling.factor) * ramp + plain * (1 - ramp)


def _dynamic_frequencies(
    config: LlamaConfig, scaling: RopeScaling, positions: Int[Array, "B L"]
) -> Float[Array, "B H"]:
    """NTK-aware: θ grows with the length of the row, once that passes the trained length."""
    length = (jnp.max(positions, axis=1) + 1).astype(jnp.float32)
    original = float(scaling.original_max_positions)
    stretch = scaling.factor * jnp.maximum(length, original) / original - (scaling.factor - 1)
    dim = config.head_dim
    theta = config.rope_theta * stretch ** (dim / (dim - 2))
    exponents = jnp.arange(0, dim, 2, dtype=jnp.float32) / dim
    return 1.0 / theta[:, None] ** exponents[None, :]
