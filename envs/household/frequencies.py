"""What is usual in a household: which things exist, where they stand, what can be done to them.

The figures are frequencies counted by `envs.household.count_frequencies` over the 3,553 training
games of ALFWorld (MIT licence); no validation game went into them.
"""

import json
from functools import lru_cache
from importlib.resources import files
from typing import NamedTuple


class Room(NamedTuple):
    """One kind of room. Counts map a number of pieces to the share of rooms that have so many."""

    receptacles: dict[str, dict[str, float]]
    objects: dict[str, dict[str, float]]
    placements: dict[str, dict[str, float]]


class Household(NamedTuple):
    """The frequencies; type names are spelt as in the benchmark, e.g. ``CounterTop``.

    ``presence[item][receptacle]`` is the share of receptacles of a type that hold at least one
    such item; ``placements[item][receptacle]`` weighs the places of one item in one room.
    """

    attributes: dict[str, list[str]]
    accepts: dict[str, list[str]]
    openable: dict[str, float]
    presence: dict[str, dict[str, float]]
    rooms: dict[str, Room]


@lru_cache(maxsize=1)
def household() -> Household:
    """The frequencies that come with the package."""
    text = (files("envs.household") / "rules" / "household.json").read_text(encoding="utf-8")
    data = json.loads(text)
    rooms = {name: Room(**room) for name, room in data.pop("rooms").items()}
    return Household(**data, rooms=rooms)


@lru_cache(maxsize=1)
def presence() -> dict[tuple[str, str], float]:
    """`Household.presence` by the lower-case words that a player reads."""
    return {
        (item.lower(), place.lower()): share
        for item, places in household().presence.items()
        for place, share in places.items()
    }
