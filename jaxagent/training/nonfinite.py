"""Training that met gradients which are not finite: when a seed is stopped, and what stays."""

from typing import Any

import jax
import jax.numpy as jnp

NONFINITE_LIMIT = 3  # updates in a row with a non-finite gradient


class NonFiniteTraining(RuntimeError):
    """Training met non-finite gradients again and again; the message says where the state is."""


def keep_stopped(
    before: Any, after: Any, metrics: dict[str, jax.Array]
) -> tuple[Any, dict[str, jax.Array]]:
    """The agent of one seed after an update, or before it where the seed has been stopped.

    A seed is stopped by `NONFINITE_LIMIT` updates in a row whose gradients were not finite. It
    learns no more from then on, whatever its gradients are; the other seeds go on.

    Args:
        before: state of the agent, which counts `nonfinite_in_a_row`.
        after: the same after the update.
        metrics: of the update.

    Returns:
        The state to go on with, and the metrics with its count.
    """
    is_stopped = before.nonfinite_in_a_row >= NONFINITE_LIMIT
    kept = jax.tree.map(lambda old, new: jnp.where(is_stopped, old, new), before, after)
    count = kept.nonfinite_in_a_row.astype(jnp.float32)
    return kept, metrics | {"nonfinite_in_a_row": count}
