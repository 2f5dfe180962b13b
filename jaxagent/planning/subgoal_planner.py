"""A language model says which sub-goal a text agent pursues next."""

import re
from collections.abc import Iterable
from typing import Any, NamedTuple

from jaxagent.planning.asking import AskSettings, PlannerLog, ask
from jaxagent.planning.chat import ChatModel, Message
from jaxagent.planning.parse import RefusedReply, read_json_object, require_keys
from jaxagent.planning.prompt import (
    PromptTemplate,
    PromptTooLong,
    fit_prompt,
    load_prompt,
    quoted,
)
from jaxagent.planning.text_agent import (
    SUBGOAL_VERBS,
    PlannerView,
    Result,
    TextPlanner,
    allowed_subgoal,
)

PROMPT_FIELDS = ("task", "observation", "results")
_VERBS = tuple(verb for verb in SUBGOAL_VERBS if verb != "put")
_NUMBERED = re.compile(r"\b([a-z]+) \d+\b")
_WORD = re.compile(r"[a-z]+")
# Words of the benchmark's task sentences that name nothing.
_TASK_WORDS = frozenset(
    "a all an and at clean cool examine find heat hot in it look of on put some the them to two "
    "under with".split()
)


class _Exchange(NamedTuple):
    """What the planner answered, and what came of it."""

    reply: str
    results: str
    observation: str


class SubGoalPlanner:
    """Asks a language model for each sub-goal; a second planner takes over where it gives none.

    It is a `TextPlanner` for one episode. The conversation only grows at its end, so a model that
    keeps its cache reads every observation once. Whatever the model writes, a proposal has a
    listed verb and names only what the episode's texts have named.
    """

    def __init__(
        self,
        chat: ChatModel,
        fallback: TextPlanner,
        *,
        settings: AskSettings | None = None,
        prompt: str = "household",
        log: PlannerLog | None = None,
    ):
        """Bind the model.

        Args:
            chat: the model; it may serve many planners.
            fallback: proposes when no reply can be used; asked often, so it must be cheap.
            settings: how it is asked.
            prompt: name or path of the template.
            log: counts; may be shared by the planners of many episodes.

        Raises:
            ValueError: the template cannot be used.
        """
        self.settings = settings or AskSettings(max_tokens=64)
        self.log = log or PlannerLog()
        self.template: PromptTemplate = load_prompt(prompt, PROMPT_FIELDS, turn=True)
        self._chat, self._fallback = chat, fallback
        self._begin(PlannerView("", "", (), (), ()))

    def propose(self, view: PlannerView) -> str:
        """The next sub-goal.

        Args:
            view: what the loop knows; a view with another task, or with fewer results than
                before, begins a new episode.

        Returns:
            A sub-goal on the white-list; "" when the fallback has none either.
        """
        if view.task != self._task or len(view.results) < self._told:
            self._begin(view)
        elif not self._pending and view.observation == self._asked:
            return ""  # asked a moment ago, to no avail: the loop asks several times in a row
        elif self._pending:
            new = view.results[self._told :]
            results = "; ".join(f"{r.subgoal}: {r.outcome}" for r in new)
            self._exchanges.append(_Exchange(self._pending, results, view.observation))
        self._told, self._asked = len(view.results), view.observation
        self._names |= set(_names(view))
        proposal = self._ask_model(view) or self._fall_back(view)
        self._pending = _written(proposal)
        return proposal

    def _begin(self, view: PlannerView) -> None:
        self._task, self._opening = view.task, view.observation
        self._told, self._pending, self._asked = 0, "", None
        self._exchanges: list[_Exchange] = []
        self._names: set[str] = set()

    def _fall_back(self, view: PlannerView) -> str:
        self.log.count("fell_back")
        proposal = self._fallback.propose(self._as_fallback_sees(view)).strip().lower()
        return proposal if allowed_subgoal(proposal) else ""

    def _as_fallback_sees(self, view: PlannerView) -> PlannerView:
        """The view without sub-goals that the fallback would not have asked for.

        Rules count what is done to know what comes next; the model's detours are none of theirs.
        """
        theirs: list[Result] = []
        for result in view.results:
            before = view._replace(results=tuple(theirs))
            if result.outcome != "done" or self._fallback.propose(before) == result.subgoal:
                theirs.append(result)
        return view._replace(results=tuple(theirs))

    def _ask_model(self, view: PlannerView) -> str | None:
        if not self._names:
            return None  # nothing can be named: there is no sub-goal to choose
        kept = min(len(self._exchanges), self.settings.history)
        room = self._chat.context - self.settings.max_tokens
        try:
            messages, dropped = fit_prompt(
                self._render, kept, view.observation, room, self._chat.count_tokens
            )
        except PromptTooLong as error:
            self.log.too_long(self._chat.name, error)
            return None
        if dropped:
            self.log.truncated(self._chat.name, self._chat.context)
        return ask(
            self._chat,
            messages,
            lambda text: read_subgoal(text, self._names),
            schema=subgoal_schema(self._names),
            settings=self.settings,
            log=self.log,
        )

    def _render(self, kept: int, observation: str) -> list[Message]:
        shown = self._exchanges[len(self._exchanges) - kept :]
        if shown:
            shown[-1] = shown[-1]._replace(observation=observation)
        # Where no exchange is shown the newest observation stands in the opening's place.
        opening = self._opening if shown else observation
        values = {"task": quoted(self._task), "observation": quoted(opening)}
        messages = self.template.messages(values)
        for exchange in shown:
            told = {
                "results": quoted(exchange.results),
                "observation": quoted(exchange.observation),
            }
            messages.append(Message("assistant", exchange.reply))
            messages.append(self.template.turn(values | told))
        return messages


