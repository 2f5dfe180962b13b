"""The half cheetah runs at a given speed."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from envs.brax_env import BraxSimulator
from envs.goals import GoalTask
from jaxagent.types import GoalSpec, SimulatorState


def features(state: SimulatorState) -> Float[Array, " F"]:
    """Forward speed of the torso in m/s, then Brax's own observation."""
    return jnp.concatenate([state.body.velocity[:1], state.observation])


def see(features: Float[Array, "*B F"], goal: Float[Array, "*B 1"]) -> Float[Array, "*B O"]:
    """Brax's own observation; then the speed that is missing, and the speed that is wanted."""
    return jnp.concatenate([features[..., 1:], goal - features[..., :1], goal], axis=-1)


def sample(
    key: PRNGKeyArray, features: Float[Array, " F"], reach: Float[Array, " 2"]
) -> Float[Array, " 1"]:
    """A uniform speed in `reach`, m/s."""
    return jax.random.uniform(key, (1,), minval=reach[0], maxval=reach[1])


TASK = GoalTask(
    summary="the half cheetah runs at a speed of 0.5 to 4 m/s",
    make=lambda backend: BraxSimulator("halfcheetah", backend),
    features=features,
    spec=GoalSpec(
        state_indices=(0,),
        see=see,
        goal_features=2,
        sample=sample,
        workspace=(-4.0, 10.0),
        reach=(0.5, 4.0),
        threshold=0.25,
        reward="dense",
        on_success="hold",
    ),
    backend="spring",
    episode_length=200,
)
