"""Random play of household games, the tasks that it achieved, and the commands that mattered.

Hindsight experience replay (Andrychowicz et al. 2017) in text: whatever an episode brought about
is the solution of the task that asks for it. The engine evaluates the goal of every such task
exactly, and replaying without a command tells whether that command mattered.
"""

import random
from collections.abc import Collection, Sequence
from typing import NamedTuple

from envs.household.engine import Event, admissible_commands, step
from envs.household.game import Game
from envs.household.state import State
from envs.household.subgoals import kind_of
from envs.household.task import TASK_TYPES, Task

_PUT, _LOOK, _CLEAN, _HEAT, _COOL, _TWO = TASK_TYPES
_IDLE = frozenset({"look", "inventory", "help", "examine"})  # change nothing in the game


class Solution(NamedTuple):
    """A task and commands that achieve it from the start of its game."""

    task: Task
    commands: tuple[str, ...]


def is_achieved(game: Game, state: State, task: Task) -> bool:
    """Whether the benchmark's goal formula of a task holds in a state of any game.

    The games' own goals are compiled formulas; this is the same predicate for tasks that a game
    does not ask for.
    """
    names, places = game.objects.names, game.receptacles
    if task.kind == _LOOK:
        if state.held < 0 or kind_of(names[state.held]) != task.item:
            return False
        return any(
            kind_of(names[item]) == task.target and state.toggled >> item & 1
            for place in game.at_location[state.location]
            for item in state.contents[place]
        )
    flags = {_CLEAN: state.clean, _HEAT: state.hot, _COOL: state.cool}.get(task.kind, -1)
    needed = 2 if task.kind == _TWO else 1
    return any(
        kind_of(places.names[place]) == task.target
        and sum(kind_of(names[i]) == task.item and flags >> i & 1 for i in items) >= needed
        for place, items in enumerate(state.contents)
    )


def random_walk(game: Game, rng: random.Random, steps: int) -> list[str]:
    """Commands of a walk: a verb drawn uniformly, then a command of it; no command is idle."""
    state, commands = game.initial, []
    for _ in range(steps):
        by_verb: dict[str, list[str]] = {}
        for command in admissible_commands(game, state):
            by_verb.setdefault(command.partition(" ")[0], []).append(command)
        verbs = sorted(by_verb.keys() - _IDLE)
        command = rng.choice(by_verb[rng.choice(verbs)])
        state = step(game, state, command).state
        commands.append(command)
    return commands


def solutions(game: Game, commands: Sequence[str]) -> list[Solution]:
    """Every task that the commands achieved and that was not achieved at the start.

    Args:
        game: that was played.
        commands: from its start; those that the game refuses do no harm.

    Returns:
        Each task once, by the shortest of its prefixes, with its `critical_path`.
    """
    state, found, known = game.initial, [], set()
    for number, command in enumerate(commands, 1):
        state, _, event, _ = step(game, state, command)
        for task in _candidates(game, state, event) if event else ():
            if task in known or not is_achieved(game, state, task):
                continue
            known.add(task)
            if not is_achieved(game, game.initial, task):
                path = critical_path(game, task, commands[:number])
                found.append(Solution(task, tuple(_lamp_last(game, task, path))))
    return found


def _candidates(game: Game, state: State, event: Event) -> list[Task]:
    """The tasks that a command may have completed, judged by what it did."""
    item = kind_of(event.item)
    if event.kind == "placed":
        target = kind_of(event.receptacle)
        number = game.objects.number[event.item]
        treated = ((_CLEAN, state.clean), (_HEAT, state.hot), (_COOL, state.cool))
        kinds = [_PUT, _TWO, *(kind for kind, flags in treated if flags >> number & 1)]
        return [Task(kind, item, target) for kind in kinds]
    if state.held < 0 or event.kind not in ("used", "holds", "at"):
        return []
    lamps = {
        kind_of(game.objects.names[i])
        for place in game.at_location[state.location]
        for i in state.contents[place]
        if state.toggled >> i & 1
    }
    held = kind_of(game.objects.names[state.held])
    return [Task(_LOOK, held, lamp) for lamp in sorted(lamps)]


def carried_out(game: Game, task: Task, commands: Sequence[str]) -> list[str] | None:
    """The commands that the game does not refuse; None if the task is not achieved by them."""
    state, path = game.initial, []
    for command in commands:
        state, _, _, is_valid = step(game, state, command)
        if is_valid:
            path.append(command)
    return path if is_achieved(game, state, task) else None


