"""The planner that needs no model: straight lines."""

import dataclasses
import math

from jaxagent.types import Plan, SubGoal


@dataclasses.dataclass(frozen=True)
class RulePlanner:
    """Waypoints at equal distances on the straight line to the task's destination.

    Attributes:
        destination: where the task ends, metres.
        spacing: at most this far apart, metres.
        radius: of every sub-goal, metres.
    """

    destination: tuple[float, float]
    spacing: float = 5.0
    radius: float = 1.0

    def plan(self, task: str, position: tuple[float, float]) -> Plan:
        """Divide the line from `position` to the destination; the task's name is not read."""
        offset = [end - start for end, start in zip(self.destination, position)]
        count = max(1, math.ceil(math.hypot(*offset) / self.spacing - 1e-9))
        points = (
            (position[0] + offset[0] * i / count, position[1] + offset[1] * i / count)
            for i in range(1, count + 1)
        )
        return Plan(tuple(SubGoal(point, self.radius) for point in points), "rule")


@dataclasses.dataclass(frozen=True)
class FixedPlanner:
    """A plan that was written down beforehand."""

    fixed: Plan

    def plan(self, task: str, position: tuple[float, float]) -> Plan:
        """The plan as it was given."""
        return self.fixed
