"""What an agent keeps in mind of an episode, written before each of its replies."""

import re

_NAME = re.compile(r"[a-z]+ \d+")
_SEEN = re.compile(r"(?:On the ([a-z]+ \d+)|The ([a-z]+ \d+) is open\. In it), you see (.*)\.$")
_TAKEN = re.compile(r"You pick up the ([a-z]+ \d+) from the ([a-z]+ \d+)\.")
_PUT = re.compile(r"You (?:move|put) the ([a-z]+ \d+) (?:to|in/on) the ([a-z]+ \d+)\.")


class CompactNotes:
    """``> fridge egg egg 2 sinkbasin 1``, or ``> fridge egg left cabinet 4 drawer 2 shelf 1``.

    Target and thing of a task in the benchmark's templates; then where what is looked for was
    seen, or else, of the receptacles of each kind, the first that was not yet looked into. All of
    it was printed before; a reply begins where it has just been read, so what a small model must
    otherwise find and compare over the whole history is one glance away.

    Nothing is looked for with a thing in hand, except the lamp to look at it under; and no thing
    is where it is to be put, unless it must first be cleaned, heated or cooled.

    Args (of the constructor):
        receptacles: in the order in which the room was described.
        task: its type, "" for one that no template words.
        thing: the kind that is wanted, "" if that is unknown.
        target: what it is wanted for, "" if that is unknown.
    """

    def __init__(self, receptacles: list[str], task: str, thing: str, target: str) -> None:
        self._receptacles = receptacles
        self._task, self._thing, self._target = task, thing, target
        self._contents: dict[str, list[str]] = {}
        self._held = ""
        self._done: set[str] = set()  # things that were put where they belong

    def read(self, observation: str) -> None:
        """Takes in what a command printed."""
        text = observation.strip()
        if seen := _SEEN.search(text):
            place = seen.group(1) or seen.group(2)
            self._contents[place] = _NAME.findall(seen.group(3))
        elif taken := _TAKEN.match(text):
            self._held, place = taken.groups()
            self._done.discard(self._held)
            if self._held in self._contents.get(place, ()):
                self._contents[place].remove(self._held)
        elif put := _PUT.match(text):
            name, place = put.groups()
            self._held = ""
            self._contents.setdefault(place, []).append(name)
            if _kind(place) == self._target:
                self._done.add(name)

    def marker(self) -> str:
        """What stands before the next reply."""
        words = [word for word in (">", self._target, self._thing) if word]
        if self._held and self._task != "look":
            return " ".join(words)
        sought = self._target if self._held else self._thing
        found = [
            f"{name} {place}"
            for place, things in self._contents.items()
            for name in things
            if _kind(name) == sought and not self._is_done(name, place)
        ]
        return " ".join([*words, *(found or ["left", *self._unseen()])])

    def _is_done(self, name: str, place: str) -> bool:
        belongs = self._task in ("put", "two") and _kind(place) == self._target
        return belongs or name in self._done

    def _unseen(self) -> list[str]:
        first: dict[str, str] = {}
        for place in self._receptacles:
            if place not in self._contents:
                first.setdefault(_kind(place), place)
        return list(first.values())


def _kind(name: str) -> str:
    return name.rpartition(" ")[0]


class NoNotes:
    """The same marker before every reply.

    Args (of the constructor):
        marker: this one.
    """

    def __init__(self, marker: str) -> None:
        self._marker = marker

    def read(self, observation: str) -> None:
        """Keeps nothing."""

    def marker(self) -> str:
        """What stands before the next reply."""
        return self._marker
