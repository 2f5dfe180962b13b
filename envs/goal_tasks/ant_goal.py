"""The Ant reaches a point in the plane.

Everything is seen from the torso: neither where it stands nor which way it faces matters, so the
skill holds from any running state and for goals anywhere.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from envs.brax_env import BraxSimulator
from envs.goals import GoalTask
from jaxagent.types import GoalSpec, SimulatorState

NEAR = 2.0  # metres; closer than this the observed distance shrinks in proportion


def features(state: SimulatorState) -> Float[Array, " F"]:
    """Position (2) and heading (2) in the world; then the body, seen from the torso (26).

    The latter: height, up direction, velocity and spin in the torso's frame, joint angles and
    joint velocities.
    """
    physics = state.physics.pipeline_state
    turn = _rotation(physics.x.rot[0])
    own = turn.T
    return jnp.concatenate(
        [
            state.body.position[:2],
            state.body.heading,
            state.body.position[2:],
            own @ jnp.array([0.0, 0.0, 1.0]),
            own @ state.body.velocity,
            own @ state.body.angular_velocity,
            physics.q[7:],
            physics.qd[6:],
        ]
    )


def see(features: Float[Array, "*B F"], goal: Float[Array, "*B 2"]) -> Float[Array, "*B O"]:
    """The body; then the direction to the goal in the torso's frame, scaled by nearness."""
    position, heading, body = features[..., :2], features[..., 2:4], features[..., 4:]
    way = goal - position
    distance = jnp.sqrt(jnp.sum(way**2, axis=-1, keepdims=True) + 1e-8)
    # Far away only the direction matters; a goal at twice the distance must look the same.
    way = way / jnp.maximum(distance, NEAR)
    ahead = jnp.sum(way * heading, axis=-1)
    left = way[..., 1] * heading[..., 0] - way[..., 0] * heading[..., 1]
    return jnp.concatenate([body, jnp.stack([ahead, left], axis=-1)], axis=-1)


def sample(
    key: PRNGKeyArray, features: Float[Array, " F"], reach: Float[Array, " 2"]
) -> Float[Array, " 2"]:
    """A point at a uniform distance in `reach`, in a uniform direction from the torso."""
    distance_key, angle_key = jax.random.split(key)
    distance = jax.random.uniform(distance_key, minval=reach[0], maxval=reach[1])
    angle = jax.random.uniform(angle_key, maxval=2 * jnp.pi)
    return features[:2] + distance * jnp.stack([jnp.cos(angle), jnp.sin(angle)])


def _rotation(quaternion: Float[Array, " 4"]) -> Float[Array, "3 3"]:
    """Torso frame to world frame."""
    w, x, y, z = quaternion
    return jnp.array(
        [
            [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
            [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
            [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
        ]
    )


TASK = GoalTask(
    summary="the Ant walks to a point 2 to 6 metres away",
    make=lambda backend: BraxSimulator("ant", backend),
    features=features,
    spec=GoalSpec(
        state_indices=(0, 1),
        see=see,
        goal_features=2,
        sample=sample,
        workspace=(0.0, 100.0),
        reach=(2.0, 6.0),
        threshold=0.5,
        reward="difference",
        fall_cost=30.0,  # three goals: who turns while running falls at 1.9 % of them otherwise
    ),
    backend="spring",
    episode_length=500,
)
