"""An expert that knows only what it has read: it searches likely places first, then acts."""

import random
from collections.abc import Sequence
from typing import NamedTuple

from envs.household.frequencies import presence
from envs.household.memory import Memory
from envs.household.subgoals import kind_of
from envs.household.task import TASK_TYPES, Task, read_sentence

_STATIONS = {
    TASK_TYPES[2]: ("clean", "sinkbasin"),
    TASK_TYPES[3]: ("heat", "microwave"),
    TASK_TYPES[4]: ("cool", "fridge"),
}
_UNLIKELY = 1e-4


class Choice(NamedTuple):
    """A command and the sub-goal that it serves."""

    command: str
    subgoal: str


class SearchingExpert:
    """Plays one episode from observations and admissible commands.

    Places are searched in the order of P(a thing of this kind is there) over the steps it costs
    to look. It needs a task sentence in the benchmark's templates.

    Args (of the constructor):
        opening: the first observation of the episode.
        temperature: 0 searches the likeliest place first; T samples places with
            P ∝ (chance per step)^(1/T).
        seed: of that sampling.

    Raises:
        ValueError: the task sentence is not one of the templates.
    """

    def __init__(self, opening: str, *, temperature: float = 0.0, seed: int = 0) -> None:
        if temperature < 0:
            raise ValueError(f"temperature ({temperature}) must not be negative")
        self._temperature = temperature
        self._rng = random.Random(seed)
        self._aim = ""
        self.memory = Memory(opening)
        task = read_sentence(self.memory.task_sentence)
        if task is None:
            raise ValueError(
                f"task sentence {self.memory.task_sentence!r} follows none of the benchmark's "
                "templates; the searching expert reads no free text"
            )
        self.task: Task = task
        self._refused: set[str] = set()

    def act(self, observation: str, admissible: Sequence[str]) -> Choice:
        """The next command.

        Args:
            observation: the text printed last.
            admissible: what can be done now; only to see whether a place is within reach.

        Returns:
            An admissible command with its sub-goal ("look" if nothing is left to try).
        """
        self.memory.read(observation)
        reach = frozenset(admissible)
        if not self.memory.held:
            return self._acquire(reach)
        if self.task.kind == TASK_TYPES[1]:
            return self._light(reach)
        station = _STATIONS.get(self.task.kind)
        if station and self.memory.held not in self.memory.treated:
            return self._treat(*station, reach)
        return self._deliver(reach)

    def _acquire(self, reach: frozenset[str]) -> Choice:
        task, memory = self.task, self.memory
        done = {place for _, place in memory.placed}
        treats = task.kind in _STATIONS
        wanted = [
            (item, place)
            for item, place in memory.where(task.item)
            if place not in done and (treats or kind_of(place) != task.target or self._two())
        ]
        if self._two():
            wanted = self._spare(wanted)
        if not wanted:
            return self._search(task.item, reach)
        near = [pair for pair in wanted if f"take {pair[0]} from {pair[1]}" in reach]
        item, place = (near or wanted)[0]
        return self._at(place, f"take {item} from {place}", f"take {item}", reach)

    def _two(self) -> bool:
        return self.task.kind == TASK_TYPES[5]

    def _spare(self, wanted: list[tuple[str, str]]) -> list[tuple[str, str]]:
        """Without the things that already lie where the two are to be put together."""
        return [pair for pair in wanted if pair[1] != self._destination()]

    def _light(self, reach: frozenset[str]) -> Choice:
        lamps = self.memory.where(self.task.target)
        if not lamps:
            return self._search(self.task.target, reach)
        lamp, place = lamps[0]
        return self._at(place, f"use {lamp}", f"use {lamp}", reach, may_stay_closed=True)

    def _treat(self, verb: str, station_kind: str, reach: frozenset[str]) -> Choice:
        stations = [r for r in self.memory.receptacles if kind_of(r) == station_kind]
        if not stations:
            return Choice("look", f"{verb} {self.memory.held}")
        command = f"{verb} {self.memory.held} with {stations[0]}"
        subgoal = f"{verb} {self.memory.held}"
        return self._at(stations[0], command, subgoal, reach, may_stay_closed=True)

    def _deliver(self, reach: frozenset[str]) -> Choice:
        held, target = self.memory.held, self._destination()
        if not target:
            return Choice("look", f"put {held} in/on {self.task.target}")
        subgoal = f"put {held} in/on {target}"
        for command in (f"move {held} to {target}", f"put {held} in/on {target}"):
            if command in reach:
                return Choice(command, subgoal)
        if f"close {target}" in reach or (
            f"examine {target}" in reach and f"open {target}" not in reach
        ):
            # Standing at it, and it takes no such thing.
            self._refused.add(target)
            return self._deliver(reach)
        return self._at(target, "", subgoal, reach)

    def _destination(self) -> str:
        """The receptacle to put things on: where one lies already, else the easiest to use."""
        memory = self.memory
        places = [
            r
            for r in memory.receptacles
            if kind_of(r) == self.task.target and r not in self._refused
        ]
        if not places:
            return ""
        have = [place for _, place in memory.where(self.task.item) if place in places]
        if self._two() and have:
            return have[0]
        seen = [r for r in places if r in memory.contents]
        return (seen or places)[0]

    def _search(self, kind: str, reach: frozenset[str]) -> Choice:
        unseen = [r for r in self.memory.receptacles if r not in self.memory.contents]
        if not unseen:
            return Choice("look", f"find {kind}")
        if self._temperature > 0:
            # A closed place that was gone to is still unseen: go on with it.
            place = self._aim if self._aim in unseen else self._draw(kind, unseen, reach)
            self._aim = place
        else:
            place = max(unseen, key=lambda r: self._promise(kind, r, reach))
        return self._at(place, f"examine {place}", f"find {kind}", reach)

    def _draw(self, kind: str, unseen: list[str], reach: frozenset[str]) -> str:
        promises = [self._promise(kind, place, reach) for place in unseen]
        best = max(promises)
        weights = [(promise / best) ** (1 / self._temperature) for promise in promises]
        return self._rng.choices(unseen, weights)[0]

    def _promise(self, kind: str, place: str, reach: frozenset[str]) -> float:
        """Chance per step of finding such a thing by looking there next."""
        steps = (f"go to {place}" in reach) + (place in self.memory.closed)
        if f"open {place}" in reach:
            steps = 1
        chance = presence().get((kind, kind_of(place)), 0.0) + _UNLIKELY
        return chance / (steps or 1)

    def _at(
        self,
        place: str,
        command: str,
        subgoal: str,
        reach: frozenset[str],
        *,
        may_stay_closed: bool = False,
    ) -> Choice:
        """The command, or the step that brings the player before the open receptacle."""
        if may_stay_closed and command in reach:
            return Choice(command, subgoal)
        if f"go to {place}" in reach:
            return Choice(f"go to {place}", subgoal)
        if f"open {place}" in reach:
            return Choice(f"open {place}", subgoal)
        if command in reach:
            return Choice(command, subgoal)
        # What was remembered is no longer so: look again.
        self.memory.contents.pop(place, None)
        return Choice(f"examine {place}" if f"examine {place}" in reach else "look", subgoal)
