"""Plays a game: pure functions from a state and a command to the next state and what is printed.

The printed text, the admissible commands and the win are those of the stock engine (alfworld
0.4.2 on textworld 1.7.0), letter for letter.
"""

from collections import deque
from typing import NamedTuple

from envs.household.describe import look_text, object_text, receptacle_text
from envs.household.game import Game
from envs.household.state import State

NOTHING_HAPPENS = "Nothing happens."
_LONGEST_COMMAND = 512
# Of all games together, about 1 kB each.
_LISTS_KEPT = 32_768
_kept: deque[tuple[dict, tuple]] = deque()


class Event(NamedTuple):
    """A sub-goal that a command completed: ``("heated", "egg 1", "microwave 1")``.

    Kinds: at, opened, closed, holds, placed, cleaned, heated, cooled, used, sliced. A part that
    does not apply is the empty string: "at", "opened" and "closed" have no item, "used" and
    "sliced" no receptacle.
    """

    kind: str
    item: str
    receptacle: str


class Outcome(NamedTuple):
    """What a command did. ``valid`` is false exactly when nothing happened."""

    state: State
    feedback: str
    event: Event | None
    valid: bool


def step(game: Game, state: State, command: str) -> Outcome:
    """Carries out one command.

    Args:
        game: the game.
        state: a state of that game; it is not changed.
        command: as an agent writes it; blanks around it are ignored. Both ``move X to Y`` and
            ``put X in/on Y`` are understood in every text version.

    Returns:
        The next state, the printed text and the sub-goal completed, if any. A command that is
        not admissible, of whatever form, gives "Nothing happens." and the same state.
    """
    command = command.strip()
    verb, _, rest = command.partition(" ")
    handler = _HANDLERS.get(verb)
    if handler is None or len(command) > _LONGEST_COMMAND:
        return Outcome(state, NOTHING_HAPPENS, None, False)
    return handler(game, state, rest) or Outcome(state, NOTHING_HAPPENS, None, False)


def admissible_commands(game: Game, state: State) -> tuple[str, ...]:
    """All commands that would do something, sorted; puts are worded in the game's version.

    Where a situation recurs it is the very same tuple, while the engine remembers it.
    """
    # Agents come back to the same places with the same things there; the oldest are forgotten.
    key = _what_commands_depend_on(game, state)
    known = game.shared_text.get(key)
    if known is None:
        known = game.shared_text[key] = tuple(_listed_commands(game, state))
        _kept.append((game.shared_text, key))
        if len(_kept) > _LISTS_KEPT:
            texts, oldest = _kept.popleft()
            texts.pop(oldest, None)
    return known


def _what_commands_depend_on(game: Game, state: State) -> tuple:
    here = game.at_location[state.location]
    contents = tuple([state.contents[receptacle] for receptacle in here])
    opened = state.opened & game.bits_at_location[state.location]
    # Only a knife reaches what merely lies at the same place; see `_add_treatments`.
    near = state.places if state.held in game.objects.knives else ()
    return (state.location, state.held, contents, opened, near)


def _listed_commands(game: Game, state: State) -> list[str]:
    commands = _standing_commands(game, state.location).copy()
    for receptacle in game.at_location[state.location]:
        name = game.receptacles.names[receptacle]
        openable = receptacle in game.receptacles.openable
        opened = state.opened >> receptacle & 1
        if openable:
            commands.append(f"close {name}" if opened else f"open {name}")
        if state.contents[receptacle]:
            _add_uses(commands, game, state.contents[receptacle])
        if opened or not openable:
            if state.held < 0:
                _add_takes(commands, game, state.contents[receptacle], name)
            elif game.objects.types[state.held] in game.receptacles.accepts[receptacle]:
                held = game.objects.names[state.held]
                commands.append(game.wording.put_command.format(held, name))
    if state.held >= 0:
        _add_treatments(commands, game, state)
    commands.sort()
    return commands


def _standing_commands(game: Game, location: int) -> list[str]:
    """Commands that depend on nothing but where the agent stands; built once per location."""
    cached = game.shared_text.get(location)
    if cached is None:
        names, places = game.receptacles.names, game.receptacles.location
        cached = [f"examine {names[receptacle]}" for receptacle in game.at_location[location]]
        cached += [
            f"go to {name}" for name, place in zip(names, places) if place not in (-1, location)
        ]
        cached += ["inventory", "look"]
        if game.wording.help_text is not None:
            cached.append("help")
        cached.sort()
        game.shared_text[location] = cached
    return cached


def _add_uses(commands: list[str], game: Game, contents: tuple[int, ...]) -> None:
    if not game.objects.toggleable.isdisjoint(contents):
        commands += [
            f"use {game.objects.names[item]}"
            for item in contents
            if item in game.objects.toggleable and f"use {game.objects.names[item]}" not in commands
        ]


