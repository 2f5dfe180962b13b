"""Draws a room: receptacles, where they stand, and things lying where such things usually lie."""

import random
from dataclasses import dataclass, field

from envs.household.frequencies import Room, household

# Receptacles of these types often share one standing place with a neighbour of their own.
_NEIGHBOURLY = ("Cabinet", "Drawer", "Shelf", "StoveBurner")
_SHARE_PROBABILITY = 0.2
_INSET = {"SinkBasin": "Sink", "BathtubBasin": "Bathtub"}


@dataclass
class Place:
    """A receptacle of a room in the making."""

    type: str
    identifier: str
    location: str
    openable: bool


@dataclass
class Layout:
    """A room in the making; ``inside`` maps a thing's identifier to its place."""

    room: str
    places: list[Place] = field(default_factory=list)
    types: dict[str, str] = field(default_factory=dict)
    inside: dict[str, Place] = field(default_factory=dict)
    start: str = ""

    def of_type(self, kind: str) -> list[Place]:
        """The receptacles of one type."""
        return [place for place in self.places if place.type == kind]


def furnish(rng: random.Random, room_name: str) -> Layout:
    """A room of one kind with realistic furniture and things.

    Args:
        rng: the source of all chance.
        room_name: one of the rooms of `household`.

    Returns:
        The room. No task is considered yet.
    """
    room = household().rooms[room_name]
    layout = Layout(room_name)
    used: set[str] = set()
    for kind, shares in room.receptacles.items():
        for number in range(_draw_count(rng, shares)):
            layout.places.append(_new_place(rng, layout, kind, number, used))
    layout.start = _new_location(rng, used)
    for kind, shares in room.objects.items():
        for _ in range(_draw_count(rng, shares)):
            add_thing(rng, layout, kind, avoid=())
    return layout


def add_thing(rng: random.Random, layout: Layout, kind: str, avoid: tuple[str, ...]) -> bool:
    """Lays one more thing of a type somewhere usual.

    Args:
        rng: the source of all chance.
        layout: the room; it is changed.
        kind: the type of the thing.
        avoid: receptacle types where it must not lie.

    Returns:
        False if the room has no place for it (and is unchanged).
    """
    place = _usual_place(rng, household().rooms[layout.room], layout, kind, avoid)
    if place is None:
        return False
    identifier = _new_identifier(rng, kind, set(layout.types))
    layout.types[identifier] = kind
    layout.inside[identifier] = place
    return True


def clear_out(rng: random.Random, layout: Layout, kind: str, target: str) -> None:
    """Moves things of a type away from receptacles of a type, or out of the room."""
    for identifier in [i for i, own in layout.types.items() if own == kind]:
        if layout.inside[identifier].type == target:
            place = _usual_place(rng, household().rooms[layout.room], layout, kind, avoid=(target,))
            if place is None:
                del layout.types[identifier], layout.inside[identifier]
            else:
                layout.inside[identifier] = place


def _usual_place(
    rng: random.Random, room: Room, layout: Layout, kind: str, avoid: tuple[str, ...]
) -> Place | None:
    weights = {
        place_type: weight
        for place_type, weight in room.placements.get(kind, {}).items()
        if place_type not in avoid and layout.of_type(place_type)
    }
    if not weights:
        return None
    chosen = rng.choices(list(weights), list(weights.values()))[0]
    return rng.choice(layout.of_type(chosen))


def _draw_count(rng: random.Random, shares: dict[str, float]) -> int:
    return int(rng.choices(list(shares), list(shares.values()))[0])


def _new_place(rng: random.Random, layout: Layout, kind: str, number: int, used: set[str]) -> Place:
    identifier = _new_identifier(rng, kind, {place.identifier for place in layout.places})
    shares = number > 0 and kind in _NEIGHBOURLY and rng.random() < _SHARE_PROBABILITY
    location = layout.places[-1].location if shares else _new_location(rng, used)
    openable = rng.random() < household().openable.get(kind, 0.0)
    return Place(kind, identifier, location, openable)


def _new_location(rng: random.Random, used: set[str]) -> str:
    while True:
        x, y = _signed(rng.randint(-12, 12)), _signed(rng.randint(-12, 12))
        turn, tilt = rng.randrange(4), _signed(rng.choice((-30, 0, 15, 30, 45, 60)))
        location = f"loc_bar_{x}_bar_{y}_bar_{turn}_bar_{tilt}"
        if location not in used:
            used.add(location)
            return location


def _signed(number: int) -> str:
    return str(number) if number >= 0 else f"_minus_{-number}"


def _new_identifier(rng: random.Random, kind: str, taken: set[str]) -> str:
    """``Apple_bar__plus_01_dot_20_bar_...``: the spelling decides the number in the name."""
    inset = _INSET.get(kind)
    while True:
        spots = []
        for low, high in ((-4.0, 4.0), (0.0, 2.0), (-4.0, 4.0)):
            value = rng.uniform(low, high)
            whole, part = f"{abs(value):05.2f}".split(".")
            spots.append(f"{'_plus_' if value >= 0 else '_minus_'}{whole}_dot_{part}")
        identifier = "_bar_".join([inset or kind, *spots, *([kind] if inset else [])])
        if identifier not in taken:
            return identifier
