"""The compiled steps of generation: read a piece of the prompts, say one token, say many.

Functions of (weights, cache, rows); sizes that they are compiled for are the batch, the
slots of the cache, the length of a piece of prompt, and the sizes of the constraint tables.
`generate` keeps these to a few.
"""

import functools
from enum import IntEnum
from typing import Any, NamedTuple, cast

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from jaxagent.models.llm.cache import KVCache, resized
from jaxagent.models.llm.config import LlamaConfig
from jaxagent.models.llm.constrain import ConstraintTables, advance, is_done, permitted
from jaxagent.models.llm.generate_read import read
from jaxagent.models.llm.generate_weights import Variables, Weights
from jaxagent.models.llm.host_memory import give_back_memory, gives_back_memory
from jaxagent.models.llm.llama import Llama, LlamaOutput
from jaxagent.models.llm.sampling import (
    Repetition,
    Sampling,
    draw,
    no_repetition,
    observe_repetition,
)

CAPACITY = 64
"""Tokens that one call of `decode` can say at most; how many it does is up to the caller."""


def vocabulary_logits(
    config: LlamaConfig, variables: Variables, hidden: Float[Array, "*B D"]
) -> Float[Array, "*B V"]:
    """Logits of features, float32."""
    return cast(Array, Llama(config).apply(variables, hidden, method="logits"))


class Finish(IntEnum):
    """Why a row of a batch says nothing more."""

    RUNNING = 0
    END = 1
    REPETITION = 2
    LENGTH = 3
    IDLE = 4


@flax.struct.dataclass(kw_only=True)
class Rows:
    """Replies in the making.

    Attributes:
        token: said last and not yet read by the model.
        index: how many tokens have been said.
        remaining: how many may still be said.
        state: in the constraint tables.
        repetition: of the reply so far.
        finish: a `Finish`.
    """

    token: Int[Array, " B"]
    index: Int[Array, " B"]
    remaining: Int[Array, " B"]
    state: Int[Array, " B"]
    repetition: Repetition
    finish: Int[Array, " B"]


class Said(NamedTuple):
    """Tokens that rows said, oldest first; −1 where a row said nothing any more.

    The three log-probabilities are those of `sampling.Drawn`.
    """

    token: Int[Array, "N B"]
    log_prob: Float[Array, "N B"]
    permitted_log_prob: Float[Array, "N B"]
    behaviour_log_prob: Float[Array, "N B"]


def new_rows(budgets: np.ndarray, states: np.ndarray, finish: np.ndarray) -> Rows:
    """Rows before their first token.

    Args:
        budgets: most tokens that each may say.
        states: where each begins in the constraint tables.
        finish: RUNNING, or IDLE for a row that nobody asked for.
    """
    batch = len(budgets)
    nothing = np.zeros(batch, np.int32)
    return Rows(
        token=jax.device_put(nothing),
        index=jax.device_put(nothing),
        remaining=jax.device_put(budgets.astype(np.int32)),
        state=jax.device_put(states.astype(np.int32)),
        repetition=no_repetition(batch),
        finish=jax.device_put(finish.astype(np.int32)),
    )


def prefill(
    config: LlamaConfig,
    weights: Weights,
    cache: KVCache,
    last: Float[Array, "B D"],
    tokens: np.ndarray,
    count: np.ndarray,
) -> tuple[KVCache, Float[Array, "B D"]]:
    """Read a piece of each row's prompt.

    Args:
        config: of the model.
        weights: of the model.
        cache: grows by `count`; donated.
        last: features of the last token that each row has read.
        tokens: [B, L], right-padded.
        count: [B], live tokens of each row, possibly 0.

    Returns:
        The cache and `last` after the piece; no logits, which only the end of a prompt needs.
    """
    is_live = np.arange(tokens.shape[1])[None, :] < count[:, None]
    segment_ids = is_live.astype(np.int32)
    return read(config, weights, cache, tokens, segment_ids=segment_ids, last=last)


