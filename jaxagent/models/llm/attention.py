"""Grouped-query attention over arrays: each key head serves several query heads."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

BLOCK = 64
MAX_BLOCKS = 16


def attend(
    query: Float[Array, "B L N H"],
    key: Float[Array, "B S K H"],
    value: Float[Array, "B S K H"],
    visible: Bool[Array, "B L S"],
) -> Float[Array, "B L N H"]:
    """softmax(q kᵀ / √head_dim) v, the softmax in float32.

    A token that sees nothing gets the mean of all values, not NaN: it is padding, and its
    features are nobody's business.
    """
    batch, length, heads, head_dim = query.shape
    key_heads = key.shape[2]
    group = heads // key_heads
    # The group stands beside the tokens, so that both products are one matrix a key head.
    grouped = (query * head_dim**-0.5).reshape(batch, length, key_heads, group, head_dim)
    grouped = grouped.transpose(0, 2, 3, 1, 4).reshape(batch, key_heads, group * length, head_dim)
    scores = jnp.einsum("bkqh,bskh->bkqs", grouped, key, preferred_element_type=jnp.float32)
    scores = scores.reshape(batch, key_heads, group, length, -1)
    scores = jnp.where(visible[:, None, None], scores, jnp.finfo(jnp.float32).min)
    # Divide after the product with the values: it is head_dim wide, the weights S.
    greatest = jax.lax.stop_gradient(jnp.max(scores, axis=-1, keepdims=True))
    weights = jnp.exp(scores - greatest)
    total = jnp.sum(weights, axis=-1).reshape(batch, key_heads, group * length, 1)
    weights = weights.reshape(batch, key_heads, group * length, -1).astype(value.dtype)
    mixed = jnp.einsum("bkqs,bskh->bkqh", weights, value, preferred_element_type=jnp.float32)
    mixed = (mixed / total).astype(value.dtype)
    mixed = mixed.reshape(batch, key_heads, group, length, head_dim)
    return mixed.transpose(0, 3, 1, 2, 4).reshape(batch, length, heads, head_dim)


def attend_causal(
    query: Float[Array, "B L N H"],
    key: Float[Array, "B L K H"],
    value: Float[Array, "B L K H"],
    segment_ids: Int[Array, "B L"],
) -> Float[Array, "B L N H"]:
    """`attend` to what came before in the same segment, a block of tokens at a time.

    No block looks at keys behind its own end, so half the scores are never computed; what is
    left fits a CPU's cache.
    """
    length = query.shape[1]
    block = max(BLOCK, -(-length // MAX_BLOCKS))
    mixed = []
    for start in range(0, length, block):
        end = min(start + block, length)
        index = jnp.arange(end)
        causal = index[start:, None] >= index[None, :]
        same = segment_ids[:, start:end, None] == segment_ids[:, None, :end]
        mixed.append(attend(query[:, start:end], key[:, :end], value[:, :end], same & causal[None]))
    return jnp.concatenate(mixed, axis=1) if len(mixed) > 1 else mixed[0]


def attend_cached(
    query: Float[Array, "B L N H"],
    key: Float[Array, "B S K H"],
    value: Float[Array, "B S K H"],
    start: Int[Array, " B"],
) -> Float[Array, "B L N H"]:
    """`attend` to a cache that ends with the queries' own keys, row b's first in slot start[b]."""
    last = start[:, None] + jnp.arange(query.shape[1])[None, :]
    visible = jnp.arange(key.shape[1])[None, None, :] <= last[:, :, None]
    return attend(query, key, value, visible)
