"""What tokens make of automata over bytes.

Token t leads from state s to where its bytes lead. Every tokenisation of a permitted string is
permitted.
"""

import itertools
import json
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxagent.models.llm.constrain import Automaton, automaton
from jaxagent.models.llm.constrain_bytes import ByteAutomaton, TooLarge

MAX_EDGES = 60_000_000
"""Of one automaton over tokens; each takes eight bytes."""


class TokenBytes:
    """The bytes of every token as a trie: beginnings that tokens have in common are read once.

    Args:
        token_bytes: of each id; empty for tokens that stand for no text, which are never read.

    Attributes:
        num_ids: how many ids there are.
        lengths: bytes of each.
        longest: the most bytes of one.
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
        self.num_ids, self._spelled = len(token_bytes), token_bytes
        self.lengths = np.array([*map(len, token_bytes)], np.int32)
        self.longest = int(self.lengths.max(initial=0))
        self._beyond: dict[int, TokenBytes] = {}
        self._bytes, self._tokens = np.array(bytes_), np.array(tokens, np.int32)
        self._count = np.array([*map(len, children)])
        self._first = np.cumsum(self._count) - self._count
        self._children = np.array([*itertools.chain(*children)], np.int64)

    def beyond(self, length: int) -> "TokenBytes":
        """Those of more bytes than this alone; made once."""
        if length not in self._beyond:
            longer = [each if len(each) > length else b"" for each in self._spelled]
            self._beyond[length] = TokenBytes(longer)
        return self._beyond[length]

    def follow(
        self, machine: ByteAutomaton, state: int, stays: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """All tokens that survive, and where they lead.

        Args:
            machine: over bytes.
            state: from which the tokens are read.
            stays: [S · 256], transitions that forget where the token began.

        Returns:
            Token ids in no order, the states they lead to, and whether one of the transitions on
            the way is in `stays`.
        """
        dead = len(machine.targets) - 1
        after = machine.targets.reshape(-1)
        nodes, at = np.zeros(1, np.int64), np.array([state], np.int32)
        has_stayed = np.zeros(1, bool)
        ids, reached, flags = [], [], []
        while len(nodes):
            count = self._count[nodes]
            begin = self._first[nodes] - (np.cumsum(count) - count)
            nodes = self._children[np.repeat(begin, count) + np.arange(count.sum())]
            edge = np.repeat(at.astype(np.int64), count) * 256 + self._bytes[nodes]
            at, has_stayed = after[edge], np.repeat(has_stayed, count)
            if stays is not None:
                has_stayed |= stays[edge]
            alive = np.flatnonzero(at != dead)
            nodes, at, has_stayed = nodes[alive], at[alive], has_stayed[alive]
            tokens = self._tokens[nodes]
            is_whole = np.flatnonzero(tokens >= 0)
            ids.append(tokens[is_whole])
            reached.append(at[is_whole])
            flags.append(has_stayed[is_whole])
        return np.concatenate(ids), np.concatenate(reached), np.concatenate(flags)

    def by_id(self, *parts: tuple[np.ndarray, ...]) -> tuple[np.ndarray, ...]:
        """Results of `follow` put together and sorted by id."""
        ids, *others = (np.concatenate(columns) for columns in zip(*parts, strict=True))
        if len(ids) < self.num_ids // 16:
            order = np.argsort(ids)
        else:
            # Much of the vocabulary: to lay it out is quicker than to sort it.
            row = np.full(self.num_ids, -1, np.int32)
            row[ids] = np.arange(len(ids))
            order = row[row >= 0]
        return (ids[order], *(other[order] for other in others))


class Shift(NamedTuple):
    """A state from which tokens lead as they do from an earlier one, further on by a distance.

    Attributes:
        earlier: the other state.
        by: distance between the two.
        depth: bytes of a token up to which this holds.
    """

    earlier: int
    by: int
    depth: int


# Shorter tokens are most of a vocabulary; the rest is read anew where the depth does not suffice.
_DEPTHS = (10, 16, 32, 64)


def _shifts(machine: ByteAutomaton, longest: int) -> tuple[dict[int, Shift], dict[int, np.ndarray]]:
    """What repeats itself in an automaton, as the characters of a string of limited length do.

    State s + δ is like state s to depth d if each byte leads both to the same state, or to two
    that are again δ apart and alike to depth d − 1.

    Returns:
        The shift of each state that has one, and for each δ the transitions of the first kind.
    """
    size = len(machine.targets)
    _, first, classes = np.unique(machine.targets, axis=1, return_index=True, return_inverse=True)
    targets = machine.targets[:, first]
    steps = machine.targets[:, ord("a")] - np.arange(size)
    values, counts = np.unique(
        steps[(steps > 0) & (machine.targets[:, ord("a")] < size - 1)], return_counts=True
    )
    shifts, stays = {}, {}
    for place in np.argsort(-counts)[:3]:
        by = int(values[place])
        if counts[place] < _DEPTHS[0] or size <= 2 * by:
            continue
        equal = np.zeros((size, len(first)), bool)
        equal[:-by] = targets[:-by] == targets[by:]
        goes = np.zeros_like(equal)
        goes[:-by] = targets[by:] == targets[:-by] + by
        fits = equal | goes
        fits[:-by] &= equal[:-by] == equal[by:]
        depth = _depths(targets, equal, fits, longest)
        stays[by] = equal[:, classes.reshape(-1)].reshape(-1)
        for state in np.flatnonzero(depth >= _DEPTHS[0]).tolist():
            shifts.setdefault(state + by, Shift(state, by, int(depth[state])))
    return shifts, stays


def _depths(targets: np.ndarray, equal: np.ndarray, fits: np.ndarray, longest: int) -> np.ndarray:
    """Of each state, the bytes up to which it is like its counterpart; at most `longest`."""
    depth = np.full(len(targets), longest)
    for _ in range(longest):
        step = np.where(equal, longest, np.minimum(depth[targets] + 1, longest))
        shallower = np.where(fits, step, 0).min(axis=1)
        if np.array_equal(shallower, depth):
            break
        depth = shallower
    return depth


class _Lifting:
    """Edges over tokens from the states of an automaton over bytes."""

    def __init__(self, machine: ByteAutomaton, tokens: TokenBytes) -> None:
        self._machine, self._tokens = machine, tokens
        self._shifts, self._stays = _shifts(machine, tokens.longest)
        self._later = {shift.earlier: shift for shift in self._shifts.values()}
        # Edges that a later state is going to be made from.
        self._kept: dict[int, tuple[int, tuple[np.ndarray, ...]]] = {}

    def edges(self, state: int) -> tuple[np.ndarray, np.ndarray]:
        """(tokens by id, states over bytes that they lead to)."""
        by = self._later[state].by if state in self._later else 0
        shift = self._shifts.get(state)
        kept = self._kept.pop(shift.earlier, None) if shift else None
        if shift and kept and kept[0] == shift.by and by in (0, shift.by):
            found = self._moved(state, shift, kept[1])
        else:
            stays = self._stays.get(by)
            found = self._tokens.by_id(self._tokens.follow(self._machine, state, stays))
        if by:
            self._kept[state] = by, found
        return found[0], found[1]

    def _moved(
        self, state: int, shift: Shift, edges: tuple[np.ndarray, ...]
    ) -> tuple[np.ndarray, ...]:
        ids, at, has_stayed = edges
        at = np.where(has_stayed, at, at + np.int32(shift.by))
        if shift.depth >= self._tokens.longest:
            return ids, at, has_stayed
        limit = max(depth for depth in _DEPTHS if depth <= shift.depth)
        short = np.flatnonzero(self._tokens.lengths[ids] <= limit)
        longer = self._tokens.beyond(limit)
        long = longer.follow(self._machine, state, self._stays[shift.by])
        return self._tokens.by_id((ids[short], at[short], has_stayed[short]), long)


def lift(machine: ByteAutomaton, tokens: TokenBytes, *, end_token: int) -> Automaton:
    """The automaton over tokens whose strings are those of an automaton over bytes.

    Args:
        machine: over bytes.
        tokens: the bytes of every token.
        end_token: ends a string that could also go on.

    Raises:
        ValueError: no token sequence spells a permitted string.
        TooLarge: the tables would take gigabytes.
    """
    number = np.full(len(machine.targets), -1, np.int32)
    number[0] = 0
    lifting = _Lifting(machine, tokens)
    pending, edges, ends, count = [0], [], [], 0
    for state in pending:
        ids, targets = lifting.edges(state)
        count += len(ids)
        if count > MAX_EDGES:
            raise TooLarge(f"the pattern needs more than {MAX_EDGES} entries of a table of tokens")
        is_found = np.zeros(len(number), bool)
        is_found[targets] = True
        found = np.flatnonzero(is_found & (number < 0))
        number[found] = len(pending) + np.arange(len(found))
        pending += found.tolist()
        edges.append((ids, number[targets]))
        ends.append(bool(machine.is_complete[state]) and not len(ids))
    over = len(edges)
    for place, state in enumerate(pending):
        ids, targets = edges[place]
        if machine.is_complete[state] and len(ids):
            at = np.searchsorted(ids, end_token)
            edges[place] = (np.insert(ids, at, end_token), np.insert(targets, at, over))
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
            # The decoder's own rule for what is not written in its alphabet.
            return (
                bytes(alphabet[c] for c in text) if alphabet.keys() >= set(text) else text.encode()
            )
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
    special = {item["id"] for item in described.get("added_tokens", []) if item["special"]}
    special |= set(tokenizer.all_special_ids)
    vocabulary = tokenizer.get_vocab()
    result = [b""] * (max(vocabulary.values(), default=-1) + 1)
    for text, token in vocabulary.items():
        if token not in special:
            result[token] = spelled(text)
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
