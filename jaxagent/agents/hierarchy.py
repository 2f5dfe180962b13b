"""The hierarchical agent: a planner names a sub-goal, a skill pursues it, the outcome goes back.

The skill runs until success, timeout or no progress. Every sub-goal becomes one segment of arrays
(`SubGoalSegments`), which is what the credit estimators of `jaxagent.losses` take. `Hierarchy`
runs wholly on the device with a planner of arrays; `jaxagent.agents.text_hierarchy` does the same
with a planner of words.
"""

import dataclasses
import enum
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from jaxagent.losses import sum_segments
from jaxagent.types import Env, EnvState, EnvStep, SimulatorState

# (observation [B, O], keys [B]) -> action [B, A]; the observation tells the sub-goal.
SkillAction = Callable[[Float[Array, "B O"], PRNGKeyArray], Float[Array, "B A"]]
# One environment's state with another goal.
Aim = Callable[[SimulatorState, Float[Array, " G"]], SimulatorState]


class Outcome(enum.IntEnum):
    """How a sub-goal ended; RUNNING while it has not."""

    RUNNING = 0
    SUCCESS = 1
    TIMEOUT = 2
    NO_PROGRESS = 3
    FELL = 4  # the body's own end: nothing follows
    CUT = 5  # the episode's time limit, or its last segment


class Verdict(enum.IntEnum):
    """What a planner says of the whole task."""

    GO_ON = 0
    COMPLETE = 1
    GIVE_UP = 2


@dataclasses.dataclass(frozen=True)
class PursuitConfig:
    """When a skill gives a sub-goal back to the planner."""

    timeout_steps: int = 400
    """A sub-goal is given back after this many steps."""
    stall_steps: int = 100
    """... or after this many steps without progress."""
    stall_distance: float = 0.25
    """Progress is to come this much nearer than ever before, in the goal's unit."""
    discount_factor: float = 0.99
    """gamma, per environment step, in the rewards that segments record."""

    def __post_init__(self):
        for name in ("timeout_steps", "stall_steps"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} ({getattr(self, name)}) must be at least 1")
        if not 0 <= self.stall_distance < float("inf"):
            raise ValueError(f"stall_distance ({self.stall_distance}) must be finite, at least 0")
        if not 0 <= self.discount_factor <= 1:
            raise ValueError(f"discount_factor ({self.discount_factor}) must lie in [0, 1]")


class ArrayPlanner(Protocol):
    """Names sub-goals on the device, for one environment; vmapped by the hierarchy."""

    def first(self, state: SimulatorState) -> tuple[Any, Float[Array, " G"]]:
        """The planner's own state, and the first sub-goal."""
        ...

    def next(
        self, memory: Any, state: SimulatorState, outcome: Int[Array, ""]
    ) -> tuple[Any, Float[Array, " G"], Int[Array, ""]]:
        """After a sub-goal ended in `state`: own state, the next sub-goal, and a `Verdict`."""
        ...


class WaypointState(struct.PyTreeNode, kw_only=True):
    """Where on its course one environment is."""

    reached: Int[Array, "*B"]  # points passed
    failures: Int[Array, "*B"]  # at the point it is at


@dataclasses.dataclass(frozen=True)
class Waypoints:
    """An `ArrayPlanner` that gives points in order, and a missed one again.

    Attributes:
        points: the course.
        attempts: at one point; then it gives up.
    """

    points: Float[Array, "M G"]
    attempts: int = 2

    def first(self, state: SimulatorState) -> tuple[WaypointState, Float[Array, " G"]]:
        """The first point."""
        zero = jnp.zeros((), jnp.int32)
        return WaypointState(reached=zero, failures=zero), self.points[0]

    def next(
        self, memory: WaypointState, state: SimulatorState, outcome: Int[Array, ""]
    ) -> tuple[WaypointState, Float[Array, " G"], Int[Array, ""]]:
        """The next point after a success, else the same; gives up after `attempts` failures."""
        success = outcome == Outcome.SUCCESS
        reached = memory.reached + success
        failures = jnp.where(success, 0, memory.failures + 1)
        count = self.points.shape[0]
        verdict = jnp.where(
            reached >= count,
            int(Verdict.COMPLETE),
            jnp.where(failures >= self.attempts, int(Verdict.GIVE_UP), int(Verdict.GO_ON)),
        )
        goal = self.points[jnp.minimum(reached, count - 1)]
        return WaypointState(reached=reached, failures=failures), goal, verdict


