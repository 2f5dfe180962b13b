"""The agent's loop in text: observation, planner, sub-goal, worker, command.

A planner says what to achieve next ("heat egg"), a worker picks the command that brings it
nearer, always one of the admissible ones. The loop keeps a window of history, lets only
white-listed sub-goals through, notices when the worker goes round in circles, and asks the
planner again after every result. It runs on the host and knows no environment and no JAX; any
object with a ``propose`` method can plan.
"""

import math
import random
import re
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

SUBGOAL_VERBS = ("find", "take", "put", "clean", "heat", "cool", "use")
_TASK = re.compile(r"Your task is to: (.*?)\.?\s*$")


class Turn(NamedTuple):
    """One step of the past: what was wanted, what was done, what was read."""

    subgoal: str
    command: str
    observation: str


class Result(NamedTuple):
    """How a sub-goal ended: "done", or why it was given up."""

    subgoal: str
    outcome: str


class PlannerView(NamedTuple):
    """All that a planner is shown.

    ``history`` holds the last turns only; ``results`` holds every sub-goal of the episode.
    """

    task: str
    observation: str
    history: tuple[Turn, ...]
    results: tuple[Result, ...]
    admissible: tuple[str, ...]


class TextPlanner(Protocol):
    """Says which sub-goal to pursue next."""

    def propose(self, view: PlannerView) -> str:
        """A sub-goal such as "take apple" or "put apple in/on fridge"."""
        ...


class TextWorker(Protocol):
    """Turns a sub-goal into commands. One worker serves one episode."""

    def choose(self, subgoal: str, observation: str, admissible: Sequence[str]) -> str:
        """An admissible command, or "" if nothing admissible serves the sub-goal."""
        ...

    def achieved(self, subgoal: str, command: str, observation: str) -> bool:
        """Whether the sub-goal is reached after ``command`` led to ``observation``."""
        ...


@dataclass(frozen=True)
class LoopSettings:
    """Bounds of the loop."""

    history_window: int = 2
    """Turns that a planner is shown."""
    proposals: int = 3
    """Proposals outside the white-list before the fallback planner is asked."""
    subgoal_steps: int = 60
    """Commands after which a sub-goal is given up."""
    repeats: int = 2
    """Times one command may follow the same observation before the sub-goal is given up."""

    def __post_init__(self) -> None:
        for name, least in (
            ("history_window", 0),
            ("proposals", 1),
            ("subgoal_steps", 1),
            ("repeats", 1),
        ):
            if getattr(self, name) < least:
                raise ValueError(f"{name} ({getattr(self, name)}) must be at least {least}")


class TextAgent:
    """Plays one episode: give it each observation, it gives the next command.

    Args (of the constructor):
        planner: proposes sub-goals.
        worker: pursues them; must be fresh for each episode.
        opening: the first observation, which states the task.
        fallback: planner to ask when ``planner`` proposes nothing on the white-list.
        settings: bounds of the loop.
    """

    def __init__(
        self,
        planner: TextPlanner,
        worker: TextWorker,
        opening: str,
        *,
        fallback: TextPlanner | None = None,
        settings: LoopSettings | None = None,
    ) -> None:
        found = _TASK.search(opening)
        self.task = found.group(1) if found else ""
        self.settings = settings or LoopSettings()
        self.results: list[Result] = []
        self.subgoal = ""
        self._planner, self._fallback, self._worker = planner, fallback, worker
        self._history: deque[Turn] = deque(maxlen=self.settings.history_window)
        self._steps = 0
        self._tried: dict[tuple[str, str], int] = {}
        self._command = ""

    def act(self, observation: str, admissible: Sequence[str]) -> str:
        """The next command.

        Args:
            observation: what the last command printed (or the opening).
            admissible: the commands that would do something now; at least one.

        Returns:
            One of ``admissible``.

        Raises:
            ValueError: ``admissible`` is empty.
        """
        if not admissible:
            raise ValueError("there is no admissible command to choose from")
        self._take_in(observation)
        for _ in range(2):
            if not self.subgoal:
                self._plan(observation, admissible)
            command = self._worker.choose(self.subgoal, observation, admissible)
            if command in admissible and not self._circling(observation, command):
                break
            self._end("nothing to do for it" if not command else "going round in circles")
        else:
            # Two sub-goals in a row lead nowhere: break out of the circle by the command that
            # was tried least here.
            command = min(admissible, key=lambda c: self._tried.get((observation, c), 0))
        key = (observation, command)
        self._tried[key] = self._tried.get(key, 0) + 1
        self._steps += 1
        self._command = command
        return command

    def _take_in(self, observation: str) -> None:
        if self._command:
            self._history.append(Turn(self.subgoal, self._command, observation))
            if self.subgoal and self._worker.achieved(self.subgoal, self._command, observation):
                self._end("done")
            elif self.subgoal and self._steps >= self.settings.subgoal_steps:
                self._end("took too many steps")

    def _plan(self, observation: str, admissible: Sequence[str]) -> None:
        view = PlannerView(
            self.task, observation, tuple(self._history), tuple(self.results), tuple(admissible)
        )
        self._steps = 0
        for _ in range(self.settings.proposals):
            self.subgoal = self._planner.propose(view).strip().lower()
            if allowed_subgoal(self.subgoal):
                return
            self.results.append(Result(self.subgoal, "not an allowed sub-goal"))
            view = view._replace(results=tuple(self.results))
        proposal = self._fallback.propose(view) if self._fallback else ""
        self.subgoal = proposal if allowed_subgoal(proposal) else ""

    def _circling(self, observation: str, command: str) -> bool:
        return self._tried.get((observation, command), 0) >= self.settings.repeats

    def _end(self, outcome: str) -> None:
        if self.subgoal:
            self.results.append(Result(self.subgoal, outcome))
        self.subgoal = ""


