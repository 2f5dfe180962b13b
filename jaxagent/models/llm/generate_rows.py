"""Rows of a batch that read prompts and say replies, each at its own place.

The host side of `generate_steps`: what stands in the cache of each row, so that of a new prompt
only what differs is read; room in the cache; which constraint each row is under; stop strings.
"""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxagent.models.llm.cache import KVCache
from jaxagent.models.llm.constrain import FREE, Automaton, ConstraintTables, Packer, bucket
from jaxagent.models.llm.generate_reply import Reply, Request, check_prompt
from jaxagent.models.llm.generate_steps import (
    Finish,
    Said,
    decode,
    merge_rows,
    new_rows,
    prefill,
    put_beside,
    put_row,
    rewind,
    say,
    take_row,
    with_slots,
)
from jaxagent.models.llm.generate_weights import Weights
from jaxagent.models.llm.host_memory import give_back_memory
from jaxagent.models.llm.load import LanguageModel
from jaxagent.models.llm.sampling import Origin, SamplingConfig, stack_sampling
from jaxagent.models.llm.scoring import (
    CandidateScores,
    CandidateTree,
    combine,
    edge_log_probs,
    padded_edges,
    read_nodes,
    tree_edges,
    visible_slots,
)

PIECES = (16, 32, 64, 256)
"""Lengths in which prompts are read."""

SMALLEST_SLOTS = 256
_DOUBLED_UP_TO = 1024
# What one more call costs, in tokens of a longer one: the weights are read once a call.
_CALL_COST = 24
_IDLE = SamplingConfig()


class Constraints(NamedTuple):
    """The automata of a batch's rows, packed.

    Attributes:
        automata: of each row; None is free.
        tables: None while every row is free.
        starts: where each row begins in the tables.
    """

    automata: tuple[Automaton | None, ...]
    tables: ConstraintTables | None
    starts: np.ndarray


def pieces(count: int, largest: int = PIECES[-1]) -> list[int]:
    """Lengths in which to read a number of tokens, the cheapest of a few ways.

    Args:
        count: tokens to read.
        largest: no piece is longer.
    """
    sizes = [size for size in PIECES if size <= largest] or [largest]
    if count <= 0:
        return []
    over = next((size for size in sizes if size >= count), None)
    under = max((size for size in sizes if size <= count), default=None)
    if under is None or over == count:
        return [over or sizes[-1]]
    split = [under, *pieces(count - under, largest)]
    if over is None or sum(split) + _CALL_COST * len(split) < over + _CALL_COST:
        return split
    return [over]


def common_prefix(first: Sequence[int], second: Sequence[int]) -> int:
    """How many tokens two sequences have in common from the start."""
    pairs = zip(first, second, strict=False)
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))


