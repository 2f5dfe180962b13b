"""Where each parameter lies on a mesh of devices with axes `data` and `model`.

Tensor parallelism cuts the products over `model`: heads and inner features by columns on the way
in, by rows on the way out, so that a layer needs one sum over devices after attention and one
after the feed-forward. Fully sharded, each parameter is cut over `data` as well and gathered when
its layer runs. The computation is the same code on one device: `jit` reads the shardings off its
arguments.
"""

from collections.abc import Mapping
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxagent.models.llm.config import LlamaConfig
from jaxagent.models.llm.weights import Path, abstract_params, unflatten

DATA, MODEL = "data", "model"

_COLUMNS = ("query", "key", "value", "gate", "up")  # outputs cut over devices
_ROWS = ("output", "down")  # inputs cut over devices


def param_shardings(
    config: LlamaConfig, mesh: Mesh, *, fully_sharded: bool = False
) -> dict[str, Any]:
    """A NamedSharding for each parameter, as a tree of the same structure.

    A dimension that the axis does not divide is left whole; keys and values too, where a device
    would get less than one head.

    Args:
        config: whose parameters they are.
        mesh: with axes `data` and `model`, either of which may be 1.
        fully_sharded: cut parameters over `data` too.

    Raises:
        ValueError: the mesh has other axes.
    """
    if set(mesh.axis_names) != {DATA, MODEL}:
        raise ValueError(f"the mesh must have axes data and model, found {mesh.axis_names}")
    shardings = {}
    for path, leaf in abstract_params(config).items():
        axes = _tensor_axes(config, mesh, path, leaf.shape)
        if fully_sharded:
            axes = _with_data_axis(mesh, path, leaf.shape, axes)
        shardings[path] = NamedSharding(mesh, PartitionSpec(*axes))
    return unflatten(shardings)


def shard_params(
    config: LlamaConfig, params: Mapping[str, Any], mesh: Mesh, *, fully_sharded: bool = False
) -> dict[str, Any]:
    """The parameters, each moved to where `param_shardings` says."""
    shardings = param_shardings(config, mesh, fully_sharded=fully_sharded)
    return jax.device_put(dict(params), shardings)


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """For `[B, L]` tokens and masks: rows over `data`."""
    return NamedSharding(mesh, PartitionSpec(DATA))


def cache_sharding(config: LlamaConfig, mesh: Mesh) -> NamedSharding:
    """For the cache's `[layers, B, S, K, H]`: rows over `data`, key heads over `model`."""
    heads = MODEL if config.num_kv_heads % mesh.shape[MODEL] == 0 else None
    return NamedSharding(mesh, PartitionSpec(None, DATA, None, heads))


def _tensor_axes(
    config: LlamaConfig, mesh: Mesh, path: Path, shape: tuple[int, ...]
) -> list[str | None]:
    axes: list[str | None] = [None] * len(shape)
    cut = _cut_dimension(path, len(shape))
    if cut is None:
        return axes
    whole = {"query": config.num_heads, "output": config.num_heads}
    whole |= {"key": config.num_kv_heads, "value": config.num_kv_heads}
    units = whole.get(path[-2], shape[cut]) if len(path) > 1 else shape[cut]
    if units % mesh.shape[MODEL] == 0:
        axes[cut] = MODEL
    return axes


def _cut_dimension(path: Path, rank: int) -> int | None:
    """The dimension that tensor parallelism cuts; None for what every device needs whole."""
    if path == ("embedding",):
        return 0
    if path == ("unembedding", "kernel"):
        return 1
    module = path[-2]
    if module in _COLUMNS and path[-1] in ("kernel", "bias"):
        return rank - 1
    if module in _ROWS and path[-1] == "kernel":
        return rank - 2
    return None


def _with_data_axis(
    mesh: Mesh, path: Path, shape: tuple[int, ...], axes: list[str | None]
) -> list[str | None]:
    """Cut the largest dimension that is still whole, the scanned one excepted, over `data`."""
    first = 1 if path[0] == "layers" else 0
    free = [i for i in range(first, len(shape)) if axes[i] is None]
    free = [i for i in free if shape[i] % mesh.shape[DATA] == 0]
    if free:
        axes = list(axes)
        axes[max(free, key=lambda i: shape[i])] = DATA
    return axes
