"""The white-list of skills for a body that walks: what a plan may ask for, and within what range.

One list serves three readers: the prompt (a sentence for each skill), constrained decoding (a JSON
schema), and the check of what came back. Whatever a model writes, only these skills with arguments
in range become sub-goals.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from jaxagent.planning.parse import RefusedReply, require_keys
from jaxagent.types import SubGoal


@dataclasses.dataclass(frozen=True)
class Argument:
    """One number that a skill takes.

    Attributes:
        name: its key in the reply.
        low: least value allowed.
        high: greatest value allowed.
        unit: for the prompt.
        choices: what constrained decoding offers, where a range would have too many values to
            spell out; a reply may hold any number in range.
    """

    name: str
    low: float
    high: float
    unit: str
    choices: tuple[int, ...] = ()

    def __post_init__(self):
        if not self.low < self.high:
            raise ValueError(f"{self.name}: low ({self.low}) must be less than high ({self.high})")

    def schema(self) -> dict[str, Any]:
        """The JSON schema of the number."""
        if self.choices:
            return {"enum": list(self.choices)}
        return {"type": "number", "minimum": self.low, "maximum": self.high}

    def read(self, value: Any) -> float:
        """The value, if it is a number in range.

        Raises:
            RefusedReply: wrong_shape, not_finite or out_of_range.
        """
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise RefusedReply("wrong_shape", f"{self.name} must be a number")
        if isinstance(value, float) and not math.isfinite(value):
            raise RefusedReply("not_finite", f"{self.name} must be finite")
        if not self.low <= value <= self.high:
            rule = f"{self.name} must lie in [{self.low:g}, {self.high:g}] {self.unit}"
            raise RefusedReply("out_of_range", rule)
        return float(value)


@dataclasses.dataclass(frozen=True)
class Skill:
    """Something the body can be told to do.

    Attributes:
        name: its key in the reply.
        arguments: numbers it takes, all of them required.
        meaning: for the prompt.
    """

    name: str
    arguments: tuple[Argument, ...]
    meaning: str

    def sentence(self) -> str:
        """How the prompt explains it."""
        ranges = ", ".join(
            f"{a.name} from {a.low:g} to {a.high:g} {a.unit}" for a in self.arguments
        )
        return f"{self.name}: {self.meaning}; {ranges}"

    def schema(self) -> dict[str, Any]:
        """The JSON schema of one use of the skill."""
        numbers = {a.name: a.schema() for a in self.arguments}
        return {
            "type": "object",
            "properties": {"skill": {"type": "string", "enum": [self.name]}, **numbers},
            "required": ["skill", *numbers],
            "additionalProperties": False,
        }


def walking_skills(arena: float = 20.0) -> tuple[Skill, ...]:
    """What the Ant can be told.

    Args:
        arena: targets lie within ± this many metres of the origin, on both axes.
    """
    x, y = (Argument(name, -arena, arena, "metres") for name in ("x", "y"))
    heading = Argument(
        "heading", -180.0, 180.0, "degrees, 0 east, 90 north", tuple(range(-135, 181, 45))
    )
    return (
        Skill("walk_to", (x, y), "walk to the point (x, y)"),
        Skill("walk_facing", (x, y, heading), "walk to the point (x, y) while facing heading"),
    )


def read_skill(value: Any, skills: tuple[Skill, ...], radius: float) -> SubGoal:
    """One entry of a reply as a sub-goal.

    Args:
        value: {"skill": NAME, argument: number, ...}.
        skills: the white-list.
        radius: of the sub-goal, metres; not for the model to choose, a wide one is reached
            without walking.

    Returns:
        The sub-goal; every number in it is in range.

    Raises:
        RefusedReply: the entry is not a use of a listed skill.
    """
    if not isinstance(value, Mapping) or not isinstance(value.get("skill"), str):
        raise RefusedReply("wrong_shape", "a sub-goal must be an object with a skill")
    skill = next((skill for skill in skills if skill.name == value["skill"]), None)
    if skill is None:
        known = ", ".join(skill.name for skill in skills)
        raise RefusedReply("unknown_skill", f"{value['skill'][:40]!r} is not among {known}")
    require_keys(value, ("skill", *(a.name for a in skill.arguments)), skill.name)
    numbers = {a.name: a.read(value[a.name]) for a in skill.arguments}
    return SubGoal((numbers["x"], numbers["y"]), radius, numbers.get("heading"))


def plan_schema(skills: tuple[Skill, ...], most: int) -> dict[str, Any]:
    """The JSON schema of a plan: {"sub_goals": [a use of a skill, ...]}.

    Args:
        skills: the white-list.
        most: sub-goals in a plan.
    """
    uses = [skill.schema() for skill in skills]
    return {
        "type": "object",
        "properties": {
            "sub_goals": {
                "type": "array",
                "minItems": 1,
                "maxItems": most,
                "items": uses[0] if len(uses) == 1 else {"anyOf": uses},
            }
        },
        "required": ["sub_goals"],
        "additionalProperties": False,
    }
