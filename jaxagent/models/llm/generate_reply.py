"""One reply of a language model, while it is made and when it is complete."""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from jaxagent.models.llm.constrain import Automaton
from jaxagent.models.llm.generate_steps import Finish
from jaxagent.models.llm.sampling import Origin, SamplingConfig
from jaxagent.models.llm.tokenizer import text_before

Prompt = str | Sequence[int]
"""Token ids, or text that is encoded as it stands, without special tokens around it."""

FinishReason = Literal["end", "stop", "repetition", "length", "cancelled"]
"""An end token or a complete constraint; a stop string; a loop; the budget; the caller."""

_REASONS: dict[Finish, FinishReason] = {
    Finish.END: "end",
    Finish.REPETITION: "repetition",
    Finish.LENGTH: "length",
}
# What the decoder puts for bytes that are no complete character yet.
_INCOMPLETE = "�"


class Completion(NamedTuple):
    """What was said, and how probable it was.

    Attributes:
        text: without the end token, cut before a stop string.
        tokens: everything that was said, the end token included.
        log_prob: of each token under the model, whole vocabulary, temperature 1.
        permitted_log_prob: the same, renormalised over what the constraint permitted.
        behaviour_log_prob: under the distribution that was drawn from.
        finish_reason: why it ended.
        prompt_length: tokens of the prompt.
        reused_length: of these, how many stood in the cache already.
    """

    text: str
    tokens: np.ndarray
    log_prob: np.ndarray
    permitted_log_prob: np.ndarray
    behaviour_log_prob: np.ndarray
    finish_reason: FinishReason
    prompt_length: int
    reused_length: int


class Request(NamedTuple):
    """What to say a reply to, and how.

    Attributes:
        prompt: token ids.
        sampling: how tokens are drawn.
        constraint: what may be said; None is anything.
        stop_tokens: ids that end the reply; none under a constraint, which ends by itself.
        row: of rows that share the sampling's seed.
        turn: of the session.
    """

    prompt: list[int]
    sampling: SamplingConfig
    constraint: Automaton | None
    stop_tokens: tuple[int, ...]
    row: int = 0
    turn: int = 0

    @property
    def origin(self) -> Origin:
        """What its noise depends on beside the seed."""
        return Origin(self.row, self.turn, len(self.prompt))

    @property
    def length(self) -> int:
        """Slots of the cache that it may need."""
        return len(self.prompt) + self.sampling.max_new_tokens

    def check(self, max_positions: int) -> None:
        """Refuse what cannot be done.

        Raises:
            ValueError: the prompt is empty, it does not fit the context together with its
                reply, or the constraint cannot end within the budget, or would not be kept.
        """
        budget = self.sampling.max_new_tokens
        check_prompt(self.prompt, budget, max_positions)
        if self.constraint is None:
            return
        shortest = int(self.constraint.distance[0])
        if shortest > budget:
            raise ValueError(
                f"max_new_tokens ({budget}) must be at least {shortest}, the tokens of the "
                "constraint's shortest string"
            )
        for name in ("stop_tokens", "stop_strings", "max_repeats"):
            if getattr(self.sampling, name):
                raise ValueError(
                    f"{name} ({getattr(self.sampling, name)!r}) cannot go with a constraint: it "
                    "would cut strings that the constraint permits only whole"
                )


def check_prompt(prompt: Sequence[int], budget: int, max_positions: int) -> None:
    """Refuse a prompt that leaves no room.

    Args:
        prompt: token ids.
        budget: tokens that are to follow.
        max_positions: the model's context.

    Raises:
        ValueError: it is empty, or too long; the lengths are named.
    """
    if not prompt:
        raise ValueError("prompt must hold at least one token, found none")
    if len(prompt) + budget > max_positions:
        raise ValueError(
            f"prompt ({len(prompt)} tokens) and what follows it (up to {budget}) must fit the "
            f"context ({max_positions} tokens) together"
        )


class Reply:
    """A reply in the making.

    Args:
        tokenizer: of the model.
        request: that it answers.
        reused_length: tokens of the prompt that stood in the cache already.
    """

    def __init__(self, tokenizer: Any, request: Request, reused_length: int) -> None:
        self.request, self.reused_length = request, reused_length
        self.finish_reason: FinishReason | None = None
        self.tokens: list[int] = []
        self._tokenizer = tokenizer
        before = text_before(tokenizer)
        self._before = tokenizer.encode(before, add_special_tokens=False) if before else []
        self._logs: list[np.ndarray] = []
        self._text, self._shown = "", 0

    @property
    def remaining(self) -> int:
        """Tokens that it may still say."""
        return self.request.sampling.max_new_tokens - len(self.tokens)

    def take(self, tokens: list[int], logs: np.ndarray, finish: Finish) -> None:
        """Go on by some tokens.

        Args:
            tokens: what was said.
            logs: [len(tokens), 3], their log-probabilities in the order of `Completion`.
            finish: the row's state after the last of them.
        """
        stops = self.request.sampling.stop_strings
        for place in range(len(tokens)) if stops else ():
            text = self._decode(self.tokens + tokens[: place + 1])
            found = [text.index(stop) for stop in stops if stop in text]
            if found:
                self.tokens += tokens[: place + 1]
                self._logs.append(logs[: place + 1])
                self._text, self.finish_reason = text[: min(found)], "stop"
                return
        self.tokens += tokens
        self._logs.append(logs)
        self.finish_reason = _REASONS.get(finish)
        self._text = self._decode(self.tokens)

    def new_text(self) -> str:
        """Text that has become certain since the last call.

        Held back: an incomplete character, and the beginning of what may become a stop string.
        """
        text = self._text
        if self.finish_reason is None:
            text = text.rstrip(_INCOMPLETE)
            text = text[: len(text) - self._possible_stop(text)]
        new = text[self._shown :]
        self._shown += len(new)
        return new

    def completion(self) -> Completion:
        """The whole of it.

        Raises:
            ValueError: it is not complete.
        """
        if self.finish_reason is None:
            raise ValueError("the reply is not complete: let it go on, or cancel it")
        logs = np.concatenate([np.zeros((0, 3), np.float32), *self._logs])
        return Completion(
            text=self._text,
            tokens=np.array(self.tokens, np.int32),
            log_prob=logs[:, 0],
            permitted_log_prob=logs[:, 1],
            behaviour_log_prob=logs[:, 2],
            finish_reason=self.finish_reason,
            prompt_length=len(self.request.prompt),
            reused_length=self.reused_length,
        )

    def _decode(self, tokens: list[int]) -> str:
        if tokens and tokens[-1] in self.request.stop_tokens:
            tokens = tokens[:-1]
        text, before = (
            self._tokenizer.decode(
                each, skip_special_tokens=True, clean_up_tokenization_spaces=False
            )
            for each in (self._before + tokens, self._before)
        )
        return text[len(before) :]

    def _possible_stop(self, text: str) -> int:
        """Length of the longest end of the text with which a stop string begins."""
        longest = 0
        for stop in self.request.sampling.stop_strings:
            for length in range(min(len(stop) - 1, len(text)), longest, -1):
                if text.endswith(stop[:length]):
                    longest = length
                    break
        return longest
