"""Features of the tokens that a loss asks for, and of no others."""

from typing import Any, cast

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxagent.models.llm.config import LlamaConfig
from jaxagent.models.llm.generate_weights import Variables
from jaxagent.models.llm.llama import DecoderLayer, Llama, Setting, Stream, kept_for_gradient


def features_at(
    config: LlamaConfig,
    variables: Variables,
    tokens: Int[Array, "B L"],
    asked: Int[Array, "B M"],
    *,
    positions: Int[Array, "B L"] | None = None,
    segment_ids: Int[Array, "B L"] | None = None,
) -> Float[Array, "B M D"]:
    """What `Llama` gives of the tokens at `asked`.

    In the last layer only their queries and their feed-forward are computed; of the others it
    takes keys and values alone.

    Args:
        config: of the model.
        variables: of `Llama(config)`.
        tokens: ids in [0, vocab_size).
        asked: places in the row, in any order.
        positions: see `Llama`.
        segment_ids: see `Llama`.
    """
    llama, last = Llama(config), config.num_layers - 1
    given: Any = (tokens, positions, segment_ids, None, None)
    x, setting = cast(tuple[Array, Setting], llama.apply(variables, *given, method="enter"))
    index, segments = jnp.arange(tokens.shape[1]), setting.segment_ids
    same = jnp.take_along_axis(segments, asked, axis=1)[..., None] == segments[:, None]
    visible = same & (index[None, None] <= asked[..., None])
    setting_of_last = setting._replace(asked=asked, visible=visible)
    layer = DecoderLayer(config)

    # The choice is made inside the scan: to scan a slice of the layers and to apply the last one
    # after it would copy all of their parameters, and their gradients.
    def step(carry: tuple[Array, Array], numbered: tuple[Array, Variables]) -> Any:
        number, variables = numbered

        def whole(x: Array, features: Array) -> tuple[Array, Array]:
            stream, _ = layer.apply(variables, Stream(x, None), number, setting)
            return cast(Stream, stream).x, features

        def only_asked(x: Array, features: Array) -> tuple[Array, Array]:
            stream, _ = layer.apply(variables, Stream(x, None), number, setting_of_last)
            return x, cast(Stream, stream).x

        return jax.lax.cond(number < last, whole, only_asked, *carry), None

    layers = {name: tree["layers"] for name, tree in variables.items() if "layers" in tree}
    nothing = jnp.zeros((*asked.shape, x.shape[-1]), x.dtype)
    # Around the choice, not within it: what a branch needs for its gradient is stacked, the
    # parameters too.
    step = jax.checkpoint(step, prevent_cse=False, policy=kept_for_gradient(config))
    numbers = jnp.arange(config.num_layers)
    (_, features), _ = jax.lax.scan(step, (x, nothing), (numbers, layers))
    return cast(Array, llama.apply(variables, features, method="leave"))
