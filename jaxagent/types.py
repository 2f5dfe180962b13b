"""What passes between the floors: records of experience, and the protocols of those who make it.

Axes: `T` time, `B` batch of environments, `O` observation, `A` action. A leading `*B` is empty for
one environment and `B` for a batch. Records are pytrees, so they pass through jit, scan and
shard_map unchanged.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

GOAL_REWARDS = ("sparse", "dense", "difference")
ON_SUCCESS = ("end", "hold", "redraw")


class Body(NamedTuple):
    """Where the agent's torso is and how it moves, in world coordinates."""

    position: Float[Array, "*B 3"]  # metres
    heading: Float[Array, "*B 2"]  # unit vector in the ground plane, the torso's own x axis
    velocity: Float[Array, "*B 3"]  # metres a second
    angular_velocity: Float[Array, "*B 3"]  # radians a second


class Difficulty(struct.PyTreeNode, kw_only=True):
    """How hard the goals of one environment are; a curriculum replaces it between iterations."""

    reach: Float[Array, "*B 2"]  # goals are drawn from low to high, in the unit of the goal space
    threshold: Float[Array, "*B"]  # success is closer than this


class GoalOutcome(NamedTuple):
    """How the episode stands with its goals, up to and including a step."""

    distance: Float[Array, "*B"]  # from the goal that the step was made for, after the step
    goals_reached: Int[Array, "*B"]  # steps of this episode that were a success
    steps_to_success: Int[Array, "*B"]  # of the first success in the episode; 0 before it
    held: Int[Array, "*B"]  # steps in a row that were a success, up to this one
    success: Float[Array, "*B"]  # what the episode counts as if it ends here, in [0, 1]


class SimulatorState(struct.PyTreeNode, kw_only=True):
    """One environment's physics, and what the task reads off it after a step.

    The last four fields are None where the task has no goal space.
    """

    physics: Any  # the simulator's own pytree
    observation: Float[Array, "*B O"]
    reward: Float[Array, "*B"]
    terminated: Bool[Array, "*B"]  # the task truly ended: nothing follows, bootstrap with 0
    success: Bool[Array, "*B"]  # the task's goal was met at this step
    body: Body
    goal: Float[Array, "*B G"] | None = None  # pursued from here on
    achieved_goal: Float[Array, "*B G"] | None = None  # where the state stands in goal space
    features: Float[Array, "*B F"] | None = None  # without the goal; observation = see(these, goal)
    outcome: GoalOutcome | None = None


