"""The plan of a training run: made at the start, watched, and made anew when it leads nowhere.

How a host loop uses it; the loop never waits, except for the first plan:

    guide = PlanGuide(make_planner(name, task, rule), rule, "corner", (0.0, 0.0),
                      replan=ReplanRule(patience=3), cache_folder=folder / "plans")
    plan = guide.begin()                         # waits: training starts with a plan
    guidance = Guidance(config, plan, ..., plan_capacity=guide.capacity)
    ...
    after each evaluation, which shows where the policy gets to (or every N iterations):
        path = np.asarray(evaluation.path)       # [S, E, L, 2], all seeds follow one plan
        plan = guide.review(number, path.reshape(-1, *path.shape[2:]))
        if plan is not None:
            state = state.replace(guidance=programs.change_plan(
                state.guidance, plan_arrays(plan, guide.capacity),
                state.env.simulator.body.position[..., :2]))
    host state of a checkpoint: guide.snapshot(), guide.restore(...)
    run folder: guide.summary(), describe_plan(guide.plan); at the end guide.close()

What replanning needs of the trainer: `plan` among the replicated parts of the guidance state's
specs, and one more program, compiled once as `observe_evaluation` is:

    change_plan = jax.jit(jax.vmap(guidance.change_plan, in_axes=(0, None, 0)),
                          out_shardings=placed(specs.guidance))

With several processes only one may ask; it broadcasts the plan to the others.
"""

import pathlib
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxagent.planning.goal_planner import Attempt, GoalPlanner, Situation, describe_plan
from jaxagent.planning.serving.cache import AnswerCache
from jaxagent.planning.serving.predictor import NearestAnswer
from jaxagent.planning.serving.queries import PlanQueries
from jaxagent.planning.serving.replanning import ReplanRule, ReplanTrigger
from jaxagent.planning.serving.router import Router, Source
from jaxagent.planning.serving.service import Advice, GuidanceService, ServiceSettings
from jaxagent.types import Plan, Planner, SubGoal


class PlanProgress(NamedTuple):
    """How far a policy got along a plan."""

    attempts: tuple[Attempt, ...]  # one for each sub-goal that some episode was at
    metres_to_go: float  # least in each episode, mean over those that were ever at a finite
    # place; 0 when all arrived, infinite when none was
    arrived: float  # share of the episodes that reached every sub-goal, in order


def judge_plan(plan: Plan, path: np.ndarray) -> PlanProgress:
    """Follow a plan along the paths of an evaluation.

    Args:
        plan: sub-goals in order.
        path: where the body was, metres, [E, L, 2]; rows after an episode's end repeat its last.

    Raises:
        ValueError: the path is of another shape, or the plan has no sub-goal.
    """
    path = np.asarray(path, np.float64)
    if path.ndim != 3 or path.shape[-1] != 2 or 0 in path.shape or not plan.sub_goals:
        raise ValueError(f"path {path.shape} must be [E, L, 2], the plan not empty")
    target = np.array([goal.target for goal in plan.sub_goals], np.float64)
    radius = np.array([goal.radius for goal in plan.sub_goals])
    legs = np.linalg.norm(np.diff(target, axis=0), axis=-1)
    remaining = np.append(np.cumsum(legs[::-1])[::-1], 0.0)
    count = len(target)
    cursor = np.zeros(len(path), int)
    least = np.full(len(path), np.inf)
    for here in path.swapaxes(0, 1):
        at = np.minimum(cursor, count - 1)
        distance = np.linalg.norm(here - target[at], axis=-1)
        # A simulation that left the finite numbers is where it was.
        to_go = np.where(cursor < count, np.nan_to_num(distance, nan=np.inf) + remaining[at], 0.0)
        least = np.minimum(least, to_go)
        cursor += (cursor < count) & (distance < radius[at])
    least = np.where(cursor == count, 0.0, least)
    known = least[np.isfinite(least)]  # one lost episode does not hide how far the others get
    attempts = tuple(
        Attempt(goal, _result(cursor, i, path[:, -1]))
        for i, goal in enumerate(plan.sub_goals)
        if (cursor >= i).any()
    )
    to_go = float(known.mean()) if len(known) else np.inf
    return PlanProgress(attempts, to_go, float(np.mean(cursor == count)))


