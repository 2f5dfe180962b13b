"""A seven-joint arm pushes a cylinder over a table to a point."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from envs.brax_env import BraxSimulator
from envs.goals import GoalTask
from jaxagent.types import GoalSpec, SimulatorState

TIP, OBJECT = slice(14, 17), slice(17, 20)  # of Brax's observation; its own goal follows
MODEL_GOAL = (0.45, -0.05)  # metres: where the model's goal body stands at coordinates 0


def features(state: SimulatorState) -> Float[Array, " F"]:
    """Object on the table (2); joint angles (7) and velocities (7), fingertip (3), object (3)."""
    seen = state.observation
    return jnp.concatenate([seen[OBJECT][:2], seen[: OBJECT.stop]])


def see(features: Float[Array, "*B F"], goal: Float[Array, "*B 2"]) -> Float[Array, "*B O"]:
    """Arm and object, the way from fingertip to object; then the way on to the goal."""
    place, rest = features[..., :2], features[..., 2:]
    return jnp.concatenate([rest, rest[..., OBJECT] - rest[..., TIP], goal - place], axis=-1)


def sample(
    key: PRNGKeyArray, features: Float[Array, " F"], reach: Float[Array, " 2"]
) -> Float[Array, " 2"]:
    """A point at a uniform distance from the object, within 60 degrees of the y axis.

    There lies Brax's own goal, in the directions in which the arm can push.
    """
    distance_key, angle_key = jax.random.split(key)
    distance = jax.random.uniform(distance_key, minval=reach[0], maxval=reach[1])
    angle = jax.random.uniform(angle_key, minval=jnp.pi / 6, maxval=jnp.pi * 5 / 6)
    return features[:2] + distance * jnp.stack([jnp.cos(angle), jnp.sin(angle)])


def show(pose: Float[Array, " Q"], goal: Float[Array, " 2"]) -> Float[Array, " Q"]:
    """The model has a goal body of its own: put it there."""
    return pose.at[9:11].set((goal - jnp.array(MODEL_GOAL))[::-1])  # its joints: y, then x


TASK = GoalTask(
    summary="a seven-joint arm pushes a cylinder 0.1 to 0.3 metres",
    make=lambda backend: BraxSimulator("pusher", backend),
    features=features,
    spec=GoalSpec(
        state_indices=(0, 1),
        see=see,
        goal_features=2,
        sample=sample,
        workspace=(0.0, 0.4),
        reach=(0.1, 0.3),
        threshold=0.05,
        reward="dense",
        on_success="hold",
    ),
    backend="generalized",
    episode_length=100,
    show=show,
)
