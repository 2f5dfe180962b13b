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


@dataclasses.dataclass(frozen=True)
class Pattern:
    """A set of byte strings: how to draw it from a node of a graph to another."""

    kind: str
    parts: tuple["Pattern", ...] = ()
    low: int = 0
    high: int | None = 0


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
            raise ValueError(
                f"the pattern needs more than {MAX_STATES} states: lower its repetition counts"
            )
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
            raise ValueError(
                f"the pattern needs more than {MAX_STATES} states: lower its repetition counts"
            )
    dead = len(rows)
    targets = np.stack([*rows, np.full(256, dead, np.int32)])
    is_complete = np.array([end in subset for subset in pending] + [False])
    return ByteAutomaton(np.where(targets < 0, dead, targets), is_complete)


class TokenBytes:
    """The bytes of every token, laid out so that all tokens are read at once.

    Args:
        token_bytes: of each id; empty for tokens that stand for no text, which are never read.
    """

    def __init__(self, token_bytes: Sequence[bytes]) -> None:
        lengths = np.array([len(b) for b in token_bytes])
        # Longest first: those with more than j bytes are then a slice.
        self.ids = np.argsort(-lengths, kind="stable")[: int((lengths > 0).sum())]
        self.lengths = lengths[self.ids]
        self.bytes = np.zeros((len(self.ids), int(lengths.max(initial=0))), np.uint8)
        for row, token in enumerate(self.ids):
            self.bytes[row, : self.lengths[row]] = np.frombuffer(token_bytes[token], np.uint8)

    def follow(self, machine: ByteAutomaton, state: int) -> tuple[np.ndarray, np.ndarray]:
        """(token ids, states they lead to) of all tokens that survive."""
        dead = len(machine.targets) - 1
        at = machine.targets[state, self.bytes[:, 0]]
        rows = np.flatnonzero(at != dead)
        at = at[rows]
        reached_rows, reached_at = [], []
        for column in range(1, self.bytes.shape[1] + 1):
            longer = self.lengths[rows] > column
            reached_rows.append(rows[~longer])
            reached_at.append(at[~longer])
            rows = rows[longer]
            if not len(rows):
                break
            at = machine.targets[at[longer], self.bytes[rows, column]]
            rows, at = rows[at != dead], at[at != dead]
        return self.ids[np.concatenate(reached_rows)], np.concatenate(reached_at)


def lift(machine: ByteAutomaton, tokens: TokenBytes, *, end_token: int) -> Automaton:
    """The automaton over tokens whose strings are those of an automaton over bytes.

    Args:
        machine: over bytes.
        tokens: the bytes of every token.
        end_token: ends a string that could also go on.

    Raises:
        ValueError: no token sequence spells a permitted string.
    """
    number, pending, edges, ends = {0: 0}, [0], [], []
    for state in pending:
        ids, targets = tokens.follow(machine, state)
        for target in np.unique(targets).tolist():
            if target not in number:
                number[target] = len(number)
                pending.append(target)
        is_complete = bool(machine.is_complete[state])
        edges.append((ids, np.array([number[t] for t in targets.tolist()], np.int64)))
        ends.append(is_complete and not len(ids))
    over = len(edges)
    for place, state in enumerate(pending):
        ids, targets = edges[place]
        if machine.is_complete[state] and len(ids):
            edges[place] = (np.append(ids, end_token), np.append(targets, over))
    edges.append((np.zeros(0, np.int64), np.zeros(0, np.int64)))
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