def _add_takes(commands: list[str], game: Game, contents: tuple[int, ...], name: str) -> None:
    names, pickupable = game.objects.names, game.objects.pickupable
    commands += [f"take {names[item]} from {name}" for item in contents if item in pickupable]


def _add_treatments(commands: list[str], game: Game, state: State) -> None:
    held, things, places = state.held, game.objects, game.receptacles
    name = things.names[held]
    commands.append(f"examine {name}")
    for receptacle in game.at_location[state.location]:
        for verb, able, stations in (
            ("clean", things.cleanable, places.sinks),
            ("heat", things.heatable, places.microwaves),
            ("cool", things.coolable, places.fridges),
        ):
            if receptacle in stations and held in able:
                commands.append(f"{verb} {name} with {places.names[receptacle]}")
    if held in things.knives:
        commands += [
            f"slice {things.names[item]} with {name}"
            for item in things.sliceable
            if state.location in state.places[item]
        ]


def _look(game: Game, state: State, rest: str) -> Outcome | None:
    if rest or state.location < 0:
        return None
    return Outcome(state, look_text(game, state), None, True)


def _inventory(game: Game, state: State, rest: str) -> Outcome | None:
    if rest:
        return None
    if state.held < 0:
        return Outcome(state, "You are not carrying anything.", None, True)
    return Outcome(state, f"You are carrying: a {game.objects.names[state.held]}.", None, True)


def _help(game: Game, state: State, rest: str) -> Outcome | None:
    if rest or game.wording.help_text is None:
        return None
    return Outcome(state, game.wording.help_text, None, True)


def _examine(game: Game, state: State, rest: str) -> Outcome | None:
    receptacle = _here(game, state, rest)
    if receptacle is not None:
        return Outcome(state, receptacle_text(game, state, receptacle), None, True)
    item = game.objects.number.get(rest)
    if item is None or item != state.held:
        return None
    return Outcome(state, object_text(game, state, item), None, True)


def _go(game: Game, state: State, rest: str) -> Outcome | None:
    places = game.receptacles
    receptacle = places.number.get(rest[3:]) if rest.startswith("to ") else None
    if receptacle is None or places.location[receptacle] in (-1, state.location):
        return None
    location = places.location[receptacle]
    moved = _won_if(game, state._replace(location=location), "atlocation")
    stop = game.location_names[location] if game.wording.arrive_at_location else rest[3:]
    text = f"You arrive at {stop}. {receptacle_text(game, moved, receptacle)}"
    return Outcome(moved, text, Event("at", "", rest[3:]), True)


def _open(game: Game, state: State, rest: str) -> Outcome | None:
    receptacle = _here(game, state, rest)
    if receptacle not in game.receptacles.openable or state.opened >> receptacle & 1:
        return None
    after = _won_if(game, state._replace(opened=state.opened | 1 << receptacle), "opened")
    text = f"You open the {rest}. {receptacle_text(game, after, receptacle)}"
    return Outcome(after, text, Event("opened", "", rest), True)


def _close(game: Game, state: State, rest: str) -> Outcome | None:
    receptacle = _here(game, state, rest)
    if receptacle not in game.receptacles.openable or not state.opened >> receptacle & 1:
        return None
    after = _won_if(game, state._replace(opened=state.opened & ~(1 << receptacle)), "opened")
    return Outcome(after, f"You close the {rest}.", Event("closed", "", rest), True)


def _take(game: Game, state: State, rest: str) -> Outcome | None:
    name, _, place = rest.partition(" from ")
    item, receptacle = game.objects.number.get(name), _here(game, state, place)
    if item is None or receptacle is None or state.held >= 0:
        return None
    if item not in state.contents[receptacle] or item not in game.objects.pickupable:
        return None
    if not _accessible(game, state, receptacle):
        return None
    left = tuple([i for i in state.contents[receptacle] if i != item])
    spots = tuple([spot for spot in state.places[item] if spot != state.location])
    after = state._replace(
        held=item,
        contents=_with(state.contents, receptacle, left),
        places=_with(state.places, item, spots),
        removed=tuple(sorted({*state.removed, (item, receptacle)})),
    )
    after = _won_if(game, after, "inreceptacle", "holds", "objectatlocation")
    return Outcome(
        after, f"You pick up the {name} from the {place}.", Event("holds", name, place), True
    )


def _move(game: Game, state: State, rest: str) -> Outcome | None:
    name, _, place = rest.partition(" to ")
    return _place(game, state, name, place)


def _put(game: Game, state: State, rest: str) -> Outcome | None:
    name, _, place = rest.partition(" in/on ")
    return _place(game, state, name, place)


