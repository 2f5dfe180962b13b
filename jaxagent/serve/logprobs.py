"""Log-probabilities of tokens beside those of the likeliest others, as OpenAI's API shows them."""

import codecs
import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxagent.models.llm.config import LlamaConfig
from jaxagent.models.llm.constrain import bucket
from jaxagent.models.llm.constrain_tokens import token_bytes
from jaxagent.models.llm.generate_reply import Completion
from jaxagent.models.llm.llama import Llama
from jaxagent.models.llm.load import LanguageModel

_LEAST = -9999.0  # stands for minus infinity, which JSON cannot hold; OpenAI's own number
_CHUNK = 32  # positions whose logits are in memory together


class Likely(NamedTuple):
    """A token and how probable it was."""

    token: str
    bytes: list[int]
    log_prob: float


class TokenLog(NamedTuple):
    """A token that was said, how probable it was, and the likeliest in its place.

    The first token of a text has no probability: `log_prob` is None.
    """

    token: str
    bytes: list[int]
    log_prob: float | None
    likeliest: list[Likely]


class TokenLogs:
    """Makes `TokenLog`s of a model's tokens; not for several threads at once."""

    def __init__(self, model: LanguageModel):
        """Compute nothing yet.

        Args:
            model: parameters and tokeniser.
        """
        self._model = model

    @functools.cached_property
    def _bytes(self) -> list[bytes]:
        return token_bytes(self._model.tokenizer)

    def of_reply(self, prompt: Sequence[int], said: Completion, top: int) -> list[TokenLog]:
        """The tokens of a reply's text, without its end token and what a stop string has cut.

        Args:
            prompt: token ids that it followed.
            said: the reply.
            top: how many of the likeliest tokens to show besides.
        """
        kept, length = [], 0
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        for place, token in enumerate(said.tokens.tolist()):
            if length >= len(said.text):
                break
            if self._spelled(token):
                kept.append(place)
                length += len(decoder.decode(self._spelled(token)))
        if not top:
            pairs = ((int(said.tokens[place]), float(said.log_prob[place])) for place in kept)
            return [self._entry(token, log_prob, ()) for token, log_prob in pairs]
        logs = self._read([*prompt, *said.tokens.tolist()], top)
        return [logs[len(prompt) + place] for place in kept]

    def of_text(self, tokens: Sequence[int], top: int) -> list[TokenLog]:
        """All tokens of a text, each after those before it.

        Args:
            tokens: ids, at least one.
            top: how many of the likeliest tokens to show besides.
        """
        return self._read(tokens, top)

    def _read(self, tokens: Sequence[int], top: int) -> list[TokenLog]:
        """Read a text once; the first token has no log-probability.

        The batch keeps the probability of what it said alone: to carry the likeliest others
        through each of its steps would cost every reply, and they are asked for by few.
        """
        config, length = self._model.config, len(tokens)
        padded = np.zeros((1, bucket(length, smallest=64)), np.int32)
        padded[0, :length] = tokens
        hidden = _features(config, self._model.params, padded)
        logs = [self._entry(tokens[0], None, ())]
        for start in range(0, length - 1, _CHUNK):
            following = np.zeros(_CHUNK, np.int32)
            some = tokens[start + 1 : start + 1 + _CHUNK]
            following[: len(some)] = some
            found = _likeliest(config, self._model.params, hidden, start, following, max(top, 1))
            said, values, ids = (np.asarray(each) for each in found)
            for row, token in enumerate(some):
                best = [*zip(ids[row].tolist(), values[row].tolist())][:top]
                logs.append(self._entry(token, float(said[row]), best))
        return logs

    def _entry(
        self, token: int, log_prob: float | None, best: Sequence[tuple[int, float]]
    ) -> TokenLog:
        likeliest = [Likely(*self._shown(other), _finite(value)) for other, value in best]
        shown = None if log_prob is None else _finite(log_prob)
        return TokenLog(*self._shown(token), shown, likeliest)

    def _spelled(self, token: int) -> bytes:
        return self._bytes[token] if token < len(self._bytes) else b""

    def _shown(self, token: int) -> tuple[str, list[int]]:
        """A token as text and as bytes; special ones, which are no text, by name."""
        spelled = self._spelled(token)
        if not spelled and token < len(self._model.tokenizer):
            name: Any = self._model.tokenizer.convert_ids_to_tokens(token)
            spelled = str(name).encode("utf-8", "replace")
        return spelled.decode("utf-8", "replace"), list(spelled)


def _finite(value: float) -> float:
    """NaN, too, is none of the numbers that JSON knows."""
    return value if value > _LEAST else _LEAST


@functools.partial(jax.jit, static_argnums=0)
def _features(config: LlamaConfig, params: Any, tokens: Int[Array, "1 L"]) -> Float[Array, "L D"]:
    return Llama(config).apply({"params": params}, tokens).hidden[0]  # type: ignore[union-attr]


@functools.partial(jax.jit, static_argnums=(0, 5))
def _likeliest(
    config: LlamaConfig,
    params: Any,
    hidden: Float[Array, "L D"],
    start: Int[Array, ""],
    following: Int[Array, " C"],
    top: int,
) -> tuple[Float[Array, " C"], Float[Array, "C K"], Int[Array, "C K"]]:
    """log softmax of C positions from `start`: of the token that follows, and the K greatest."""
    some = jax.lax.dynamic_slice_in_dim(hidden, start, following.shape[0])
    logits = Llama(config).apply({"params": params}, some, method="logits")
    log_probs = jax.nn.log_softmax(jnp.asarray(logits, jnp.float32), axis=-1)
    said = jnp.take_along_axis(log_probs, following[:, None], axis=-1)[:, 0]
    return said, *jax.lax.top_k(log_probs, top)
