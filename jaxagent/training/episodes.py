"""What the episodes that ended in a batch came to, over all devices."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxagent.training.devices import AXIS
from jaxagent.types import Trajectory


def episode_metrics(trajectory: Trajectory) -> dict[str, Float[Array, ""]]:
    """Means over the episodes that ended in this batch; 0 where none did.

    `episode_success` is what an episode counts as at its end. Of goal-conditioned tasks,
    `episode_touched` counts the episodes that reached a goal at any step, and `steps_to_success`
    is over those.
    """
    ended, outcome = trajectory.episode_end, trajectory.outcome
    succeeded = trajectory.success if outcome is None else outcome.success
    sums = {
        "episodes": ended.sum(),
        "episode_return": jnp.where(ended, trajectory.episode_return, 0.0).sum(),
        "episode_length": jnp.where(ended, trajectory.episode_length, 0).sum(),
        "episode_success": jnp.where(ended, succeeded, 0).sum(),
    }
    if outcome is not None:
        sums["episode_touched"] = (ended & (outcome.goals_reached > 0)).sum()
        sums["final_distance"] = jnp.where(ended, outcome.distance, 0.0).sum()
        sums["goals_reached"] = jnp.where(ended, outcome.goals_reached, 0).sum()
        sums["steps_to_success"] = jnp.where(ended, outcome.steps_to_success, 0).sum()
    sums = jax.tree.map(lambda x: jax.lax.psum(x.astype(jnp.float32), AXIS), sums)
    episodes = sums.pop("episodes")
    means = {name: value / jnp.maximum(episodes, 1.0) for name, value in sums.items()}
    if outcome is not None:
        reached = jnp.maximum(sums["episode_touched"], 1.0)
        means["steps_to_success"] = sums["steps_to_success"] / reached
    return means | {"episodes": episodes}