def _result(cursor: np.ndarray, index: int, last: np.ndarray) -> str:
    """How a sub-goal ended, in words."""
    tried, stuck = cursor >= index, cursor == index
    share = f"reached in {(cursor > index).sum()} of {tried.sum()} attempts"
    where = last[stuck & np.isfinite(last).all(axis=-1)]
    if not len(where):
        return share
    x, y = where.mean(axis=0)
    return f"{share}, otherwise stopped near ({x:.0f}, {y:.0f})"


class PlanGuide:
    """The plan that training is guided by now, and who is asked for the next one."""

    def __init__(
        self,
        planner: Planner,
        rule: Planner,
        task: str,
        position: tuple[float, float],
        *,
        replan: ReplanRule | None = None,
        cache_folder: str | pathlib.Path | None = None,
        service_settings: ServiceSettings | None = None,
        wait: bool = False,
        history: int = 8,
        clock: Callable[[], float] = time.monotonic,
    ):
        """Start the service; nothing is asked yet.

        Args:
            planner: a `GoalPlanner`, or any other, which then always gives the same plan.
            rule: takes over where the planner has no usable answer.
            task: name of the task.
            position: where episodes begin, metres.
            replan: when the plan is made anew, in calls of `review`.
            cache_folder: where answers outlive the run; None keeps them in memory.
            service_settings: timeouts, queues and breakers.
            wait: `review` stays until the answer is there, for runs that must be repeatable.
            history: attempts that are remembered.
            clock: seconds.
        """
        self._planner, self._rule = planner, rule
        self._start = Situation(task, position)
        self._trigger = ReplanTrigger(replan or ReplanRule())
        self._wait, self._history = wait, history
        self._attempts: tuple[Attempt, ...] = ()
        self._question: Situation | None = None
        self._reason = ""
        self._plan: Plan | None = None
        self.events: list[dict[str, Any]] = []
        kind = PlanQueries()
        self._kind = kind
        self._service = GuidanceService(
            kind,
            Router(_sources(planner, rule)),
            cache=AnswerCache(folder=cache_folder),
            predictor=NearestAnswer(kind),
            settings=service_settings,
            clock=clock,
        )

    @property
    def plan(self) -> Plan:
        """The plan that is followed now.

        Raises:
            RuntimeError: there is none before `begin` or `restore`.
        """
        if self._plan is None:
            raise RuntimeError("there is no plan before begin()")
        return self._plan

    @property
    def capacity(self) -> int:
        """Sub-goals that the longest plan of the planner or the rule has."""
        longest = len(self._rule.plan(self._start.task, self._start.position).sub_goals)
        planner = self._planner
        if isinstance(planner, GoalPlanner):
            return max(longest, planner.most)
        return max(longest, len(planner.plan(self._start.task, self._start.position).sub_goals))

    def begin(self) -> Plan:
        """The first plan; waits for it, and takes the rule's when time is up."""
        advice = self._service.wait(self._start)
        if advice.answer is None:
            plan = self._rule.plan(self._start.task, self._start.position)
            advice = Advice(plan._replace(source=f"{plan.source} (no answer in time)"), "none")
        self._adopt(0, "start", advice)
        return self.plan

    def review(self, step: int, path: np.ndarray) -> Plan | None:
        """Look at how far the policy gets; ask for a new plan where that is needed.

        Args:
            step: a number that grows from call to call, that of the evaluation for example.
            path: the evaluation's paths, metres, [E, L, 2].

        Returns:
            The plan to go on with where it is another than before; None otherwise, also while an
            answer is on its way.
        """
        progress = judge_plan(self.plan, path)
        if self._question is None:
            reason = self._trigger.due(step, -progress.metres_to_go)
            # Most arrive: the plan is good, however little is left to improve.
            if reason is None or (reason == "no_progress" and progress.arrived > 0.5):
                return None
            tried = (*self._attempts, *progress.attempts)
            tried = tried[max(0, len(tried) - self._history) :]
            self._question, self._reason = self._start._replace(attempts=tried), reason
        ask = self._service.wait if self._wait else self._service.ask
        advice = ask(self._question)
        if advice.answer is None or advice.is_stale:
            return None
        before = self.plan
        self._adopt(step, self._reason, advice)
        return self.plan if self.plan.sub_goals != before.sub_goals else None

    def _adopt(self, step: int, reason: str, advice: Advice[Plan]) -> None:
        if self._question is not None:
            self._attempts, self._question = self._question.attempts, None
        self._plan = advice.answer
        self._trigger.planned(step)
        self.events.append(
            {
                "step": step,
                "reason": reason,
                "origin": advice.origin,
                "plan": describe_plan(self.plan),
            }
        )

    def summary(self) -> dict[str, Any]:
        """Everything that happened, as plain data for the run folder.

        Returns:
            plan (in words), events (every plan with its step and reason), planner (counts of a
            language model, accepted_share among them; None for others), service (metrics).
        """
        planner = self._planner
        return {
            "plan": describe_plan(self.plan),
            "events": list(self.events),
            "planner": planner.log.summary() if isinstance(planner, GoalPlanner) else None,
            "service": self._service.metrics(),
        }

    def snapshot(self) -> dict[str, Any]:
        """What a checkpoint keeps, as JSON can hold it; a question under way is asked again."""
        return {
            "plan": self._kind.dump(self.plan),
            "attempts": [[_dump_goal(a.sub_goal), a.result] for a in self._attempts],
            "trigger": self._trigger.snapshot(),
            "events": list(self.events),
        }

    def restore(self, values: dict[str, Any]) -> Plan:
        """Take up what `snapshot` gave, without asking anybody."""
        self._plan = self._kind.load(values["plan"])
        self._attempts = tuple(Attempt(_goal(g), str(result)) for g, result in values["attempts"])
        self._trigger.restore(values["trigger"])
        self.events = list(values["events"])
        self._question = None
        return self.plan

    def close(self) -> None:
        """End the service's threads, see `GuidanceService.close`."""
        self._service.close()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.close()