def subgoal_schema(names: Iterable[str]) -> dict[str, Any]:
    """The JSON schema of one sub-goal.

    Args:
        names: things and places that may be named.
    """
    name = {"type": "string", "enum": sorted(names)}
    shapes = (
        {"verb": {"type": "string", "enum": list(_VERBS)}, "thing": name},
        {"verb": {"type": "string", "enum": ["put"]}, "thing": name, "place": name},
    )
    return {
        "anyOf": [
            {
                "type": "object",
                "properties": shape,
                "required": list(shape),
                "additionalProperties": False,
            }
            for shape in shapes
        ]
    }


def read_subgoal(text: str, names: Iterable[str]) -> str:
    """A reply as a sub-goal.

    Args:
        text: what the model wrote.
        names: things and places that may be named.

    Returns:
        For example "take egg" or "put egg in/on fridge".

    Raises:
        RefusedReply: it is not one, or names something else.
    """
    value = read_json_object(text)
    keys = ("verb", "thing", "place") if value.get("verb") == "put" else ("verb", "thing")
    parts = require_keys(value, keys, "a sub-goal")
    if parts["verb"] not in SUBGOAL_VERBS:
        rule = f"the verb must be one of {', '.join(SUBGOAL_VERBS)}"
        raise RefusedReply("unknown_skill", rule)
    known = set(names)
    for key in keys[1:]:
        if not isinstance(parts[key], str) or parts[key] not in known:
            raise RefusedReply("not_allowed", f"{key} must be one of the names that were read")
    subgoal = f"{parts['verb']} {parts['thing']}"
    subgoal += f" in/on {parts['place']}" if "place" in parts else ""
    if not allowed_subgoal(subgoal):
        raise RefusedReply("not_allowed", f"{subgoal[:60]!r} is no sub-goal")
    return subgoal


def _written(subgoal: str) -> str:
    """The reply that `read_subgoal` reads as this sub-goal."""
    if not subgoal:
        return ""
    verb, _, rest = subgoal.partition(" ")
    thing, _, place = rest.partition(" in/on ")
    place = f', "place": "{place}"' if place else ""
    return f'{{"verb": "{verb}", "thing": "{thing}"{place}}}'


def _names(view: PlannerView) -> list[str]:
    """Kinds of things and places that the texts name."""
    texts = (view.observation, *view.admissible, *(turn.observation for turn in view.history))
    kinds = [kind for text in texts for kind in _NUMBERED.findall(text)]
    return kinds + [w for w in _WORD.findall(view.task.lower()) if w not in _TASK_WORDS]
