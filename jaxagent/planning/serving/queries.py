"""What serving has to know of a kind of question, and that of plans."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

import numpy as np

from jaxagent.planning.goal_planner import Situation
from jaxagent.planning.plans import dump_plan
from jaxagent.types import Plan, SubGoal

Query = TypeVar("Query", contravariant=True)
Answer = TypeVar("Answer")


class QueryKind(Protocol[Query, Answer]):
    """How questions are told apart, compared and written down."""

    def exact(self, query: Query) -> str:
        """Everything in the question that the answer depends on."""
        ...

    def bucket(self, query: Query) -> str:
        """The same, rounded: questions of one bucket may share an answer."""
        ...

    def group(self, query: Query) -> str:
        """Questions of different groups never stand in for each other (the task)."""
        ...

    def features(self, query: Query) -> Sequence[float]:
        """The question as a point, near to questions with similar answers."""
        ...

    def dump(self, answer: Answer) -> Any:
        """The answer as JSON can hold it."""
        ...

    def load(self, data: Any) -> Answer:
        """Back again; ValueError if it is no answer."""
        ...

    def difference(self, one: Answer, other: Answer) -> float:
        """How far apart two answers are, 0 for the same."""
        ...


@dataclasses.dataclass(frozen=True)
class PlanQueries:
    """Questions for a plan: a `Situation` goes in, a `Plan` comes out.

    Attributes:
        metres: side of a bucket of positions.
        degrees: width of a bucket of headings.
    """

    metres: float = 1.0
    degrees: float = 45.0

    def __post_init__(self):
        if self.metres <= 0 or self.degrees <= 0:
            raise ValueError(
                f"metres ({self.metres}) and degrees ({self.degrees}) must be greater than 0"
            )

    def exact(self, query: Situation) -> str:
        """Task, position, heading and all attempts."""
        return repr(query)

    def bucket(self, query: Situation) -> str:
        """Task, place and direction, and where and how earlier attempts ended."""
        place = tuple(round(x / self.metres) for x in query.position)
        turn = None if query.heading is None else round((query.heading % 360) / self.degrees)
        tried = tuple(
            (*(round(x / self.metres) for x in a.sub_goal.target), a.result) for a in query.attempts
        )
        return repr((query.task, place, turn, tried))

    def group(self, query: Situation) -> str:
        """The task."""
        return query.task

    def features(self, query: Situation) -> tuple[float, ...]:
        """Position in buckets, the heading's direction, and how much was tried."""
        angle = None if query.heading is None else math.radians(query.heading)
        facing = (0.0, 0.0) if angle is None else (math.cos(angle), math.sin(angle))
        x, y = query.position
        return (x / self.metres, y / self.metres, *facing, float(len(query.attempts)))

    def dump(self, answer: Plan) -> dict[str, Any]:
        """Sub-goals and source."""
        return dump_plan(answer) | {"source": answer.source}

    def load(self, data: Any) -> Plan:
        """Read what `dump` wrote.

        Raises:
            ValueError: it is something else.
        """
        try:
            goals = tuple(_sub_goal(entry) for entry in data["sub_goals"])
            source = data["source"]
        except (KeyError, TypeError, AttributeError, OverflowError) as error:
            raise ValueError(f"not a plan: {type(error).__name__}") from None
        numbers = [n for g in goals for n in (*g.target, g.radius, g.heading or 0.0)]
        if not goals or not isinstance(source, str) or not all(map(math.isfinite, numbers)):
            raise ValueError("not a plan: no sub-goals, no source, or a number that is not finite")
        return Plan(goals, source)

    def difference(self, one: Plan, other: Plan) -> float:
        """Mean distance between two ways, metres.

        Both are followed from their first to their last sub-goal at equal shares of their length.
        """
        return float(np.linalg.norm(_way(one) - _way(other), axis=-1).mean())


def _sub_goal(entry: Any) -> SubGoal:
    x, y = entry["target"]
    heading = entry.get("heading")
    return SubGoal(
        (float(x), float(y)), float(entry["radius"]), None if heading is None else float(heading)
    )


def _way(plan: Plan, points: int = 16) -> np.ndarray:
    """Points at equal distances along a plan, [points, 2]."""
    target = np.array([goal.target for goal in plan.sub_goals], np.float64)
    length = np.append(0.0, np.cumsum(np.linalg.norm(np.diff(target, axis=0), axis=-1)))
    at = np.linspace(0.0, length[-1], points)
    return np.stack([np.interp(at, length, target[:, axis]) for axis in (0, 1)], axis=-1)
