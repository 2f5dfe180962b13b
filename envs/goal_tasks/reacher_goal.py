"""A two-joint arm brings its fingertip to a point of the disc that it can reach."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from envs.brax_env import BraxSimulator
from envs.goals import GoalTask
from jaxagent.types import GoalSpec, SimulatorState

FINGER = 0.11  # metres from the elbow to the fingertip; the upper arm has 0.1
METRE = 10.0  # observed units a metre


def features(state: SimulatorState) -> Float[Array, " F"]:
    """Fingertip (2), cosine and sine of both joints (4), joint velocities (2)."""
    physics = state.physics.pipeline_state
    w, x, y, z = physics.x.rot[1]
    along = jnp.stack([1 - 2 * (y * y + z * z), 2 * (x * y + w * z)])
    angle = physics.q[:2]
    return jnp.concatenate(
        [physics.x.pos[1, :2] + FINGER * along, jnp.cos(angle), jnp.sin(angle), physics.qd[:2]]
    )


def see(features: Float[Array, "*B F"], goal: Float[Array, "*B 2"]) -> Float[Array, "*B O"]:
    """Arm; then the way from the fingertip to the goal, and the goal."""
    tip, arm = features[..., :2], features[..., 2:]
    return jnp.concatenate([arm, METRE * (goal - tip), METRE * goal], axis=-1)


def sample(
    key: PRNGKeyArray, features: Float[Array, " F"], reach: Float[Array, " 2"]
) -> Float[Array, " 2"]:
    """A uniform distance from the shoulder and a uniform direction, as Brax draws its target."""
    distance_key, angle_key = jax.random.split(key)
    distance = jax.random.uniform(distance_key, minval=reach[0], maxval=reach[1])
    angle = jax.random.uniform(angle_key, maxval=2 * jnp.pi)
    return distance * jnp.stack([jnp.cos(angle), jnp.sin(angle)])


def show(pose: Float[Array, " Q"], goal: Float[Array, " 2"]) -> Float[Array, " Q"]:
    """The model has a target body of its own: put it at the goal."""
    return pose.at[2:4].set(goal)


TASK = GoalTask(
    summary="a two-joint arm brings its fingertip to a point within 0.2 metres",
    make=lambda backend: BraxSimulator("reacher", backend),
    features=features,
    spec=GoalSpec(
        state_indices=(0, 1),
        see=see,
        goal_features=4,
        sample=sample,
        workspace=(0.0, 0.2),
        reach=(0.0, 0.2),
        threshold=0.05,
        reward="sparse",
        on_success="hold",
    ),
    backend="spring",
    episode_length=100,
    show=show,
)
