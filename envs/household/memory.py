"""What a player has seen so far, read from the printed text alone."""

import re

_INTRO = re.compile(r"Looking quickly around you, you see (.*?)\.\n")
_TASK = re.compile(r"Your task is to: (.*)\.\s*$")
_NAME = re.compile(r"[a-z]+ \d+")
_CLOSED = re.compile(r"The ([a-z]+ \d+) is closed\.")
_SEEN = re.compile(r"(?:On the ([a-z]+ \d+)|The ([a-z]+ \d+) is open\. In it), you see (.*)\.$")
_TAKEN = re.compile(r"You pick up the ([a-z]+ \d+) from the ([a-z]+ \d+)\.")
_PLACED = re.compile(r"You (?:move|put) the ([a-z]+ \d+) (?:to|in/on) the ([a-z]+ \d+)\.")
_TREATED = re.compile(r"You (?:clean|heat|cool) the ([a-z]+ \d+) using")


class Memory:
    """Receptacles, what was last seen in each, what is held, and what was treated.

    Args (of the constructor):
        opening: the first observation of an episode, which names the receptacles and the task.
    """

    def __init__(self, opening: str) -> None:
        room, task = _INTRO.search(opening), _TASK.search(opening)
        self.task_sentence = task.group(1) if task else ""
        self.receptacles = _NAME.findall(room.group(1)) if room else []
        self.contents: dict[str, list[str]] = {}
        self.closed: set[str] = set()
        self.held = ""
        self.treated: set[str] = set()
        self.placed: list[tuple[str, str]] = []

    def read(self, text: str) -> None:
        """Takes in one observation."""
        for closed in _CLOSED.findall(text):
            self.closed.add(closed)
        seen = _SEEN.search(text)
        if seen:
            place = seen.group(1) or seen.group(2)
            self.closed.discard(place)
            self.contents[place] = _NAME.findall(seen.group(3))
        taken = _TAKEN.match(text)
        if taken:
            self.held = taken.group(1)
            self._drop(*taken.groups())
        placed = _PLACED.match(text)
        if placed:
            self.held = ""
            self.placed.append((placed.group(1), placed.group(2)))
            self.contents.setdefault(placed.group(2), []).append(placed.group(1))
        treated = _TREATED.match(text)
        if treated:
            self.treated.add(treated.group(1))

    def where(self, kind: str) -> list[tuple[str, str]]:
        """Pairs (item, receptacle) of all things of a kind that were seen and not moved since."""
        return [
            (item, place)
            for place, items in self.contents.items()
            for item in items
            if item.rpartition(" ")[0] == kind
        ]

    def _drop(self, item: str, place: str) -> None:
        if item in self.contents.get(place, ()):
            self.contents[place].remove(item)
