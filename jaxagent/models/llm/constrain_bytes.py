"""Regular languages over bytes, and what tokens make of them.

A pattern is built from `literal`, `byte_range`, `sequence`, `choice` and `repeat`, turned into a
deterministic automaton over bytes by the subset construction, and lifted to tokens: token t leads
from state s to where its bytes lead. Every tokenisation of a permitted string is permitted.
"""

import dataclasses
import itertools
import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxagent.models.llm.constrain import Automaton, automaton

# Byte strings of more states than this would take minutes and gigabytes over a large vocabulary.
MAX_STATES = 20_000
_TOO_LARGE = (
    f"the pattern needs more than {MAX_STATES} states: lower its repetition counts (those of what "
    "is nested multiply), or take fewer alternatives"
)


@dataclasses.dataclass(frozen=True)
class Pattern:
    """A set of byte strings: how to draw it from a node of a graph to another."""

    kind: str
    parts: tuple["Pattern", ...] = ()
    low: int = 0
    high: int | None = 0
    needed: tuple[bool, ...] = ()


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


class _Graph:
    """A non-deterministic automaton over bytes, with moves that read nothing."""

    def __init__(self) -> None:
        self.moves: list[list[tuple[int, int, int]]] = []
        self.free: list[list[int]] = []

    def new(self) -> int:
        if len(self.moves) >= MAX_STATES:
            raise ValueError(_TOO_LARGE)
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


@dataclasses.dataclass(frozen=True)
class ByteAutomaton:
    """A deterministic automaton over bytes.

    Attributes:
        targets: [S, 256], the state after each byte; S − 1 is dead and leads to itself.
        is_complete: of each state, whether the string may end there.
    """

    targets: np.ndarray
    is_complete: np.ndarray


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
            raise ValueError(_TOO_LARGE)
    dead = len(rows)
    targets = np.stack([*rows, np.full(256, dead, np.int32)])
    is_complete = np.array([end in subset for subset in pending] + [False])
    return ByteAutomaton(np.where(targets < 0, dead, targets), is_complete)


class TokenBytes:
    """The bytes of every token as a trie: beginnings that tokens have in common are read once.

    Args:
        token_bytes: of each id; empty for tokens that stand for no text, which are never read.
    """

    def __init__(self, token_bytes: Sequence[bytes]) -> None:
        bytes_, tokens, children = [0], [-1], [[]]
        place: dict[tuple[int, int], int] = {}

        def grow(parent: int, byte: int) -> int:
            children[parent].append(len(tokens))
            bytes_.append(byte)
            tokens.append(-1)
            children.append([])
            return len(tokens) - 1

        for token, spelled in enumerate(token_bytes):
            node = parent = 0
            for byte in spelled:
                parent, node = node, place.get((node, byte), 0)
                if not node:
                    node = place[parent, byte] = grow(parent, byte)
            if node and tokens[node] >= 0:  # two tokens of the same bytes
                node = grow(parent, spelled[-1])
            if node:
                tokens[node] = token
        self._num_ids = len(token_bytes)
        self._bytes, self._tokens = np.array(bytes_), np.array(tokens, np.int32)
        self._count = np.array([*map(len, children)])
        self._first = np.cumsum(self._count) - self._count
        self._children = np.array([*itertools.chain(*children)], np.int64)

    def follow(self, machine: ByteAutomaton, state: int) -> tuple[np.ndarray, np.ndarray]:
        """(token ids, states they lead to) of all tokens that survive, by id."""
        dead = len(machine.targets) - 1
        after = machine.targets.reshape(-1)
        nodes, at = np.zeros(1, np.int64), np.array([state], np.int64)
        reached_tokens, reached_at = [], []
        while len(nodes):
            count = self._count[nodes]
            begin = self._first[nodes] - (np.cumsum(count) - count)
            nodes = self._children[np.repeat(begin, count) + np.arange(count.sum())]
            at = after[np.repeat(at, count) * 256 + self._bytes[nodes]]
            alive = np.flatnonzero(at != dead)
            nodes, at = nodes[alive], at[alive]
            tokens = self._tokens[nodes]
            is_whole = np.flatnonzero(tokens >= 0)
            reached_tokens.append(tokens[is_whole])
            reached_at.append(at[is_whole])
        ids, at = np.concatenate(reached_tokens), np.concatenate(reached_at)
        if len(ids) < self._num_ids // 16:
            order = np.argsort(ids)
            return ids[order], at[order]
        # Much of the vocabulary: to lay it out is quicker than to sort it.
        row = np.full(self._num_ids, -1, np.int32)
        row[ids] = at
        ids = np.flatnonzero(row >= 0)
        return ids.astype(np.int32), row[ids]


