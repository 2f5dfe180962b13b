"""Strings of JSON: their characters, and the regular expressions that they may have to match."""

import re
from collections.abc import Iterable
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any

from jaxagent.models.llm.constrain_bytes import (
    Pattern,
    byte_range,
    choice,
    compact,
    literal,
    repeat,
    sequence,
)

Ranges = list[tuple[int, int]]
"""Code points from first to last, both included."""

_LAST = 0x10FFFF
# What JSON cannot hold as it stands; control characters other than these are not written at all.
_ESCAPES = {
    '"': '\\"',
    "\\": "\\\\",
    "\b": "\\b",
    "\f": "\\f",
    "\n": "\\n",
    "\r": "\\r",
    "\t": "\\t",
}
_ALL: Ranges = [(0, _LAST)]
_ASCII: Ranges = [(0, 0x7F)]
# Narrower than some engines have them: what is written then matches in all.
_CATEGORIES: dict[str, Ranges] = {
    "DIGIT": [(0x30, 0x39)],
    "WORD": [(0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A)],
    "SPACE": [(0x09, 0x0D), (0x20, 0x20)],
}
_LINE_ENDS: Ranges = [(0x0A, 0x0D), (0x85, 0x85), (0x2028, 0x2029)]

FORMATS = {
    "date": r"^\d{4}-(0[1-9]|1[0-2])-(0[1-9]|1\d|2[0-8])$",
    "time": r"^([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d{1,6})?(Z|[+-]([01]\d|2[0-3]):[0-5]\d)$",
    "uuid": r"^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$",
    "ipv4": r"^((25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)\.){3}(25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)$",
    "email": r"^[a-z0-9]{1,24}([._-][a-z0-9]{1,12}){0,2}@([a-z0-9]{1,24}\.){1,3}[a-z]{2,6}$",
}
"""What is written for each format, a part of what it allows: years of four digits, days to 28."""
FORMATS["date"] = FORMATS["date"].replace(r"\d{4}", r"[12]\d{3}")
FORMATS["date-time"] = FORMATS["date"][:-1] + "T" + FORMATS["time"][1:]


def characters(ranges: Ranges) -> Pattern:
    """One character out of some, as JSON spells it."""
    parts = []
    plain = _without(ranges, [(0, 0x1F), (0x22, 0x22), (0x5C, 0x5C), (0xD800, 0xDFFF)])
    for first, last in plain:
        parts += [sequence(*(byte_range(*each) for each in run)) for run in _utf8(first, last)]
    for character, spelled in _ESCAPES.items():
        if any(first <= ord(character) <= last for first, last in ranges):
            parts.append(literal(spelled))
    if any(first <= ord("/") <= last for first, last in ranges):
        parts.append(literal("\\/"))
    return choice(*parts)


def _utf8(first: int, last: int) -> list[list[tuple[int, int]]]:
    """Ranges of bytes, one after another, that are together the code points of a range."""
    for limit in (0x7F, 0x7FF, 0xFFFF):
        if first <= limit < last:
            return _utf8(first, limit) + _utf8(limit + 1, last)
    if last > 0x7F:
        for tail in (6, 12, 18):
            mask = (1 << tail) - 1
            if first & ~mask != last & ~mask:
                if first & mask:
                    return _utf8(first, first | mask) + _utf8((first | mask) + 1, last)
                if last & mask != mask:
                    return _utf8(first, (last & ~mask) - 1) + _utf8(last & ~mask, last)
    return [list(zip(chr(first).encode(), chr(last).encode(), strict=True))]


def _without(ranges: Ranges, others: Ranges) -> Ranges:
    for low, high in others:
        cut = []
        for first, last in ranges:
            cut += [
                (a, b)
                for a, b in ((first, min(last, low - 1)), (max(first, high + 1), last))
                if a <= b
            ]
        ranges = cut
    return ranges


CHARACTER = compact(characters(_ALL))
"""Any character of a JSON string: well-formed UTF-8 without control characters, or an escape."""


def spelled(text: str) -> Pattern:
    """A text as the inside of a JSON string, in every way in which it can be written here."""
    return sequence(*(characters([(ord(c), ord(c))]) for c in text))


