"""A planner model plays many household games side by side, a turn of all of them at a time.

What a game has said and read stays in a key-value cache; a turn reads the new observation and
decodes a reply. Batches come in a few sizes only, so the number of compiled programs is fixed.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from jaxagent.models.llm.cache import KVCache
from jaxagent.models.llm.config import LlamaConfig
from jaxagent.models.llm.constrain import bucket
from jaxagent.models.llm.generate_steps import with_slots
from jaxagent.models.llm.words import Tokenizer
from jaxagent.planning.history import History
from jaxagent.planning.household_decoding import Tables, play_turn, read_piece
from jaxagent.planning.reply_grammar import reply_grammar
from jaxagent.text import Reply, TextFormat

# Tokens that are read at once: the usual observation, and a piece of anything longer.
_WIDTHS = (40, 96)
_ROW_FACTOR, _FEWEST_ROWS = 4, 8
_FEW_SLOTS = 256  # an episode that goes well needs no more, and a turn costs as much as it has
CACHE_BYTES = 2 * 2**30
"""Memory that the caches of the games played side by side may fill, unless told otherwise."""
_CHOICES = 64
_LONGER = 16  # commands that are longer than a format's usual ones get room in such steps
_KEPT = 50_000


class PlannerModel(NamedTuple):
    """A decoder with what it takes to write for it and to read it; ``params`` as `Llama`'s."""

    config: LlamaConfig
    params: Mapping[str, Any]
    tokenizer: Tokenizer
    style: TextFormat


class SampledReply(NamedTuple):
    """A sampled reply, token by token.

    Attributes:
        ids: of its tokens.
        log_prob: of each under the model.
        permitted_log_prob: renormalized over the permitted tokens.
        behaviour_log_prob: of the distribution that it was drawn from, at the temperature: what
            an importance ratio needs.
    """

    ids: list[int]
    log_prob: np.ndarray
    permitted_log_prob: np.ndarray
    behaviour_log_prob: np.ndarray


