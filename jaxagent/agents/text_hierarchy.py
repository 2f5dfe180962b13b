"""The hierarchical agent on the host: a planner of words over the same skill.

One body, one sub-goal at a time. The skill itself runs jitted until the sub-goal ends
(`jaxagent.agents.hierarchy`); only words and outcomes cross over.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from jaxagent.agents.hierarchy import (
    Aim,
    Outcome,
    Pursuit,
    PursuitConfig,
    SkillAction,
    SubGoalSegments,
    Verdict,
    begin_pursuit,
    follow_pursuit,
)
from jaxagent.types import Env, EnvState, SubGoal

# (words, position in metres, heading in degrees) -> what they mean; ValueError refuses them.
ReadSubGoal = Callable[[str, tuple[float, float], float], SubGoal]


class Attempt(NamedTuple):
    """A sub-goal in words, and how it ended."""

    sub_goal: str
    result: str


# (observation in words, task, attempts oldest first) -> the next sub-goal; None: all done.
TextPlanner = Callable[[str, str, Sequence[Attempt]], str | None]


class TextEpisode(NamedTuple):
    """One episode: what was said, and the segments as arrays with B = 1."""

    attempts: tuple[Attempt, ...]
    segments: SubGoalSegments
    verdict: Verdict
    path: np.ndarray  # [steps + 1, G], achieved goals


class _Pursued(NamedTuple):
    """A sub-goal that ended; rows of `path` after its duration repeat the last."""

    env: EnvState
    outcome: Int[Array, ""]
    duration: Int[Array, ""]
    reward: Float[Array, ""]
    discount: Float[Array, ""]
    path: Float[Array, "L G"]


class _Segment(NamedTuple):
    start: int
    duration: int
    goal: tuple[float, ...]
    reward: float
    discount: float
    outcome: int


@dataclasses.dataclass
class _Episode:
    """What an episode holds so far."""

    env: EnvState
    facing: float  # degrees: what "forward" means, the way of the last move or turn
    turns: int = 0
    attempts: list[Attempt] = dataclasses.field(default_factory=list)
    segments: list[_Segment] = dataclasses.field(default_factory=list)
    path: list[np.ndarray] = dataclasses.field(default_factory=list)
    refusals: int = 0  # in a row

    @property
    def position(self) -> tuple[float, float]:
        x, y = np.asarray(self.env.simulator.achieved_goal)[0]
        return float(x), float(y)

    @property
    def heading(self) -> float:
        """Where the body faces, degrees."""
        ahead = np.asarray(self.env.simulator.body.heading)[0]
        return math.degrees(math.atan2(ahead[1], ahead[0]))

    @property
    def speed(self) -> float:
        """Of the body over the ground, metres a second."""
        return float(np.linalg.norm(np.asarray(self.env.simulator.body.velocity)[0, :2]))


class TextHierarchy:
    """A planner of words over a skill whose goals are points of the plane."""

    def __init__(
        self,
        env: Env,
        aim: Aim,
        skill: SkillAction,
        read: ReadSubGoal,
        config: PursuitConfig,
        *,
        max_segments: int = 20,
        max_refusals: int = 3,
        stop_speed: float = 0.2,
    ):
        """Bind the skill.

        Args:
            env: goal-conditioned environments that go on after a success.
            aim: gives a state of `env` another goal.
            skill: what acts.
            read: what words mean; what it refuses goes back to the planner with the reason.
            config: when a sub-goal is given back.
            max_segments: N; the episode ends with its Nth sub-goal, turns among them.
            max_refusals: in a row; then the episode is given up.
            stop_speed: a body slower than this stands, metres a second.

        Raises:
            ValueError: max_segments or max_refusals is less than 1, or stop_speed is not positive.
        """
        for name, value in (("max_segments", max_segments), ("max_refusals", max_refusals)):
            if value < 1:
                raise ValueError(f"{name} ({value}) must be at least 1")
        if not 0 < stop_speed < math.inf:
            raise ValueError(f"stop_speed ({stop_speed}) must be a positive, finite number")
        self.env, self.config, self._read = env, config, read
        self.stop_speed = stop_speed
        self.max_segments, self.max_refusals = max_segments, max_refusals
        self._aim, self._skill = aim, skill
        self._reset, self._pursue = jax.jit(env.reset), jax.jit(self._run_skill)

    def play(self, planner: TextPlanner, task: str, key: PRNGKeyArray) -> TextEpisode:
        """One episode.

        "Forward" is the way of the last move, towards the point that it was for, or of the last
        turn; at the start it is where the body faces. A skill that reaches points cannot turn on
        the spot: a turn sets the direction, takes no steps, and is neither a success nor a segment.
        A stop succeeds once the body is slower than `stop_speed`. A point that the body is already
        at is reached in no steps.

        Args:
            planner: who names the sub-goals.
            task: handed to it as it is.
            key: of the start, and of what the skill samples.
        """
        start_key, act_key = jax.random.split(key)
        env = self._reset(start_key[None])
        episode = _Episode(env, 0.0)
        episode.facing = episode.heading
        episode.path.append(np.asarray(env.simulator.achieved_goal))
        verdict = Verdict.GO_ON
        while verdict == Verdict.GO_ON and self._given(episode) < self.max_segments:
            said = planner(_describe(episode), task, tuple(episode.attempts))
            if said is None:
                verdict = Verdict.COMPLETE
            elif not self._attempt(episode, said, act_key):
                break
            elif episode.refusals >= self.max_refusals:
                verdict = Verdict.GIVE_UP
        return self._result(episode, verdict)

    def _attempt(self, episode: _Episode, said: str, key: PRNGKeyArray) -> bool:
        """Pursue one sub-goal; whether the episode can go on."""
        try:
            sub_goal = self._read(said, episode.position, episode.facing)
        except ValueError as refusal:
            episode.attempts.append(Attempt(said, f"refused: {refusal}"))
            episode.refusals += 1
            return True
        episode.refusals = 0
        if sub_goal.heading is not None:
            episode.facing = sub_goal.heading
            episode.turns += 1
            told = (
                f"forward is now {sub_goal.heading:.0f} degrees from east; the body does not turn"
            )
            episode.attempts.append(Attempt(said, told))
            return True
        # Words that name the place where the body is, to the digit, ask for no move.
        stop = sub_goal.target == episode.position
        start = sum(segment.duration for segment in episode.segments)
        way = [there - here for here, there in zip(episode.position, sub_goal.target)]
        at_rest = episode.speed < self.stop_speed
        if at_rest if stop else math.hypot(*way) < sub_goal.radius:
            segment = _Segment(start, 0, sub_goal.target, 0.0, 1.0, int(Outcome.SUCCESS))
        else:
            segment = self._run(episode, sub_goal, stop, start, key)
        if not stop:
            episode.facing = math.degrees(math.atan2(way[1], way[0]))
        episode.segments.append(segment)
        episode.attempts.append(Attempt(said, _words(segment, episode, stop)))
        return segment.outcome not in (Outcome.FELL, Outcome.CUT)

    def _given(self, episode: _Episode) -> int:
        return len(episode.segments) + episode.turns

    def _run(self, episode: _Episode, sub_goal: SubGoal, stop: bool, start: int, key) -> _Segment:
        noise = jax.random.fold_in(key, self._given(episode))
        goal = jnp.array([sub_goal.target], jnp.float32)
        pursued = self._pursue(episode.env, goal, jnp.array(stop), noise)
        episode.env = pursued.env
        duration = int(pursued.duration)
        episode.path.append(np.asarray(pursued.path)[:duration])
        return _Segment(
            start,
            duration,
            sub_goal.target,
            float(pursued.reward),
            float(pursued.discount),
            int(pursued.outcome),
        )

    def _run_skill(
        self, env: EnvState, goal: Float[Array, "1 G"], stop: Bool[Array, ""], key: PRNGKeyArray
    ) -> _Pursued:
        """The skill until the sub-goal ends, a stop when the body stands; jitted."""
        env = env.replace(simulator=jax.vmap(self._aim)(env.simulator, goal))
        achieved = jnp.asarray(env.simulator.achieved_goal)
        pursuit = begin_pursuit(jnp.sqrt(jnp.sum((achieved - goal) ** 2, axis=-1)))
        zero, one = jnp.zeros(1), jnp.ones(1)
        path = jnp.zeros((self.config.timeout_steps, goal.shape[-1]))
        none = jnp.zeros(1, jnp.int32)

        def advance(carry):
            env, pursuit, _, reward, discount, path = carry
            noise = jax.random.fold_in(key, pursuit.elapsed[0])
            env, step = self.env.step(env, self._skill(env.simulator.observation, noise[None]))
            path = path.at[pursuit.elapsed[0]].set(jnp.asarray(step.next_achieved_goal)[0])
            speed = jnp.linalg.norm(step.next_body.velocity[..., :2], axis=-1)
            success = jnp.where(stop, speed < self.stop_speed, step.success)
            pursuit, outcome = follow_pursuit(self.config, pursuit, step._replace(success=success))
            reward = reward + discount * step.reward
            discount = discount * self.config.discount_factor * (1.0 - step.terminated)
            return env, pursuit, outcome, reward, discount, path

        start: tuple[EnvState, Pursuit, Array, Array, Array, Array]
        start = (env, pursuit, none, zero, one, path)
        carry = jax.lax.while_loop(lambda c: c[2][0] == Outcome.RUNNING, advance, start)
        env, pursuit, outcome, reward, discount, path = carry
        return _Pursued(env, outcome[0], pursuit.elapsed[0], reward[0], discount[0], path)

    def _result(self, episode: _Episode, verdict: Verdict) -> TextEpisode:
        rows = episode.segments
        blank = _Segment(0, 0, (0.0,) * episode.path[0].shape[-1], 0.0, 0.0, 0)
        padded = rows + [blank] * (self.max_segments - len(rows))
        start, duration, goal, reward, discount, outcome = (
            jnp.asarray(np.array(column)[:, None]) for column in zip(*padded)
        )
        live = jnp.arange(self.max_segments) < len(rows)
        segments = SubGoalSegments(start, duration, goal, reward, discount, outcome, live[:, None])
        return TextEpisode(tuple(episode.attempts), segments, verdict, np.concatenate(episode.path))


def _describe(episode: _Episode) -> str:
    x, y = episode.position
    return (
        f"at ({x:.1f}, {y:.1f}) metres, facing {episode.heading:.0f} degrees from east; "
        f"forward is {episode.facing:.0f} degrees"
    )


def _words(segment: _Segment, episode: _Episode, stop: bool) -> str:
    how = {
        Outcome.SUCCESS: "stopped" if stop else "reached",
        Outcome.TIMEOUT: "not reached in time",
        Outcome.NO_PROGRESS: "not reached: no more progress",
        Outcome.FELL: "fell",
        Outcome.CUT: "cut off by the time limit",
    }[Outcome(segment.outcome)]
    if segment.outcome in (Outcome.FELL, Outcome.CUT):
        return f"{how} after {segment.duration} steps"
    if stop and segment.outcome != Outcome.SUCCESS:
        how = f"not stopped, still moving at {episode.speed:.1f} metres a second"
    x, y = episode.position
    return f"{how} after {segment.duration} steps, now at ({x:.1f}, {y:.1f}) metres"