def expression(source: str) -> Pattern:
    """Inside of the JSON strings in which a regular expression is found.

    Where ECMAScript, Python and Rust differ the narrowest is taken: categories are those of ASCII,
    `$` is the end of the text.

    Raises:
        ValueError: it is none, or holds what no automaton of a moderate size knows (named).
    """
    try:
        tree = parser.parse(source)
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"is no regular expression: {error}") from None
    if tree.state.flags & ~re.UNICODE.value:
        raise ValueError("may not have flags such as (?i)")
    return choice(*(_searched(branch) for branch in _branches(list(tree))))


def _branches(items: list) -> list[list]:
    """Alternatives at the top, each of which may have anchors of its own."""
    if len(items) == 1 and str(items[0][0]) == "BRANCH":
        return [each for branch in items[0][1][1] for each in _branches(list(branch))]
    if len(items) == 1 and str(items[0][0]) == "SUBPATTERN" and not any(items[0][1][1:3]):
        return _branches(list(items[0][1][3]))
    return [items]


def _searched(items: list) -> Pattern:
    anything = repeat(CHARACTER, 0, None)
    before, after = [anything], [anything]
    if items and _is_anchor(items[0], "AT_BEGINNING", "AT_BEGINNING_STRING"):
        before, items = [], items[1:]
    if items and _is_anchor(items[-1], "AT_END", "AT_END_STRING"):
        after, items = [], items[:-1]
    return sequence(*before, *map(_item, items), *after)


def _is_anchor(item: Any, *names: str) -> bool:
    return str(item[0]) == "AT" and str(item[1]) in names


def _item(item: Any) -> Pattern:
    kind, value = str(item[0]), item[1]
    if kind in ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"):
        low, high, inner = value
        if kind == "POSSESSIVE_REPEAT":
            raise ValueError("may not hold possessive repeats such as a*+")
        most = None if str(high) == "MAXREPEAT" else int(high)
        return repeat(_items(inner), int(low), most)
    if kind == "SUBPATTERN":
        if value[1] or value[2]:
            raise ValueError("may not have flags such as (?i)")
        return _items(value[3])
    if kind == "BRANCH":
        return choice(*(_items(branch) for branch in value[1]))
    if kind in ("LITERAL", "NOT_LITERAL", "IN", "ANY"):
        ranges = _set([(item[0], value)] if kind != "IN" else value)
        if not any(first <= last for first, last in ranges):
            raise ValueError("holds a set of characters with nothing in it")
        return compact(characters(ranges))
    raise ValueError(f"may not hold {_NAMES.get(kind, kind.lower())}")


_NAMES = {
    "AT": "anchors or \\b but ^ at the beginning and $ at the end",
    "ASSERT": "lookaheads and lookbehinds",
    "ASSERT_NOT": "lookaheads and lookbehinds",
    "GROUPREF": "references to groups",
    "GROUPREF_EXISTS": "references to groups",
    "ATOMIC_GROUP": "atomic groups",
}


def _items(items: Iterable) -> Pattern:
    return sequence(*map(_item, items))


def _set(items: Iterable) -> Ranges:
    """Code points of a set in brackets, of one character, or of the dot."""
    ranges: Ranges = []
    is_negated = False
    for item in items:
        kind, value = str(item[0]), item[1]
        if kind == "NEGATE":
            is_negated = True
        elif kind == "LITERAL":
            ranges.append((value, value))
        elif kind == "RANGE":
            ranges.append(tuple(value))
        elif kind == "ANY":
            ranges += _without(_ALL, _LINE_ENDS)
        elif kind == "NOT_LITERAL":
            ranges += _without(_ALL, [(value, value)])
        else:
            name = str(value).removeprefix("CATEGORY_")
            known = _CATEGORIES[name.removeprefix("NOT_")]
            # Engines disagree about letters beyond ASCII.
            ranges += _without(_ASCII, known) if name.startswith("NOT_") else known
            if is_negated:
                ranges.append((0x80, _LAST))
    return _without(_ALL, ranges) if is_negated else ranges