def _place(game: Game, state: State, name: str, place: str) -> Outcome | None:
    item, receptacle = game.objects.number.get(name), _here(game, state, place)
    if item is None or item != state.held or receptacle is None:
        return None
    if game.objects.types[item] not in game.receptacles.accepts[receptacle]:
        return None
    if not _accessible(game, state, receptacle):
        return None
    inside = tuple(sorted({*state.contents[receptacle], item}))
    spots = tuple(sorted({*state.places[item], state.location}))
    after = state._replace(
        held=-1,
        contents=_with(state.contents, receptacle, inside),
        places=_with(state.places, item, spots),
        removed=tuple([pair for pair in state.removed if pair != (item, receptacle)]),
    )
    after = _won_if(game, after, "inreceptacle", "holds", "objectatlocation")
    text = game.wording.put_feedback.format(name, place)
    return Outcome(after, text, Event("placed", name, place), True)


def _clean(game: Game, state: State, rest: str) -> Outcome | None:
    found = _treated(game, state, rest, game.objects.cleanable, game.receptacles.sinks)
    if found is None:
        return None
    after = _won_if(game, state._replace(clean=state.clean | 1 << state.held), "isclean")
    return Outcome(
        after, f"You clean the {found[0]} using the {found[1]}.", Event("cleaned", *found), True
    )


def _heat(game: Game, state: State, rest: str) -> Outcome | None:
    found = _treated(game, state, rest, game.objects.heatable, game.receptacles.microwaves)
    if found is None:
        return None
    bit = 1 << state.held
    after = state._replace(hot=state.hot | bit, cool=state.cool & ~bit)
    after = _won_if(game, after, "ishot", "iscool")
    return Outcome(
        after, f"You heat the {found[0]} using the {found[1]}.", Event("heated", *found), True
    )


def _cool(game: Game, state: State, rest: str) -> Outcome | None:
    found = _treated(game, state, rest, game.objects.coolable, game.receptacles.fridges)
    if found is None:
        return None
    bit = 1 << state.held
    after = state._replace(cool=state.cool | bit, hot=state.hot & ~bit)
    after = _won_if(game, after, "ishot", "iscool")
    return Outcome(
        after, f"You cool the {found[0]} using the {found[1]}.", Event("cooled", *found), True
    )


def _treated(
    game: Game, state: State, rest: str, able: frozenset[int], stations: frozenset[int]
) -> tuple[str, str] | None:
    """Names of the held object and the station of ``X with Y``, if X can be treated there."""
    name, _, place = rest.partition(" with ")
    item, receptacle = game.objects.number.get(name), _here(game, state, place)
    if item is None or item != state.held or item not in able or receptacle not in stations:
        return None
    return name, place


def _use(game: Game, state: State, rest: str) -> Outcome | None:
    item = game.objects.number.get(rest)
    if item is None or item not in game.objects.toggleable:
        return None
    # The benchmark lets a lamp be switched inside a closed drawer.
    if not any(item in state.contents[place] for place in game.at_location[state.location]):
        return None
    after = _won_if(game, state._replace(toggled=state.toggled | 1 << item), "istoggled")
    # No place: as with the stock engine, the command names none.
    return Outcome(after, f"You turn on the {rest}.", Event("used", rest, ""), True)


def _slice(game: Game, state: State, rest: str) -> Outcome | None:
    name, _, blade = rest.partition(" with ")
    item, knife = game.objects.number.get(name), game.objects.number.get(blade)
    if item is None or knife is None or knife != state.held or knife not in game.objects.knives:
        return None
    if item not in game.objects.sliceable or state.location not in state.places[item]:
        return None
    after = _won_if(game, state._replace(sliced=state.sliced | 1 << item), "issliced")
    return Outcome(
        after, f"You sliced the {name} with the {blade}.", Event("sliced", name, ""), True
    )


def _here(game: Game, state: State, name: str) -> int | None:
    """The receptacle of that name, if the agent stands at it."""
    receptacle = game.receptacles.number.get(name)
    if receptacle is None or receptacle not in game.at_location[state.location]:
        return None
    return receptacle


def _accessible(game: Game, state: State, receptacle: int) -> bool:
    return receptacle not in game.receptacles.openable or bool(state.opened >> receptacle & 1)


def _with(rows: tuple, index: int, row: tuple) -> tuple:
    return (*rows[:index], row, *rows[index + 1 :])


def _won_if(game: Game, state: State, *changed: str) -> State:
    """The state with its win brought up to date, if the goal reads what has changed."""
    if game.goal.reads.isdisjoint(changed):
        return state
    won = game.goal.satisfied(state)
    return state if won == state.won else state._replace(won=won)


_HANDLERS = {
    "look": _look,
    "inventory": _inventory,
    "help": _help,
    "examine": _examine,
    "go": _go,
    "open": _open,
    "close": _close,
    "take": _take,
    "move": _move,
    "put": _put,
    "clean": _clean,
    "heat": _heat,
    "cool": _cool,
    "use": _use,
    "slice": _slice,
}
