"""Tiny environments that each isolate one thing an agent can get wrong; solved in seconds.

After Andy L. Jones, "Debugging RL, Without the Agonizing Pain" (2021). Each implements
`jaxagent.types.Simulator`; the docstring says what a correct agent ends up with.
"""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from envs.goals import GoalSimulator
from jaxagent.types import Body, GoalSpec, SimulatorState


@dataclasses.dataclass(frozen=True)
class ProbeSimulator:
    """An environment of a few lines: a start, a step, one action.

    Attributes:
        name: which probe.
        observation_size: O.
        start: key -> observation.
        advance: (observation, action) -> (next observation, reward, terminated).
        success: (next observation) -> whether the goal was met.
    """

    name: str
    observation_size: int
    start: Callable[[PRNGKeyArray], Array]
    advance: Callable[[Array, Array], tuple[Array, Array, Array]]
    success: Callable[[Array], Array] = lambda observation: jnp.zeros((), bool)

    @property
    def action_size(self) -> int:
        """One."""
        return 1

    def reset(self, key: PRNGKeyArray) -> SimulatorState:
        """Draw a start."""
        return self._state(self.start(key), jnp.zeros(()), jnp.zeros((), bool))

    def step(self, state: SimulatorState, action: Float[Array, " A"]) -> SimulatorState:
        """Advance one step."""
        return self._state(*self.advance(state.observation, action[0]))

    def pose(self, state: SimulatorState) -> Float[Array, " Q"]:
        """The observation: there is nothing else to draw."""
        return state.observation

    def _state(self, observation, reward, terminated) -> SimulatorState:
        position = jnp.zeros(3).at[0].set(observation[0])
        return SimulatorState(
            physics=(),
            observation=jnp.asarray(observation, jnp.float32),
            reward=jnp.asarray(reward, jnp.float32),
            terminated=jnp.asarray(terminated, bool),
            success=self.success(observation),
            body=Body(
                position=position,
                heading=jnp.array([1.0, 0.0]),
                velocity=jnp.zeros(3),
                angular_velocity=jnp.zeros(3),
            ),
        )


def constant_reward() -> ProbeSimulator:
    """One step, observation 0, reward 1: V(0) = 1. Fails when the value loss is broken."""
    return ProbeSimulator(
        "constant_reward",
        1,
        lambda key: jnp.zeros(1),
        lambda observation, action: (observation, jnp.ones(()), jnp.ones((), bool)),
    )


def observation_reward() -> ProbeSimulator:
    """One step, observation ±1, reward = observation: V(o) = o. Fails when V ignores its input."""
    return ProbeSimulator(
        "observation_reward",
        1,
        lambda key: jax.random.rademacher(key, (1,), jnp.float32),
        lambda observation, action: (observation, observation[0], jnp.ones((), bool)),
    )


def two_step_discount() -> ProbeSimulator:
    """Observation 0 then 1, reward 1 at the end: V(1) = 1, V(0) = γ. Fails on a wrong discount."""
    return ProbeSimulator(
        "two_step_discount",
        1,
        lambda key: jnp.zeros(1),
        lambda observation, action: (observation + 1, observation[0], observation[0] > 0.5),
    )


def action_reward() -> ProbeSimulator:
    """One step, observation 0, reward −(a − 0.5)²: the action goes to 0.5."""
    return ProbeSimulator(
        "action_reward",
        1,
        lambda key: jnp.zeros(1),
        lambda observation, action: (observation, -((action - 0.5) ** 2), jnp.ones((), bool)),
    )


def goal_reach() -> ProbeSimulator:
    """A point on a line, moved by a quarter of the action, and a goal; arrival pays 1 and ends.

    Observes (position, goal − position). The action goes to the sign of the difference.
    """

    def start(key):
        position, goal = jax.random.uniform(key, (2,), minval=-1.0, maxval=1.0)
        return jnp.stack([position, goal - position])

    def advance(observation, action):
        move = 0.25 * jnp.clip(action, -1.0, 1.0)
        after = observation + move * jnp.array([1.0, -1.0])
        arrived = jnp.abs(after[1]) < 0.15
        return after, arrived.astype(jnp.float32) - 0.05 * jnp.abs(after[1]), arrived

    return ProbeSimulator(
        "goal_reach", 2, start, advance, lambda observation: jnp.abs(observation[1]) < 0.15
    )


def truncation_bootstrap() -> ProbeSimulator:
    """Reward 1 for ever, never terminates: V = 1 / (1 − γ) under any time limit.

    An agent that takes the time limit for an end learns less; the shorter the limit, the less.
    """
    return ProbeSimulator(
        "truncation_bootstrap",
        1,
        lambda key: jnp.zeros(1),
        lambda observation, action: (observation, jnp.ones(()), jnp.zeros((), bool)),
    )


CLIFF = -0.5  # where a point that goes below falls


def cliff(reward: str = "sparse") -> GoalSimulator:
    """A point on a line, a cliff a few steps behind it, a goal many steps ahead.

    A step moves it by a tenth of the action; it starts within 0.3 of the origin, falls below
    `CLIFF`, and has to come within 0.2 of a goal 3 to 4 ahead. An agent to which the end of an
    episode is worth more than a goal that is far jumps; a correct one reaches every goal.

    Args:
        reward: as in `jaxagent.types.GoalSpec`.
    """
    body = ProbeSimulator(
        "cliff",
        1,
        lambda key: jax.random.uniform(key, (1,), minval=-0.3, maxval=0.3),
        lambda place, action: (
            place + 0.1 * action,
            jnp.zeros(()),
            place[0] + 0.1 * action < CLIFF,
        ),
    )
    spec = GoalSpec(
        state_indices=(0,),
        see=lambda features, goal: jnp.concatenate([features, goal - features], -1),
        goal_features=1,
        sample=lambda key, features, reach: jax.random.uniform(
            key, (1,), minval=reach[0], maxval=reach[1]
        ),
        workspace=(0.0, 10.0),
        reach=(3.0, 4.0),
        threshold=0.2,
        reward=reward,
    )
    return GoalSimulator("cliff", body, lambda state: state.observation, spec)


PROBES: dict[str, Callable[[], ProbeSimulator]] = {
    "constant_reward": constant_reward,
    "observation_reward": observation_reward,
    "two_step_discount": two_step_discount,
    "action_reward": action_reward,
    "goal_reach": goal_reach,
    "truncation_bootstrap": truncation_bootstrap,
}
