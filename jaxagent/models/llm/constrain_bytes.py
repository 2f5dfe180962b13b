"""Regular languages over bytes.

A pattern is built from `literal`, `byte_range`, `sequence`, `choice`, `repeat` and `both`, and
turned into a deterministic automaton over bytes by the subset construction.
"""

import dataclasses
import functools
import itertools
from collections.abc import Sequence

import numpy as np

# Byte strings of more states than this would take minutes and gigabytes over a large vocabulary.
MAX_STATES = 20_000
_TOO_LARGE = (
    f"the pattern needs more than {MAX_STATES} states: lower its repetition counts (those of what "
    "is nested multiply), or take fewer alternatives"
)


class TooLarge(ValueError):
    """A pattern that needs more states than can be built."""


@dataclasses.dataclass(frozen=True, eq=False)
class ByteAutomaton:
    """A deterministic automaton over bytes.

    Attributes:
        targets: [S, 256], the state after each byte; S − 1 is dead and leads to itself.
        is_complete: of each state, whether the string may end there.
    """

    targets: np.ndarray
    is_complete: np.ndarray


@dataclasses.dataclass(frozen=True)
class Pattern:
    """A set of byte strings: how to draw it from a node of a graph to another."""

    kind: str
    parts: tuple["Pattern", ...] = ()
    low: int = 0
    high: int | None = 0
    needed: tuple[bool, ...] = ()
    machine: ByteAutomaton | None = None

    @functools.cached_property
    def size(self) -> int:
        """About how many states it takes."""
        inner = sum(part.size for part in self.parts)
        if self.kind in ("repeat", "joined"):
            return inner * max(self.low + 1 if self.high is None else self.high, 1)
        return inner + (1 if self.machine is None else len(self.machine.targets))


def byte_range(low: int, high: int) -> Pattern:
    """One byte, low to high, both included."""
    return Pattern("byte", low=low, high=high)


def sequence(*parts: Pattern) -> Pattern:
    """One after another."""
    return Pattern("sequence", parts)


def choice(*parts: Pattern) -> Pattern:
    """One of several."""
    return Pattern("choice", parts)


def repeat(part: Pattern, low: int, high: int | None) -> Pattern:
    """From low to high times; None is without limit."""
    return Pattern("repeat", (part,), low, high)


def joined(part: Pattern, separator: Pattern, low: int, high: int | None) -> Pattern:
    """From low to high times, at least once, with a separator between; None is without limit."""
    return Pattern("joined", (part, separator), low, high)


def selection(parts: Sequence[Pattern], needed: Sequence[bool], separator: Pattern) -> Pattern:
    """Some of several in their order, with a separator between; those that are needed, always."""
    return Pattern("selection", (separator, *parts), needed=tuple(needed))


def literal(text: str) -> Pattern:
    """Exactly this text, in UTF-8."""
    return sequence(*(byte_range(b, b) for b in text.encode()))


def of_machine(machine: ByteAutomaton) -> Pattern:
    """The strings of an automaton."""
    return Pattern("machine", machine=machine)


def compact(pattern: Pattern) -> Pattern:
    """The same strings in as few states as there are; for what is repeated often."""
    return of_machine(_minimal(compile_pattern(pattern)))


def both(*patterns: Pattern) -> Pattern:
    """Strings that are in every one of several patterns."""
    first, *rest = patterns
    if not rest:
        return first
    machine = compile_pattern(first)
    for pattern in rest:
        machine = _product(machine, compile_pattern(pattern))
    return of_machine(machine)


class _Graph:
    """A non-deterministic automaton over bytes, with moves that read nothing."""

    def __init__(self) -> None:
        self.moves: list[list[tuple[int, int, int]]] = []
        self.free: list[list[int]] = []

    def new(self) -> int:
        if len(self.moves) >= MAX_STATES:
            raise TooLarge(_TOO_LARGE)
        self.moves.append([])
        self.free.append([])
        return len(self.moves) - 1

    def draw(self, pattern: Pattern, start: int) -> int:
        """Add a pattern from a node on; the node where it ends."""
        return getattr(self, f"_{pattern.kind}")(pattern, start)

    def _byte(self, pattern: Pattern, start: int) -> int:
        end = self.new()
        self.moves[start].append(
            (pattern.low, pattern.low if pattern.high is None else pattern.high, end)
        )
        return end

    def _sequence(self, pattern: Pattern, start: int) -> int:
        for part in pattern.parts:
            start = self.draw(part, start)
        return start

    def _choice(self, pattern: Pattern, start: int) -> int:
        end = self.new()
        for part in pattern.parts:
            # A node of its own: a loop at the beginning of one part must not reach the others.
            begin = self.new()
            self.free[start].append(begin)
            self.free[self.draw(part, begin)].append(end)
        return end

    def _repeat(self, pattern: Pattern, start: int) -> int:
        part = pattern.parts[0]
        for _ in range(pattern.low):
            start = self.draw(part, start)
        end = self.new()
        if pattern.high is None:
            loop = self.new()
            self.free[start].append(loop)
            self.free[self.draw(part, loop)].append(loop)
            self.free[loop].append(end)
            return end
        self.free[start].append(end)
        for _ in range(pattern.high - pattern.low):
            start = self.draw(part, start)
            self.free[start].append(end)
        return end

    def _joined(self, pattern: Pattern, start: int) -> int:
        part, separator = pattern.parts
        for _ in range(pattern.low - 1):
            start = self.draw(separator, self.draw(part, start))
        end = self.new()
        if pattern.high is None:
            # Drawn once: what is nested would be doubled at each depth.
            loop = self.new()
            self.free[start].append(loop)
            after = self.draw(part, loop)
            self.free[after].append(end)
            self.free[self.draw(separator, after)].append(loop)
            return end
        for number in range(max(pattern.low, 1), pattern.high + 1):
            start = self.draw(part, start)
            self.free[start].append(end)
            if number < pattern.high:
                start = self.draw(separator, start)
        return end

    def _selection(self, pattern: Pattern, start: int) -> int:
        """Two chains, nothing said yet and something said; each part is drawn once, for both."""
        separator, *parts = pattern.parts
        silent, said = self.new(), self.new()
        self.free[start].append(silent)
        for part, needed in zip(parts, pattern.needed, strict=True):
            begin, next_silent, next_said = self.new(), self.new(), self.new()
            self.free[silent].append(begin)
            self.free[self.draw(separator, said)].append(begin)
            self.free[self.draw(part, begin)].append(next_said)
            if not needed:
                self.free[silent].append(next_silent)
                self.free[said].append(next_said)
            silent, said = next_silent, next_said
        end = self.new()
        self.free[silent].append(end)
        self.free[said].append(end)
        return end

    def _machine(self, pattern: Pattern, start: int) -> int:
        """A node for each state but the dead one, which is the last."""
        machine = pattern.machine
        if machine is None:
            raise ValueError("a pattern of kind machine must hold one")
        nodes = [self.new() for _ in range(len(machine.targets) - 1)]
        end = self.new()
        if nodes:
            self.free[start].append(nodes[0])
        for node, row, is_complete in zip(
            nodes, machine.targets, machine.is_complete, strict=False
        ):
            for low, high in _runs(row):
                if row[low] < len(nodes):
                    self.moves[node].append((low, high, nodes[row[low]]))
            if is_complete:
                self.free[node].append(end)
        return end

    def closure(self, nodes: set[int]) -> frozenset[int]:
        """Nodes reached without reading."""
        pending, seen = list(nodes), set(nodes)
        while pending:
            for node in self.free[pending.pop()]:
                if node not in seen:
                    seen.add(node)
                    pending.append(node)
        # Nodes that only pass on say nothing about where one is, except the end.
        return frozenset(n for n in seen if self.moves[n] or not self.free[n])


