"""Two tasks for the Ant: run, and walk to a far corner."""

import dataclasses

import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from envs.brax_env import BraxSimulator
from jaxagent.types import Simulator, SimulatorState

TASKS = ("run", "corner")
CORNER = (10.0, 10.0)  # metres
ARRIVAL_RADIUS = 1.0  # metres


@dataclasses.dataclass(frozen=True)
class ReachPoint:
    """A sparse task over a simulator: 1 on arrival at a point, which ends the episode; else 0.

    The observation gains the way to the point, in units of `scale`, since the Ant does not see
    where it is. A fall ends the episode with nothing, as in the simulator underneath.

    Attributes:
        simulator: the body; its own reward is not used.
        target: metres, world frame.
        radius: within it the point is reached, metres.
        scale: metres that make 1 in the observation.
    """

    simulator: Simulator
    target: tuple[float, float] = CORNER
    radius: float = ARRIVAL_RADIUS
    scale: float = 10.0

    @property
    def name(self) -> str:
        """The simulator's, and the point."""
        return f"{self.simulator.name}-reach-{self.target[0]:g}-{self.target[1]:g}"

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
        return self._judge(self.simulator.reset(key))

    def step(self, state: SimulatorState, action: Float[Array, " A"]) -> SimulatorState:
        """Advance; the reward is 1 at the step that arrives."""
        return self._judge(self.simulator.step(state.physics, action))

    def pose(self, state: SimulatorState) -> Float[Array, " Q"]:
        """The simulator's."""
        return self.simulator.pose(state.physics)

    def _judge(self, state: SimulatorState) -> SimulatorState:
        way = jnp.asarray(self.target, jnp.float32) - state.body.position[:2]
        arrived = jnp.sqrt(jnp.sum(way**2)) < self.radius
        arrived = arrived & ~state.terminated
        return state.replace(
            physics=state,
            observation=jnp.concatenate([state.observation, way / self.scale]),
            reward=arrived.astype(jnp.float32),
            terminated=state.terminated | arrived,
            success=arrived,
        )


def ant(task: str, backend: str = "spring") -> Simulator:
    """The Ant with one of its tasks.

    Args:
        task: "run" (Brax's own reward: forward velocity, alive, control cost) or "corner"
            (start at the origin; arrive within 1 m of (10, 10) metres).
        backend: a Brax backend.

    Raises:
        ValueError: an unknown task or backend.
    """
    if task not in TASKS:
        raise ValueError(f"task ({task}) must be one of {', '.join(TASKS)}")
    simulator = BraxSimulator("ant", backend)
    return simulator if task == "run" else ReachPoint(simulator)
