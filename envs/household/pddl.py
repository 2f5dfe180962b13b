"""Reads the part of PDDL that game files use: objects, flat initial facts, one goal formula."""

import re
from typing import NamedTuple

Expression = str | list["Expression"]


class GameFileError(ValueError):
    """A game file that cannot be played as it is; the message says what is wrong with it."""


class Problem(NamedTuple):
    """A PDDL problem, lower-cased as the stock translator does."""

    types: dict[str, str]
    facts: dict[str, list[list[str]]]
    goal: Expression


# What each predicate of the household domain takes.  Predicates mapped to None are legal in a
# game file but no rule of the game reads them.
SIGNATURES: dict[str, tuple[str, ...] | None] = {
    "atlocation": ("agent", "location"),
    "receptacleatlocation": ("receptacle", "location"),
    "objectatlocation": ("object", "location"),
    "openable": ("receptacle",),
    "opened": ("receptacle",),
    "inreceptacle": ("object", "receptacle"),
    "isreceptacleobject": ("object",),
    "inreceptacleobject": ("object", "object"),
    "receptacletype": ("receptacle", "rtype"),
    "cancontain": ("rtype", "otype"),
    "objecttype": ("object", "otype"),
    "holds": ("agent", "object"),
    "isclean": ("object",),
    "cleanable": ("object",),
    "ishot": ("object",),
    "heatable": ("object",),
    "iscool": ("object",),
    "coolable": ("object",),
    "pickupable": ("object",),
    "toggleable": ("object",),
    "istoggled": ("object",),
    "sliceable": ("object",),
    "issliced": ("object",),
    "isreceptacleobjectfull": None,
    "wasinreceptacle": None,
    "checked": None,
    "examined": None,
    "holdsanyreceptacleobject": None,
    "full": None,
    "moveable": None,
    "ison": None,
}

_HEADER = re.compile(r"\s*\(\s*define\s*\(\s*problem\s[^()]*\)\s*\(\s*:domain\s+([^\s()]+)\s*\)")
_OBJECTS = re.compile(r"\s*\(\s*:objects([^()]*)\)")
_NUMBER = r"\(\s*=\s*\([^()]*\)\s*[^\s()]+\s*\)"
_INIT = re.compile(rf"\s*\(\s*:init((?:\s*+(?:\([^()]*\)|{_NUMBER}))*+)\s*\)")
_FACT = re.compile(r"\(([^()]*)\)")
_COST = re.compile(_NUMBER)
_GOAL = re.compile(r"\s*\(\s*:goal\b")
_COMMENT = re.compile(r";[^\n]*")
_TOKEN = re.compile(r"[()]|[^\s()]+")
_MAX_NESTING = 64


def strip_comments(text: str) -> str:
    """PDDL without its ``;`` comments, lower-cased (PDDL does not distinguish case)."""
    return (_COMMENT.sub("", text) if ";" in text else text).lower()


def parse_problem(text: str) -> Problem:
    """Reads a problem of the household domain.

    Args:
        text: the PDDL source.

    Returns:
        Objects with their types, facts grouped by predicate, and the goal as nested lists. The
        goal's predicates are not checked here.

    Raises:
        GameFileError: a section is missing or cut short, or a fact is not of the domain.
    """
    text = strip_comments(text)
    header = _expect(_HEADER, text, 0, "(define (problem NAME) (:domain NAME)")
    objects = _expect(_OBJECTS, text, header.end(), "(:objects ...)")
    init = _expect(_INIT, text, objects.end(), "(:init ...) made of flat facts")
    goal = _expect(_GOAL, text, init.end(), "(:goal ...)")
    types = _parse_objects(objects.group(1).split())
    facts = _group_facts(init.group(1), types)
    return Problem(types, facts, _parse_goal(_TOKEN.findall(text, goal.end())))


def _expect(pattern: re.Pattern[str], text: str, start: int, what: str) -> re.Match[str]:
    match = pattern.match(text, start)
    if match is None:
        raise GameFileError(
            f"the PDDL problem has no {what} at character {start} of {len(text)}: "
            "the file is cut short or is not a household problem"
        )
    return match


def _parse_objects(words: list[str]) -> dict[str, str]:
    """``a b - type c - type`` as a mapping from name to type."""
    types: dict[str, str] = {}
    waiting: list[str] = []
    position = 0
    while position < len(words):
        if words[position] != "-":
            waiting.append(words[position])
            position += 1
            continue
        if position + 1 >= len(words):
            raise GameFileError("(:objects ...) ends after '-' without a type")
        types.update(dict.fromkeys(waiting, words[position + 1]))
        waiting = []
        position += 2
    if waiting:
        raise GameFileError(f"object {waiting[0]!r} is declared without a type")
    return types


def _group_facts(section: str, types: dict[str, str]) -> dict[str, list[list[str]]]:
    facts: dict[str, list[list[str]]] = {name: [] for name in SIGNATURES}
    # Distances and costs are numbers that no rule of the game reads.
    section = _COST.sub("", section) if "=" in section else section
    for match in _FACT.findall(section):
        parts = match.split()
        if not parts:
            raise GameFileError("(:init ...) holds an empty fact '()'")
        arguments = parts[1:]
        if parts[0] not in SIGNATURES:
            raise GameFileError(
                f"unknown predicate {parts[0]!r} in (:init ...); the household domain has: "
                + ", ".join(sorted(SIGNATURES))
            )
        signature = SIGNATURES[parts[0]]
        if signature is not None:
            kinds = tuple([types.get(argument) for argument in arguments])
            if kinds != signature:
                raise GameFileError(
                    f"fact ({' '.join(parts)}) has arguments of types {kinds}, "
                    f"but {parts[0]} takes {signature}"
                )
        facts[parts[0]].append(arguments)
    return facts


def _parse_goal(tokens: list[str]) -> Expression:
    """The formula after ``(:goal``, and nothing but an optional metric after it."""
    stack: list[list[Expression]] = [[]]
    for position, token in enumerate(tokens):
        if token == "(":
            stack.append([])
            if len(stack) > _MAX_NESTING:
                raise GameFileError(f"the goal nests deeper than {_MAX_NESTING} levels")
        elif token == ")":
            closed = stack.pop()
            if not stack:
                return _only_formula(closed, tokens[position + 1 :])
            stack[-1].append(closed)
        else:
            stack[-1].append(token)
    raise GameFileError("the goal is cut short: its parentheses do not close")


def _only_formula(section: list[Expression], rest: list[str]) -> Expression:
    if len(section) != 1:
        raise GameFileError(f"(:goal ...) must hold one formula, it holds {len(section)}")
    if rest not in ([")"], ["(", ":metric", "minimize", "(", "total-cost", ")", ")", ")"]):
        raise GameFileError(
            "the PDDL problem does not end after its goal: expected ')', "
            f"found {' '.join(rest[:8])!r}"
        )
    return section[0]