@runtime_checkable
class Simulator(Protocol):
    """The physics of one environment: no batching, no time limit, no reset of its own.

    Another physics engine is added by one class with these six members. One that also has
    `restart` (see `Restartable`) decides what an episode inherits from the one before it.
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


@runtime_checkable
class Restartable(Protocol):
    """A simulator whose fresh episodes inherit something: difficulty, randomisation ranges."""

    def restart(self, state: SimulatorState, key: PRNGKeyArray) -> SimulatorState:
        """Draw a start state for the episode after `state`, which has ended."""
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
    next_achieved_goal: Float[Array, "B G"] | None = None
    next_features: Float[Array, "B F"] | None = None
    outcome: GoalOutcome | None = None


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
    """T steps of B environments, time-major, exactly as they happened.

    The fields after `episode_length` are None where the task has no goal space.
    """

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
    goal: Float[Array, "T B G"] | None = None  # that the action was chosen for
    achieved_goal: Float[Array, "T B G"] | None = None
    next_achieved_goal: Float[Array, "T B G"] | None = None  # before any reset
    features: Float[Array, "T B F"] | None = None
    next_features: Float[Array, "T B F"] | None = None  # before any reset
    outcome: GoalOutcome | None = None

    @property
    def episode_end(self) -> Bool[Array, "T B"]:
        """Where an episode ended, for either reason."""
        return self.terminated | self.truncated


@dataclasses.dataclass(frozen=True, kw_only=True)
class GoalSpec:
    """A goal space: what a state achieves, which goals there are, when one is reached.

    A task names `features` F of its state, without the goal. Some of them are the achieved goal;
    `see` puts features and goal together into what the policy observes, the goal's own entries
    last. Whoever changes the goal afterwards (hindsight, a planner) sees again with another goal.

    Attributes:
        state_indices: which of the features are the achieved goal, in order.
        see: (features, goal) -> observation, any leading axes.
        goal_features: how many of the last entries of an observation tell the goal.
        sample: (key, features, reach) -> goal, for one environment.
        workspace: lowest and highest reach that the task has room for.
        reach: from where to where goals are drawn, in the task's own measure (a distance from
            the body, a speed); each task says which.
        threshold: success is a distance |achieved - goal| below this, in the goal's unit.
        reward: "sparse", -1 a step and 0 on success; "dense", 10 * success - 0.1 * distance;
            "difference", 10 * success + decrease of the distance.
        on_success: "end" terminates the episode; "hold" goes on with the same goal; "redraw"
            goes on with a new one.
        fall_cost: what a fall costs at once, in units of the reward; a success of "dense" and
            "difference" earns as much.
        fall_steps: steps of lying where it fell that a fall is charged for; see `charged`.
    """

    state_indices: tuple[int, ...]
    see: Callable[[Array, Array], Array]
    goal_features: int
    sample: Callable[[PRNGKeyArray, Array, Array], Array]
    workspace: tuple[float, float]
    reach: tuple[float, float]
    threshold: float
    reward: str = "sparse"
    on_success: str = "end"
    fall_cost: float = 10.0
    fall_steps: float = 0.0

    def __post_init__(self):
        for name in ("fall_cost", "fall_steps"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise ValueError(f"{name} ({getattr(self, name)}) must be finite and at least 0")
        if not 0 < self.threshold < float("inf"):
            raise ValueError(f"threshold ({self.threshold}) must be a positive, finite number")
        low, high = self.workspace
        if not low <= self.reach[0] <= self.reach[1] <= high:
            raise ValueError(
                f"reach {self.reach} must lie in the workspace: {low:g} <= low <= high <= {high:g}"
            )
        for name, known in (("reward", GOAL_REWARDS), ("on_success", ON_SUCCESS)):
            if getattr(self, name) not in known:
                raise ValueError(
                    f"{name} ({getattr(self, name)}) must be one of {', '.join(known)}"
                )

    def charged(self, discount_factor: float) -> "GoalSpec":
        """The same goal space, in which a fall is charged what failing for ever would cost.

            r_fall = r - fall_cost + r_rest * sum_{j >= 1} gamma^j,   the sum = gamma / (1 - gamma)

        with r_rest the reward of a step that stays away from the goal where the body fell. The
        value after a fall is 0, and rewards of "sparse" and "dense" are negative until the goal is
        reached: uncharged, a fall would end what costs, and be worth more than a goal that is far.

        Args:
            discount_factor: gamma of whoever learns.

        Raises:
            ValueError: gamma does not lie in [0, 1): for ever has no finite cost.
        """
        if not 0 <= discount_factor < 1:
            raise ValueError(
                f"discount_factor ({discount_factor}) must lie in [0, 1) for a goal-conditioned "
                "task, where a fall is charged what failing for ever costs"
            )
        return dataclasses.replace(self, fall_steps=discount_factor / (1 - discount_factor))

    @property
    def goal_size(self) -> int:
        """G."""
        return len(self.state_indices)

    def achieved(self, features: Float[Array, "*B F"]) -> Float[Array, "*B G"]:
        """The point of the goal space at which a state stands."""
        return features[..., jnp.array(self.state_indices)]

    def distance(
        self, achieved: Float[Array, "*B G"], goal: Float[Array, "*B G"]
    ) -> Float[Array, "*B"]:
        """|achieved - goal|, in the goal's unit."""
        return jnp.sqrt(jnp.sum((achieved - goal) ** 2, axis=-1))

    def judge(
        self,
        achieved: Float[Array, "*B G"],
        next_achieved: Float[Array, "*B G"],
        goal: Float[Array, "*B G"],
        fell: Bool[Array, "*B"],
        threshold: Float[Array, "*B"] | float | None = None,
    ) -> tuple[Float[Array, "*B"], Bool[Array, "*B"]]:
        """(reward, success) of a step from one achieved goal to the next, for any goal.

        A fall costs `fall_cost` and `fall_steps` steps of lying there, so that ending an episode
        early is never worth more than going on without reaching anything.

        Args:
            achieved: before the step.
            next_achieved: after it, before any reset.
            goal: that the step is judged by.
            fell: the body's own end, which is never a success.
            threshold: other than the task's own; a curriculum's.
        """
        after = self.distance(next_achieved, goal)
        success = (after < (self.threshold if threshold is None else threshold)) & ~fell
        reached = success.astype(after.dtype)
        progress = self.distance(achieved, goal) - after
        bonus, away, rest = {  # of a success; of any step; of a step that stays where it is
            "sparse": (1.0, -jnp.ones_like(after), -jnp.ones_like(after)),
            "dense": (10.0, -0.1 * after, -0.1 * after),
            "difference": (10.0, progress, jnp.zeros_like(after)),
        }[self.reward]
        fall = self.fall_cost - self.fall_steps * rest
        return bonus * reached + away - jnp.where(fell, fall, 0.0), success


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
