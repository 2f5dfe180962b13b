"""The changing part of a game as one immutable value: copying, saving and restoring are free."""

import json
from typing import NamedTuple

from envs.household.pddl import GameFileError


class State(NamedTuple):
    """Everything that a command can change; restore it by stepping from it again.

    Objects, receptacles and locations are indices into the game. Sets of flags are bit masks:
    bit ``i`` of ``hot`` says whether object ``i`` is hot. ``removed`` lists the pairs (object,
    receptacle) of things taken out and not put back there, which the stock engine reports as
    standing "next to" the receptacle.
    """

    location: int
    held: int
    opened: int
    contents: tuple[tuple[int, ...], ...]
    places: tuple[tuple[int, ...], ...]
    removed: tuple[tuple[int, int], ...]
    toggled: int
    clean: int
    hot: int
    cool: int
    sliced: int
    won: bool


def dump_state(state: State) -> str:
    """The state as JSON text, readable by `parse_state` with the same game."""
    return json.dumps(state._asdict(), separators=(",", ":"))


def parse_state(text: str) -> State:
    """Reads what `dump_state` wrote.

    Args:
        text: the JSON text.

    Returns:
        The state. That it belongs to a given game is not examined.

    Raises:
        GameFileError: the text is not a saved state.
    """
    try:
        fields = json.loads(text)
        for key in ("contents", "places", "removed"):
            fields[key] = tuple(tuple(map(int, members)) for members in fields[key])
        for key in ("location", "held", "opened", "toggled", "clean", "hot", "cool", "sliced"):
            fields[key] = int(fields[key])
        fields["won"] = bool(fields["won"])
        return State(**fields)
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
        raise GameFileError(f"not a saved state: {error}") from None
