"""A planner model plays many household games side by side, a turn of all of them at a time.

What a game has said and read stays in a key-value cache; a turn reads the new observation and
decodes a reply. Batches come in a few sizes only, so the number of compiled programs is fixed.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from jaxagent.models.llm.cache import KVCache
from jaxagent.models.llm.config import LlamaConfig
from jaxagent.models.llm.llama import Llama
from jaxagent.models.llm.words import Tokenizer
from jaxagent.planning.household_format import HouseholdFormat, Reply
from jaxagent.planning.household_history import History
from jaxagent.planning.reply_grammar import reply_grammar

_WIDTHS = (40, 96)
_ROW_FACTOR, _FEWEST_ROWS = 4, 8
_FEW_SLOTS = 256  # an episode that goes well needs no more, and a turn costs as much as it has
_CHOICES = 64
_LONGER = 16  # commands that are longer than a format's usual ones get room in such steps
_KEPT = 50_000


class PlannerModel(NamedTuple):
    """A decoder with what it takes to write for it and to read it; ``params`` as `Llama`'s."""

    config: LlamaConfig
    params: Mapping[str, Any]
    tokenizer: Tokenizer
    style: HouseholdFormat


class Tables(NamedTuple):
    """A `ReplyGrammar` on the device."""

    following: Int[Array, "S V"]
    permitted: Bool[Array, "S V"]
    is_command: Bool[Array, " S"]


class Decoding(NamedTuple):
    """A batch of replies in the making."""

    cache: KVCache
    hidden: Float[Array, "B D"]
    state: Int[Array, " B"]
    said: Int[Array, "B T"]
    count: Int[Array, " B"]  # tokens said
    command_count: Int[Array, " B"]  # of these, the command's
    alive: Bool[Array, "B C"]  # choices that begin with what was said


