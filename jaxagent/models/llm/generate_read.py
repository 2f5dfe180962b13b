"""Reading tokens behind a cache, in one compiled program or layer by layer.

Where the layers stand apart (`generate_weights`), all of them run through one program that knows
a single layer. A program of all thirty of SmolLM2's takes XLA twelve seconds to compile and
hundreds of megabytes, at each size, and then 51 ms a token on one core instead of 28.
"""

import functools
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from jaxagent.models.llm.cache import KVCache
from jaxagent.models.llm.config import LlamaConfig
from jaxagent.models.llm.generate_weights import Variables, Weights
from jaxagent.models.llm.host_memory import gives_back_memory
from jaxagent.models.llm.llama import DecoderLayer, Llama, LlamaOutput, Setting, Slots, Stream


def read(
    config: LlamaConfig,
    weights: Weights,
    cache: KVCache,
    tokens: Int[Array | np.ndarray, "B L"],
    *,
    segment_ids: Int[Array | np.ndarray, "B L"],
    positions: Int[Array | np.ndarray, "B L"] | None = None,
    visible: Bool[Array | np.ndarray, "B L S"] | None = None,
    last: Float[Array, "B D"] | None = None,
) -> tuple[KVCache, Float[Array, "B L D"] | Float[Array, "B D"]]:
    """Features of tokens that follow what the cache holds, and the cache with them in it.

    Args:
        config: of the model.
        weights: of the model.
        cache: donated; its layers stand apart where those of the weights do.
        tokens: right-padded.
        segment_ids: 0 on padding, 1 elsewhere.
        positions: see `Llama`.
        visible: see `Llama`.
        last: features of the last token that each row has read. With it, those of its newest
            token are all that comes back; `last` again where none of its tokens is live.
    """
    given: Any = (tokens, positions, segment_ids, visible)
    if not weights.layers:
        return _read_whole(config, weights.variables, cache, *given, last)
    x, setting = enter(config, weights.variables, cache.length, *given)
    after = []
    for layer, *slots in zip(weights.layers, cache.keys, cache.values, strict=True):
        x, slots = through_layer(config, layer, Stream(x, Slots(*slots)), setting)
        after.append(slots)
    hidden, length = leave(config, weights.variables, x, setting.start, setting.count, last)
    keys, values = zip(*after, strict=True)
    return KVCache(keys=keys, values=values, length=length), hidden


@gives_back_memory
@functools.partial(jax.jit, static_argnames="config", donate_argnames="cache")
def _read_whole(
    config: LlamaConfig,
    variables: Variables,
    cache: KVCache,
    tokens: Int[Array, "B L"],
    positions: Int[Array, "B L"] | None,
    segment_ids: Int[Array, "B L"],
    visible: Bool[Array, "B L S"] | None,
    last: Float[Array, "B D"] | None,
) -> tuple[KVCache, Float[Array, "B L D"] | Float[Array, "B D"]]:
    output = cast(
        LlamaOutput,
        Llama(config).apply(
            variables,
            tokens,
            positions=positions,
            segment_ids=segment_ids,
            cache=cache,
            visible=visible,
        ),
    )
    after = cast(KVCache, output.cache)
    if last is None:
        return after, output.hidden
    return after, _newest(output.hidden, after.length - cache.length, last)


@gives_back_memory
@functools.partial(jax.jit, static_argnames="config")
def enter(
    config: LlamaConfig,
    variables: Variables,
    length: Int[Array, " B"],
    tokens: Int[Array, "B L"],
    positions: Int[Array, "B L"] | None,
    segment_ids: Int[Array, "B L"],
    visible: Bool[Array, "B L S"] | None,
) -> tuple[Float[Array, "B L D"], Setting]:
    """What goes into the first layer, and what is the same for all; see `Llama.enter`."""
    given = (tokens, positions, segment_ids, length, visible)
    return cast(tuple[Array, Setting], Llama(config).apply(variables, *given, method="enter"))


@gives_back_memory
@functools.partial(jax.jit, static_argnames="config", donate_argnames="stream")
def through_layer(
    config: LlamaConfig,
    layer: Variables,
    stream: Stream,
    setting: Setting,
) -> Stream:
    """One layer, with a cache of its own; the stream is donated, so that it grows in place."""
    only = jnp.int32(0)
    stream, _ = cast(tuple[Stream, None], DecoderLayer(config).apply(layer, stream, only, setting))
    return stream


@gives_back_memory
@functools.partial(jax.jit, static_argnames="config")
def leave(
    config: LlamaConfig,
    variables: Variables,
    x: Float[Array, "B L D"],
    start: Int[Array, " B"],
    count: Int[Array, " B"],
    last: Float[Array, "B D"] | None,
) -> tuple[Float[Array, "B L D"] | Float[Array, "B D"], Int[Array, " B"]]:
    """The last norm, of all tokens or with `last` of the newest; and the cache's new length."""
    hidden = cast(Array, Llama(config).apply(variables, x, method="leave"))
    if last is not None:
        hidden = _newest(hidden, count, last)
    return hidden, start + count


def _newest(
    hidden: Float[Array, "B L D"], count: Int[Array, " B"], last: Float[Array, "B D"]
) -> Float[Array, "B D"]:
    end = jnp.maximum(count - 1, 0)[:, None, None]
    newest = jnp.take_along_axis(hidden, end, axis=1)[:, 0]
    return jnp.where((count > 0)[:, None], newest, last)