class SubGoalSegments(NamedTuple):
    """N sub-goals of each episode, as credit estimators take them; zeros where `mask` is False."""

    start: Int[Array, "N B"]  # step of the episode
    duration: Int[Array, "N B"]  # d_i, steps
    goal: Float[Array, "N B G"]
    reward: Float[Array, "N B"]  # R_i = sum of gamma^j r over the segment
    discount: Float[Array, "N B"]  # gamma^(d_i) * (1 - terminated)
    outcome: Int[Array, "N B"]  # `Outcome`
    mask: Bool[Array, "N B"]


class Steps(NamedTuple):
    """T steps of B episodes; zeros where `mask` is False, after an episode's end."""

    achieved_goal: Float[Array, "T B G"]  # after the step
    goal: Float[Array, "T B G"]  # that the step was made for
    reward: Float[Array, "T B"]
    terminated: Bool[Array, "T B"]
    segment_id: Int[Array, "T B"]
    outcome: Int[Array, "T B"]  # RUNNING but at the last step of a segment
    mask: Bool[Array, "T B"]


class Episodes(NamedTuple):
    """B episodes of the hierarchical agent."""

    steps: Steps
    segments: SubGoalSegments
    verdict: Int[Array, " B"]  # GO_ON where the episode ended before the planner's task did
    start: Float[Array, "B G"]  # achieved goal at the start


class Pursuit(struct.PyTreeNode, kw_only=True):
    """How far the skill is with the sub-goal at hand."""

    elapsed: Int[Array, " B"]  # steps
    nearest: Float[Array, " B"]  # distance at the last progress
    stalled: Int[Array, " B"]  # steps since


def begin_pursuit(distance: Float[Array, " B"]) -> Pursuit:
    """A sub-goal that was just given."""
    none = jnp.zeros(distance.shape, jnp.int32)
    return Pursuit(elapsed=none, nearest=distance, stalled=none)


def follow_pursuit(
    config: PursuitConfig, pursuit: Pursuit, step: EnvStep
) -> tuple[Pursuit, Int[Array, " B"]]:
    """One step further: the pursuit after it, and its `Outcome`."""
    distance = _outcome(step).distance
    nearer = distance < pursuit.nearest - config.stall_distance
    pursuit = Pursuit(
        elapsed=pursuit.elapsed + 1,
        nearest=jnp.where(nearer, distance, pursuit.nearest),
        stalled=jnp.where(nearer, 0, pursuit.stalled + 1),
    )
    endings = (  # the first that holds
        (step.success, Outcome.SUCCESS),
        (step.terminated, Outcome.FELL),
        (step.truncated, Outcome.CUT),
        (pursuit.elapsed >= config.timeout_steps, Outcome.TIMEOUT),
        (pursuit.stalled >= config.stall_steps, Outcome.NO_PROGRESS),
    )
    conditions, codes = zip(*endings)
    outcome = jnp.select(conditions, [jnp.int32(code) for code in codes], jnp.int32(0))
    return pursuit, outcome


class _Play(struct.PyTreeNode, kw_only=True):
    """What the loop over steps carries."""

    env: EnvState
    pursuit: Pursuit
    memory: Any
    segment: Int[Array, " B"]
    verdict: Int[Array, " B"]
    alive: Bool[Array, " B"]
    log: Steps


