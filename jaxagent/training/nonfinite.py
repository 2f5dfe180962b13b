"""Training that met gradients which are not finite: when a seed is stopped, and what stays."""

from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp

NONFINITE_LIMIT = 3  # updates in a row with a non-finite gradient


class NonFiniteTraining(RuntimeError):
    """A loss is not finite, or gradients were not again and again; the message says which."""


def losses_of(metrics: Iterable[str]) -> list[str]:
    """Those of an update's metrics that are losses, by their names."""
    return [name for name in metrics if name.endswith("loss")]


def keep_stopped(
    before: Any, after: Any, metrics: dict[str, jax.Array]
) -> tuple[Any, dict[str, jax.Array]]:
    """The agent of one seed after an update, or before it where the seed has been stopped.

    A seed is stopped by `NONFINITE_LIMIT` updates in a row whose gradients were not finite, or by
    one whose loss was not, which is taken back. It learns no more from then on, whatever its
    gradients are; the other seeds go on.

    Args:
        before: state of the agent, which counts `nonfinite_in_a_row`.
        after: the same after the update.
        metrics: of the update.

    Returns:
        The state to go on with, and the metrics with its count.
    """
    is_stopped = before.nonfinite_in_a_row >= NONFINITE_LIMIT
    is_bad = jnp.zeros((), bool)
    for name in losses_of(metrics):
        is_bad |= ~jnp.isfinite(metrics[name])
    back = is_stopped | is_bad
    kept = jax.tree.map(lambda old, new: jnp.where(back, old, new), before, after)
    count = jnp.where(back, NONFINITE_LIMIT, kept.nonfinite_in_a_row)
    kept = kept.replace(nonfinite_in_a_row=count)
    count = kept.nonfinite_in_a_row.astype(jnp.float32)
    return kept, metrics | {"nonfinite_in_a_row": count}
