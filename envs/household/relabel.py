"""Solutions found in hindsight, written as episodes of an agent that had to search.

A critical path goes straight to where a thing happens to be. Read as an answer to "where is it?"
that is a draw from P(place | task, history) only if the history holds the looks that failed, so
visits to other receptacles are inserted before it. Which commands are taught is left to
`jaxagent.losses.hindsight_weights`; here is what it needs to know of each.
"""

import random
from collections.abc import Sequence
from typing import NamedTuple

from envs.household.describe import opening_text
from envs.household.engine import step
from envs.household.game import Game
from envs.household.memory import Memory
from envs.household.state import State
from envs.household.subgoals import kind_of
from envs.household.task import TASK_TYPES, Task, sentence_of
from envs.household.walks import Solution, carried_out, is_achieved
from jaxagent.text import DEFAULT_HORIZON

_NEVER, _WIDE = 0.25, 0.25  # shares of searches without visits, and with any number of them
_MEAN_VISITS, _MOST_VISITS = 4.0, 20


class RelabelledTurn(NamedTuple):
    """A command, what it printed, and what decides whether it is taught.

    Attributes:
        command: as it was given.
        observation: that it printed.
        is_critical: the task is lost without it, or it looks into a receptacle that was visited.
        seen: everything that speaks for it had been printed before.
        first_of_kind: it goes to the first receptacle of its kind, in the order printed, that
            was not yet looked into.
    """

    command: str
    observation: str
    is_critical: bool
    seen: bool
    first_of_kind: bool


class RelabelledEpisode(NamedTuple):
    """An episode of the task that was achieved, from its opening on."""

    opening: str
    turns: list[RelabelledTurn]


