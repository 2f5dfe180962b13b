"""What a game asks for, read from its goal: the task type and the types of things involved."""

import re
from typing import NamedTuple

from envs.household.pddl import Expression

TASK_TYPES = (
    "pick_and_place_simple",
    "look_at_obj_in_light",
    "pick_clean_then_place_in_recep",
    "pick_heat_then_place_in_recep",
    "pick_cool_then_place_in_recep",
    "pick_two_obj_and_place",
)
_TREATED = {"isclean": 2, "ishot": 3, "iscool": 4}


class Task(NamedTuple):
    """One of the six task types, with lower-case type names ("apple", "countertop").

    ``target`` is the receptacle's type, or for lamp tasks the lamp's.
    """

    kind: str
    item: str
    target: str


def read_task(goal: Expression) -> Task | None:
    """The task that a goal formula states.

    Args:
        goal: nested lists as the reader returns them.

    Returns:
        The task, or None if the goal is none of the six (it can still be played).
    """
    types: dict[str, str] = {}
    flags: set[str] = set()
    lamps: set[str] = set()
    _collect(goal, types, flags, lamps)
    items = {_plain(kind) for name, kind in types.items() if name not in lamps and name[0] == "o"}
    targets = {_plain(kind) for name, kind in types.items() if name in lamps or name[0] == "r"}
    if len(items) != 1 or len(targets) != 1:
        return None
    return Task(_kind(flags, lamps), items.pop(), targets.pop())


def _kind(flags: set[str], lamps: set[str]) -> str:
    if lamps:
        return TASK_TYPES[1]
    if "=" in flags:
        return TASK_TYPES[5]
    for flag, number in _TREATED.items():
        if flag in flags:
            return TASK_TYPES[number]
    return TASK_TYPES[0]


def _plain(type_name: str) -> str:
    return type_name.removesuffix("type")


def _collect(goal: Expression, types: dict[str, str], flags: set[str], lamps: set[str]) -> None:
    if not isinstance(goal, list) or not goal or not isinstance(goal[0], str):
        return
    head = goal[0]
    flags.add(head)
    if head in ("objecttype", "receptacletype") and len(goal) == 3:
        # Prefixed, because a variable of the one kind may be named like one of the other.
        types[f"{head[0]}{goal[1]}"] = str(goal[2])
    elif head == "istoggled" and len(goal) == 2:
        lamps.add(f"o{goal[1]}")
    for part in goal[1:]:
        _collect(part, types, flags, lamps)


_SENTENCES = (
    (re.compile(r"(?:look at|examine the) (\w+) (?:under|with) the (\w+)"), TASK_TYPES[1]),
    (re.compile(r"(?:put|find) two (\w+) (?:and put them )?in (\w+)"), TASK_TYPES[5]),
    (re.compile(r"(?:put a clean|clean some) (\w+) (?:and put it )?in (\w+)"), TASK_TYPES[2]),
    (re.compile(r"(?:put a hot|heat some) (\w+) (?:and put it )?in (\w+)"), TASK_TYPES[3]),
    (re.compile(r"(?:put a cool|cool some) (\w+) (?:and put it )?in (\w+)"), TASK_TYPES[4]),
    (re.compile(r"put (?:a|some) (\w+) (?:in|on) (\w+)"), TASK_TYPES[0]),
)


def read_sentence(sentence: str) -> Task | None:
    """The task that a templated task sentence states.

    Args:
        sentence: such as "put a hot apple in fridge", without the full stop.

    Returns:
        The task, or None for a sentence outside the benchmark's templates (a person's words).
    """
    for pattern, kind in _SENTENCES:
        found = pattern.fullmatch(sentence)
        if found:
            return Task(kind, found.group(1), found.group(2))
    return None


_WORDS = {
    TASK_TYPES[0]: "put a {item} in {target}",
    TASK_TYPES[1]: "look at {item} under the {target}",
    TASK_TYPES[2]: "put a clean {item} in {target}",
    TASK_TYPES[3]: "put a hot {item} in {target}",
    TASK_TYPES[4]: "put a cool {item} in {target}",
    TASK_TYPES[5]: "put two {item} in {target}",
}


def sentence_of(task: Task) -> str:
    """A task in the words of the first of the benchmark's templates, without the full stop."""
    return _WORDS[task.kind].format(item=task.item, target=task.target)
