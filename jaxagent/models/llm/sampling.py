"""How the next token is chosen, and how probable the choice was.

Three probabilities of one token are kept apart, because reinforcement learning needs to know
which it has: under the model alone, renormalised over what a constraint permits, and under the
distribution that was drawn from (temperature and truncation included).
"""

import dataclasses
from typing import Any, NamedTuple, cast

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, UInt32

MAX_PERIOD = 16
"""Longest block, in tokens, whose repetition is noticed."""

_LARGEST_LOGIT = 1e30


@dataclasses.dataclass(frozen=True)
class SamplingConfig:
    """How one reply is generated."""

    max_new_tokens: int = 64
    """Tokens after which a reply ends at the latest, its end token included."""
    temperature: float = 0.0
    """0 takes the likeliest token; τ draws from softmax(logits / τ), which is the same as taking
    the likeliest after adding τ times Gumbel noise to the logits."""
    top_k: int = 0
    """Draw from the k likeliest tokens; 0 from all. Tokens tied with the last are all kept."""
    top_p: float = 1.0
    """Draw from the fewest likeliest tokens of at least this probability together, after top_k;
    tokens tied with the last are all kept."""
    seed: int | Array | np.ndarray = 0
    """Of this row, in [0, 2^64), or a key of jax.random, kept as the number that it is the key of.
    What a row draws does not depend on the other rows of the batch. Rows that share settings, turns
    of a session and places of the conversation draw apart: all of these go into the noise."""
    stop_tokens: tuple[int, ...] | None = None
    """Ids that end a reply; None is the end tokens of tokeniser and model."""
    stop_strings: tuple[str, ...] = ()
    """Texts that end a reply; the text is cut before them, the tokens are kept."""
    max_repeats: int = 0
    """A reply ends once a block of up to 16 tokens stands this many times in a row; 0 never."""

    def __post_init__(self):
        object.__setattr__(self, "seed", _seed_of(self.seed))
        for name, least in (("max_new_tokens", 1), ("top_k", 0), ("max_repeats", 0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
                raise ValueError(f"{name} ({value!r}) must be a whole number of at least {least}")
        if self.max_repeats == 1:
            raise ValueError("max_repeats (1) must be 0 (never) or at least 2")
        if not 0.0 <= self.temperature < np.inf:
            raise ValueError(f"temperature ({self.temperature}) must be at least 0 and finite")
        if not 0.0 < self.top_p <= 1.0:
            raise ValueError(f"top_p ({self.top_p}) must be above 0 and at most 1")
        if not all(self.stop_strings):
            raise ValueError("stop_strings must not hold an empty string")


def _seed_of(seed: Any) -> int:
    """A seed, or what a key of jax.random is the key of: `jax.random.key(n)` is the same as n."""
    value = seed
    if isinstance(seed, jax.Array | np.ndarray):
        is_key = jnp.issubdtype(seed.dtype, jax.dtypes.prng_key)
        words = np.asarray(jax.random.key_data(seed) if is_key else seed)
        if words.shape == (2,) and words.dtype == np.uint32:
            value = int(words[0]) << 32 | int(words[1])
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or not 0 <= value < 2**64:
        shown = f"an array of {seed.shape}" if hasattr(seed, "shape") else repr(seed)
        raise ValueError(
            f"seed ({shown}) must be a whole number in [0, 2^64) or one key of jax.random "
            "(threefry2x32)"
        )
    return int(value)


class Origin(NamedTuple):
    """What tells the noise of one reply from that of others of the same seed.

    Attributes:
        row: of rows that share settings.
        turn: of the session, counted by its replies.
        position: of the reply's first token, behind the whole prompt.
    """

    row: int = 0
    turn: int = 0
    position: int = 0


@flax.struct.dataclass(kw_only=True)
class Sampling:
    """`SamplingConfig` of every row of a batch, on the device.

    Where every row takes the likeliest token, programs are compiled without the drawing, which
    takes XLA four times the memory of all the rest.
    """

    temperature: Float[Array, " B"]
    top_k: Int[Array, " B"]
    top_p: Float[Array, " B"]
    seed: UInt32[Array, "B 2"]  # high word, low word
    origin: UInt32[Array, "B 3"]  # `Origin`
    max_repeats: Int[Array, " B"]
    stop_tokens: Int[Array, "B E"]  # −1 where there are fewer
    is_greedy: bool = flax.struct.field(pytree_node=False)


class Drawn(NamedTuple):
    """One token of every row.

    Attributes:
        token: its id.
        log_prob: under the model: log softmax of the raw logits over the whole vocabulary.
        permitted_log_prob: the same, renormalised over what the constraint permits.
        behaviour_log_prob: under the distribution that it was drawn from; 0 where the likeliest
            token was taken. This is the μ of off-policy corrections.
    """

    token: Int[Array, " B"]
    log_prob: Float[Array, " B"]
    permitted_log_prob: Float[Array, " B"]
    behaviour_log_prob: Float[Array, " B"]


def stack_sampling(
    configs: list[SamplingConfig],
    stop_tokens: list[tuple[int, ...]],
    origins: list[Origin] | None = None,
) -> Sampling:
    """Put the settings of a batch's rows side by side.

    Args:
        configs: of each row.
        stop_tokens: of each row; those of the configs are not looked at.
        origins: of each row's reply; None is the first of all.
    """
    width = max(4, *map(len, stop_tokens))
    stops = np.full((len(configs), width), -1, np.int32)
    for row, tokens in enumerate(stop_tokens):
        stops[row, : len(tokens)] = tokens

    # By NumPy: of each jnp.array a program is compiled, and kept.
    def column(values: list, dtype: type) -> jax.Array:
        return jax.device_put(np.array(values, dtype))

    return Sampling(
        temperature=column([c.temperature for c in configs], np.float32),
        top_k=column([c.top_k for c in configs], np.int32),
        top_p=column([c.top_p for c in configs], np.float32),
        seed=column([divmod(cast(int, c.seed), 2**32) for c in configs], np.uint32),
        origin=column(origins or [Origin()] * len(configs), np.uint32),
        max_repeats=column([c.max_repeats for c in configs], np.int32),
        stop_tokens=jax.device_put(stops),
        is_greedy=all(c.temperature == 0.0 for c in configs),
    )


def draw(
    logits: Float[Array, "B V"],
    permitted: Bool[Array, "B V"] | None,
    sampling: Sampling,
    index: Int[Array, " B"],
) -> Drawn:
    """Choose the next token of every row.

        token = argmax (logits / τ + G), G ~ Gumbel, over the permitted tokens that top-k and
        top-p keep; τ = 0: argmax logits over the permitted tokens

    Args:
        logits: of the model.
        permitted: by the constraint; None permits everything.
        sampling: the settings of each row.
        index: how many tokens of the reply came before; with seed and origin it makes the noise.

    Returns:
        The tokens. Under a constraint each is a permitted one, whatever the logits are: NaN and
        −inf count as least likely, +inf as likeliest; `log_prob` is then NaN. A row in which
        nothing is permitted (one that is done) gets any token.
    """
    log_probs = jax.nn.log_softmax(logits, axis=-1)
    allowed = log_probs
    if permitted is not None:
        # One logit that is no number would make the whole row NaN, whose argmax is token 0.
        allowed = jax.nn.log_softmax(jnp.where(permitted, finite(logits), -jnp.inf), axis=-1)
    greedy = sampling.temperature == 0.0

    def likeliest() -> tuple[Array, Array]:
        return jnp.argmax(allowed, axis=-1), jnp.zeros_like(sampling.temperature)

    def sampled() -> tuple[Array, Array]:
        scale = jnp.where(greedy, 1.0, sampling.temperature)[:, None]
        behaviour = jax.nn.log_softmax(truncate(allowed / scale, sampling), axis=-1)
        noise = jax.vmap(gumbel_noise, in_axes=(0, 0, 0, None))(
            sampling.seed, sampling.origin, index, logits.shape[-1]
        )
        noisy = jnp.where(greedy[:, None], allowed, behaviour + noise)
        token = jnp.argmax(noisy, axis=-1)
        return token, jnp.where(greedy, 0.0, _pick(behaviour, token))

    token, behaviour_log_prob = likeliest() if sampling.is_greedy else sampled()
    return Drawn(
        token=token.astype(jnp.int32),
        log_prob=_pick(log_probs, token),
        permitted_log_prob=_pick(allowed, token),
        behaviour_log_prob=behaviour_log_prob,
    )


def finite(logits: Float[Array, "*B V"]) -> Float[Array, "*B V"]:
    """Logits in [−1e30, 1e30], NaN as the least: differences and quotients by temperatures down to
    1e−8 stay in the range of float32."""
    return jnp.clip(
        jnp.where(jnp.isnan(logits), -_LARGEST_LOGIT, logits), -_LARGEST_LOGIT, _LARGEST_LOGIT
    )


def _pick(rows: Float[Array, "B V"], token: Int[Array, " B"]) -> Float[Array, " B"]:
    return jnp.take_along_axis(rows, token[:, None], axis=-1)[:, 0]


def gumbel_noise(
    seed: UInt32[Array, "2"], origin: UInt32[Array, "3"], index: Int[Array, ""], vocab_size: int
) -> Float[Array, " V"]:
    """The noise of one token: of seed, row, turn and place, each folded in by itself.

    Nothing is added up, so no two seeds, rows or turns have noise in common.

    Args:
        seed: of the row, high word and low word.
        origin: of the reply, see `Origin`.
        index: how many tokens of the reply came before.
        vocab_size: V.
    """
    key = jax.random.wrap_key_data(seed, impl="threefry2x32")
    row, turn, position = origin
    for number in (row, turn, position + index.astype(jnp.uint32)):
        key = jax.random.fold_in(key, number)
    return jax.random.gumbel(key, (vocab_size,))


def truncate(log_weights: Float[Array, "B V"], sampling: Sampling) -> Float[Array, "B V"]:
    """−inf on what top-k, then top-p, leave out (Fan et al. 2018; Holtzman et al. 2020).

    The threshold is found bit by bit: 32 passes over the vocabulary cost far less than the sort
    that the definition suggests, and every row has its own k and p.

    Args:
        log_weights: log-probabilities up to a constant of each row.
        sampling: top_k and top_p.

    Returns:
        The log-weights that stay, not renormalised.
    """
    keys = _ordered_bits(log_weights)

    def by_count(log_weights: Array) -> Array:
        wanted = jnp.where(sampling.top_k > 0, sampling.top_k, log_weights.shape[-1])
        threshold = _threshold(keys, jnp.ones_like(log_weights), wanted.astype(jnp.float32))
        return jnp.where(keys >= threshold[:, None], log_weights, -jnp.inf)

    def by_mass(log_weights: Array) -> Array:
        weights = jax.nn.softmax(log_weights, axis=-1)
        threshold = _threshold(keys, weights, sampling.top_p)
        keep = (keys >= threshold[:, None]) | (sampling.top_p >= 1.0)[:, None]
        return jnp.where(keep, log_weights, -jnp.inf)

    def same(log_weights: Array) -> Array:
        return log_weights

    log_weights = jax.lax.cond(jnp.any(sampling.top_k > 0), by_count, same, log_weights)
    return jax.lax.cond(jnp.any(sampling.top_p < 1.0), by_mass, same, log_weights)


def _ordered_bits(x: Float[Array, "B V"]) -> UInt32[Array, "B V"]:
    """Unsigned integers in the order of the floats."""
    bits = jax.lax.bitcast_convert_type(x, jnp.uint32)
    sign = jnp.uint32(1 << 31)
    return jnp.where(bits & sign, ~bits, bits | sign)


def _threshold(
    keys: UInt32[Array, "B V"], weights: Float[Array, "B V"], wanted: Float[Array, " B"]
) -> UInt32[Array, " B"]:
    """The greatest key such that what lies at or above it weighs at least what is wanted."""

    def decide(bit: Int[Array, ""], threshold: UInt32[Array, " B"]) -> UInt32[Array, " B"]:
        raised = threshold | (jnp.uint32(1 << 31) >> bit.astype(jnp.uint32))
        weight = jnp.sum(jnp.where(keys >= raised[:, None], weights, 0.0), axis=-1)
        return jnp.where(weight >= wanted, raised, threshold)

    return jax.lax.fori_loop(0, 32, decide, jnp.zeros(keys.shape[0], jnp.uint32))


class Repetition(NamedTuple):
    """How often the end of each reply repeats itself.

    Attributes:
        recent: the last tokens, the newest first; −1 before the beginning.
        runs: for each period p = 1, 2, …, how many tokens in a row equal the one p before them.
    """

    recent: Int[Array, "B P"]
    runs: Int[Array, "B P"]


def no_repetition(batch: int) -> Repetition:
    """At the beginning of a reply."""
    runs = np.zeros((batch, MAX_PERIOD), np.int32)
    return Repetition(jax.device_put(runs - 1), jax.device_put(runs))


def observe_repetition(
    repetition: Repetition, token: Int[Array, " B"], max_repeats: Int[Array, " B"]
) -> tuple[Repetition, Bool[Array, " B"]]:
    """Take in the next token.

    Args:
        repetition: before it.
        token: the next token of each row.
        max_repeats: r; 0 never stops.

    Returns:
        After it, and which rows end in r copies of one block of up to `MAX_PERIOD` tokens.
    """
    runs = jnp.where(repetition.recent == token[:, None], repetition.runs + 1, 0)
    period = jnp.arange(1, MAX_PERIOD + 1)[None, :]
    looping = jnp.any(runs >= (max_repeats[:, None] - 1) * period, axis=-1)
    recent = jnp.concatenate([token[:, None], repetition.recent[:, :-1]], axis=-1)
    return Repetition(recent, runs), looping & (max_repeats > 0)


def gumbel_top_k(
    log_probs: Float[Array, " N"], k: int, key: PRNGKeyArray
) -> tuple[Int[Array, " k"], Float[Array, " k"]]:
    """k different choices, drawn without replacement (Kool et al. 2019).

        the k greatest of log pᵢ + Gᵢ, G ~ Gumbel

    Args:
        log_probs: log p of each choice, up to a constant.
        k: how many, at most the number of choices.
        key: of the noise; consumed.

    Returns:
        Indices in the order in which they were drawn, and their perturbed log-probabilities.

    Raises:
        ValueError: there are fewer than k choices.
    """
    if not 1 <= k <= log_probs.shape[0]:
        raise ValueError(f"k ({k}) must be at least 1 and at most {log_probs.shape[0]}")
    perturbed, index = jax.lax.top_k(log_probs + jax.random.gumbel(key, log_probs.shape), k)
    return index, perturbed