def relabelled(
    game: Game, solution: Solution, rng: random.Random, *, has_visits: bool = True
) -> RelabelledEpisode | None:
    """One way in which an agent may have come to a solution.

    The number of visits does not depend on where the thing is. They read hidden state only to
    stay clear of the receptacles that hold what is wanted.

    Args:
        game: from whose start the solution leads.
        solution: see `walks.solutions`.
        rng: draws how many visits are inserted before each search, and which.
        has_visits: whether any are.

    Returns:
        The episode; None where visits and solution have no room in an episode.
    """
    commands = _by_place_acted_on(game, solution)
    writer = _Writer(game, solution.task)
    for number, command in enumerate(commands):
        sought = _sought(commands[number + 1 :]) if command.startswith("go to ") else ""
        if sought and has_visits and not writer.has_seen(sought):
            room = DEFAULT_HORIZON - len(writer.turns) - len(commands) + number
            for _ in range(min(_number_of_visits(rng, len(writer.memory.receptacles)), room // 2)):
                writer.visit(kind_of(sought), rng)
        if not writer.do(command, sought):
            return None
    is_short = len(writer.turns) <= DEFAULT_HORIZON
    if not is_short or not is_achieved(game, writer.state, solution.task):
        return None
    return RelabelledEpisode(writer.opening, writer.turns)


def _number_of_visits(rng: random.Random, receptacles: int) -> int:
    draw = rng.random()
    if draw < _NEVER:
        return 0
    if draw < _NEVER + _WIDE:
        return rng.randint(1, receptacles)
    return min(1 + int(rng.expovariate(1 / _MEAN_VISITS)), _MOST_VISITS)


class _Writer:
    """Plays commands and notes what was known when each was given."""

    def __init__(self, game: Game, task: Task) -> None:
        self.game, self.state = game, game.initial
        self.opening = opening_text(game._replace(task_text=sentence_of(task)), game.initial)
        self.memory = Memory(self.opening)
        self.turns: list[RelabelledTurn] = []

    def has_seen(self, thing: str) -> bool:
        return any(thing in things for things in self.memory.contents.values())

    def do(self, command: str, sought: str, is_critical: bool = True) -> bool:
        """Give a command; False where the game refuses one that matters."""
        before = self.state
        seen, first = self._seen(command, sought), self._is_first(command)
        self.state, text, _, is_valid = step(self.game, before, command)
        if not is_valid:
            # A visit may have opened it already.
            return command.startswith("open ")
        self.memory.read(text)
        self.turns.append(RelabelledTurn(command, text, is_critical, seen, first))
        return True

    def visit(self, wanted: str, rng: random.Random) -> None:
        """Look into a receptacle that was not looked into and holds nothing of the kind wanted."""
        first: dict[str, str] = {}
        for place in self.memory.receptacles:
            if place not in self.memory.contents:
                first.setdefault(kind_of(place), place)
        free = [place for place in first.values() if self._is_free(place, wanted)]
        if not free:
            return
        place = rng.choice(free)
        self.do(f"go to {place}", place, is_critical=False)
        if place not in self.memory.contents:
            self.do(f"open {place}", "")

    def _is_free(self, place: str, wanted: str) -> bool:
        number, names = self.game.receptacles.number[place], self.game.objects.names
        if self.game.receptacles.location[number] in (-1, self.state.location):
            return False
        return all(kind_of(names[item]) != wanted for item in self.state.contents[number])

    def _seen(self, command: str, sought: str) -> bool:
        verb, _, rest = command.partition(" ")
        if verb == "take":
            thing, _, place = rest.partition(" from ")
            return thing in self.memory.contents.get(place, ())
        thing = rest if verb == "use" else sought
        return not thing or self.has_seen(thing)

    def _is_first(self, command: str) -> bool:
        place = command.removeprefix("go to ")
        left = [p for p in self.memory.receptacles if p not in self.memory.contents]
        return place in left and place == next(p for p in left if kind_of(p) == kind_of(place))


def _sought(following: Sequence[str]) -> str:
    """The thing for which a place is gone to: the one taken or used there; "" for none."""
    for command in following:
        verb, _, rest = command.partition(" ")
        if verb == "go":
            return ""
        if verb in ("take", "use"):
            return rest.partition(" from ")[0]
    return ""


def _by_place_acted_on(game: Game, solution: Solution) -> list[str]:
    """The commands with each place gone to named by the receptacle that is used there.

    Several receptacles stand at one place, and any of their names leads there. Of receptacles of
    the target's kind the first in the order printed is taken where any will do.
    """
    commands = list(solution.commands)
    places, state = game.receptacles, game.initial
    for number, command in enumerate(commands):
        if command.startswith("go to "):
            used = _used_there(game, state, commands[number + 1 :])
            here = places.number[command.removeprefix("go to ")]
            if (
                used in places.number
                and places.location[places.number[used]] == places.location[here]
            ):
                commands[number] = f"go to {used}"
        state = step(game, state, commands[number]).state
    return _to_first_target(game, solution.task, commands)


def _used_there(game: Game, state: State, following: Sequence[str]) -> str:
    for command in following:
        verb, _, rest = command.partition(" ")
        if verb == "go":
            break
        if verb == "use":
            lamp = game.objects.number[rest]
            holders = [r for r, items in enumerate(state.contents) if lamp in items]
            return game.receptacles.names[holders[0]] if holders else ""
        return " ".join(rest.split(" ")[-2:])
    return ""


def _to_first_target(game: Game, task: Task, commands: list[str]) -> list[str]:
    if task.kind == TASK_TYPES[1]:
        return commands
    used = " ".join(commands[-1].split(" ")[-2:])
    room = Memory(opening_text(game, game.initial)).receptacles
    for place in (p for p in room if kind_of(p) == task.target):
        if place == used:
            break
        renamed = [_renamed(command, used, place) for command in commands]
        if carried_out(game, task, renamed) == renamed:
            return renamed
    return commands


def _renamed(command: str, old: str, new: str) -> str:
    """A command with its receptacle exchanged."""
    return command.removesuffix(old) + new if command.endswith(f" {old}") else command