class HouseholdPlayer:
    """Plays greedily.

    Args (of the constructor):
        model: who plays.
        is_constrained: only well-formed replies whose command is admissible.
        slots: tokens of an episode that are remembered; by default the model's `max_positions`.

    Attributes:
        overflows: how often the oldest turns of an episode were dropped for want of room, or its
            opening cut short.
        cut: in how many episodes not even the opening had room, so that less of what it says of
            the place was read.

    Raises (the constructor):
        ValueError: not even a reply has room in so many slots.
    """

    def __init__(
        self, model: PlannerModel, *, is_constrained: bool = False, slots: int | None = None
    ) -> None:
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

    def begin(self, openings: Sequence[str]) -> None:
        """Start new episodes, one for each opening; the first `act` reads them."""
        self._games: list[History] = [
            History(text, self.model.tokenizer, self.model.style) for text in openings
        ]
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
        tokens, count, lengths = self._pending()
        choices = self._choices(admissible) if self.is_constrained else None
        self._cache, said, said_count, chosen = _play_turn(
            self.model.config, self.grammar.start, self.grammar.end, self._reply_tokens,
            self.model.params, self._tables, self._cache.rewind(jnp.asarray(lengths)),
            tokens, count, choices,
        )  # fmt: skip
        said, said_count, chosen = jax.device_get((said, said_count, chosen))
        replies = [Reply("")] * len(admissible)
        for row, number in enumerate(self._rows.tolist()):
            if number >= 0:
                ids = said[row, : said_count[row]].tolist()
                self._games[number].say(ids)
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

    def _pending(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Tokens that each row has yet to read, how many, and where they begin."""
        pending: list[list[int]] = [[] for _ in self._rows]
        lengths = np.zeros(len(self._rows), np.int32)
        for row, number in enumerate(self._rows):
            if number >= 0:
                game = self._games[number]
                was_cut = game.is_cut
                self.overflows += game.fit(self.slots, self._reply_tokens)
                self.cut += game.is_cut and not was_cut
                pending[row], lengths[row] = game.take_pending()
        longest = max(map(len, pending))
        width = next((w for w in _WIDTHS if longest <= w <= self.slots), self.slots)
        ends = max(at + len(ids) for at, ids in zip(lengths, pending)) + self._reply_tokens
        if max(ends, width) > self._cache.slots:
            self._cache = self._cache.resize(self.slots)
        tokens = np.zeros((len(pending), width), np.int32)
        for row, ids in enumerate(pending):
            tokens[row, : len(ids)] = ids
        return tokens, np.array([len(ids) for ids in pending], np.int32), lengths

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


@partial(jax.jit, static_argnums=(0, 1, 2, 3), donate_argnums=6)
def _play_turn(
    config: LlamaConfig,
    start: int,
    end: int,
    max_tokens: int,
    params: Mapping[str, Any],
    tables: Tables,
    cache: KVCache,
    tokens: Int[Array, "B W"],
    count: Int[Array, " B"],
    choices: Int[Array, "B C T"] | None,
) -> tuple[KVCache, Int[Array, "B T"], Int[Array, " B"], Int[Array, " B"]]:
    """Read what is new and decode a reply in every row that has something to read.

    Returns:
        The cache, which holds all but the last token of each reply; the replies, their lengths,
        and the first choice that each command is.
    """
    decoder, batch = Llama(config), tokens.shape[0]
    live = (jnp.arange(tokens.shape[1])[None, :] < count[:, None]).astype(jnp.int32)
    out = decoder.apply({"params": params}, tokens, segment_ids=live, cache=cache)
    last = jnp.maximum(count - 1, 0)[:, None, None]
    none = jnp.zeros((batch,), jnp.int32)
    size = 1 if choices is None else choices.shape[1]
    decoding = Decoding(
        cache=out.cache,  # type: ignore[union-attr]
        hidden=jnp.take_along_axis(out.hidden, last, axis=1)[:, 0],  # type: ignore[union-attr]
        state=jnp.where(count > 0, start, end),
        said=jnp.zeros((batch, max_tokens), jnp.int32),
        count=none,
        command_count=none,
        alive=jnp.ones((batch, size), bool) if choices is None else (choices[:, :, 0] >= 0),
    )

    def go_on(decoding: Decoding) -> Decoding:
        logits = decoder.apply({"params": params}, decoding.hidden, method="logits")
        if choices is not None:
            logits = jnp.where(_allowed(tables, choices, decoding), logits, -jnp.inf)  # type: ignore
        token = jnp.argmax(logits, axis=-1).astype(jnp.int32)  # type: ignore[arg-type]
        return _feed(decoder, params, _say(tables, end, choices, decoding, token), end)

    decoding = jax.lax.while_loop(
        lambda d: jnp.any(d.state != end) & (jnp.max(d.count) < max_tokens), go_on, decoding
    )
    chosen = decoding.alive.astype(jnp.int32)
    if choices is not None:
        # Of commands that begin alike, the one that was said to its end.
        chosen += decoding.alive & (_following_of(choices, decoding.command_count) < 0)
    return decoding.cache, decoding.said, decoding.count, jnp.argmax(chosen, axis=1)


def _allowed(
    tables: Tables, choices: Int[Array, "B C T"], decoding: Decoding
) -> Bool[Array, "B V"]:
    """Tokens that a constrained reply may go on with."""
    following = _following_of(choices, decoding.command_count)
    rows = jnp.arange(choices.shape[0])[:, None]
    usable = decoding.alive & (following >= 0)
    size = tables.permitted.shape[1]
    begun = (
        jnp.zeros((choices.shape[0], size), bool).at[rows, jnp.maximum(following, 0)].max(usable)
    )
    return jnp.where(
        tables.is_command[decoding.state][:, None], begun, tables.permitted[decoding.state]
    )


def _following_of(choices: Int[Array, "B C T"], count: Int[Array, " B"]) -> Int[Array, "B C"]:
    """The next token of each choice after `count` tokens; -1 past its end."""
    place = jnp.minimum(count, choices.shape[2] - 1)
    return jnp.take_along_axis(choices, place[:, None, None], axis=2)[..., 0]


def _say(
    tables: Tables,
    end: int,
    choices: Int[Array, "B C T"] | None,
    decoding: Decoding,
    token: Int[Array, " B"],
) -> Decoding:
    """Write a token behind every reply that is not over."""
    is_open = decoding.state != end
    in_command = is_open & tables.is_command[decoding.state]
    alive, state = decoding.alive, tables.following[decoding.state, token]
    if choices is not None:
        same = _following_of(choices, decoding.command_count) == token[:, None]
        alive = jnp.where(in_command[:, None], alive & same, alive)
        # The grammar knows the usual commands; where one is over, of any wording, the list says.
        is_said = _following_of(choices, decoding.command_count + 1) < 0
        some, every = jnp.any(alive & is_said, axis=1), ~jnp.any(alive & ~is_said, axis=1)
        state = jnp.where(in_command & (state == end) & ~some, decoding.state, state)
        state = jnp.where(in_command & every, end, state)
    rows = jnp.arange(token.shape[0])
    place = jnp.minimum(decoding.count, decoding.said.shape[1] - 1)
    written = jnp.where(is_open, token, decoding.said[rows, place])
    return decoding._replace(
        state=jnp.where(is_open, state, end),
        said=decoding.said.at[rows, place].set(written),
        count=decoding.count + is_open,
        command_count=decoding.command_count + in_command,
        alive=alive,
    )


def _feed(decoder: Llama, params: Mapping[str, Any], decoding: Decoding, end: int) -> Decoding:
    """Read the token just said in every row that has to go on."""
    goes_on = (decoding.state != end).astype(jnp.int32)[:, None]
    rows = jnp.arange(goes_on.shape[0])
    token = decoding.said[rows, jnp.maximum(decoding.count - 1, 0)][:, None]
    out = decoder.apply({"params": params}, token, segment_ids=goes_on, cache=decoding.cache)
    return decoding._replace(cache=out.cache, hidden=out.hidden[:, 0])  # type: ignore[union-attr]
