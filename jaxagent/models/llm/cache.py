"""Keys and values of tokens already read, so that a growing history is never read twice."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Float, Int

from jaxagent.models.llm.config import LlamaConfig


class KVCache(struct.PyTreeNode, kw_only=True):
    """A batch of rows, each filled from slot 0 up to its own length; what lies behind is stale.

    Every operation is pure. To append is the model's business: `Llama` with a cache returns the
    longer one. Donate the cache where it is passed to a jitted function, and it grows in place.
    """

    keys: Float[Array, "N B S K H"]  # rotated
    values: Float[Array, "N B S K H"]
    length: Int[Array, " B"]  # tokens in each row

    @classmethod
    def create(cls, config: LlamaConfig, batch: int, slots: int) -> "KVCache":
        """Empty rows with room for `slots` tokens each."""
        shape = (config.num_layers, batch, slots, config.num_kv_heads, config.head_dim)
        return cls(
            keys=jnp.zeros(shape, config.dtype),
            values=jnp.zeros(shape, config.dtype),
            length=jax.device_put(np.zeros(batch, np.int32)),
        )

    @property
    def slots(self) -> int:
        """S, the greatest length of a row."""
        return self.keys.shape[2]

    def rewind(self, length: Int[Array, " B"]) -> "KVCache":
        """Forget all but the first `length` tokens of each row; never lengthens one."""
        return self.replace(length=jnp.minimum(self.length, length))

    def select(self, rows: Int[Array, " R"]) -> "KVCache":
        """The rows named, in that order; a row may be named more than once."""
        return KVCache(
            keys=self.keys[:, rows], values=self.values[:, rows], length=self.length[rows]
        )

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
        return KVCache(
            keys=self.keys.at[:, rows, :fits].set(other.keys),
            values=self.values.at[:, rows, :fits].set(other.values),
            length=self.length.at[rows].set(other.length),
        )

    def resize(self, slots: int) -> "KVCache":
        """The same rows with another number of slots; the caller sees to it that they fit."""
        spare = slots - self.slots
        if spare <= 0:
            return self.replace(keys=self.keys[:, :, :slots], values=self.values[:, :, :slots])
        room = ((0, 0), (0, 0), (0, spare), (0, 0), (0, 0))
        return self.replace(keys=jnp.pad(self.keys, room), values=jnp.pad(self.values, room))


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
