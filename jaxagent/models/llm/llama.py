"""A decoder-only transformer of the Llama family in Flax Linen."""

from typing import Any, NamedTuple, cast

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from jaxagent.models.llm.attention import BLOCK, attend, attend_cached, attend_causal
from jaxagent.models.llm.cache import KVCache, append
from jaxagent.models.llm.config import LlamaConfig
from jaxagent.models.llm.linear import Linear
from jaxagent.models.llm.rope import rotate, rotation


class LlamaOutput(NamedTuple):
    """Features of the last layer after its norm, and the cache that holds the tokens read."""

    hidden: Float[Array, "B L D"]
    cache: KVCache | None


class Slots(NamedTuple):
    """The cache's arrays, which every layer changes in its own place."""

    keys: Float[Array, "N B S K H"]
    values: Float[Array, "N B S K H"]


class Stream(NamedTuple):
    """What passes from layer to layer."""

    x: Float[Array, "B L D"]
    slots: Slots | None


class Setting(NamedTuple):
    """What is the same for every layer."""

    cos: Float[Array, "B L H2"]
    sin: Float[Array, "B L H2"]
    segment_ids: Int[Array, "B L"]
    start: Int[Array, " B"]  # tokens in the cache before this call
    count: Int[Array, " B"]  # tokens that this call appends
    visible: Bool[Array, "B L S"] | None  # where the caller says which slots each token sees
    asked: Int[Array, "B M"] | None = None  # whose features alone are wanted, in the last layer


class RMSNorm(nn.Module):
    """x / sqrt(mean(x²) + ε) · scale over the last axis, the quotient in float32."""

    epsilon: float

    @nn.compact
    def __call__(self, x: Float[Array, "*B D"]) -> Float[Array, "*B D"]:
        """The normed features, in the dtype of x."""
        scale = self.param("scale", nn.initializers.ones, (x.shape[-1],))
        wide = x.astype(jnp.float32)
        inverse = jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + self.epsilon)
        scale = scale.astype(x.dtype).reshape((1,) * (x.ndim - 1) + (-1,))
        return (wide * inverse).astype(x.dtype) * scale


def _asked(x: Float[Array, "B L X"], setting: Setting) -> Float[Array, "B M X"]:
    """Of all tokens those that are asked for: every one, where nothing is said."""
    if setting.asked is None:
        return x
    return jnp.take_along_axis(x, setting.asked[..., None], axis=1)


class Attention(nn.Module):
    """Grouped-query attention with rotary positions."""

    config: LlamaConfig

    @nn.compact
    def __call__(
        self, stream: Stream, layer: Int[Array, ""], setting: Setting
    ) -> tuple[Float[Array, "B M D"], Stream]:
        """What to add to the features asked for, and the stream with this layer's keys in it."""
        config = self.config
        x = stream.x
        asking = _asked(x, setting)
        query = self._project(asking, config.num_heads, "query")
        key = self._project(x, config.num_kv_heads, "key")
        value = self._project(x, config.num_kv_heads, "value")
        if config.qk_norm:
            query = RMSNorm(config.norm_epsilon, name="query_norm")(query)
            key = RMSNorm(config.norm_epsilon, name="key_norm")(key)
        query = rotate(query, _asked(setting.cos, setting), _asked(setting.sin, setting))
        key = rotate(key, setting.cos, setting.sin)
        if stream.slots is not None:
            keys = append(stream.slots.keys, layer, key, setting.start, setting.count)
            values = append(stream.slots.values, layer, value, setting.start, setting.count)
            stream = stream._replace(slots=Slots(keys, values))
        mixed = _attend(query, key, value, stream.slots, layer, setting)
        flat = mixed.reshape(*asking.shape[:2], -1)
        output = Linear(
            config.hidden_size,
            config.output_bias,
            config.dtype,
            config.initializer_range,
            name="output",
        )
        return output(flat), stream

    def _project(self, x: Float[Array, "B L D"], heads: int, name: str) -> Float[Array, "B L N H"]:
        config = self.config
        size = heads * config.head_dim
        linear = Linear(size, config.qkv_bias, config.dtype, config.initializer_range, name=name)
        return linear(x).reshape(*x.shape[:2], heads, config.head_dim)


def _attend(
    query: Float[Array, "B L N H"],
    key: Float[Array, "B L K H"],
    value: Float[Array, "B L K H"],
    slots: Slots | None,
    layer: Int[Array, ""],
    setting: Setting,
) -> Float[Array, "B L N H"]:
    """Attention to the new tokens or to the whole cache, whichever they may look at."""

    def to_new() -> Float[Array, "B L N H"]:
        return attend_causal(query, key, value, setting.segment_ids)

    def to_all() -> Float[Array, "B L N H"]:
        if slots is None:
            keys, values = key, value
        else:
            keys, values = slots.keys[layer], slots.values[layer]
        if setting.visible is not None:
            return attend(query, keys, values, setting.visible)
        return attend_cached(query, keys, values, setting.start)

    if setting.visible is not None:
        return to_all()
    if slots is None:
        return to_new()
    if query.shape[1] < BLOCK:
        return to_all()
    # A prompt read into an empty row need not look at the slots behind it.
    begun = (setting.start > 0) & (setting.count > 0)
    return jax.lax.cond(jnp.any(begun), to_all, to_new)