_NAME = r"[a-z]+(?: \d+)?"
_SUBGOAL = re.compile(
    rf"({'|'.join(verb for verb in SUBGOAL_VERBS if verb != 'put')}) ({_NAME})()"
    rf"|(put) ({_NAME}) in/on ({_NAME})"
)


def _parts(subgoal: str) -> tuple[str, str, str] | None:
    """Verb, thing and place ("" if it has none) of a white-listed sub-goal."""
    found = _SUBGOAL.fullmatch(subgoal)
    if found is None:
        return None
    verb, thing, place = (part for part in found.groups() if part is not None)
    return verb, thing, place


def allowed_subgoal(subgoal: str) -> bool:
    """Whether a sub-goal is on the white-list.

    Args:
        subgoal: a planner's proposal.

    Returns:
        True for ``VERB THING`` with a verb of `SUBGOAL_VERBS`, and ``put THING in/on PLACE``;
        things and places are kinds ("egg") or names ("egg 1").
    """
    return _parts(subgoal) is not None


_TASKS = (
    (r"(?:look at|examine the) (\w+) (?:under|with) the (\w+)", ("take {0}", "use {1}")),
    (
        r"(?:put|find) two (\w+) (?:and put them )?in (\w+)",
        ("take {0}", "put {0} in/on {1}", "take {0}", "put {0} in/on {1}"),
    ),
    (
        r"(?:put a clean|clean some) (\w+) (?:and put it )?in (\w+)",
        ("take {0}", "clean {0}", "put {0} in/on {1}"),
    ),
    (
        r"(?:put a hot|heat some) (\w+) (?:and put it )?in (\w+)",
        ("take {0}", "heat {0}", "put {0} in/on {1}"),
    ),
    (
        r"(?:put a cool|cool some) (\w+) (?:and put it )?in (\w+)",
        ("take {0}", "cool {0}", "put {0} in/on {1}"),
    ),
    (r"put (?:a|some) (\w+) (?:in|on) (\w+)", ("take {0}", "put {0} in/on {1}")),
)


class RulePlanner:
    """Reads the task's template into a list of sub-goals and goes through it in order."""

    def propose(self, view: PlannerView) -> str:
        """The first sub-goal of the task's list that is not done yet.

        Args:
            view: the task and the results so far; nothing else is looked at.

        Returns:
            The sub-goal, or "" for a task sentence outside the benchmark's templates. A sub-goal
            that was given up is proposed again: the worker knows more by then.
        """
        done = sum(result.outcome == "done" for result in view.results)
        for pattern, steps in _TASKS:
            found = re.fullmatch(pattern, view.task)
            if found:
                return steps[min(done, len(steps) - 1)].format(*found.groups())
        return ""


Prior = Callable[[str, str], float]
_FALLBACK_CHANCE = 1e-4
_STATIONS = {"clean": "sinkbasin", "heat": "microwave", "cool": "fridge"}
_SHOWN = re.compile(r"(?:On the|The) ([a-z]+ \d+)(?: is open\. In it)?, you see (.*)")
_THINGS = re.compile(r"\ba ([a-z]+ \d+)")


