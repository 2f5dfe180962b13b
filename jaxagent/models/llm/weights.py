"""Where each parameter stands in a Hugging Face checkpoint, and the way there and back."""

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxagent.models.llm.config import Dtype, LlamaConfig
from jaxagent.models.llm.llama import Llama
from jaxagent.models.llm.tensor_files import StoredTensor, TensorSpec

MODULE_NAMES: dict[str, str] = {
    "attention": "self_attn",
    "query": "q_proj",
    "key": "k_proj",
    "value": "v_proj",
    "output": "o_proj",
    "query_norm": "q_norm",
    "key_norm": "k_norm",
    "mlp": "mlp",
    "gate": "gate_proj",
    "up": "up_proj",
    "down": "down_proj",
    "attention_norm": "input_layernorm",
    "mlp_norm": "post_attention_layernorm",
    "kernel": "weight",
    "scale": "weight",
    "bias": "bias",
}

TOP_NAMES: dict[tuple[str, ...], str] = {
    ("embedding",): "model.embed_tokens.weight",
    ("final_norm", "scale"): "model.norm.weight",
    ("unembedding", "kernel"): "lm_head.weight",
}

Path = tuple[str, ...]


class Place(NamedTuple):
    """One tensor of a checkpoint: the parameter that it is, or is a layer of."""

    path: Path
    layer: int | None  # index along the leading axis; None for a parameter without one
    shape: tuple[int, ...]  # as the checkpoint has it: [out, in] for a kernel
    transposed: bool


def places(config: LlamaConfig) -> dict[str, Place]:
    """Every tensor that a checkpoint of this model holds, by name, a parameter at a time."""
    found: dict[str, Place] = {}
    for path, leaf in abstract_params(config).items():
        transposed = path[-1] == "kernel"
        if path[0] != "layers":
            shape = leaf.shape[::-1] if transposed else leaf.shape
            found[TOP_NAMES[path]] = Place(path, None, shape, transposed)
            continue
        shape = leaf.shape[:0:-1] if transposed else leaf.shape[1:]
        for layer in range(config.num_layers):
            found[layer_name(path, layer)] = Place(path, layer, shape, transposed)
    return found


def layer_name(path: Path, layer: int) -> str:
    """`("layers", "mlp", "up", "kernel")` of layer 3 is `model.layers.3.mlp.up_proj.weight`."""
    return ".".join(["model.layers", str(layer), *(MODULE_NAMES[part] for part in path[1:])])


def abstract_params(config: LlamaConfig) -> dict[Path, jax.ShapeDtypeStruct]:
    """Shapes of all parameters by path; nothing is computed."""
    tokens = jax.ShapeDtypeStruct((1, 1), jnp.int32)
    tree = jax.eval_shape(lambda x: Llama(config).init(jax.random.key(0), x), tokens)
    return flatten(tree["params"])


def flatten(tree: Mapping[str, Any]) -> dict[Path, Any]:
    """Nested dictionaries as one, by path."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {tuple(key.key for key in path): leaf for path, leaf in leaves}


def unflatten(flat: Mapping[Path, Any]) -> dict[str, Any]:
    """The inverse of `flatten`."""
    tree: dict[str, Any] = {}
    for path, leaf in flat.items():
        node = tree
        for part in path[:-1]:
            node = node.setdefault(part, {})
        node[path[-1]] = leaf
    return tree


def read_params(
    config: LlamaConfig, stored: Mapping[str, StoredTensor], dtype: Dtype
) -> dict[str, Any]:
    """Parameters from a checkpoint, one tensor in memory at a time beside what is done.

    Raises:
        ValueError: tensors are missing or surplus, or one has another shape than the
            configuration says; named in the message.
    """
    wanted = places(config)
    _check(config, wanted, stored)
    by_path: dict[Path, list[str]] = {}
    for name, place in wanted.items():
        by_path.setdefault(place.path, []).append(name)
    shapes = abstract_params(config)
    # Programs of this call alone: once it is over they take no memory. JAX keeps programs as long
    # as the very function that it compiled, hence a new one around `_put_layer`.
    zeros = jax.jit(lambda shape: jnp.zeros(shape, dtype), static_argnums=0)
    put_layer = jax.jit(functools.partial(_put_layer), static_argnums=3, donate_argnums=0)
    flat = {}
    for path, names in by_path.items():
        if wanted[names[0]].layer is None:
            flat[path] = _read_whole(names[0], wanted, stored, dtype)
            continue
        parameter = zeros(shapes[path].shape)
        for name in names:
            tensor = stored[name].read().astype(dtype, copy=False)
            layer = np.int32(cast(int, wanted[name].layer))
            parameter = put_layer(parameter, tensor, layer, wanted[name].transposed)
        flat[path] = parameter
    return unflatten(flat)


def _read_whole(
    name: str, wanted: Mapping[str, Place], stored: Mapping[str, StoredTensor], dtype: Dtype
) -> Array:
    tensor = stored[name].read()
    tensor = tensor.T if wanted[name].transposed else tensor
    # A copy: what lies in a file can neither be donated nor outlive it.
    return jax.device_put(np.array(tensor, dtype), may_alias=False)


def _put_layer(
    parameter: Float[Array, "N ..."],
    tensor: Float[Array, "..."],
    layer: Int[Array, ""],
    transposed: bool,
) -> Float[Array, "N ..."]:
    tensor = tensor.T if transposed else tensor
    return jax.lax.dynamic_update_index_in_dim(parameter, tensor, layer, axis=0)


def _check(
    config: LlamaConfig, wanted: Mapping[str, Place], stored: Mapping[str, StoredTensor]
) -> None:
    missing = [name for name in wanted if name not in stored]
    if missing:
        raise ValueError(f"the checkpoint lacks {_some(missing)}")
    surplus = [name for name in stored if name not in wanted and not _derived(name, config)]
    if surplus:
        raise ValueError(
            f"the checkpoint holds {_some(surplus)}, which a {config.model_type} of this "
            "configuration does not have"
        )
    for name, place in wanted.items():
        if stored[name].shape != place.shape:
            raise ValueError(
                f"{name} has shape {list(stored[name].shape)}, the configuration "
                f"says {list(place.shape)}"
            )


def _derived(name: str, config: LlamaConfig) -> bool:
    """Tensors that some checkpoints hold though others, or the configuration, determine them."""
    return name.endswith("rotary_emb.inv_freq") or (
        name == "lm_head.weight" and config.tie_embeddings
    )


def _some(names: list[str]) -> str:
    rest = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + rest


def params_to_tensors(
    config: LlamaConfig, params: Mapping[str, Any]
) -> tuple[list[TensorSpec], Callable[[str], np.ndarray]]:
    """The checkpoint's tensors, and a function that makes one of them when it is asked."""
    flat = flatten(params)
    wanted = places(config)
    specs = [TensorSpec(n, p.shape, np.dtype(flat[p.path].dtype)) for n, p in wanted.items()]

    def read(name: str) -> np.ndarray:
        place = wanted[name]
        leaf = flat[place.path]
        tensor = np.asarray(leaf if place.layer is None else leaf[place.layer])
        return tensor.T if place.transposed else tensor

    return specs, read


def linear_paths(config: LlamaConfig) -> Iterator[Path]:
    """Paths of the modules that are matrix products, without their last part `kernel`."""
    return (path[:-1] for path in abstract_params(config) if path[-1] == "kernel")
