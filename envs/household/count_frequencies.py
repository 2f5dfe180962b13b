"""Counts what is usual in a household: ``python -m envs.household.count_frequencies --out FILE``.

This is how ``rules/household.json`` was made, from the train split of the benchmark.
"""

import argparse
import json
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path

from envs.household.data import SPLIT_FOLDERS, DataError, data_root, list_games
from envs.household.pddl import GameFileError, Problem, parse_problem

_ATTRIBUTES = {
    name.lower(): name
    for name in ("pickupable", "cleanable", "heatable", "coolable", "toggleable", "sliceable",
                 "isReceptacleObject")
}  # fmt: skip
_ROOMS = {0: "kitchen", 2: "living room", 3: "bedroom", 4: "bathroom"}
_RAREST_COUNT = 0.002
_RAREST_PLACE = 0.01
_RAREST_PRESENCE = 0.0005
_ALWAYS = 0.9


class Census:
    """Running counts over games."""

    def __init__(self) -> None:
        self.able: dict[str, Counter[str]] = {name: Counter() for name in _ATTRIBUTES.values()}
        self.things: Counter[str] = Counter()
        self.furniture: Counter[str] = Counter()
        self.openable: Counter[str] = Counter()
        self.accepts: dict[str, set[str]] = defaultdict(set)
        self.present: dict[str, Counter[str]] = defaultdict(Counter)
        self.rooms: Counter[str] = Counter()
        self.counts: dict[tuple[str, str, str], Counter[int]] = defaultdict(Counter)
        self.placed: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)

    def add(self, text: str, room: str) -> None:
        """Counts one game.

        Args:
            text: its PDDL problem.
            room: the kind of room it is set in.

        Raises:
            GameFileError: the problem cannot be read.
        """
        spelt = {name.lower(): name for name in re.findall(r"\b(\w+)Type\b", text)}
        problem = parse_problem(text)
        things, places = (
            {name: spelt[kind.removesuffix("type")] for name, kind in problem.facts[predicate]}
            for predicate in ("objecttype", "receptacletype")
        )
        self.rooms[room] += 1
        self.things.update(things.values())
        self.furniture.update(places.values())
        self.openable.update(places[name] for (name,) in problem.facts["openable"])
        for predicate, attribute in _ATTRIBUTES.items():
            named = [things[name] for (name,) in problem.facts[predicate] if name in things]
            self.able[attribute].update(named)
        for place, thing in problem.facts["cancontain"]:
            self.accepts[spelt[place.removesuffix("type")]].add(spelt[thing.removesuffix("type")])
        self._add_placements(problem, things, places, room)

    def _add_placements(
        self, problem: Problem, things: dict[str, str], places: dict[str, str], room: str
    ) -> None:
        inside = [(thing, place) for thing, place in problem.facts["inreceptacle"]]
        for kind, place in {(things[thing], place) for thing, place in inside}:
            self.present[kind][places[place]] += 1
        for thing, place in inside:
            self.placed[room, things[thing]][places[place]] += 1
        lying = Counter(things[thing] for thing in {thing for thing, _ in inside})
        for part, found in (("receptacles", Counter(places.values())), ("objects", lying)):
            for kind, number in found.items():
                self.counts[room, part, kind][number] += 1

    def summary(self) -> dict:
        """The content of ``household.json``: shares, with what is rarest left out."""
        return {
            "attributes": {
                name: sorted(k for k, n in able.items() if n > _ALWAYS * self.things[k])
                for name, able in sorted(self.able.items())
            },
            "accepts": {kind: sorted(things) for kind, things in sorted(self.accepts.items())},
            "openable": {
                kind: round(number / self.furniture[kind], 2)
                for kind, number in sorted(self.openable.items())
            },
            "presence": {
                thing: {
                    place: round(number / self.furniture[place], 3)
                    for place, number in sorted(places.items())
                    if number >= _RAREST_PRESENCE * self.furniture[place]
                }
                for thing, places in sorted(self.present.items())
            },
            "rooms": {room: self._room(room) for room in _ROOMS.values() if self.rooms[room]},
        }

    def _room(self, room: str) -> dict:
        parts: dict[str, dict] = {"receptacles": {}, "objects": {}, "placements": {}}
        for (own, part, kind), numbers in sorted(self.counts.items()):
            if own == room:
                shares = self._shares(numbers, self.rooms[room])
                if set(shares) - {"0"}:
                    parts[part][kind] = shares
        for (own, thing), places in sorted(self.placed.items()):
            if own == room:
                least = _RAREST_PLACE * places.total()
                parts["placements"][thing] = {p: n for p, n in sorted(places.items()) if n >= least}
        return parts

    @staticmethod
    def _shares(numbers: Counter[int], rooms: int) -> dict[str, float]:
        whole = {0: rooms - numbers.total(), **numbers}
        return {
            str(number): round(count / rooms, 3)
            for number, count in sorted(whole.items())
            if count / rooms >= _RAREST_COUNT
        }


def take_census(games: Iterable[Path]) -> Census:
    """Counts over game files; the room is read from the ``traj_data.json`` beside each.

    Args:
        games: paths of ``game.tw-pddl`` files.

    Returns:
        The counts.

    Raises:
        GameFileError: a file cannot be read.
    """
    census = Census()
    for path in games:
        try:
            scene = json.loads((path.parent / "traj_data.json").read_text())["scene"]["floor_plan"]
            problem = json.loads(path.read_text())["pddl_problem"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise GameFileError(f"{path}: {error}") from None
        census.add(problem, _room_of(scene))
    return census


def _room_of(scene: str) -> str:
    """FloorPlan3 is a kitchen, FloorPlan203 a living room; generated games say it themselves."""
    number = re.fullmatch(r"FloorPlan(\d+)", scene)
    return _ROOMS[int(number.group(1)) // 100] if number else scene.removeprefix("Generated ")


def main(arguments: list[str] | None = None) -> int:
    """The command line; see ``--help``."""
    parser = argparse.ArgumentParser(
        prog="python -m envs.household.count_frequencies", description=__doc__
    )
    parser.add_argument("--out", required=True, type=Path, help="the JSON file to write")
    parser.add_argument("--data", type=Path, help="folder with the games (default: $ALFWORLD_DATA)")
    parser.add_argument(
        "--split", choices=SPLIT_FOLDERS, default="train", help="what to count (default train)"
    )
    options = parser.parse_args(arguments)
    try:
        census = take_census(list_games(data_root(options.data), options.split))
        options.out.write_text(json.dumps(census.summary(), indent=1) + "\n")
    except (DataError, GameFileError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"{census.rooms.total()} rooms counted: {dict(census.rooms)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