class AdmissibleWorker:
    """Pursues sub-goals by choosing among the admissible commands alone.

    What serves the sub-goal at once is done; otherwise closed things are opened and places not
    yet visited are gone to, those first where ``prior`` thinks the thing more likely.

    Args (of the constructor):
        prior: P(a thing of this kind is at a place of this kind); None goes in the given order.
        temperature: 0 takes the likeliest place, T samples with P ∝ prior^(1/T).
        seed: of that sampling.
    """

    def __init__(self, prior: Prior | None = None, temperature: float = 0.0, seed: int = 0):
        if temperature < 0:
            raise ValueError(f"temperature ({temperature}) must not be negative")
        self._prior = prior or (lambda thing, place: 1.0)
        self._temperature = temperature
        self._rng = random.Random(seed)
        self._searched: set[tuple[str, str]] = set()
        self._seen: dict[str, str] = {}
        self._delivered: set[str] = set()

    def choose(self, subgoal: str, observation: str, admissible: Sequence[str]) -> str:
        """The admissible command that serves the sub-goal best; "" if there is none.

        Args:
            subgoal: a white-listed sub-goal.
            observation: the last text; what it shows is remembered.
            admissible: what can be done now.

        Returns:
            One of ``admissible``, or "".
        """
        for name, place in _shown(observation):
            self._seen[name] = self._seen[_kind(name)] = place
        parts = _parts(subgoal)
        if parts is None:
            return ""
        verb, thing, place = parts
        serving = self._serving(verb, thing, place, admissible)
        if serving:
            return serving
        target = place or _STATIONS.get(verb, "")
        for command in admissible:
            if command.startswith("open ") and (not target or _is(command[5:], target)):
                return command
        return self._explore(thing, target, admissible)

    def achieved(self, subgoal: str, command: str, observation: str) -> bool:
        """Whether the last command was the one that the sub-goal names, and did something.

        Args:
            subgoal: the sub-goal pursued.
            command: the last command.
            observation: what it printed.

        Returns:
            True once the thing is taken, treated, used or put where it belongs.
        """
        parts = _parts(subgoal)
        if parts is None or observation == "Nothing happens.":
            return False
        verb, thing, place = parts
        if verb == "find":
            return any(_is(name, thing) for name, _ in _shown(observation))
        if not _does(command, verb, thing):
            return False
        where = " ".join(command.split(" ")[-2:])
        if verb == "put":
            self._delivered.add(where)
        return not place or _is(where, place)

    def _serving(self, verb: str, thing: str, place: str, admissible: Sequence[str]) -> str:
        for command in admissible:
            where = " ".join(command.split(" ")[-2:])
            if verb == "find" and _does(command, "take", thing):
                return f"examine {where}"
            if not _does(command, verb, thing):
                continue
            if verb == "take" and where in self._delivered:
                continue
            if not place or _is(where, place):
                return command
        return ""

    def _explore(self, thing: str, target: str, admissible: Sequence[str]) -> str:
        """A place to go to next: of the target's kind, or where the thing may be."""
        places = [c[6:] for c in admissible if c.startswith("go to ")]
        if target:
            places = [p for p in places if _is(p, target)]
            # Things put down together belong together.
            together = [p for p in places if p in self._delivered]
            if together:
                return f"go to {together[0]}"
        elif self._seen.get(thing) in places and self._seen[thing] not in self._delivered:
            return f"go to {self._seen.pop(thing)}"
        fresh = [p for p in places if (thing, p) not in self._searched] or places
        if not fresh:
            return ""
        place = fresh[0] if target else self._draw(_kind(thing) or thing, fresh)
        self._searched.add((thing, place))
        return f"go to {place}"

    def _draw(self, thing: str, places: list[str]) -> str:
        chances = [self._prior(thing, _kind(place)) + _FALLBACK_CHANCE for place in places]
        if self._temperature == 0:
            return places[chances.index(max(chances))]
        weights = [math.exp(math.log(chance) / self._temperature) for chance in chances]
        return self._rng.choices(places, weights)[0]


def _kind(name: str) -> str:
    return name.rpartition(" ")[0]


def _is(name: str, wanted: str) -> bool:
    """Whether a name such as "egg 1" is the wanted one, or of the wanted kind."""
    return wanted in (name, _kind(name))


def _does(command: str, verb: str, thing: str) -> bool:
    """Whether a command does ``verb`` to the thing (a name or a kind)."""
    verbs = ("move", "put") if verb == "put" else (verb,)
    return any(f"{command} ".startswith(f"{word} {thing} ") for word in verbs)


def _shown(observation: str) -> list[tuple[str, str]]:
    """Pairs (thing, place) that an observation shows."""
    found = _SHOWN.search(observation)
    return [(name, found[1]) for name in _THINGS.findall(found[2])] if found else []