def compile_pattern(pattern: Pattern) -> ByteAutomaton:
    """The subset construction over bytes.

    Raises:
        ValueError: it has too many states.
    """
    graph = _Graph()
    end = graph.draw(pattern, start := graph.new())
    first = graph.closure({start})
    number, pending, rows = {first: 0}, [first], []
    for subset in pending:
        moves = [move for node in subset for move in graph.moves[node]]
        # Between two neighbouring limits all bytes go the same way.
        limits = sorted({m[0] for m in moves} | {m[1] + 1 for m in moves})
        row = np.full(256, -1, np.int32)
        for low, high in itertools.pairwise(limits):
            following = {m[2] for m in moves if m[0] <= low and high - 1 <= m[1]}
            if following:
                key = graph.closure(following)
                if key not in number:
                    number[key] = len(number)
                    pending.append(key)
                row[low:high] = number[key]
        rows.append(row)
        if len(pending) > MAX_STATES:
            raise TooLarge(_TOO_LARGE)
    dead = len(rows)
    targets = np.stack([*rows, np.full(256, dead, np.int32)])
    is_complete = np.array([end in subset for subset in pending] + [False])
    return ByteAutomaton(np.where(targets < 0, dead, targets), is_complete)


def _runs(row: np.ndarray) -> list[tuple[int, int]]:
    """(first, last) of each stretch of bytes that lead to the same state."""
    cuts = np.flatnonzero(np.diff(row)) + 1
    return list(zip([0, *cuts.tolist()], [*(cuts - 1).tolist(), 255], strict=True))


def _product(first: ByteAutomaton, second: ByteAutomaton) -> ByteAutomaton:
    """Strings that both accept."""
    width = len(second.targets)
    dead = len(first.targets) * width - 1
    is_dead = np.zeros(len(first.targets), bool), np.zeros(width, bool)
    is_dead[0][-1] = is_dead[1][-1] = True
    number, pending, rows = {0: 0}, [0], []
    for pair in pending:
        a, b = divmod(pair, width)
        a, b = first.targets[a], second.targets[b]
        pairs = np.where(is_dead[0][a] | is_dead[1][b], dead, a.astype(np.int64) * width + b)
        for found in np.unique(pairs).tolist():
            if found != dead and found not in number:
                number[found] = len(number)
                pending.append(found)
        if len(pending) > MAX_STATES:
            raise TooLarge(_TOO_LARGE)
        rows.append(pairs)
    number[dead] = len(pending)
    known = np.array(sorted(number))
    places = np.array([number[pair] for pair in known.tolist()])
    targets = places[np.searchsorted(known, np.stack([*rows, np.full(256, dead)]))]
    ends = [first.is_complete[p // width] and second.is_complete[p % width] for p in pending]
    return ByteAutomaton(targets.astype(np.int32), np.array([*ends, False]))


def _minimal(machine: ByteAutomaton) -> ByteAutomaton:
    """Equal states made one, in their order (Moore 1956); states without an end are dead."""
    group = machine.is_complete.astype(np.int64)
    count = 0
    while True:
        rows = np.concatenate([group[:, None], group[machine.targets]], axis=1)
        _, first, group = np.unique(rows, axis=0, return_index=True, return_inverse=True)
        group = group.reshape(-1)
        if len(first) == count:
            break
        count = len(first)
    # By first appearance, the start at the beginning and the dead state at the end.
    dead = group[-1]
    order = np.argsort(np.where(np.arange(count) == dead, len(group), first))
    place = np.empty(count, np.int64)
    place[order] = np.arange(count)
    targets = place[group[machine.targets[first[order]]]]
    return ByteAutomaton(targets.astype(np.int32), machine.is_complete[first[order]])