class RowBatch:
    """A batch of rows over one cache.

    Args:
        model: whose words they say.
        weights: of the model, as `generate_weights` lays them out.
        batch: number of rows; every compiled step is for this many.
        packer: of constraints.
    """

    def __init__(self, model: LanguageModel, weights: Weights, batch: int, packer: Packer) -> None:
        self.model, self.weights, self.batch = model, weights, batch
        self.replies: list[Reply | None] = [None] * batch
        self._prompts: list[list[int]] = [[] for _ in range(batch)]
        self._said: list[list[int]] = [[] for _ in range(batch)]
        config = model.config
        self._cache = self._empty_cache(batch)
        self._last = jax.device_put(np.zeros((batch, config.hidden_size), config.dtype))
        self._rows = new_rows(np.zeros(batch), np.zeros(batch), np.full(batch, Finish.IDLE))
        self._sampling = stack_sampling([_IDLE] * batch, [()] * batch)
        free = Constraints((None,) * batch, None, np.full(batch, FREE, np.int32))
        self._constraints, self._packer = free, packer

    def read(self, row: int) -> list[int]:
        """The tokens whose keys and values stand in a row's cache."""
        return self._prompts[row] + self._said[row][:-1]

    @property
    def running(self) -> list[int]:
        """Rows whose reply is not complete."""
        return [r for r, reply in enumerate(self.replies) if reply and not reply.finish_reason]

    def start(self, requests: Mapping[int, Request]) -> None:
        """Read prompts, and say the first token of each reply.

        Args:
            requests: of the rows that begin; the other rows stand still meanwhile.

        Raises:
            ValueError: a prompt and its reply do not fit the context, or a constraint's shortest
                string does not fit its budget.
        """
        for request in requests.values():
            request.check(self.model.config.max_positions)
        # The last token is read again even where the cache holds it: its features are needed.
        reused = {
            row: min(common_prefix(self.read(row), r.prompt), len(r.prompt) - 1)
            for row, r in requests.items()
        }
        keep = [reused.get(row, len(self.read(row))) for row in range(self.batch)]
        self._cache = rewind(self._cache, np.array(keep, np.int32))
        equal: dict[tuple[int, ...], list[int]] = {}
        for row, request in requests.items():
            equal.setdefault(tuple(request.prompt), []).append(row)
        # Of equal prompts one is read, in the row that knows most of it.
        groups = {max(rows, key=reused.__getitem__): rows for rows in equal.values()}
        self._read({row: list(requests[row].prompt[reused[row] :]) for row in groups}, keep, groups)
        for row, request in requests.items():
            self._prompts[row], self._said[row] = list(request.prompt), []
            self.replies[row] = Reply(self.model.tokenizer, request, reused[row])
        self._constrain(requests)
        self._begin(requests)

    def step(self, steps: int) -> None:
        """Say up to `steps` more tokens in every running row."""
        going_on = [reply for reply in self.replies if reply and not reply.finish_reason]
        steps = min(steps, max((reply.remaining for reply in going_on), default=0))
        longest = max(len(self.read(row)) for row in range(self.batch))
        self._cache = with_slots(self._cache, self._slots_for(longest + steps))
        self._cache, self._rows, said = decode(
            self.model.config,
            self.weights,
            self._cache,
            self._last,
            self._rows,
            self._sampling,
            self._constraints.tables,
            steps,
        )
        self._take(said, self.running)

    def score(self, prompt: list[int], tree: CandidateTree, end_token: int) -> CandidateScores:
        """Log-probabilities of candidates behind a prompt, in a batch of one row.

        Args:
            prompt: read as far as the cache does not hold it.
            tree: of the candidates.
            end_token: follows a candidate that is the beginning of another.

        Raises:
            ValueError: prompt and candidates do not fit the context.
        """
        config, length = self.model.config, len(prompt)
        check_prompt(prompt, max(tree.depths) + 1, config.max_positions)
        nodes = len(tree.tokens)
        reused = min(common_prefix(self.read(0), prompt), length - 1)
        self._cache = rewind(self._cache, np.array([reused], np.int32))
        self._read({0: prompt[reused:]}, [reused], {0: [0]})
        # Nodes lie in slots behind the prompt; a tree may be wider than the context is long.
        slots = bucket(length + nodes, smallest=SMALLEST_SLOTS)
        self._cache = with_slots(self._cache, slots)
        self._prompts[0], self._said[0] = list(prompt), []
        visible = visible_slots(tree, length, self._cache.slots)
        features, done = [], 0
        for size in pieces(nodes, self._cache.slots):
            piece = slice(done, done + size)
            count = len(tree.tokens[piece])
            tokens, positions = np.zeros((2, 1, size), np.int32)
            tokens[0, :count] = tree.tokens[piece]
            positions[0, :count] = np.array(tree.depths[piece]) + length
            seen = np.zeros((1, size, self._cache.slots), bool)
            seen[0, :count] = visible[piece]
            self._cache, hidden = read_nodes(
                config, self.weights, self._cache, tokens, positions, seen, count
            )
            features.append(hidden)
            done += size
        self._cache = rewind(self._cache, np.array([length], np.int32))
        edges = tree_edges(tree, end_token)
        parents, children = padded_edges(jnp.concatenate(features), self._last, edges)
        log_probs = edge_log_probs(config, self.weights.variables, parents, children)
        return combine(tree, edges, np.asarray(log_probs))

    def stop(self, row: int) -> None:
        """Let a row say nothing more; what it has read stays for a later prompt."""
        finish = np.array(self._rows.finish)
        finish[row] = Finish.IDLE
        self._rows = dataclasses.replace(self._rows, finish=jnp.asarray(finish))
        reply = self.replies[row]
        if reply and reply.finish_reason is None:
            reply.finish_reason = "cancelled"

    def _slots_for(self, length: int) -> int:
        slots = bucket(length, smallest=SMALLEST_SLOTS)
        # Where doubling is dear, half a step may do.
        if slots > _DOUBLED_UP_TO and length <= slots * 3 // 4:
            slots = slots * 3 // 4
        return min(slots, self.model.config.max_positions)

    def _empty_cache(self, batch: int) -> KVCache:
        give_back_memory()  # that of the batch before this one, whose arrays are other sizes
        is_apart = bool(self.weights.layers)
        return KVCache.create(self.model.config, batch, self._slots_for(1), is_apart=is_apart)

    def _read(
        self,
        prompts: dict[int, list[int]],
        lengths: list[int],
        groups: Mapping[int, Sequence[int]],
    ) -> None:
        """Feed tokens to rows, behind what their caches hold.

        Args:
            prompts: tokens of some rows.
            lengths: of what the cache of each row holds.
            groups: for each of `prompts`, the rows that are to hold the same in the end.
        """
        alone = 2 * len(prompts) <= self.batch  # the other rows are not computed beside them
        if not alone:
            listed = [prompts.get(row, []) for row in range(self.batch)]
            self._cache, self._last = self._feed(self._cache, self._last, listed, lengths)
        for row, prompt in prompts.items():
            copies = [other for other in groups[row] if alone or other != row]
            if not copies:
                continue
            slots = self._slots_for(lengths[row] + len(prompt))
            self._cache = with_slots(self._cache, slots)
            cache, last = take_row(self._cache, self._last, np.int32(row))
            if alone:
                cache, last = self._feed(cache, last, [prompt], [lengths[row]])
            for copy in copies:
                self._cache, self._last = put_row(
                    self._cache, self._last, np.int32(copy), cache, last
                )

    def _feed(
        self, cache: KVCache, last: jax.Array, prompts: list[list[int]], lengths: list[int]
    ) -> tuple[KVCache, jax.Array]:
        """Read prompts piece by piece; the cache has no more slots than each piece needs, since
        all of them are attended to."""
        done = 0
        for size in pieces(max(map(len, prompts)), self.model.config.max_positions):
            counts = [min(max(len(p) - done, 0), size) for p in prompts]
            ends = [
                length + min(len(p), done + size)
                for length, p in zip(lengths, prompts, strict=True)
            ]
            cache = with_slots(cache, self._slots_for(max(*ends, size)))
            tokens = np.zeros((len(prompts), size), np.int32)
            for row, prompt in enumerate(prompts):
                tokens[row, : counts[row]] = prompt[done : done + size]
            cache, last = prefill(
                self.model.config, self.weights, cache, last, tokens, np.array(counts, np.int32)
            )
            done += size
        return cache, last

    def _constrain(self, requests: Mapping[int, Request]) -> None:
        """Pack the constraints anew where they changed; running rows keep their place."""
        before = self._constraints
        automata = tuple(
            requests[row].constraint
            if row in requests
            else (before.automata[row] if row in self.running else None)
            for row in range(self.batch)
        )
        if all(a is None for a in automata):
            starts = np.full(self.batch, FREE, np.int32)
            self._constraints = Constraints(automata, None, starts)
        elif any(a is not b for a, b in zip(automata, before.automata, strict=True)):
            self._constraints = Constraints(automata, *self._packer.pack(automata))
        moved = np.where(
            np.array([a is not None for a in automata]),
            self._constraints.starts - before.starts,
            0,
        )
        if moved.any():
            state = (np.asarray(self._rows.state) + moved).astype(np.int32)
            state = put_beside(state, self._rows.state)
            self._rows = dataclasses.replace(self._rows, state=state)

    def _begin(self, requests: Mapping[int, Request]) -> None:
        is_new = np.array([row in requests for row in range(self.batch)])
        asked = [reply.request if reply else None for reply in self.replies]
        configs = [request.sampling if request else _IDLE for request in asked]
        stops = [request.stop_tokens if request else () for request in asked]
        origins = [request.origin if request else Origin() for request in asked]
        self._sampling = stack_sampling(configs, stops, origins)
        fresh = new_rows(
            np.array([config.max_new_tokens for config in configs]),
            self._constraints.starts,
            np.where(is_new, Finish.RUNNING, Finish.IDLE),
        )
        fresh, said = say(
            self.model.config,
            self.weights.variables,
            self._last,
            fresh,
            self._sampling,
            self._constraints.tables,
        )
        self._rows = merge_rows(is_new, fresh, self._rows)
        self._take(said, list(requests))

    def _take(self, said: Said, rows: list[int]) -> None:
        """Hand the tokens to the replies, on the host."""
        columns = jax.device_get(said)
        finish = np.asarray(self._rows.finish)
        for row in rows:
            reply = self.replies[row]
            if reply is None:
                continue
            live = columns.token[:, row] >= 0
            tokens = columns.token[live, row].tolist()
            self._said[row] += tokens
            logs = np.stack([column[live, row] for column in columns[1:]], axis=-1)
            reply.take(tokens, logs, Finish(int(finish[row])))
            if reply.finish_reason == "stop":
                self.stop(row)