def critical_path(game: Game, task: Task, commands: Sequence[str]) -> list[str]:
    """A subsequence that still achieves the task and of which no command can be left out.

    Blocks of commands are left out, halving from all of them to one (Zeller & Hildebrandt 2002),
    until leaving out any single one loses the task. What the game refuses once others are left
    out is left out with them.

    Args:
        game: from whose start the commands are given.
        task: achieved by them.
        commands: of an episode.

    Raises:
        ValueError: they do not achieve it.
    """
    path = carried_out(game, task, commands)
    if path is None:
        raise ValueError(f"{task} is not achieved by the commands given")
    size = len(path)
    while size:
        start, is_shorter = 0, False
        while start < len(path):
            rest = carried_out(game, task, path[:start] + path[start + size :])
            if rest is None:
                start += size
            else:
                path, is_shorter = rest, True
        size = size // 2 if size > 1 or not is_shorter else 1
    return path


def with_other_thing(
    game: Game, solution: Solution, tasks: Collection[Task], rng: random.Random
) -> Solution | None:
    """The solution with another thing in place of the one that was handled.

    By chance a thing is cleaned where it lies beside the basin: solutions found by walking tell
    where things must lie to be found by walking. Whether another thing, drawn alike from all of
    its kind, can stand in is tried by replaying; so where things lie is as in the games.

    Args:
        game: from whose start the solution leads.
        solution: see `solutions`.
        tasks: that may come out, of the same type and target.
        rng: draws the kind of thing, alike from all that `tasks` permit, and the thing.

    Returns:
        The other solution, by its critical path; None where there is no such thing or it does
        not do.
    """
    task, commands = solution.task, list(solution.commands)
    takes = [n for n, c in enumerate(commands) if c.startswith(f"take {task.item} ")]
    things = _things(game)
    kinds = [
        kind
        for kind in sorted(things)
        if len(things[kind]) >= len(takes) and Task(task.kind, kind, task.target) in tasks
    ]
    if not kinds or not takes:
        return None
    chosen = rng.sample(things[rng.choice(kinds)], len(takes))
    for take, (name, place) in zip(reversed(takes), chosen):
        commands = _exchanged(commands, take, name, place)
    other = Task(task.kind, kind_of(chosen[0][0]), task.target)
    if is_achieved(game, game.initial, other) or carried_out(game, other, commands) is None:
        return None
    return Solution(other, tuple(_lamp_last(game, other, critical_path(game, other, commands))))


def _things(game: Game) -> dict[str, list[tuple[str, str]]]:
    """By kind, what can be taken at the start: its name and the receptacle that holds it."""
    found: dict[str, list[tuple[str, str]]] = {}
    for place, items in enumerate(game.initial.contents):
        for item in items:
            if item in game.objects.pickupable and game.receptacles.location[place] >= 0:
                name = game.objects.names[item]
                found.setdefault(kind_of(name), []).append((name, game.receptacles.names[place]))
    return found


def _exchanged(commands: list[str], take: int, name: str, place: str) -> list[str]:
    """Commands that take another thing, then go on where the first one was taken."""
    old, _, left = commands[take].removeprefix("take ").partition(" from ")
    start = max((n for n in range(take) if commands[n].startswith("go ")), default=0)
    fetched = [f"go to {place}", f"open {place}", f"take {name} from {place}"]
    # What was opened on the way may be needed again; what is not is left out by replaying.
    opened = [c for c in commands[start:take] if c.startswith("open ")]
    rest = [f"{c} ".replace(f" {old} ", f" {name} ").strip() for c in commands[take + 1 :]]
    return [*commands[:start], *fetched, f"go to {left}", *opened, *rest]


def _lamp_last(game: Game, task: Task, path: list[str]) -> list[str]:
    """Of the rotations that look at the thing under the lamp, one that switches it on last.

    One order for all, so that the order is no matter of chance to whoever learns from it.
    """
    if task.kind != _LOOK:
        return path
    for start in range(1, len(path)):
        rotated = path[start:] + path[:start]
        if rotated[-1].startswith("use ") and carried_out(game, task, rotated) is not None:
            return critical_path(game, task, rotated)
    return path