def lift(machine: ByteAutomaton, tokens: TokenBytes, *, end_token: int) -> Automaton:
    """The automaton over tokens whose strings are those of an automaton over bytes.

    Args:
        machine: over bytes.
        tokens: the bytes of every token.
        end_token: ends a string that could also go on.

    Raises:
        ValueError: no token sequence spells a permitted string.
    """
    number = np.full(len(machine.targets), -1, np.int32)
    number[0] = 0
    pending, edges, ends = [0], [], []
    for state in pending:
        ids, targets = tokens.follow(machine, state)
        is_found = np.zeros(len(number), bool)
        is_found[targets] = True
        found = np.flatnonzero(is_found & (number < 0))
        number[found] = len(pending) + np.arange(len(found))
        pending += found.tolist()
        is_complete = bool(machine.is_complete[state])
        edges.append((ids, number[targets]))
        ends.append(is_complete and not len(ids))
    over = len(edges)
    for place, state in enumerate(pending):
        ids, targets = edges[place]
        if machine.is_complete[state] and len(ids):
            edges[place] = (np.append(ids, end_token), np.append(targets, over))
    edges.append((np.zeros(0, np.int32), np.zeros(0, np.int32)))
    return automaton(edges, np.array([*ends, True]))


def token_bytes(tokenizer: Any) -> list[bytes]:
    """The bytes that each token adds to the text.

    Args:
        tokenizer: a fast tokeniser of transformers, byte-level (GPT-2, Llama 3, SmolLM2, Qwen)
            or with byte fallback (SentencePiece, Llama 2).

    Returns:
        Of each id; b"" for special tokens, which are no text, and for ids that are not used. A
        SentencePiece word carries its space, also at the beginning of a text, where the decoder
        drops it.

    Raises:
        ValueError: the tokeniser's decoder is of neither kind.
    """
    described = json.loads(tokenizer.backend_tokenizer.to_str())
    kinds = _decoder_kinds(described.get("decoder"))
    if "ByteLevel" in kinds:
        alphabet = {character: byte for byte, character in _byte_characters().items()}

        def spelled(text: str) -> bytes:
            return bytes(alphabet[c] for c in text)
    elif kinds & {"ByteFallback", "Metaspace"}:

        def spelled(text: str) -> bytes:
            if len(text) == 6 and text.startswith("<0x") and text.endswith(">"):
                return bytes([int(text[3:5], 16)])
            return text.replace("▁", " ").encode()
    else:
        raise ValueError(
            f"cannot tell the bytes of tokens: decoder ({sorted(kinds)}) must be ByteLevel, "
            "ByteFallback or Metaspace"
        )
    added = {item["id"]: item for item in described.get("added_tokens", [])}
    vocabulary = tokenizer.get_vocab()
    result = [b""] * (max(vocabulary.values(), default=-1) + 1)
    for text, token in vocabulary.items():
        if token not in added:
            result[token] = spelled(text)
        elif not added[token]["special"]:
            result[token] = text.encode()
    return result


def _decoder_kinds(decoder: dict[str, Any] | None) -> set[str]:
    if decoder is None:
        return set()
    parts = decoder.get("decoders", [decoder])
    return {part["type"] for part in parts}


def _byte_characters() -> dict[int, str]:
    """The printable character that byte-level tokenisers write for each byte (GPT-2)."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in shown]
    return {byte: chr(byte) for byte in shown} | {
        byte: chr(256 + place) for place, byte in enumerate(hidden)
    }
