"""What passes between the floors: records of experience, and the protocols of those who make it.

Axes: `T` time, `B` batch of environments, `O` observation, `A` action. A leading `*B` is empty for
one environment and `B` for a batch. Records are pytrees, so they pass through jit, scan and
shard_map unchanged.
"""

from typing import Any, NamedTuple, Protocol, runtime_checkable

from flax import struct
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray


class Body(NamedTuple):
    """Where the agent's torso is and how it moves, in world coordinates."""

    position: Float[Array, "*B 3"]  # metres
    heading: Float[Array, "*B 2"]  # unit vector in the ground plane, the torso's own x axis
    velocity: Float[Array, "*B 3"]  # metres a second
    angular_velocity: Float[Array, "*B 3"]  # radians a second


class SimulatorState(struct.PyTreeNode, kw_only=True):
    """One environment's physics, and what the task reads off it after a step."""

    physics: Any  # the simulator's own pytree
    observation: Float[Array, "*B O"]
    reward: Float[Array, "*B"]
    terminated: Bool[Array, "*B"]  # the task truly ended: nothing follows, bootstrap with 0
    success: Bool[Array, "*B"]  # the task's goal was met at this step
    body: Body


@runtime_checkable
class Simulator(Protocol):
    """The physics of one environment: no batching, no time limit, no reset of its own.

    Another physics engine is added by one class with these six members.
    """

    @property
    def observation_size(self) -> int:
        """O."""
        ...

    @property
    def action_size(self) -> int:
        """A; actions lie in [-1, 1]."""
        ...

    @property
    def name(self) -> str:
        """What a run folder calls it."""
        ...

    def reset(self, key: PRNGKeyArray) -> SimulatorState:
        """Draw a start state."""
        ...

    def step(self, state: SimulatorState, action: Float[Array, " A"]) -> SimulatorState:
        """Advance one control step."""
        ...

    def pose(self, state: SimulatorState) -> Float[Array, " Q"]:
        """What a renderer needs to draw the state, generalised coordinates for example."""
        ...


class EnvState(struct.PyTreeNode, kw_only=True):
    """A batch of running episodes."""

    simulator: SimulatorState  # what the policy sees next: after an end, already the new start
    key: PRNGKeyArray  # [B], one stream for each environment, consumed at its resets
    elapsed: Int[Array, " B"]  # steps since the last reset
    episode_return: Float[Array, " B"]  # sum of rewards since the last reset


class EnvStep(NamedTuple):
    """What one step of a batch of environments gave, before any reset."""

    reward: Float[Array, " B"]
    terminated: Bool[Array, " B"]
    truncated: Bool[Array, " B"]  # cut by the time limit: bootstrap with V(next_observation)
    success: Bool[Array, " B"]
    next_observation: Float[Array, "B O"]  # the true successor, never the reset observation
    next_body: Body
    episode_return: Float[Array, " B"]  # up to and including this step
    episode_length: Int[Array, " B"]


@runtime_checkable
class Env(Protocol):
    """A batch of environments that replace ended episodes by fresh ones."""

    @property
    def observation_size(self) -> int:
        """O."""
        ...

    @property
    def action_size(self) -> int:
        """A."""
        ...

    def reset(self, keys: PRNGKeyArray) -> EnvState:
        """Start one episode for each key of [B]."""
        ...

    def step(self, state: EnvState, action: Float[Array, "B A"]) -> tuple[EnvState, EnvStep]:
        """Advance every environment; those that ended are started afresh."""
        ...


class PolicySample(NamedTuple):
    """An action with what the update needs to weigh it later."""

    action: Float[Array, "*B A"]
    pre_tanh: Float[Array, "*B A"]  # the action before squashing: exact log-probabilities need it
    log_prob: Float[Array, "*B"]


class Policy(Protocol):
    """How a rollout asks for actions."""

    def __call__(self, observation: Float[Array, "B O"], keys: PRNGKeyArray) -> PolicySample:
        """Sample one action for each observation, each from its own key."""
        ...


class Trajectory(NamedTuple):
    """T steps of B environments, time-major, exactly as they happened."""

    observation: Float[Array, "T B O"]
    action: Float[Array, "T B A"]
    pre_tanh: Float[Array, "T B A"]
    behaviour_log_prob: Float[Array, "T B"]
    reward: Float[Array, "T B"]  # R_env alone; guidance is added by whoever trains on it
    terminated: Bool[Array, "T B"]
    truncated: Bool[Array, "T B"]
    success: Bool[Array, "T B"]
    next_observation: Float[Array, "T B O"]
    body: Body
    next_body: Body
    episode_return: Float[Array, "T B"]
    episode_length: Int[Array, "T B"]

    @property
    def episode_end(self) -> Bool[Array, "T B"]:
        """Where an episode ended, for either reason."""
        return self.terminated | self.truncated


class SubGoal(NamedTuple):
    """One step of a plan: a point to reach."""

    target: tuple[float, float]  # metres, world frame
    radius: float = 1.0  # metres; inside it the sub-goal counts as reached
    heading: float | None = None  # degrees from the world's x axis; None: face the target


class Plan(NamedTuple):
    """Sub-goals in the order in which they are to be reached."""

    sub_goals: tuple[SubGoal, ...]
    source: str  # who made it: "rule", or the file it was read from


@runtime_checkable
class Planner(Protocol):
    """Whoever turns a task into sub-goals: rules, a file, a language model."""

    def plan(self, task: str, position: tuple[float, float]) -> Plan:
        """Make a plan.

        Args:
            task: name of the task.
            position: where the agent stands, metres.
        """
        ...


class Skeleton(NamedTuple):
    """L frames of a body drawn as G thick line segments, host arrays."""

    segments: Any  # float [L, G, 2, 3], metres: the two ends of each segment
    radius: Any  # float [G], metres
    seconds: float  # between frames
