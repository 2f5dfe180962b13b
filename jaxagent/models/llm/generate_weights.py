"""Parameters laid out for generation."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

Variables = dict[str, Any]
"""What `Llama.apply` takes: `params`, and `lora` beside it where there is an adapter."""


class Weights(NamedTuple):
    """Variables of a model, whole or a layer at a time.

    Attributes:
        variables: of `Llama(config)`; without the layers where those stand apart.
        layers: variables of one `DecoderLayer` each; none where they are scanned.
    """

    variables: Variables
    layers: tuple[Variables, ...]


def lay_out(variables: Mapping[str, Any]) -> Weights:
    """Variables of `Llama(config)` as generation reads them fastest.

    On a CPU each layer stands apart: XLA copies the weights of a scanned layer before it uses
    them, which costs more than the product with a few tokens does. Nothing is copied for that,
    the layers are views.

    Args:
        variables: collections whose `layers` have a leading axis.

    Returns:
        The layers apart; or all as it was on accelerators, where views are not to be had, and
        where arrays are spread over several devices.
    """
    whole: Variables = jax.tree.map(jnp.asarray, dict(variables))
    devices = {device for array in jax.tree.leaves(whole) for device in array.devices()}
    device = devices.pop()
    if devices or device.platform != "cpu":
        return Weights(whole, ())
    rest = {name: _without_layers(collection) for name, collection in whole.items()}
    return Weights(rest, _views(whole))


def _without_layers(collection: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tree for name, tree in collection.items() if name != "layers"}


def _views(variables: Variables) -> tuple[Variables, ...]:
    stacked = {name: tree["layers"] for name, tree in variables.items() if "layers" in tree}
    # Of a shard's array: np.asarray of the array itself would stay with it for good, and it could
    # never be donated.
    views = jax.tree.map(lambda x: np.asarray(x.addressable_data(0)), stacked)
    count = len(jax.tree.leaves(views)[0])

    def layer(number: int) -> Variables:
        return jax.tree.map(lambda x, view: _view(x, view[number]), stacked, views)

    return tuple(layer(number) for number in range(count))


def _view(array: jax.Array, part: np.ndarray) -> jax.Array:
    # Committed only if the array is: else a cache that came out of a program would be of another
    # kind than a new one, and each program would be compiled twice.
    device = next(iter(array.devices())) if array.committed else None
    return jax.device_put(part, device, may_alias=True)