def _sources(planner: Planner, rule: Planner) -> list[Source[Situation, Plan]]:
    """The planner, and below it the rule."""
    if planner is rule:
        return [Source("rule", _by(rule), repr(rule), latency=0.0)]
    if not isinstance(planner, GoalPlanner):
        return [Source("planner", _by(planner), repr(planner), latency=0.0)]
    name, version = planner.identity

    def fall_back(situation: Situation) -> Plan:
        planner.log.count("fell_back")
        plan = rule.plan(situation.task, situation.position)
        return plan._replace(source=f"{plan.source} (no usable plan from {name})")

    return [
        # Worth an hour's wait at the router's price: training does not stand still meanwhile.
        Source(name, planner.ask_model, version, quality=100.0, latency=10.0, stop=planner.stop),
        Source("rule", fall_back, repr(rule) + name, quality=0.0, latency=0.0),
    ]


def _by(planner: Planner) -> Callable[[Situation], Plan]:
    return lambda situation: planner.plan(situation.task, situation.position)


def _dump_goal(goal: SubGoal) -> list[Any]:
    return [list(goal.target), goal.radius, goal.heading]


def _goal(values: Sequence[Any]) -> SubGoal:
    (x, y), radius, heading = values
    return SubGoal((float(x), float(y)), float(radius), heading)
