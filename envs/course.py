"""A course with walls: reach a place that the straight way does not lead to.

The walls are lines on the ground that must not be crossed; nothing holds the body back, which is
why any physics will do. The reward is sparse: whoever only moves its joints at random never sees
one, and whoever heads straight for the place ends at a wall.
"""

import dataclasses
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from jaxagent.types import Restartable, Simulator, SimulatorState

Wall = tuple[float, float, float, float]  # metres: from x, y to x, y
DETOUR: tuple[Wall, ...] = ((3.0, -8.0, 3.0, 2.0),)


@dataclasses.dataclass(frozen=True)
class Course:
    """A sparse task over a simulator: 1 on arrival, which ends the episode; a wall ends it with 0.

    The observation gains the position, in units of `scale`. A body whose goal can be changed keeps
    that (`aim`), and its features stay what a skill sees.

    Attributes:
        simulator: the body; its own reward is not used, its own end is a fall.
        walls: lines that must not be crossed.
        target: metres, world frame.
        radius: within it the target is reached, metres.
        scale: metres that make 1 in the observation.
    """

    simulator: Simulator
    walls: tuple[Wall, ...] = DETOUR
    target: tuple[float, float] = (6.0, 1.0)
    radius: float = 1.5
    scale: float = 10.0

    @property
    def name(self) -> str:
        """The simulator's, and the target."""
        return f"{self.simulator.name}-course-{self.target[0]:g}-{self.target[1]:g}"

    @property
    def observation_size(self) -> int:
        """O of the simulator, and 2."""
        return self.simulator.observation_size + 2

    @property
    def action_size(self) -> int:
        """A of the simulator."""
        return self.simulator.action_size

    def reset(self, key: PRNGKeyArray) -> SimulatorState:
        """A start state of the simulator."""
        return self._observe(self.simulator.reset(key))

    def restart(self, state: SimulatorState, key: PRNGKeyArray) -> SimulatorState:
        """The same, inheriting what the simulator lets an episode inherit."""
        if isinstance(self.simulator, Restartable):
            return self._observe(self.simulator.restart(state.physics, key))
        return self.reset(key)

    def step(self, state: SimulatorState, action: Float[Array, " A"]) -> SimulatorState:
        """Advance; judge by where the step began and ended."""
        before, after = state.physics, self.simulator.step(state.physics, action)
        start, end = before.body.position[:2], after.body.position[:2]
        hit = crosses(start, end, jnp.array(self.walls))
        way = jnp.array(self.target) - end
        arrived = (jnp.sqrt(jnp.sum(way**2)) < self.radius) & ~after.terminated & ~hit
        return self._observe(after).replace(
            reward=arrived.astype(jnp.float32),
            terminated=after.terminated | hit | arrived,
            success=arrived,
        )

    def aim(self, state: SimulatorState, goal: Float[Array, " G"]) -> SimulatorState:
        """The same episode with another goal for the skill; the course's own target stays."""
        body: Any = self.simulator
        aimed = self._observe(body.aim(state.physics, goal))
        return aimed.replace(
            reward=state.reward, terminated=state.terminated, success=state.success
        )

    def pose(self, state: SimulatorState) -> Float[Array, " Q"]:
        """The simulator's."""
        return self.simulator.pose(state.physics)

    def _observe(self, state: SimulatorState) -> SimulatorState:
        place = state.body.position[:2] / self.scale
        return state.replace(
            physics=state,
            observation=jnp.concatenate([state.observation, place]),
            reward=jnp.zeros((), jnp.float32),
            success=jnp.zeros((), bool),
        )


def crosses(
    start: Float[Array, " 2"], end: Float[Array, " 2"], walls: Float[Array, "W 4"]
) -> Bool[Array, ""]:
    """Whether the way from start to end crosses any wall; to touch one from a side is not to."""

    def side(a, b, point):  # which side of the line from a to b
        along, towards = b - a, point - a
        return along[..., 0] * towards[..., 1] - along[..., 1] * towards[..., 0]

    first, last = walls[:, :2], walls[:, 2:]
    begin, finish = jnp.broadcast_to(start, first.shape), jnp.broadcast_to(end, first.shape)
    apart = side(first, last, begin) * side(first, last, finish) < 0
    between = side(begin, finish, first) * side(begin, finish, last) < 0
    return (apart & between).any()
