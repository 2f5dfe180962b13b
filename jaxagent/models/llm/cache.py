"""Keys and values of tokens already read, so that a growing history is never read twice."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Float, Int

from jaxagent.models.llm.config import LlamaConfig

Stored = Float[Array, "N B S K H"] | tuple[Float[Array, "1 B S K H"], ...]
"""Keys or values of all layers: in one array, or of each layer in one of its own."""


class KVCache(struct.PyTreeNode, kw_only=True):
    """A batch of rows, each filled from slot 0 up to its own length; what lies behind is stale.

    Every operation is pure. To append is the model's business: `Llama` with a cache returns the
    longer one. Donate the cache where it is passed to a jitted function, and it grows in place.
    """

    keys: Stored  # rotated
    values: Stored
    length: Int[Array, " B"]  # tokens in each row

    @classmethod
    def create(
        cls, config: LlamaConfig, batch: int, slots: int, *, is_apart: bool = False
    ) -> "KVCache":
        """Empty rows with room for `slots` tokens each.

        Args:
            config: of the model.
            batch: rows.
            slots: of each row.
            is_apart: whether each layer has arrays of its own, as `generate_weights` lays out
                the layers on a CPU. They are then made longer one by one, without two whole
                caches at once.
        """
        layers = 1 if is_apart else config.num_layers
        shape = (layers, batch, slots, config.num_kv_heads, config.head_dim)

        def empty() -> Stored:
            if is_apart:
                return tuple(jnp.zeros(shape, config.dtype) for _ in range(config.num_layers))
            return jnp.zeros(shape, config.dtype)

        length = jax.device_put(np.zeros(batch, np.int32))
        return cls(keys=empty(), values=empty(), length=length)

    @property
    def slots(self) -> int:
        """S, the greatest length of a row."""
        return jax.tree.leaves(self.keys)[0].shape[2]

    def rewind(self, length: Int[Array, " B"]) -> "KVCache":
        """Forget all but the first `length` tokens of each row; never lengthens one."""
        return self.replace(length=jnp.minimum(self.length, length))

    def select(self, rows: Int[Array, " R"]) -> "KVCache":
        """The rows named, in that order; a row may be named more than once."""
        keys, values = jax.tree.map(lambda x: x[:, rows], (self.keys, self.values))
        return KVCache(keys=keys, values=values, length=self.length[rows])

    def broadcast(self, batch: int) -> "KVCache":
        """One row made many, for continuations that share a prompt.

        Raises:
            ValueError: the cache has more than one row.
        """
        if self.length.shape[0] != 1:
            raise ValueError(f"broadcast needs a cache of one row, found {self.length.shape[0]}")
        return self.select(jnp.zeros((batch,), jnp.int32))

    def insert(self, rows: Int[Array, " R"], other: "KVCache") -> "KVCache":
        """Replace the rows named by those of `other`, whose slots may be fewer."""
        fits = other.slots

        def put(mine: Stored, theirs: Stored) -> Stored:
            return jax.tree.map(lambda x, y: x.at[:, rows, :fits].set(y), mine, theirs)

        return KVCache(
            keys=put(self.keys, other.keys),
            values=put(self.values, other.values),
            length=self.length.at[rows].set(other.length),
        )

    def resize(self, slots: int) -> "KVCache":
        """The same rows with another number of slots; the caller sees to it that they fit."""
        keys, values = jax.tree.map(lambda x: resized(x, slots), (self.keys, self.values))
        return self.replace(keys=keys, values=values)


def resized(stored: Float[Array, "N B S K H"], slots: int) -> Float[Array, "N B slots K H"]:
    """The same entries with another number of slots, empty ones at the end."""
    spare = slots - stored.shape[2]
    if spare <= 0:
        return stored[:, :, :slots]
    return jnp.pad(stored, ((0, 0), (0, 0), (0, spare), (0, 0), (0, 0)))


def append(
    stored: Float[Array, "N B S K H"],
    layer: Int[Array, ""],
    new: Float[Array, "B L K H"],
    length: Int[Array, " B"],
    count: Int[Array, " B"],
) -> Float[Array, "N B S K H"]:
    """Write the first `count` of each row's new entries behind its first `length`, at one layer.

    Entries past `count` are not written, and those that would fall behind the last slot are
    dropped. One contiguous block a row is read, blended and written back: a scatter by token
    costs XLA's CPU backend a loop over tokens.
    """
    slots, width = stored.shape[2], new.shape[1]
    if width > slots:
        raise ValueError(f"{width} tokens cannot be appended to a cache of {slots} slots")
    start = jnp.minimum(length, slots - width)
    offset = jnp.arange(width)[None, :] - (length - start)[:, None]
    live = (offset >= 0) & (offset < count[:, None])

    def write(row: Int[Array, ""], stored: Float[Array, "N B S K H"]) -> Float[Array, "N B S K H"]:
        corner = (layer, row, start[row], 0, 0)
        block = (1, 1, width, *new.shape[2:])
        old = jax.lax.dynamic_slice(stored, corner, block)
        entries = jnp.roll(new[row], length[row] - start[row], axis=0)
        kept = jnp.where(live[row][:, None, None], entries.astype(stored.dtype), old[0, 0])
        return jax.lax.dynamic_update_slice(stored, kept[None, None], corner)

    return jax.lax.fori_loop(0, new.shape[0], write, stored)
