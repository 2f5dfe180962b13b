"""Sub-goals in words: a small grammar, read strictly, and what each means from where one stands.

    move to (3, 4)            a point of the world, metres
    go north 5 metres         along a compass point (north is +y), or forward, back, left, right
    turn left 90 degrees      changes what forward means; `turn around` is 180
    stop                      stay, and stand still

Whatever else a planner says is refused: a sub-goal that is half understood sends the body
somewhere nobody asked for.
"""

import math
import re
import unicodedata
from typing import NamedTuple

from jaxagent.types import SubGoal

GRAMMAR = (
    "move to (X, Y)",
    "go DIRECTION N metres",
    "turn left N degrees",
    "turn right N degrees",
    "turn around",
    "stop",
)
COMPASS = {  # degrees from the world's x axis, counter-clockwise
    "east": 0.0,
    "northeast": 45.0,
    "north": 90.0,
    "northwest": 135.0,
    "west": 180.0,
    "southwest": -135.0,
    "south": -90.0,
    "southeast": -45.0,
}
RELATIVE = {  # degrees from the way of the last move or turn
    "forward": 0.0,
    "left": 90.0,
    "back": 180.0,
    "right": -90.0,
}


class MoveTo(NamedTuple):
    """Reach a point of the world."""

    x: float  # metres
    y: float


class Go(NamedTuple):
    """Go some way in a direction, a key of COMPASS or RELATIVE."""

    direction: str
    distance: float  # metres, positive


class Turn(NamedTuple):
    """Change what forward means."""

    degrees: float  # counter-clockwise


class Stop(NamedTuple):
    """Stay where one is."""


Command = MoveTo | Go | Turn | Stop

_NUMBER = r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:e[+-]?\d+)?"
_METRES = r"(?:m|metres?|meters?)"
_DEGREES = r"(?:°|deg|degrees?)"
_MOVE = re.compile(
    rf"(?:move|go|walk|run) to \(?\s*({_NUMBER})\s*{_METRES}?\s*,\s*({_NUMBER})\s*{_METRES}?\s*\)?"
)
_GO = re.compile(
    rf"(?:go|move|walk|run|head) ([a-z][a-z -]*?)(?: for| by)?\s+({_NUMBER})\s*{_METRES}"
)
_TURN = re.compile(rf"(?:turn|rotate) (?:to the )?(left|right)(?: by)?\s+({_NUMBER})\s*{_DEGREES}")
_TURN_AROUND = re.compile(r"turn (?:around|back)")
_STOP = re.compile(r"stop|stay|stand still|halt")
_SYNONYMS = {"forwards": "forward", "ahead": "forward", "straight": "forward", "backward": "back"}
_SYNONYMS |= {"straight ahead": "forward", "backwards": "back"}


def parse_sub_goal(text: str) -> Command:
    """Read one sub-goal.

    Upper case, repeated blanks, a full stop at the end, full-width characters and the typographic
    minus are taken for what they mean.

    Args:
        text: what a planner said, the sub-goal alone.

    Raises:
        ValueError: the text is not exactly one sub-goal of the grammar, a number in it is not
            finite, or a distance or angle is not positive.
    """
    plain = unicodedata.normalize("NFKC", text).replace("\u2212", "-")
    plain = " ".join(plain.lower().split()).removesuffix(".").rstrip()
    if found := _MOVE.fullmatch(plain):
        return MoveTo(*(_finite(text, number) for number in found.groups()))
    if (found := _GO.fullmatch(plain)) and (direction := _direction(found[1])):
        return Go(direction, _positive(text, found[2], "distance"))
    if found := _TURN.fullmatch(plain):
        angle = _positive(text, found[2], "angle")
        return Turn(angle if found[1] == "left" else -angle)
    if _TURN_AROUND.fullmatch(plain):
        return Turn(180.0)
    if _STOP.fullmatch(plain):
        return Stop()
    raise ValueError(
        f"sub-goal ({text!r}) must read {'; '.join(GRAMMAR)}; with DIRECTION one of "
        f"{', '.join((*COMPASS, *RELATIVE))}"
    )


def resolve_sub_goal(
    command: Command, position: tuple[float, float], heading: float, *, radius: float
) -> SubGoal:
    """What a sub-goal in words means for a body that stands somewhere.

    Args:
        command: a parsed sub-goal.
        position: of the body, metres, world frame.
        heading: which way forward is, degrees from the world's x axis, counter-clockwise.
        radius: within it the point counts as reached, metres.

    Returns:
        The point to reach. Only after a turn does it say which way to face, in [-180, 180).
    """
    match command:
        case MoveTo(x, y):
            return SubGoal((x, y), radius)
        case Go(direction, distance):
            absolute = COMPASS.get(direction)
            angle = math.radians(heading + RELATIVE[direction] if absolute is None else absolute)
            x, y = position
            return SubGoal((x + distance * math.cos(angle), y + distance * math.sin(angle)), radius)
        case Turn(degrees):
            return SubGoal(position, radius, (heading + degrees + 180.0) % 360.0 - 180.0)
        case Stop():
            return SubGoal(position, radius)


def _direction(words: str) -> str | None:
    joined = words.replace("-", "").replace(" ", "")
    word = joined if joined in COMPASS else _SYNONYMS.get(words, words)
    return word if word in COMPASS or word in RELATIVE else None


def _finite(text: str, number: str) -> float:
    value = float(number)
    if not math.isfinite(value):
        raise ValueError(f"sub-goal ({text!r}): {number} must be a finite number")
    return value


def _positive(text: str, number: str, what: str) -> float:
    value = _finite(text, number)
    if value <= 0:
        raise ValueError(f"sub-goal ({text!r}): the {what} ({number}) must be greater than 0")
    return value
