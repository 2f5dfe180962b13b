"""Features of the tokens that a loss asks for, and of no others."""

import dataclasses
from typing import Any, cast

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxagent.models.llm.config import LlamaConfig
from jaxagent.models.llm.generate_weights import Variables
from jaxagent.models.llm.llama import Llama, Setting, Stream, recomputed_layer


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
    stream = Stream(x, None)
    if last:
        before = _some_layers(variables, slice(last))
        shallow = Llama(dataclasses.replace(config, num_layers=last))
        stream = cast(Stream, shallow.apply(before, stream, setting, method="through"))
    index, segments = jnp.arange(tokens.shape[1]), setting.segment_ids
    same = jnp.take_along_axis(segments, asked, axis=1)[..., None] == segments[:, None]
    setting = setting._replace(asked=asked, visible=same & (index[None, None] <= asked[..., None]))
    only = _some_layers(variables, last)
    layer = {name: tree["layers"] for name, tree in only.items() if "layers" in tree}
    stream, _ = recomputed_layer(config)(config).apply(layer, stream, jnp.int32(last), setting)
    return cast(Array, llama.apply(variables, stream.x, method="leave"))


def _some_layers(variables: Variables, which: int | slice) -> Variables:
    def chosen(tree: Any) -> Any:
        if "layers" not in tree:
            return tree
        return {**tree, "layers": jax.tree.map(lambda x: x[which], tree["layers"])}

    return {name: chosen(tree) for name, tree in variables.items()}
