"""A body that costs nothing: a point in the plane, with goals; and a skill that walks straight."""

import dataclasses

import jax
import jax.numpy as jnp

from envs.goals import GoalSimulator
from jaxagent.types import Body, GoalSpec, SimulatorState

STEP = 0.25  # metres a step, at most


@dataclasses.dataclass(frozen=True)
class PointBody:
    """Moves by STEP times the action; falls outside a square around the origin.

    Attributes:
        edge: half the side of the square, metres.
        wall: x that it cannot pass, metres.
    """

    edge: float = 20.0
    wall: float = 1e9
    name: str = "point"
    observation_size: int = 2
    action_size: int = 2

    def reset(self, key):
        return self._state(jax.random.uniform(key, (2,), minval=-0.1, maxval=0.1))

    def step(self, state, action):
        moved = state.observation + STEP * jnp.clip(action, -1.0, 1.0)
        return self._state(jnp.minimum(moved, jnp.array([self.wall, jnp.inf])))

    def pose(self, state):
        return state.observation

    def _state(self, place) -> SimulatorState:
        return SimulatorState(
            physics=(),
            observation=place,
            reward=jnp.zeros(()),
            terminated=jnp.abs(place).max() > self.edge,
            success=jnp.zeros((), bool),
            body=Body(
                position=jnp.append(place, 0.0),
                heading=jnp.array([1.0, 0.0]),
                velocity=jnp.zeros(3),
                angular_velocity=jnp.zeros(3),
            ),
        )


def _sample(key, features, reach):
    distance_key, angle_key = jax.random.split(key)
    angle = jax.random.uniform(angle_key, maxval=2 * jnp.pi)
    distance = jax.random.uniform(distance_key, minval=reach[0], maxval=reach[1])
    return features + distance * jnp.stack([jnp.cos(angle), jnp.sin(angle)])


def point_task(on_success: str = "hold", reward: str = "sparse", **body) -> GoalSimulator:
    """Reach a point 1 to 3 metres away, within 0.3; observes (place, way to the goal)."""
    spec = GoalSpec(
        state_indices=(0, 1),
        see=lambda features, goal: jnp.concatenate([features, goal - features], axis=-1),
        goal_features=2,
        sample=_sample,
        workspace=(0.0, 50.0),
        reach=(1.0, 3.0),
        threshold=0.3,
        reward=reward,
        on_success=on_success,
    )
    return GoalSimulator("point", PointBody(**body), lambda state: state.observation, spec)


def straight(observation, keys):
    """Walks straight to the goal at full speed."""
    way = observation[..., 2:]
    return way / jnp.maximum(jnp.sqrt(jnp.sum(way**2, axis=-1, keepdims=True)), STEP)
