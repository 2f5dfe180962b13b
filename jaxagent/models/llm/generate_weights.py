"""Parameters laid out for generation."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def per_layer(variables: dict[str, Any]) -> dict[str, Any]:
    """Variables of `Llama(config)` as `Llama(config, unrolled=True)` takes them.

    On a CPU, where that makes the difference, nothing is copied: the layers are views.

    Args:
        variables: collections whose `layers` have a leading axis.

    Returns:
        The same with `layers_0`, `layers_1`, … instead. Unchanged on accelerators, which read a
        scanned layer where it lies, and where an array is spread over several devices.
    """
    variables = jax.tree.map(jnp.asarray, variables)
    devices = {device for array in jax.tree.leaves(variables) for device in array.devices()}
    if len(devices) != 1 or next(iter(devices)).platform != "cpu":
        return variables
    return {name: _split(collection) for name, collection in variables.items()}


def _split(collection: Mapping[str, Any]) -> dict[str, Any]:
    if "layers" not in collection:
        return dict(collection)
    rest = {name: tree for name, tree in collection.items() if name != "layers"}
    views = jax.tree.map(np.asarray, collection["layers"])
    count = len(jax.tree.leaves(views)[0])
    layers = {f"layers_{number}": _view(views, number) for number in range(count)}
    return rest | layers


def _view(stacked: Mapping[str, Any], number: int) -> dict[str, Any]:
    return jax.tree.map(lambda array: jax.device_put(array[number], may_alias=True), stacked)
