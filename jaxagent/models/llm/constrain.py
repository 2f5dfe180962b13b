"""What a language model may say next: automata over tokens, on the host and on the device.

An automaton's language is finite in steps: every state knows how many tokens its shortest way to
the end takes, so decoding permits only what can still be finished within its budget. Output is
then inside the set always, not only when the budget happens to suffice.

Where the automata come from: `constrain_text` (a set of strings, a verb-object grammar) and
`constrain_json` (a schema).
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

FREE = 0
"""The state that every packed table begins with: anything goes."""

DEAD = 1
"""The second state of every packed table, where a token leads that was not permitted: nothing may
follow, and the end is out of reach."""

# A state with more ways out than this costs less as a row over the vocabulary than as a list.
_LIST_LIMIT = 128
_UNREACHABLE = np.iinfo(np.int32).max // 2


class NothingToSay(ValueError):
    """A set of no strings."""


class Automaton(NamedTuple):
    """A deterministic automaton over tokens; state 0 is the start.

    Attributes:
        offsets: the edges of state s are offsets[s] to offsets[s + 1].
        tokens: on each edge, ascending within a state.
        targets: the state that each edge leads to.
        distance: fewest tokens from a state to the end, the end token included; 0 exactly where
            nothing more may be said. There is no state from which the end is out of reach.
    """

    offsets: np.ndarray
    tokens: np.ndarray
    targets: np.ndarray
    distance: np.ndarray

    def permitted(self, state: int) -> np.ndarray:
        """Tokens that may follow in a state, ascending."""
        return self.tokens[self.offsets[state] : self.offsets[state + 1]]

    def advance(self, state: int, token: int) -> int:
        """The state after a token.

        Raises:
            ValueError: the token is not permitted.
        """
        permitted = self.permitted(state)
        place = int(np.searchsorted(permitted, token))
        if place == len(permitted) or permitted[place] != token:
            raise ValueError(f"token ({token}) is not permitted in state {state}")
        return int(self.targets[self.offsets[state] + place])


def automaton(edges: Sequence[tuple[np.ndarray, np.ndarray]], is_end: np.ndarray) -> Automaton:
    """Tidy up an automaton: states that cannot reach the end go, distances come.

    Args:
        edges: (tokens, targets) of each state; state 0 is the start.
        is_end: of each state, whether the string is complete there.

    Raises:
        NothingToSay: the end cannot be reached from the start.
    """
    distance = _distances(edges, is_end)
    if distance[0] >= _UNREACHABLE:
        raise NothingToSay("nothing can be said: no token sequence reaches an end")
    kept = distance < _UNREACHABLE
    is_whole = kept.all()
    renumbered = (np.cumsum(kept) - 1).astype(np.int32)
    tokens, targets = [], []
    for (state_tokens, state_targets), keep in zip(edges, kept, strict=True):
        if keep:
            if not is_whole:
                alive = kept[state_targets]
                state_tokens, state_targets = state_tokens[alive], renumbered[state_targets[alive]]
            if (np.diff(state_tokens) < 0).any():
                order = np.argsort(state_tokens, kind="stable")
                state_tokens, state_targets = state_tokens[order], state_targets[order]
            tokens.append(state_tokens.astype(np.int32, copy=False))
            targets.append(state_targets.astype(np.int32, copy=False))
    return Automaton(
        offsets=np.concatenate([[0], np.cumsum([len(t) for t in tokens])]).astype(np.int64),
        tokens=np.concatenate(tokens),
        targets=np.concatenate(targets),
        distance=distance[kept].astype(np.int32),
    )


def _distances(edges: Sequence[tuple[np.ndarray, np.ndarray]], is_end: np.ndarray) -> np.ndarray:
    """Breadth first from the end backwards."""
    before: list[list[int]] = [[] for _ in edges]
    for state, (_, targets) in enumerate(edges):
        for target in np.unique(targets):
            before[target].append(state)
    distance = np.full(len(edges), _UNREACHABLE, np.int64)
    distance[is_end] = 0
    frontier = np.flatnonzero(is_end).tolist()
    while frontier:
        found = []
        for state in frontier:
            for previous in before[state]:
                if distance[previous] == _UNREACHABLE:
                    distance[previous] = distance[state] + 1
                    found.append(previous)
        frontier = found
    return distance


def determinise(
    edges: Sequence[Mapping[int, Iterable[int]]],
    starts: Iterable[int],
    finals: Iterable[int],
    *,
    end_token: int,
) -> Automaton:
    """The subset construction over tokens.

    A string that is complete and also the beginning of a longer one ("go to" beside "go to
    desk 1") ends with the end token; a string that nothing can follow ends by itself, so that no
    decoding step is spent on a choice without alternatives.

    Args:
        edges: of each state of the non-deterministic automaton, token to next states.
        starts: where it may begin.
        finals: where the string is complete.
        end_token: id of the token that ends a reply; no string may contain it.
    """
    final, first = set(finals), frozenset(starts)
    number = {first: 0}
    pending, rows, ends = [first], [], []
    for subset in pending:
        following: dict[int, set[int]] = {}
        for state in subset:
            for token, targets in edges[state].items():
                following.setdefault(token, set()).update(targets)
        if end_token in following:
            raise ValueError(f"the end token ({end_token}) stands inside a permitted string")
        is_complete = not final.isdisjoint(subset)
        if is_complete and following:
            following[end_token] = set()
        row = {}
        for token, targets in following.items():
            key = frozenset(targets)
            if key not in number:
                number[key] = len(number)
                pending.append(key)
            row[token] = number[key]
        rows.append(row)
        # The empty subset is what the end token leads to.
        ends.append((is_complete and not following) or not subset)
    as_arrays = [(np.array([*r], np.int64), np.array([*r.values()], np.int64)) for r in rows]
    return automaton(as_arrays, np.array(ends))


@flax.struct.dataclass(kw_only=True)
class ConstraintTables:
    """Automata on the device; rows of a batch share them, each in a state of its own.

    Attributes:
        tokens: permitted in each state, −1 where the list is shorter.
        targets: where each leads.
        dense_row: row of `dense_targets` that holds the state's edges instead; −1 for none.
        dense_targets: the state after each token of the vocabulary; −1 where not permitted.
        distance: fewest tokens to the end.
    """

    tokens: Int[Array, "S K"]
    targets: Int[Array, "S K"]
    dense_row: Int[Array, " S"]
    dense_targets: Int[Array, "D V"]
    distance: Int[Array, " S"]

    @property
    def sizes(self) -> "TableSizes":
        """What compiled steps depend on."""
        states, width = self.tokens.shape
        return TableSizes(states, width, self.dense_targets.shape[0])


def bucket(count: int, *, smallest: int, factor: int = 2) -> int:
    """The smallest of smallest·factorⁿ that holds a count; few shapes mean few compilations."""
    size = smallest
    while size < count:
        size *= factor
    return size


class TableSizes(NamedTuple):
    """What compiled steps depend on."""

    states: int = 256
    width: int = 32
    dense: int = 0


SMALLEST = TableSizes()


def pack(
    automata: Sequence[Automaton | None], *, vocab_size: int, at_least: TableSizes = SMALLEST
) -> tuple[ConstraintTables, np.ndarray]:
    """Put the automata of a batch's rows into one set of tables.

    Args:
        automata: of each row; None where anything may be said. One that stands in several rows
            (the same object) takes its place once.
        vocab_size: V.
        at_least: the tables are made no smaller.

    Returns:
        The tables, with sizes rounded up to a few buckets, and the state each row starts in.

    Raises:
        ValueError: a token is not in the vocabulary.
    """
    distinct = {id(a): a for a in automata if a is not None}
    place, count = {}, DEAD + 1
    for key, item in distinct.items():
        if len(item.tokens) and item.tokens.max() >= vocab_size:
            raise ValueError(
                f"token ({item.tokens.max()}) must be below the vocabulary's size ({vocab_size})"
            )
        place[key] = count
        count += len(item.distance)
    tables = _empty(_sizes(list(distinct.values()), count, at_least), vocab_size)
    dense = 0
    for key, item in distinct.items():
        dense = _fill(tables, item, place[key], dense)
    starts = [FREE if a is None else place[id(a)] for a in automata]
    return ConstraintTables(**jax.device_put(tables)), np.array(starts, np.int32)


def _sizes(automata: Sequence[Automaton], count: int, at_least: TableSizes) -> TableSizes:
    degrees = np.concatenate([[1], *(np.diff(a.offsets) for a in automata)])
    width = int(degrees[degrees <= _LIST_LIMIT].max())
    num_dense = int((degrees > _LIST_LIMIT).sum())
    return TableSizes(
        states=bucket(count, smallest=at_least.states, factor=4),
        width=bucket(width, smallest=at_least.width, factor=4),
        dense=bucket(num_dense, smallest=max(at_least.dense, 8)) if num_dense else at_least.dense,
    )


def _empty(sizes: TableSizes, vocab_size: int) -> dict[str, np.ndarray]:
    distance = np.full(sizes.states, _UNREACHABLE, np.int32)
    distance[FREE] = 0
    return {
        "tokens": np.full((sizes.states, sizes.width), -1, np.int32),
        "targets": np.full((sizes.states, sizes.width), -1, np.int32),
        "dense_row": np.full(sizes.states, -1, np.int32),
        "dense_targets": np.full((sizes.dense, vocab_size), -1, np.int32),
        "distance": distance,
    }


def _fill(tables: dict[str, np.ndarray], item: Automaton, offset: int, dense: int) -> int:
    """Write one automaton's states from `offset` on; the next free dense row."""
    tables["distance"][offset : offset + len(item.distance)] = item.distance
    degrees = np.diff(item.offsets)
    short = np.flatnonzero(degrees <= _LIST_LIMIT)
    # The lists' edges alone: rows over the vocabulary hold a thousand times as many.
    count = degrees[short]
    columns = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
    edges, rows = np.repeat(item.offsets[short], count) + columns, np.repeat(short + offset, count)
    tables["tokens"][rows, columns] = item.tokens[edges]
    tables["targets"][rows, columns] = item.targets[edges] + offset
    for state in np.flatnonzero(degrees > _LIST_LIMIT):
        edges = slice(item.offsets[state], item.offsets[state + 1])
        tables["dense_row"][offset + state] = dense
        tables["dense_targets"][dense, item.tokens[edges]] = item.targets[edges] + offset
        dense += 1
    return dense


class Packer:
    """`pack` that remembers the largest sizes so far: sizes that go up and down from turn to turn
    would compile again and again.

    Args:
        vocab_size: V.
    """

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size, self._sizes = vocab_size, SMALLEST

    def pack(self, automata: Sequence[Automaton | None]) -> tuple[ConstraintTables, np.ndarray]:
        """See `pack`."""
        tables, starts = pack(automata, vocab_size=self._vocab_size, at_least=self._sizes)
        self._sizes = tables.sizes
        return tables, starts


def permitted(
    tables: ConstraintTables, state: Int[Array, " B"], remaining: Int[Array, " B"], vocab_size: int
) -> Bool[Array, "B V"]:
    """Which tokens may come next.

    Args:
        tables: of the batch.
        state: of each row.
        remaining: tokens that may still be said, this one included.
        vocab_size: V.

    Returns:
        True on the tokens after which the end is still within the budget; everywhere in a row
        that is free, nowhere in a row that is done.
    """
    rows = jnp.arange(state.shape[0])[:, None]
    tokens, targets = tables.tokens[state], tables.targets[state]
    in_time = tables.distance[jnp.maximum(targets, 0)] < remaining[:, None]
    # What does not fit goes to one column past the vocabulary, which is cut off.
    place = jnp.where((tokens >= 0) & in_time, tokens, vocab_size)
    mask = jnp.zeros((state.shape[0], vocab_size + 1), bool).at[rows, place].set(True)
    mask = mask[:, :vocab_size] | (state == FREE)[:, None]
    if tables.dense_targets.shape[0]:
        row = tables.dense_row[state]
        following = tables.dense_targets[jnp.maximum(row, 0)]
        in_time = tables.distance[jnp.maximum(following, 0)] < remaining[:, None]
        mask |= (row >= 0)[:, None] & (following >= 0) & in_time
    return mask


def advance(
    tables: ConstraintTables, state: Int[Array, " B"], token: Int[Array, " B"]
) -> Int[Array, " B"]:
    """The state of each row after a token: `DEAD` where it was not permitted; free rows stay free.

    No row becomes free, so that whatever a model says, a reply outside the set is never complete.
    """
    hit = (tables.tokens[state] == token[:, None]) & (tables.tokens[state] >= 0)
    following = jnp.max(jnp.where(hit, tables.targets[state], DEAD), axis=-1)
    if tables.dense_targets.shape[0]:
        row = tables.dense_row[state]
        dense = tables.dense_targets[jnp.maximum(row, 0), token]
        following = jnp.where(row >= 0, jnp.maximum(dense, DEAD), following)
    return jnp.where(state == FREE, FREE, following)


def is_done(tables: ConstraintTables, state: Int[Array, " B"]) -> Bool[Array, " B"]:
    """Rows whose string is complete."""
    return (state != FREE) & (tables.distance[state] == 0)
