"""An expert that knows where everything is: the shortest way to win, as a bound for agents."""

from collections.abc import Iterator
from itertools import permutations
from typing import NamedTuple

from envs.household.engine import step
from envs.household.game import Game
from envs.household.state import State
from envs.household.task import TASK_TYPES, Task

_VERBS = {TASK_TYPES[2]: "clean", TASK_TYPES[3]: "heat", TASK_TYPES[4]: "cool"}


class _Route(NamedTuple):
    """A plan in the making: where it ends, what it has opened, what it has done."""

    location: int
    opened: int
    commands: tuple[str, ...]

    def then(self, command: str) -> "_Route":
        return self._replace(commands=(*self.commands, command))


def shortest_plan(game: Game, state: State | None = None) -> list[str] | None:
    """The fewest commands that win, knowing all that is hidden.

    Args:
        game: a game with one of the six tasks.
        state: where to start; None is the start of the game. If the agent holds something the
            task has no use for, it is put down first by the shortest way to do that, and the
            plan as a whole may then be longer than the best.

    Returns:
        The commands, checked by playing them; None if the task cannot be done.
    """
    state = game.initial if state is None else state
    if state.won:
        return []
    if game.task is None:
        return None
    start = _Route(state.location, state.opened, ())
    best: tuple[str, ...] | None = None
    for route in _routes(game, state, start):
        if best is None or len(route.commands) < len(best):
            best = route.commands
    return None if best is None else _played(game, state, best)


def _played(game: Game, state: State, commands: tuple[str, ...]) -> list[str] | None:
    """The commands up to the one that wins; None if they do not win."""
    for number, command in enumerate(commands):
        state = step(game, state, command).state
        if state.won:
            return list(commands[: number + 1])
    return None


def _routes(game: Game, state: State, start: _Route) -> Iterator[_Route]:
    task = _task(game)
    if state.held >= 0 and game.objects.types[state.held] != f"{task.item}type":
        start = _hands_emptied(game, state, start) or start
        state = state._replace(held=-1)
    if task.kind == TASK_TYPES[1]:
        yield from _lamp_routes(game, state, start)
    elif task.kind == TASK_TYPES[5]:
        yield from _two_routes(game, state, start)
    else:
        yield from _single_routes(game, state, start)


def _single_routes(game: Game, state: State, start: _Route) -> Iterator[_Route]:
    for item, source, taken in _takings(game, state, start):
        for treated in _treatments(game, state, item, taken):
            for target in _targets(game, item):
                # Some recorded scenes list a thing in two receptacles; taken from one of them it
                # counts as lying in the other while it is held.
                stays = target != source and item in state.contents[target]
                yield treated if stays else _put(game, treated, item, target)


def _two_routes(game: Game, state: State, start: _Route) -> Iterator[_Route]:
    items = _items(game)
    for target in _of_type(game, _task(game).target):
        missing = 2 - sum(item in state.contents[target] for item in items)
        others = [item for item in items if item not in state.contents[target]]
        for chosen in permutations(others, max(missing, 0)):
            yield from _gathered(game, state, start, chosen, target)


def _gathered(
    game: Game, state: State, start: _Route, chosen: tuple[int, ...], target: int
) -> Iterator[_Route]:
    """Routes that bring the chosen items, in this order, to one receptacle."""
    if not chosen:
        yield start
        return
    if target not in _targets(game, chosen[0]):
        return
    if state.held >= 0 and chosen[0] != state.held:
        return
    for _, _, taken in _takings(game, state, start, (chosen[0],)):
        placed = _put(game, taken, chosen[0], target)
        yield from _gathered(game, state._replace(held=-1), placed, chosen[1:], target)


def _lamp_routes(game: Game, state: State, start: _Route) -> Iterator[_Route]:
    lamps = [
        (lamp, place)
        for lamp, kind in enumerate(game.objects.types)
        if kind == f"{_task(game).target}type" and lamp in game.objects.toggleable
        for place, members in enumerate(state.contents)
        if lamp in members
    ]
    for _, _, taken in _takings(game, state, start):
        for lamp, place in lamps:
            arrived = _reach(game, taken, place)
            lit = state.toggled >> lamp & 1
            yield arrived if lit else arrived.then(f"use {game.objects.names[lamp]}")


def _takings(
    game: Game, state: State, start: _Route, items: tuple[int, ...] | None = None
) -> Iterator[tuple[int, int, _Route]]:
    """Ways to get an item (default: any of the task's) in hand, and where from (−1: held)."""
    names = game.objects.names
    for item in _items(game) if items is None else items:
        if item == state.held:
            yield item, -1, start
        elif item in game.objects.pickupable and state.held < 0:
            for place, members in enumerate(state.contents):
                if item in members and game.receptacles.location[place] >= 0:
                    there = _reach(game, start, place, opened=True)
                    command = f"take {names[item]} from {_place_name(game, place)}"
                    yield item, place, there.then(command)


def _treatments(game: Game, state: State, item: int, route: _Route) -> Iterator[_Route]:
    kind = _task(game).kind
    verb = _VERBS.get(kind)
    if verb is None:
        yield route
        return
    flags, stations = {
        "clean": (state.clean, game.receptacles.sinks),
        "heat": (state.hot, game.receptacles.microwaves),
        "cool": (state.cool, game.receptacles.fridges),
    }[verb]
    if flags >> item & 1:
        yield route
        return
    for station in sorted(stations):
        if game.receptacles.location[station] >= 0:
            command = f"{verb} {game.objects.names[item]} with {_place_name(game, station)}"
            yield _reach(game, route, station).then(command)


def _put(game: Game, route: _Route, item: int, target: int) -> _Route:
    there = _reach(game, route, target, opened=True)
    return there.then(f"move {game.objects.names[item]} to {_place_name(game, target)}")


def _reach(game: Game, route: _Route, place: int, *, opened: bool = False) -> _Route:
    """The route, continued to stand before a receptacle, open if that is asked for."""
    location, name = game.receptacles.location[place], _place_name(game, place)
    if location != route.location:
        route = route._replace(location=location).then(f"go to {name}")
    if opened and place in game.receptacles.openable and not route.opened >> place & 1:
        route = route._replace(opened=route.opened | 1 << place).then(f"open {name}")
    return route


def _hands_emptied(game: Game, state: State, start: _Route) -> _Route | None:
    ways = [_put(game, start, state.held, place) for place in _accepting(game, state.held)]
    return min(ways, key=lambda way: len(way.commands), default=None)


def _targets(game: Game, item: int) -> list[int]:
    fitting = _accepting(game, item)
    return [place for place in _of_type(game, _task(game).target) if place in fitting]


def _accepting(game: Game, item: int) -> list[int]:
    kind, places = game.objects.types[item], game.receptacles
    return [
        place
        for place, accepted in enumerate(places.accepts)
        if kind in accepted and places.location[place] >= 0
    ]


def _of_type(game: Game, kind: str) -> list[int]:
    types = game.receptacles.types
    return [place for place, own in enumerate(types) if own == f"{kind}type"]


def _items(game: Game) -> tuple[int, ...]:
    wanted = f"{_task(game).item}type"
    return tuple(item for item, kind in enumerate(game.objects.types) if kind == wanted)


def _place_name(game: Game, place: int) -> str:
    return game.receptacles.names[place]


def _task(game: Game) -> Task:
    if game.task is None:
        raise ValueError(f"{game.name} has none of the six tasks")
    return game.task
