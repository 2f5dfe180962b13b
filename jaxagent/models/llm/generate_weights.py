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
        The same with `layers_0`, `layers_1`, … instead. Unchanged on accelerators, where views
        are not to be had, and where arrays are spread over several devices.
    """
    variables = jax.tree.map(jnp.asarray, variables)
    devices = {device for array in jax.tree.leaves(variables) for device in array.devices()}
    device = devices.pop()
    if devices or device.platform != "cpu":
        return variables
    return {name: _split(collection, device) for name, collection in variables.items()}


def _split(collection: Mapping[str, Any], device: Any) -> dict[str, Any]:
    if "layers" not in collection:
        return dict(collection)
    rest = {name: tree for name, tree in collection.items() if name != "layers"}
    views = jax.tree.map(np.asarray, collection["layers"])
    count = len(jax.tree.leaves(views)[0])

    def layer(number: int) -> dict[str, Any]:
        return jax.tree.map(lambda x: jax.device_put(x[number], device, may_alias=True), views)

    return rest | {f"layers_{number}": layer(number) for number in range(count)}
