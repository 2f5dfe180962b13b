"""A Flax language model in this process as a conversation partner."""

import hashlib
import json
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jaxagent.models.llm.batching import Batcher
from jaxagent.models.llm.constrain import Automaton
from jaxagent.models.llm.generate import Generator
from jaxagent.models.llm.generate_reply import Completion
from jaxagent.models.llm.load import LanguageModel
from jaxagent.models.llm.sampling import SamplingConfig
from jaxagent.models.llm.tokenizer import encode_chat
from jaxagent.planning.chat import ChatError, Message, Reply, Usage

_TOKENS_AT_A_TIME = 8  # between two looks at whether to stop


class FlaxChat:
    """Holds conversations with a `LanguageModel`, each in a cache that is never read again.

    A prompt goes on in the cache whose last prompt it shares most with, so the conversation of
    an episode only pays for what is new in it. Calls from several threads take turns.
    """

    def __init__(
        self,
        model: LanguageModel,
        *,
        context: int = 2048,
        conversations: int = 1,
        clock: Callable[[], float] = time.monotonic,
    ):
        """Compile nothing yet.

        Args:
            model: parameters and a tokeniser that has a chat template.
            context: tokens that prompt and reply may fill together; the model's own limit if that
                is less.
            conversations: kept side by side; each has a cache of its own.
            clock: seconds.

        Raises:
            ValueError: no chat template, or a bound below 1.
        """
        if not getattr(model.tokenizer, "chat_template", None):
            raise ValueError(f"the tokeniser of {model.name} has no chat template")
        roles = ("system", "user", "assistant", "user")
        try:
            encode_chat(model.tokenizer, [Message(role, "x")._asdict() for role in roles])
        except Exception as error:  # templates raise what they like
            raise ValueError(
                f"the chat template of {model.name} refuses a conversation with a system message: "
                f"{error}"
            ) from None
        if context < 1 or conversations < 1:
            raise ValueError(
                f"context ({context}) and conversations ({conversations}) must be at least 1"
            )
        self._model, self._generator, self._clock = model, Generator(model), clock
        self._context = min(context, model.config.max_positions)
        self._conversations = conversations
        self._name = f"{model.name}-{fingerprint(model.params)}"
        self._caches: list[tuple[Batcher, list[int]]] = []  # most recently used last
        self._stopped = False
        self._constraints: OrderedDict[str, Automaton] = OrderedDict()
        self._lock = threading.Lock()
        self.reused_tokens = 0  # of all prompts together: those that were not read again

    def __repr__(self) -> str:
        return f"FlaxChat({self._name!r})"

    @property
    def name(self) -> str:
        """The model's name and a hash of its parameters."""
        return self._name

    @property
    def context(self) -> int:
        """Tokens that prompt and reply may fill together."""
        return self._context

    def count_tokens(self, messages: Sequence[Message]) -> int:
        """Exactly."""
        return len(self._encode(messages))

    def stop(self) -> None:
        """Say no more; a reply under way ends within a few tokens."""
        self._stopped = True

    def complete(
        self,
        messages: Sequence[Message],
        *,
        max_tokens: int,
        schema: Mapping[str, Any] | None = None,
        temperature: float | None = None,
        seed: int = 0,
    ) -> Reply:
        """Say the next turn; see `ChatModel`.

        Args:
            messages: the conversation.
            max_tokens: of the reply.
            schema: the reply is inside it, whatever the model would rather say.
            temperature: None is greedy.
            seed: of sampling.

        Raises:
            ChatError: refused_request for what cannot be answered, model_failed where the device
                gave up, stopped after `stop`.
        """
        with self._lock:
            begin = self._clock()
            prompt = self._encode(messages)
            cache = self._take_cache(prompt)
            try:
                sampling = SamplingConfig(
                    max_new_tokens=max_tokens, temperature=temperature or 0.0, seed=seed
                )
                constraint = None if schema is None else self._constraint(schema)
                said = self._say(cache, prompt, sampling, constraint)
            except ValueError as error:
                raise ChatError("refused_request", f"{self._name}: {error}") from error
            except jax.errors.JaxRuntimeError as error:  # out of memory, a lost device
                raise ChatError("model_failed", f"{self._name} failed on its device") from error
            # Only after a reply: a cache that broke off is not gone on with.
            self._caches.append((cache, prompt))
            self.reused_tokens += said.reused_length
            usage = Usage(said.prompt_length, len(said.tokens))
            finish = "length" if said.finish_reason == "length" else "stop"
            return Reply(said.text, usage, self._clock() - begin, finish)

    def _encode(self, messages: Sequence[Message]) -> list[int]:
        tokens = encode_chat(self._model.tokenizer, [message._asdict() for message in messages])
        return self._generator.encode(tokens)

    def _say(
        self,
        cache: Batcher,
        prompt: list[int],
        sampling: SamplingConfig,
        constraint: Automaton | None,
    ) -> Completion:
        number = cache.submit(prompt, sampling, constraint)
        while not self._stopped:
            said = cache.step(_TOKENS_AT_A_TIME)[number].completion
            if said is not None:
                return said
        raise ChatError("stopped", f"{self._name} is asked no more")

    def _take_cache(self, prompt: list[int]) -> Batcher:
        """The cache that knows most of the prompt, or a new one in place of the oldest."""
        shared = [_common(known, prompt) for _, known in self._caches]
        # A few tokens in common are only the template's: that conversation is another one.
        best = max(range(len(shared)), key=shared.__getitem__, default=None)
        if best is not None and 2 * shared[best] >= len(self._caches[best][1]):
            return self._caches.pop(best)[0]
        if len(self._caches) >= self._conversations:
            return self._caches.pop(0)[0]
        return self._generator.batcher(rows=1)

    def _constraint(self, schema: Mapping[str, Any]) -> Automaton:
        key = json.dumps(schema, sort_keys=True)
        if key not in self._constraints:
            self._constraints[key] = self._generator.json_schema(schema)
        self._constraints.move_to_end(key)
        while len(self._constraints) > 16:
            self._constraints.popitem(last=False)
        return self._constraints[key]


def _common(known: list[int], prompt: list[int]) -> int:
    """Tokens in common at the beginning."""
    length = min(len(known), len(prompt))
    differs = np.nonzero(np.array(known[:length]) != np.array(prompt[:length]))[0]
    return int(differs[0]) if differs.size else length


def fingerprint(params: Mapping[str, Any]) -> str:
    """A hash that tells parameters apart, so that no cache mixes two models of one name.

    Args:
        params: any tree of arrays.

    Returns:
        Eight hexadecimal digits of paths, shapes, sums and sums of squares.
    """
    digest = hashlib.sha256()
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        array = np.asarray(leaf, np.float32)
        moments = (array.sum(dtype=np.float64), np.square(array).sum(dtype=np.float64))
        digest.update(f"{jax.tree_util.keystr(path)} {array.shape} {moments}".encode())
    return digest.hexdigest()[:8]