@gives_back_memory
@functools.partial(jax.jit, static_argnames="config")
def say(
    config: LlamaConfig,
    variables: Variables,
    last: Float[Array, "B D"],
    rows: Rows,
    sampling: Sampling,
    tables: ConstraintTables | None,
) -> tuple[Rows, Said]:
    """Say one token, without reading it.

    Args:
        config: of the model.
        variables: of the model; the layers are not needed.
        last: features of the last token that each row has read.
        rows: those that are not running keep their state.
        sampling: how tokens are drawn.
        tables: what may be said; None is anything.

    Returns:
        Rows after the token, and the token as `Said` of N = 1.
    """
    rows, said = _say(config, variables, last, rows, sampling, tables)
    return rows, jax.tree.map(lambda x: x[None], said)


def decode(
    config: LlamaConfig,
    weights: Weights,
    cache: KVCache,
    last: Float[Array, "B D"],
    rows: Rows,
    sampling: Sampling,
    tables: ConstraintTables | None,
    steps: int,
) -> tuple[KVCache, Rows, Said]:
    """Say up to `steps` more tokens, fewer when every row ends before.

    Args:
        config: of the model.
        weights: of the model.
        cache: holds everything but each row's last token; donated.
        last: features of the last token that each row has read.
        rows: at least one token in.
        sampling: how tokens are drawn.
        tables: what may be said; None is anything.
        steps: at most `CAPACITY`.

    Returns:
        The cache, which again lacks each row's last token; the rows; what they said.
    """
    if not weights.layers:
        given = (cache, rows, sampling, tables, np.int32(steps))
        return _decode_whole(config, weights.variables, *given)
    batch, said = rows.token.shape[0], []
    for _ in range(steps):
        # A CPU computes where the host waits: to look every time costs nothing.
        is_running = np.asarray(rows.finish) == Finish.RUNNING
        if not is_running.any():
            break
        tokens, segment_ids = np.asarray(rows.token)[:, None], is_running[:, None].astype(np.int32)
        cache, last = read(config, weights, cache, tokens, segment_ids=segment_ids, last=last)
        rows, new = say(config, weights.variables, last, rows, sampling, tables)
        said.append(new)
    return cache, rows, _joined(said, batch)


def _joined(said: list[Said], batch: int) -> Said:
    nothing = np.zeros((0, batch), np.float32)
    columns = zip((nothing.astype(np.int32), *[nothing] * 3), *jax.device_get(said))
    joined: Any = map(np.concatenate, columns)
    return Said(*joined)


@gives_back_memory
@functools.partial(jax.jit, static_argnames="config", donate_argnames="cache")
def _decode_whole(
    config: LlamaConfig,
    variables: Variables,
    cache: KVCache,
    rows: Rows,
    sampling: Sampling,
    tables: ConstraintTables | None,
    steps: Int[Array, ""],
) -> tuple[KVCache, Rows, Said]:
    """`decode` in one program, for devices that the host would keep waiting."""
    batch = rows.token.shape[0]
    nothing = jnp.zeros((CAPACITY, batch), jnp.float32)
    said = Said(jnp.full((CAPACITY, batch), -1, jnp.int32), nothing, nothing, nothing)
    model = Llama(config)

    def goes_on(carry: tuple) -> Array:
        step, _, rows, _ = carry
        return (step < steps) & jnp.any(rows.finish == Finish.RUNNING)

    def body(carry: tuple) -> tuple:
        step, cache, rows, said = carry
        live = (rows.finish == Finish.RUNNING)[:, None].astype(jnp.int32)
        output = cast(
            LlamaOutput,
            model.apply(variables, rows.token[:, None], segment_ids=live, cache=cache),
        )
        rows, new = _say(config, variables, output.hidden[:, 0], rows, sampling, tables)
        said = jax.tree.map(lambda all_of, one: all_of.at[step].set(one), said, new)
        return step + 1, output.cache, rows, said

    _, cache, rows, said = jax.lax.while_loop(goes_on, body, (jnp.int32(0), cache, rows, said))
    return cache, rows, said


