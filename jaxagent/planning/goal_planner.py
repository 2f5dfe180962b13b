"""A language model plans the way of a body: points to reach, in order."""

import dataclasses
import math
from typing import NamedTuple

from jaxagent.planning.asking import AskSettings, PlannerLog, ask
from jaxagent.planning.chat import ChatModel, Message
from jaxagent.planning.parse import RefusedReply, read_json_object, require_keys
from jaxagent.planning.prompt import PromptTooLong, fit_prompt, load_prompt, quoted
from jaxagent.planning.skills import Skill, plan_schema, read_skill, walking_skills
from jaxagent.types import Plan, Planner, SubGoal

PROMPT_FIELDS = ("skills", "task", "observation", "history", "most")


class Attempt(NamedTuple):
    """A sub-goal that was pursued, and how it ended."""

    sub_goal: SubGoal
    result: str  # "reached by 40 % of the episodes"


class Situation(NamedTuple):
    """What a planner is asked about."""

    task: str  # name of the task
    position: tuple[float, float]  # metres, where the plan begins
    heading: float | None = None  # degrees from the world's x axis
    attempts: tuple[Attempt, ...] = ()  # oldest first


@dataclasses.dataclass(frozen=True)
class GoalTask:
    """What is to be planned.

    Attributes:
        words: the task as the model reads it.
        destination: where a plan must end, metres; None accepts any plan.
        arrival_radius: a plan ends at the destination when it ends within this, metres.
        arena: every point of a plan lies within ± this, metres.
        most: sub-goals in a plan.
        radius: of every sub-goal, metres.
    """

    words: str
    destination: tuple[float, float] | None = None
    arrival_radius: float = 1.0
    arena: float = 20.0
    most: int = 8
    radius: float = 1.0

    def __post_init__(self):
        for name in ("arrival_radius", "arena", "radius"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name} ({getattr(self, name)}) must be finite, greater than 0")
        if self.most < 1:
            raise ValueError(f"most ({self.most}) must be at least 1")
        if self.destination and not all(abs(x) <= self.arena for x in self.destination):
            raise ValueError(
                f"destination {self.destination} must lie within ±arena ({self.arena:g}) metres"
            )


class GoalPlanner:
    """Asks a language model for a plan; a second planner takes over where it gives none.

    It is a `jaxagent.types.Planner`, so it stands wherever a rule does. `plan_for` also takes what
    was tried before. Whatever the model writes, the plan holds only white-listed skills in range.
    """

    def __init__(
        self,
        chat: ChatModel,
        task: GoalTask,
        fallback: Planner,
        *,
        settings: AskSettings | None = None,
        skills: tuple[Skill, ...] | None = None,
        prompt: str = "walk",
        log: PlannerLog | None = None,
    ):
        """Bind the model.

        Args:
            chat: the model.
            task: what is planned.
            fallback: plans when no reply can be used.
            settings: how it is asked.
            skills: the white-list; None is `walking_skills` over the task's arena.
            prompt: name or path of the template.
            log: counts; a fresh one if None.

        Raises:
            ValueError: the template cannot be used.
        """
        self.settings = settings or AskSettings()
        self.log = log or PlannerLog()
        self.template = load_prompt(prompt, PROMPT_FIELDS, turn=False)
        self._chat, self._task, self._fallback = chat, task, fallback
        self._skills = skills or walking_skills(task.arena)

    @property
    def identity(self) -> tuple[str, str]:
        """What a cache must tell apart: the model, and prompt, task and settings."""
        prompt = f"{self.template.name}-{self.template.version}"
        return self._chat.name, f"{prompt}-{self._task!r}-{self.settings!r}-{self._skills!r}"

    @property
    def most(self) -> int:
        """Sub-goals that a plan of the model has at most."""
        return self._task.most

    def plan(self, task: str, position: tuple[float, float]) -> Plan:
        """A plan from here, with nothing tried yet."""
        return self.plan_for(Situation(task, position))

    def plan_for(self, situation: Situation) -> Plan:
        """A plan from a situation.

        Args:
            situation: where the body is and what was tried.

        Returns:
            The model's plan, its source the model's name; or the fallback's, whose source says so.
        """
        plan = self.ask_model(situation)
        if plan is not None:
            return plan
        self.log.count("fell_back")
        plan = self._fallback.plan(situation.task, situation.position)
        return plan._replace(source=f"{plan.source} (no usable plan from {self._chat.name})")

    def ask_model(self, situation: Situation) -> Plan | None:
        """The model's own plan; None where it gave none that can be used."""
        room = self._chat.context - self.settings.max_tokens
        try:
            messages, dropped = fit_prompt(
                lambda kept, observation: self._render(situation, kept, observation),
                len(self._shown(situation)),
                _standing(situation),
                room,
                self._chat.count_tokens,
            )
        except PromptTooLong as error:
            self.log.too_long(self._chat.name, error)
            return None
        if dropped:
            self.log.truncated(self._chat.name, self._chat.context)
        return ask(
            self._chat,
            messages,
            self.read,
            schema=plan_schema(self._skills, self._task.most),
            settings=self.settings,
            log=self.log,
        )

    def stop(self) -> None:
        """Let the model answer no more, see `ChatModel.stop`."""
        self._chat.stop()

    def read(self, text: str) -> Plan:
        """A reply as a plan.

        Args:
            text: what the model wrote.

        Raises:
            RefusedReply: it is not one, uses a skill that is not listed or a number out of range,
                or does not lead to the destination.
        """
        task = self._task
        entries = require_keys(read_json_object(text), ("sub_goals",), "a plan")["sub_goals"]
        if not isinstance(entries, list) or not 1 <= len(entries) <= task.most:
            raise RefusedReply("wrong_shape", f"sub_goals must be a list of 1 to {task.most}")
        goals = tuple(read_skill(entry, self._skills, task.radius) for entry in entries)
        if task.destination and math.dist(goals[-1].target, task.destination) > task.arrival_radius:
            raise RefusedReply(
                "misses_destination",
                f"the last sub-goal must lie within {task.arrival_radius:g} metres of "
                f"({task.destination[0]:g}, {task.destination[1]:g})",
            )
        return Plan(goals, self._chat.name)

    def _shown(self, situation: Situation) -> tuple[Attempt, ...]:
        attempts = situation.attempts
        return attempts[max(0, len(attempts) - self.settings.history) :]

    def _render(self, situation: Situation, kept: int, observation: str) -> list[Message]:
        shown = self._shown(situation)
        shown = shown[len(shown) - kept :]
        lines = (f"\n- {_point(a.sub_goal.target)}: <data>{quoted(a.result)}</data>" for a in shown)
        return self.template.messages(
            {
                "skills": "\n".join(f"- {skill.sentence()}" for skill in self._skills),
                "task": quoted(self._task.words),
                "observation": observation,
                "history": "".join(lines) or "none",
                "most": str(self._task.most),
            }
        )


def _point(target: tuple[float, float]) -> str:
    return f"({target[0]:.3g}, {target[1]:.3g})"


def _standing(situation: Situation) -> str:
    if situation.heading is None:
        return _point(situation.position)
    return f"{_point(situation.position)}, facing {situation.heading:.0f} degrees"


def describe_plan(plan: Plan) -> str:
    """The plan in one line, for a run folder and the title of a curve.

    Args:
        plan: any plan.

    Returns:
        For example `(5, 5), (10, 10) facing 45; by rule`.
    """
    points = (
        _point(goal.target) + (f" facing {goal.heading:.0f}" if goal.heading is not None else "")
        for goal in plan.sub_goals
    )
    return f"{', '.join(points)}; by {plan.source}"