class HouseholdPlayer:
    """Plays greedily, or samples.

    Args (of the constructor):
        model: who plays.
        is_constrained: only well-formed replies whose command is admissible.
        slots: tokens of an episode that are remembered; by default the model's `max_positions`.
        cache_bytes: what the caches of `most_games` episodes fill at most, in bytes.
        temperature: at which every token is sampled; 0 takes the likeliest.
        key: of the sampling; every turn of every episode draws from its own.

    Attributes:
        overflows: how often the oldest turns of an episode were dropped for want of room, or its
            opening cut short.
        cut: in how many episodes not even the opening had room, so that less of what it says of
            the place was read.
        sampled: of each episode since `begin`, its replies in order, where they are sampled.

    Raises (the constructor):
        ValueError: not even a reply has room in so many slots, or the temperature is below 0 or
            without a key.
    """

    def __init__(
        self,
        model: PlannerModel,
        *,
        is_constrained: bool = False,
        slots: int | None = None,
        cache_bytes: int = CACHE_BYTES,
        temperature: float = 0.0,
        key: PRNGKeyArray | None = None,
    ) -> None:
        if not 0 <= temperature < float("inf") or (temperature and key is None):
            raise ValueError(
                f"temperature ({temperature}) must be at least 0 and finite; above 0 it needs a key"
            )
        self._temperature = jnp.float32(temperature) if temperature else None
        self._key, self._turns = key, 0
        self.model, self.is_constrained = model, is_constrained
        self.slots = model.config.max_positions if slots is None else slots
        self.grammar = reply_grammar(model.style, model.tokenizer)
        self._command_tokens = self.grammar.command_tokens
        self._command_ids: dict[str, list[int]] = {}
        if self.slots <= self.grammar.max_tokens:
            raise ValueError(
                f"a context of {self.slots} tokens has no room for a reply, which has up to "
                f"{self.grammar.max_tokens}"
            )
        self._tables = Tables(
            jnp.asarray(self.grammar.following),
            jnp.asarray(self.grammar.permitted),
            jnp.asarray(self.grammar.is_command),
        )
        self.overflows = self.cut = 0
        self._cache_bytes = cache_bytes
        self._games: list[History] = []
        self.sampled: list[list[SampledReply]] = []
        self._rows = np.arange(0)
        self._cache = KVCache.create(model.config, 0, min(_FEW_SLOTS, self.slots))

    @property
    def most_games(self) -> int:
        """Episodes to play side by side: so many full caches fit `cache_bytes`; at least one."""
        row = jax.eval_shape(lambda: KVCache.create(self.model.config, 1, self.slots))
        size = sum(leaf.size * leaf.dtype.itemsize for leaf in (row.keys, row.values))
        return max(1, self._cache_bytes // size)

    def begin(self, openings: Sequence[str]) -> None:
        """Start new episodes, one for each opening; the first `act` reads them.

        More of them than `most_games` may need more memory than `cache_bytes`.
        """
        self._games = [History(text, self.model.tokenizer, self.model.style) for text in openings]
        self.sampled = [[] for _ in openings]
        self._rows = np.arange(len(openings))  # game of each row; -1 for none
        slots = min(_FEW_SLOTS, self.slots)
        self._cache = KVCache.create(self.model.config, len(openings), slots)

    def act(self, observations: Sequence[str], admissible: Sequence[Sequence[str]]) -> list[Reply]:
        """The reply of every episode.

        Args:
            observations: what was printed last; of the first turn, the opening, which is not
                read again.
            admissible: commands that can be given; none where the episode is over.

        Returns:
            One reply an episode, empty where it is over. A reply's sub-goal is empty where the
            one before is kept.

        Raises:
            ValueError: a task alone has more tokens than there is room for.
        """
        running = [number for number, commands in enumerate(admissible) if commands]
        self._grow_replies(admissible)
        for number in running:
            self._games[number].read(observations[number])
        self._fit_rows(running)
        tokens, count = self._read_ahead(*self._pending())
        choices = self._choices(admissible) if self.is_constrained else None
        self._cache, *told = play_turn(
            self.model.config, self.grammar.start, self.grammar.end, self._reply_tokens,
            self.model.params, self._tables, self._cache, tokens, count, choices,
            self._temperature, self._turn_key(),
        )  # fmt: skip
        said, said_count, chosen, log_probs = jax.device_get(told)
        replies = [Reply("")] * len(admissible)
        for row, number in enumerate(self._rows.tolist()):
            if number >= 0:
                ids = said[row, : said_count[row]].tolist()
                self._games[number].say(ids)
                if log_probs is not None:
                    self.sampled[number].append(SampledReply(ids, *log_probs[row, : len(ids)].T))
                reply = self.model.style.read(self.model.tokenizer.decode(ids))
                if choices is not None:
                    command = admissible[number][int(chosen[row])]
                    reply = reply._replace(command=command)
                replies[number] = reply
        return replies

    def notes(self) -> list[str]:
        """A line for each thing that a reader of the results should know."""
        told = [getattr(self.model.tokenizer, "describe_missing", str)()]
        if self.overflows:
            openings = f"; of openings {self.cut} were cut short" if self.cut else ""
            told.append(
                f"the context of {self.slots} tokens overflowed {self.overflows} times; the oldest "
                f"turns were dropped, never the task{openings}"
            )
        return [line for line in told if line]

    def _turn_key(self) -> PRNGKeyArray | None:
        if self._temperature is None:
            return None
        self._turns += 1
        return jax.random.fold_in(self._key, self._turns)  # type: ignore[arg-type]

    @property
    def _reply_tokens(self) -> int:
        return self.grammar.subgoal_tokens + self._command_tokens

    def _grow_replies(self, admissible: Sequence[Sequence[str]]) -> None:
        """Room in a reply for the longest command, in steps: each compiles another program."""
        if self.is_constrained:
            texts = [command for commands in admissible for command in commands]
        else:
            # Nothing but this needs their tokens: those of all take a fifth of the time to play.
            texts = [max(commands, key=len) for commands in admissible if commands]
        longest = max((len(self._encoded(text)) for text in texts), default=0)
        if longest > self._command_tokens:
            self._command_tokens = -(-longest // _LONGER) * _LONGER

    def _encoded(self, command: str) -> list[int]:
        """A command's tokens; the same ones are asked for turn after turn."""
        ids = self._command_ids.get(command)
        if ids is None:
            if len(self._command_ids) >= _KEPT:
                self._command_ids.clear()
            ids = self.model.tokenizer.encode(self.model.style.command(command))
            self._command_ids[command] = ids
        return ids

    def _fit_rows(self, running: Sequence[int]) -> None:
        """Fewer rows once few episodes are left; rows of ended ones stand idle until then."""
        rows = len(self._rows)
        while rows // _ROW_FACTOR >= max(len(running), _FEWEST_ROWS):
            rows //= _ROW_FACTOR
        alive = set(running)
        if rows < len(self._rows):
            kept = [row for row, number in enumerate(self._rows) if number in alive]
            idle = [row for row in range(len(self._rows)) if row not in kept]
            kept += idle[: rows - len(kept)]
            self._cache = self._cache.select(jnp.asarray(kept))
            self._rows = self._rows[kept]
        self._rows = np.array([n if n in alive else -1 for n in self._rows])

    def _pending(self) -> tuple[list[list[int]], np.ndarray]:
        """Tokens that each row has yet to read, and where they begin."""
        pending: list[list[int]] = [[] for _ in self._rows]
        lengths = np.zeros(len(self._rows), np.int32)
        for row, number in enumerate(self._rows):
            if number >= 0:
                game = self._games[number]
                was_cut = game.is_cut
                self.overflows += game.fit(self.slots, self._reply_tokens)
                self.cut += game.is_cut and not was_cut
                pending[row], lengths[row] = game.take_pending()
        return pending, lengths

    def _read_ahead(
        self, pending: list[list[int]], lengths: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Make room, and read in pieces all but the last tokens: those, and how many, come back.

        Neither what is computed at once nor the cache grows with the context of the model, only
        with what the episodes hold.
        """
        widths = [width for width in _WIDTHS if width <= self.slots] or [self.slots]
        ends = max(at + len(ids) for at, ids in zip(lengths, pending)) + self._reply_tokens
        slots = bucket(max(ends, widths[-1]), smallest=_FEW_SLOTS)
        self._cache = with_slots(self._cache.rewind(jnp.asarray(lengths)), min(slots, self.slots))
        while max(map(len, pending)) > widths[-1]:
            pieces = [ids[: widths[-1]] if len(ids) > widths[-1] else [] for ids in pending]
            self._cache = read_piece(
                self.model.config, self.model.params, self._cache, *_padded(pieces, widths[-1])
            )
            pending = [ids[len(piece) :] for ids, piece in zip(pending, pieces)]
        longest = max(map(len, pending))
        return _padded(pending, next(width for width in widths if longest <= width))

    def _choices(self, admissible: Sequence[Sequence[str]]) -> np.ndarray:
        """[B, C, T] the commands of each row as ids, at least one -1 behind each; -1 for none."""
        lists = [
            [self._encoded(command) for command in admissible[number]] if number >= 0 else []
            for number in self._rows.tolist()
        ]
        most = max(map(len, lists))
        size = -(-most // _CHOICES) * _CHOICES
        choices = np.full((len(lists), size, self._command_tokens + 1), -1, np.int32)
        for row, commands in enumerate(lists):
            for place, ids in enumerate(commands):
                choices[row, place, : len(ids)] = ids
        return choices


def _padded(rows: Sequence[Sequence[int]], width: int) -> tuple[np.ndarray, np.ndarray]:
    """[B, width] ids with 0 behind each row's own, and [B] how many those are."""
    tokens = np.zeros((len(rows), width), np.int32)
    for row, ids in enumerate(rows):
        tokens[row, : len(ids)] = ids
    return tokens, np.array([len(ids) for ids in rows], np.int32)
