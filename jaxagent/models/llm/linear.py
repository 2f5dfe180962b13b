"""Linear layers, and how one of them sums the first token's massive activation."""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

_SECTION = 192  # terms
_FEW = 1024  # terms that are summed in one go


class Linear(nn.Module):
    """x W + b; with a variable collection `lora`, x W + (x A) B + b.

    Attributes:
        features: size of the output.
        bias: whether there is a b.
        dtype: in which the product is computed.
        scale: standard deviation of the initial weights.
    """

    features: int
    bias: bool
    dtype: str
    scale: float

    @nn.compact
    def __call__(
        self, x: Float[Array, "*B I"], first: Float[Array, "N I"] | None = None
    ) -> Float[Array, "*B O"]:
        """The product, in `dtype`.

        Args:
            x: what is multiplied.
            first: `x[:, 0]`, where its products are to be summed in sections; see `_first_again`.
        """
        kernel = self.param(
            "kernel", nn.initializers.normal(self.scale), (x.shape[-1], self.features)
        )
        kernel = kernel.astype(self.dtype)
        # One axis of rows: XLA's CPU products over two cost a fifth more in the backward pass.
        rows = x.reshape(-1, x.shape[-1])
        y = rows @ kernel
        if first is not None and x.shape[1] > 1:  # a row of one token is written, not read
            y = _first_again(first, kernel, y)
        if self.has_variable("lora", "a"):
            a = self.get_variable("lora", "a").astype(self.dtype)
            y = y + (rows @ a) @ self.get_variable("lora", "b").astype(self.dtype)
        if self.bias:
            bias = self.param("bias", nn.initializers.zeros, (self.features,))
            y = y + bias.astype(self.dtype)[None]
        return y.reshape(*x.shape[:-1], self.features)


def _first_again(
    first: Float[Array, "B I"], kernel: Float[Array, "I O"], y: Float[Array, "R O"]
) -> Float[Array, "R O"]:
    """y = x W, on a CPU in float32 with the first token of each row summed anew, in sections.

    The first token is the model's attention sink: SmolLM2's feed-forward adds 22,500 to one of
    its features in layer 12 and takes that away in the last two, and the rounding errors stay.
    XLA sums the 1536 terms one after the other on a CPU, PyTorch 192 at a time. 85 % of 300 first
    tokens had logits within 1e-4 of PyTorch's, in sections 98.7 % do; PyTorch's are within 1e-4
    of float64's for 95 %. It costs 0 to 5 % of reading a prompt, all tokens in sections 5 to 23 %.

    The gradient is that of the plain product. The first token comes by itself, and not as a slice
    of x: a second reader of x, and XLA no longer makes it in one loop, which costs 5 to 10 %.
    """
    batch, terms = first.shape
    sections = _sections(terms)
    if sections == 1 or y.dtype != jnp.float32:
        return y

    def in_sections(first: Array, kernel: Array, plain: Array) -> Array:
        first = first.reshape(batch, sections, -1)
        parts = jnp.einsum("bsi,sio->sbo", first, kernel.reshape(sections, -1, kernel.shape[1]))
        return jnp.sum(parts, axis=0) - plain

    def nothing(first: Array, kernel: Array, plain: Array) -> Array:
        return jnp.zeros_like(plain)

    tokens = y.reshape(batch, -1, y.shape[1])
    given = jax.lax.stop_gradient((first, kernel, tokens[:, 0]))
    change = jax.lax.platform_dependent(*given, cpu=in_sections, default=nothing)
    change = jnp.pad(change[:, None], ((0, 0), (0, tokens.shape[1] - 1), (0, 0)))
    return (tokens + change).reshape(y.shape)


def _sections(terms: int) -> int:
    """Into how many equal sections so many terms are cut; 1 where they are few."""
    most = terms // _SECTION if terms >= _FEW else 1
    return max(count for count in range(1, most + 1) if terms % count == 0)