class FeedForward(nn.Module):
    """SwiGLU (Shazeer 2020): down(silu(gate(x)) · up(x))."""

    config: LlamaConfig

    @nn.compact
    def __call__(self, x: Float[Array, "B L D"]) -> Float[Array, "B L D"]:
        """What to add to the features."""
        gate = self._linear(self.config.intermediate_size, "gate")(x)
        up = self._linear(self.config.intermediate_size, "up")(x)
        first = nn.silu(gate[:, 0]) * up[:, 0]
        return self._linear(self.config.hidden_size, "down")(nn.silu(gate) * up, first)

    def _linear(self, size: int, name: str) -> Linear:
        config = self.config
        return Linear(size, config.mlp_bias, config.dtype, config.initializer_range, name=name)


class DecoderLayer(nn.Module):
    """Attention and feed-forward, each on normed features and added to the stream."""

    config: LlamaConfig

    @nn.compact
    def __call__(
        self, stream: Stream, layer: Int[Array, ""], setting: Setting
    ) -> tuple[Stream, None]:
        """The stream after this layer."""
        epsilon = self.config.norm_epsilon
        x = stream.x
        normed = stream._replace(x=RMSNorm(epsilon, name="attention_norm")(x))
        change, stream = Attention(self.config, name="attention")(normed, layer, setting)
        x = _asked(x, setting) + change
        x = x + FeedForward(self.config, name="mlp")(RMSNorm(epsilon, name="mlp_norm")(x))
        return stream._replace(x=x), None


def kept_for_gradient(config: LlamaConfig) -> Any:
    """The policy of `jax.checkpoint`: what of a layer is kept for the gradient."""
    # Without remat the products are kept and what lies between them is computed again: that
    # costs less than to store and fetch it.
    return None if config.remat else jax.checkpoint_policies.dots_with_no_batch_dims_saveable


