"""The compiled steps of a planner that plays household games: read, and decode replies."""

from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from jaxagent.models.llm.cache import KVCache
from jaxagent.models.llm.config import LlamaConfig
from jaxagent.models.llm.llama import Llama


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
    log_probs: Float[Array, "B T 3"] | None  # as `play_turn` returns them


@partial(jax.jit, static_argnums=0, donate_argnums=2)
def read_piece(
    config: LlamaConfig,
    params: Mapping[str, Any],
    cache: KVCache,
    tokens: Int[Array, "B W"],
    count: Int[Array, " B"],
) -> KVCache:
    """The cache with the first `count` tokens of each row behind what it holds."""
    live = (jnp.arange(tokens.shape[1])[None, :] < count[:, None]).astype(jnp.int32)
    return Llama(config).apply({"params": params}, tokens, segment_ids=live, cache=cache).cache  # type: ignore[union-attr]


@partial(jax.jit, static_argnums=(0, 1, 2, 3), donate_argnums=6)
def play_turn(
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
    temperature: Float[Array, ""] | None = None,
    key: PRNGKeyArray | None = None,
) -> tuple[
    KVCache, Int[Array, "B T"], Int[Array, " B"], Int[Array, " B"], Float[Array, "B T 3"] | None
]:
    """Read what is new and decode a reply in every row that has something to read.

    Args:
        config: of the model; the arguments after it are those of `HouseholdPlayer`.
        temperature: at which tokens are sampled; None takes the likeliest.
        key: of that sampling.

    Returns:
        The cache, which holds all but the last token of each reply; the replies, their lengths,
        and the first choice that each command is. Where tokens are sampled, the log-probability
        of each under the model, renormalised over the permitted tokens, and under the behaviour:
        renormalised at the temperature; None otherwise.
    """
    decoder = Llama(config)
    decoding = _prefill(decoder, params, cache, tokens, count, choices, max_tokens)
    decoding = decoding._replace(state=jnp.where(count > 0, start, end))
    if temperature is not None:
        log_probs = jnp.zeros((tokens.shape[0], max_tokens, 3))
        decoding = decoding._replace(log_probs=log_probs)

    def go_on(decoding: Decoding) -> Decoding:
        logits: Any = decoder.apply({"params": params}, decoding.hidden, method="logits")
        permitted = logits
        if choices is not None:
            permitted = jnp.where(_allowed(tables, choices, decoding), logits, -jnp.inf)
        scores = permitted
        if temperature is not None:
            # Gumbel noise makes the largest a sample of the softmax at this temperature.
            own = jax.random.fold_in(key, jnp.max(decoding.count))  # type: ignore[arg-type]
            scores = permitted / temperature + jax.random.gumbel(own, permitted.shape)
        token = jnp.argmax(scores, axis=-1).astype(jnp.int32)
        if temperature is not None:
            three = (logits, permitted, permitted / temperature)
            decoding = _with_log_probs(decoding, three, token)
        return _feed(decoder, params, _say(tables, end, choices, decoding, token), end)

    decoding = jax.lax.while_loop(
        lambda d: jnp.any(d.state != end) & (jnp.max(d.count) < max_tokens), go_on, decoding
    )
    chosen = decoding.alive.astype(jnp.int32)
    if choices is not None:
        # Of commands that begin alike, the one that was said to its end.
        chosen += decoding.alive & (_following_of(choices, decoding.command_count) < 0)
    first = jnp.argmax(chosen, axis=1)
    return decoding.cache, decoding.said, decoding.count, first, decoding.log_probs


def _prefill(
    decoder: Llama,
    params: Mapping[str, Any],
    cache: KVCache,
    tokens: Int[Array, "B W"],
    count: Int[Array, " B"],
    choices: Int[Array, "B C T"] | None,
    max_tokens: int,
) -> Decoding:
    """Read what is new; the replies are empty, in state 0."""
    batch, size = tokens.shape[0], 1 if choices is None else choices.shape[1]
    live = (jnp.arange(tokens.shape[1])[None, :] < count[:, None]).astype(jnp.int32)
    out: Any = decoder.apply({"params": params}, tokens, segment_ids=live, cache=cache)
    last = jnp.maximum(count - 1, 0)[:, None, None]
    none = jnp.zeros((batch,), jnp.int32)
    return Decoding(
        cache=out.cache,
        hidden=jnp.take_along_axis(out.hidden, last, axis=1)[:, 0],
        state=none,
        said=jnp.zeros((batch, max_tokens), jnp.int32),
        count=none,
        command_count=none,
        alive=jnp.ones((batch, size), bool) if choices is None else (choices[:, :, 0] >= 0),
        log_probs=None,
    )


def _with_log_probs(
    decoding: Decoding, logits: tuple[Float[Array, "B V"], ...], token: Int[Array, " B"]
) -> Decoding:
    """The decoding with the log-probabilities of the tokens that come next written down."""
    found = [
        jnp.take_along_axis(jax.nn.log_softmax(each), token[:, None], axis=1)[:, 0]
        for each in logits
    ]
    rows, place = jnp.arange(token.shape[0]), decoding.count
    kept: Any = decoding.log_probs
    # A reply that is over writes behind its last token, where nobody reads.
    return decoding._replace(
        log_probs=kept.at[rows, place].set(jnp.stack(found, axis=-1), mode="drop")
    )


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