def _say(
    config: LlamaConfig,
    variables: Variables,
    hidden: Float[Array, "B D"],
    rows: Rows,
    sampling: Sampling,
    tables: ConstraintTables | None,
) -> tuple[Rows, Said]:
    """Draw the next token of every running row and see whether it ends the reply."""
    logits = vocabulary_logits(config, variables, hidden)
    vocab_size = logits.shape[-1]
    mask = None
    if tables is not None:
        mask = permitted(tables, rows.state, rows.remaining, vocab_size)
    drawn = draw(logits, mask, sampling, rows.index)
    is_running = rows.finish == Finish.RUNNING
    token = jnp.where(is_running, drawn.token, rows.token)
    repetition, is_looping = observe_repetition(rows.repetition, token, sampling.max_repeats)
    remaining = rows.remaining - 1
    is_end = jnp.any(token[:, None] == sampling.stop_tokens, axis=-1)
    state = rows.state
    if tables is not None:
        state = advance(tables, rows.state, token)
        is_end |= is_done(tables, state)
    finish = jnp.select(
        [is_end, is_looping, remaining <= 0],
        [jnp.int32(Finish.END), jnp.int32(Finish.REPETITION), jnp.int32(Finish.LENGTH)],
        jnp.int32(Finish.RUNNING),
    )
    after = Rows(
        token=token,
        index=rows.index + 1,
        remaining=remaining,
        state=state,
        repetition=repetition,
        finish=finish,
    )
    said = Said(
        jnp.where(is_running, token, -1),
        drawn.log_prob,
        drawn.permitted_log_prob,
        drawn.behaviour_log_prob,
    )
    return merge_rows(is_running, after, rows), said


def rewind(cache: KVCache, length: np.ndarray) -> KVCache:
    """Forget all but the first tokens of each row; on the host, for which nothing is compiled.

    Args:
        cache: of any size.
        length: [B], most tokens of each row that are kept.
    """
    kept = np.minimum(np.asarray(cache.length), length).astype(np.int32)
    return cache.replace(length=put_beside(kept, cache.length))


def put_beside(array: np.ndarray, other: jax.Array) -> jax.Array:
    """An array where another lies; committed only if that is: else each program that takes it
    would be compiled twice."""
    return jax.device_put(array, other.sharding if other.committed else None)


def with_slots(cache: KVCache, slots: int) -> KVCache:
    """The cache with at least so many slots; donated.

    Array by array, so that of one alone there are two at once; the C library would keep what the
    short ones leave, in pieces too small for the long ones.
    """
    if slots <= cache.slots:
        return cache

    def lengthened(stored: jax.Array) -> jax.Array:
        longer = jax.block_until_ready(_resized(stored, slots))
        stored.delete()
        return longer

    keys, values = jax.tree.map(lengthened, (cache.keys, cache.values))
    give_back_memory()
    return KVCache(keys=keys, values=values, length=cache.length)


_resized = jax.jit(resized, static_argnames="slots")


@jax.jit
def take_row(
    cache: KVCache, last: Float[Array, "B D"], row: Int[Array, ""]
) -> tuple[KVCache, Float[Array, "1 D"]]:
    """One row as a batch of its own."""
    return cache.select(row[None]), last[row[None]]


@functools.partial(jax.jit, donate_argnames=("cache", "last"))
def put_row(
    cache: KVCache,
    last: Float[Array, "B D"],
    row: Int[Array, ""],
    one: KVCache,
    one_last: Float[Array, "1 D"],
) -> tuple[KVCache, Float[Array, "B D"]]:
    """Put back what `take_row` took."""
    return cache.insert(row[None], one), last.at[row[None]].set(one_last)


@jax.jit
def merge_rows(is_new: Bool[Array, " B"], new: Rows, old: Rows) -> Rows:
    """The new state of some rows, the old one of the others."""

    def choose(new: Array, old: Array) -> Array:
        return jnp.where(is_new.reshape((-1,) + (1,) * (new.ndim - 1)), new, old)

    return jax.tree.map(choose, new, old)