class Llama(nn.Module):
    """Token ids to features, features to logits.

    The layers are one scanned layer: their parameters have a leading axis, and compile time does
    not grow with depth. The embedding is a plain [V, D] array in the parameters, so a caller may
    compute it from factors before `apply`. A variable collection `lora` beside `params` adds
    low-rank terms to the linear layers that it names (see `lora.py`).

    Attributes:
        config: sizes and switches.
    """

    config: LlamaConfig

    def setup(self):
        """Declare the parameters."""
        config = self.config
        normal = nn.initializers.normal(config.initializer_range)
        self.embedding = self.param("embedding", normal, (config.vocab_size, config.hidden_size))
        scanned = nn.scan(
            nn.remat(DecoderLayer, prevent_cse=False, policy=kept_for_gradient(config)),
            variable_axes={"params": 0, "lora": 0},
            split_rngs={"params": True},
            in_axes=(0, nn.broadcast),  # pyright: ignore[reportArgumentType] (flax says int)
            length=config.num_layers,
        )
        self.layers = scanned(config)
        self.final_norm = RMSNorm(config.norm_epsilon)
        if not config.tie_embeddings:
            self.unembedding = Linear(config.vocab_size, False, "float32", config.initializer_range)

    def __call__(
        self,
        tokens: Int[Array, "B L"],
        *,
        positions: Int[Array, "B L"] | None = None,
        segment_ids: Int[Array, "B L"] | None = None,
        cache: KVCache | None = None,
        visible: Bool[Array, "B L S"] | None = None,
    ) -> LlamaOutput:
        """Features of each token, which sees itself and what came before it.

        Args:
            tokens: ids in [0, vocab_size).
            positions: of each token; by default 0 … L−1 behind what the row's cache holds. To
                restart them in every packed episode is the caller's business.
            segment_ids: without a cache, tokens attend within equal ids, so episodes packed in
                one row never meet, and 0 is padding; with a cache, 0 is padding on the right,
                which is not appended. By default every token is live.
            cache: what was read before; each row goes on at its own length.
            visible: which slots of the cache (or, without one, which tokens) each token attends
                to, where that is not all that came before: a tree of continuations of one
                prompt, each of which sees its own ancestors. Takes the place of segment_ids'
                effect on attention.

        Returns:
            Features after the last norm, not yet logits; the features of padding mean nothing.
            The cache is None where none was given.

        Raises:
            ValueError: positions, segment_ids or the cache are of another batch than the tokens,
                or the layers of the cache stand apart.
        """
        _require_shapes(tokens, positions, segment_ids, cache)
        start = None if cache is None else cache.length
        x, setting = self.enter(tokens, positions, segment_ids, start, visible)
        slots = None if cache is None else Slots(cast(Array, cache.keys), cast(Array, cache.values))
        stream = Stream(x, slots)
        stream = self.through(stream, setting)
        hidden = self.leave(stream.x)
        if self.is_initializing() and not self.config.tie_embeddings:
            self.unembedding(hidden[:, :1])
        if stream.slots is None:
            return LlamaOutput(hidden, None)
        length = setting.start + setting.count
        return LlamaOutput(hidden, KVCache(**stream.slots._asdict(), length=length))

    def enter(
        self,
        tokens: Int[Array, "B L"],
        positions: Int[Array, "B L"] | None,
        segment_ids: Int[Array, "B L"] | None,
        start: Int[Array, " B"] | None,
        visible: Bool[Array, "B L S"] | None,
    ) -> tuple[Float[Array, "B L D"], Setting]:
        """What goes into the first layer, and what is the same for all of them.

        Apart from `__call__`, for a caller that applies the layers itself.

        Args:
            tokens: see `__call__`, as are the other arguments.
            positions: of the tokens.
            segment_ids: of the tokens.
            start: how many tokens each row's cache holds; None is 0.
            visible: to each token.
        """
        require_ids(tokens, self.config.vocab_size)
        batch, length = tokens.shape
        if segment_ids is None:
            segment_ids = jnp.ones((batch, length), jnp.int32)
        if start is None:
            start = jnp.zeros((batch,), jnp.int32)
        if positions is None:
            positions = start[:, None] + jnp.arange(length)[None, :]
        live = segment_ids != 0
        cos, sin = rotation(self.config, positions, live)
        count = jnp.sum(live, axis=1, dtype=jnp.int32)
        x = self.embedding[tokens].astype(self.config.dtype)
        return x, Setting(cos, sin, segment_ids, start, count, visible)

    def through(self, stream: Stream, setting: Setting) -> Stream:
        """The stream after all layers."""
        stream, _ = self.layers(stream, jnp.arange(self.config.num_layers), setting)
        return stream

    def leave(self, x: Float[Array, "B L D"]) -> Float[Array, "B L D"]:
        """The last norm, on what comes out of the last layer."""
        return self.final_norm(x)

    def logits(self, hidden: Float[Array, "*B D"]) -> Float[Array, "*B V"]:
        """Unnormalised log-probabilities of the next token, float32.

        Apart from `__call__`, so that the vocabulary is paid for only where it is needed:
        `Llama(config).apply({"params": params}, hidden, method="logits")`.
        """
        if not self.config.tie_embeddings:
            return self.unembedding(hidden.astype(jnp.float32))
        return jnp.einsum(
            "...d,vd->...v",
            hidden,
            self.embedding.astype(hidden.dtype),
            preferred_element_type=jnp.float32,
        )


def require_ids(tokens: Int[Array, "B L"], vocab_size: int) -> None:
    """Refuse ids outside the vocabulary, which a gather would read as those of other tokens.

    Under jit there is nothing to look at: what is compiled trusts its caller.

    Raises:
        ValueError: one lies outside; it is named.
    """
    if isinstance(tokens, Tracer):
        return
    ids = np.asarray(tokens)
    outside = ids[(ids < 0) | (ids >= vocab_size)]
    if outside.size:
        raise ValueError(f"token ({outside[0]}) must lie in [0, {vocab_size - 1}], the vocabulary")


def _require_shapes(
    tokens: Int[Array, "B L"],
    positions: Int[Array, "B L"] | None,
    segment_ids: Int[Array, "B L"] | None,
    cache: KVCache | None,
) -> None:
    for name, given in (("positions", positions), ("segment_ids", segment_ids)):
        if given is not None and given.shape != tokens.shape:
            raise ValueError(
                f"{name} must have the shape of tokens {list(tokens.shape)}, "
                f"found {list(given.shape)}"
            )
    if cache is not None and isinstance(cache.keys, tuple):
        raise ValueError("the cache must hold all layers in one array, found one array a layer")
    if cache is not None and cache.length.shape[0] != tokens.shape[0]:
        raise ValueError(
            f"the cache holds {cache.length.shape[0]} rows, the tokens are {tokens.shape[0]}"
        )


def init_params(config: LlamaConfig, key: PRNGKeyArray) -> dict:
    """Random parameters, float32: normal weights of deviation `initializer_range`, norms 1."""
    tokens = jnp.zeros((1, 1), jnp.int32)
    return jax.jit(Llama(config).init)(key, tokens)["params"]