@dataclasses.dataclass(frozen=True)
class Hierarchy:
    """A planner of arrays over a skill; `play` is pure and is meant to be jitted.

    Attributes:
        env: goal-conditioned environments that go on after a success.
        aim: gives a state of `env` another goal.
        skill: what acts.
        planner: what names the sub-goals.
        config: when a sub-goal is given back.
        max_segments: N; an episode ends with its Nth sub-goal.
    """

    env: Env
    aim: Aim
    skill: SkillAction
    planner: ArrayPlanner
    config: PursuitConfig
    max_segments: int

    def play(self, keys: PRNGKeyArray, length: int) -> Episodes:
        """One episode for each key.

        Args:
            keys: [B], consumed; of the starts, and of what the skill samples.
            length: T, steps after which every episode is cut.

        Returns:
            The episodes, each to its first end: the planner's verdict, the body's end, the time
            limit, or the last segment.
        """
        split = jax.vmap(jax.random.split)(keys)
        env = self.env.reset(split[:, 0])
        start = _achieved(env.simulator)
        memory, goal = jax.vmap(self.planner.first)(env.simulator)
        count = keys.shape[0]
        none = jnp.zeros(count, jnp.int32)
        env, pursuit = self._give(env, goal)
        carry = _Play(
            env=env,
            pursuit=pursuit,
            memory=memory,
            segment=none,
            verdict=none,
            alive=jnp.ones(count, bool),
            log=_blank(length, count, goal),
        )
        carry = jax.lax.while_loop(
            lambda c: (c[0] < length) & c[1].alive.any(),
            lambda c: (c[0] + 1, self._advance(c[1], c[0], split[:, 1], length)),
            (jnp.zeros((), jnp.int32), carry),
        )[1]
        segments = gather_segments(carry.log, self.max_segments, self.config.discount_factor)
        return Episodes(carry.log, segments, carry.verdict, start)

    def _give(self, env: EnvState, goal: Float[Array, "B G"]) -> tuple[EnvState, Pursuit]:
        simulator = jax.vmap(self.aim)(env.simulator, goal)
        distance = jnp.sqrt(jnp.sum((_achieved(simulator) - goal) ** 2, axis=-1))
        return env.replace(simulator=simulator), begin_pursuit(distance)

    def _advance(self, play: _Play, time, keys: PRNGKeyArray, length: int) -> _Play:
        before = play.env.simulator
        noise = jax.vmap(jax.random.fold_in, (0, None))(keys, time)
        env, step = self.env.step(play.env, self.skill(before.observation, noise))
        pursuit, outcome = follow_pursuit(self.config, play.pursuit, step)
        last = (outcome == 0) & (time == length - 1)
        outcome = jnp.where(last, int(Outcome.CUT), outcome)
        memory, goal, verdict = jax.vmap(self.planner.next)(play.memory, env.simulator, outcome)
        ended = outcome != Outcome.RUNNING
        body_ended = step.terminated | step.truncated
        verdict = jnp.where(ended & (~body_ended | (verdict == Verdict.COMPLETE)), verdict, 0)
        row = Steps(
            achieved_goal=step.next_achieved_goal,  # type: ignore[arg-type]
            goal=before.goal,  # type: ignore[arg-type]
            reward=step.reward,
            terminated=step.terminated,
            segment_id=play.segment,
            outcome=outcome,
            mask=play.alive,
        )
        given, fresh = self._give(env, goal)
        segment = play.segment + ended
        over = body_ended | (verdict != Verdict.GO_ON) | (segment >= self.max_segments)
        return _Play(
            env=_where(ended, given, env),
            pursuit=_where(ended, fresh, pursuit),
            memory=_where(ended, memory, play.memory),
            segment=segment,
            verdict=jnp.where(play.alive, verdict, play.verdict),
            alive=play.alive & ~over,
            log=jax.tree.map(
                lambda log, new: log.at[time].set(
                    jnp.where(_fit(play.alive, new), new, jnp.zeros_like(new))
                ),
                play.log,
                row,
            ),
        )


def gather_segments(steps: Steps, max_segments: int, discount_factor: float) -> SubGoalSegments:
    """The steps of each sub-goal summed up.

    Args:
        steps: of whole episodes.
        max_segments: N.
        discount_factor: γ per step.
    """
    discount = discount_factor * (1.0 - steps.terminated)
    sums = sum_segments(
        steps.reward, discount, steps.segment_id, steps.mask, num_segments=max_segments
    )
    index = jnp.arange(max_segments)[:, None, None]
    at = (steps.segment_id[None] == index) & steps.mask[None]  # [N, T, B]
    start = jnp.argmax(at, axis=1)
    goal = jnp.take_along_axis(steps.goal, start[..., None], axis=0)
    return SubGoalSegments(
        start=start,
        duration=sums.duration,
        goal=jnp.where(sums.mask[..., None], goal, 0.0),
        reward=sums.reward,
        discount=sums.discount,
        outcome=jnp.max(jnp.where(at, steps.outcome[None], 0), axis=1),
        mask=sums.mask,
    )


def _blank(length: int, count: int, goal: Float[Array, "B G"]) -> Steps:
    wide, flat = jnp.zeros((length, *goal.shape)), jnp.zeros((length, count))
    number, no = jnp.zeros((length, count), jnp.int32), jnp.zeros((length, count), bool)
    return Steps(wide, wide, flat, no, number, number, no)


def _fit(chosen: Bool[Array, " B"], leaf: Array) -> Bool[Array, "B ..."]:
    return chosen.reshape(chosen.shape + (1,) * (leaf.ndim - 1))


def _where(chosen: Bool[Array, " B"], new: Any, old: Any) -> Any:
    return jax.tree.map(lambda n, o: jnp.where(_fit(chosen, n), n, o), new, old)


def _achieved(state: SimulatorState) -> Float[Array, "*B G"]:
    if state.achieved_goal is None:
        raise ValueError("env must be goal-conditioned: its states have no achieved goal")
    return state.achieved_goal


def _outcome(step: EnvStep):
    if step.outcome is None:
        raise ValueError("env must be goal-conditioned: its steps have no outcome")
    return step.outcome
