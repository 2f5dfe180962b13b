"""Ask a language model until it says something that can be used: bounded, counted, never fatal."""

import dataclasses
import logging
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from jaxagent.planning.chat import ChatError, ChatModel, Message
from jaxagent.planning.parse import RefusedReply
from jaxagent.planning.prompt import quoted

Answer = TypeVar("Answer")
_QUOTED_BACK = 400  # characters of a refused reply that the model is shown again
_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class AskSettings:
    """How a planner asks its language model."""

    retries: int = 2
    """Further questions after a refused reply, before the fallback plans."""
    max_tokens: int = 256
    """Tokens of a reply; of a retry four times as many, where the reply before was cut short."""
    temperature: float | None = None
    """Of the first question; None leaves it to the backend."""
    retry_temperature: float | None = 0.7
    """Of the questions after it: asking the same again greedily gives the same again."""
    history: int = 8
    """Earlier (sub-goal, result) pairs that the model is shown, at most."""
    constrain: bool = True
    """Ask the backend to keep the reply inside the JSON schema."""
    seed: int = 0
    """Of sampling; retries and later questions count up from it."""

    def __post_init__(self):
        for name, low, high in (
            ("retries", 0, 2),
            ("history", 0, 1000),
            ("max_tokens", 1, 1 << 20),
        ):
            value = getattr(self, name)
            if not low <= value <= high:
                raise ValueError(f"{name} ({value}) must lie in [{low}, {high}]")
        for name in ("temperature", "retry_temperature"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < float("inf"):
                raise ValueError(f"{name} ({value}) must be finite and at least 0")


class PlannerLog:
    """Counts of what was asked, accepted and refused; safe to share between threads."""

    def __init__(self):
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._refused: Counter[str] = Counter()
        self._seconds = 0.0

    def count(self, name: str, amount: int = 1) -> int:
        """Add to a count; its new value."""
        with self._lock:
            self._counts[name] += amount
            return self._counts[name]

    def refuse(self, reason: str) -> None:
        """Count a reply or a call that could not be used, by its reason."""
        with self._lock:
            self._refused[reason] += 1

    def truncated(self, name: str, context: int) -> None:
        """Count a prompt from which something was left out; say so the first time."""
        if self.count("truncated_prompts") == 1:
            _log.warning(
                "the prompt is longer than the context of %s (%d tokens): the oldest history is "
                "left out, now and from here on",
                name,
                context,
            )

    def too_long(self, name: str, error: Exception) -> None:
        """Count a question that does not fit at all; say so the first time."""
        self.count("questions")
        self.refuse("prompt_too_long")
        if self.count("unaskable") == 1:
            _log.warning("%s cannot be asked, the fallback plans: %s", name, error)

    def cut_short(self, name: str, max_tokens: int) -> None:
        """Count a reply that ended at its last token; say so the first time."""
        self.refuse("cut_short")
        if self.count("cut_short") == 1:
            _log.warning(
                "replies of %s end at max_tokens (%d) before they can be used", name, max_tokens
            )

    def call_failed(self, error: ChatError) -> None:
        """Count a call without a reply; say so the first time for each reason."""
        self.refuse(error.reason)
        if self.count(f"calls_{error.reason}") == 1 and error.reason != "stopped":
            _log.warning("no plan: %s", error)

    def spend(self, prompt_tokens: int, completion_tokens: int, seconds: float) -> None:
        """Add up what a reply took."""
        with self._lock:
            self._counts["replies"] += 1
            self._counts["prompt_tokens"] += prompt_tokens
            self._counts["completion_tokens"] += completion_tokens
            self._seconds += seconds

    def summary(self) -> dict[str, Any]:
        """Everything as plain data, for a run folder.

        Returns:
            questions, accepted, fell_back, accepted_share (of the questions that have ended, one
            way or the other; None before the first), replies, retries, truncated_prompts,
            prompt_tokens, completion_tokens, seconds, and refused: a count for each reason.
        """
        names = ("questions", "accepted", "fell_back", "replies", "retries", "truncated_prompts")
        with self._lock:
            values: dict[str, Any] = {
                name: self._counts[name] for name in (*names, "prompt_tokens", "completion_tokens")
            }
            values["accepted_share"] = accepted_share(values)
            values["seconds"] = self._seconds
            values["refused"] = dict(sorted(self._refused.items()))
            return values


def accepted_share(counts: Mapping[str, Any]) -> float | None:
    """Accepted plans over questions that have ended; None where none has."""
    ended = counts["accepted"] + counts["fell_back"]
    return counts["accepted"] / ended if ended else None


def ask(
    chat: ChatModel,
    messages: Sequence[Message],
    read: Callable[[str], Answer],
    *,
    schema: Mapping[str, Any],
    settings: AskSettings,
    log: PlannerLog,
) -> Answer | None:
    """Ask, and ask again where the reply is refused.

    Args:
        chat: the model.
        messages: the prompt.
        read: turns a reply into an answer or raises `RefusedReply`.
        schema: JSON schema of the reply.
        settings: bounds.
        log: where it is counted.

    Returns:
        The first answer that could be read; None when all replies were refused or a call failed.
        Falling back is the caller's.
    """
    question = log.count("questions")
    prompt, max_tokens = list(messages), settings.max_tokens
    for attempt in range(settings.retries + 1):
        if attempt:
            log.count("retries")
        try:
            reply = chat.complete(
                prompt,
                max_tokens=max_tokens,
                schema=schema if settings.constrain else None,
                temperature=settings.retry_temperature if attempt else settings.temperature,
                seed=settings.seed + 1009 * question + attempt,
            )
        except ChatError as error:
            log.call_failed(error)
            return None
        log.spend(*reply.usage, reply.seconds)
        try:
            answer = read(reply.text)
        except RefusedReply as refusal:
            if reply.finish == "length":
                log.cut_short(chat.name, max_tokens)
                prompt, max_tokens = _longer(chat, messages, max_tokens)
                continue
            declined = RefusedReply("declined", "the model would not answer")
            why = declined if reply.finish == "declined" else refusal
            log.refuse(why.reason)
            prompt = _again(chat, messages, reply.text, why, max_tokens)
        else:
            log.count("accepted")
            return answer
    return None


def _longer(
    chat: ChatModel, messages: Sequence[Message], max_tokens: int
) -> tuple[list[Message], int]:
    """The prompt of a retry after a reply that was cut, and the tokens that it may take.

    The cut reply itself is not shown: it would take the room that the next one needs.
    """
    short = f"Your reply was cut after {max_tokens} tokens. Answer again, shorter, with JSON only."
    longer = [*messages, Message("user", short)]
    room = chat.context - chat.count_tokens(longer)
    if room < max_tokens:
        longer, room = list(messages), chat.context - chat.count_tokens(messages)
    return longer, max(max_tokens, min(4 * max_tokens, room))


def _again(
    chat: ChatModel,
    messages: Sequence[Message],
    text: str,
    refusal: RefusedReply,
    max_tokens: int,
) -> list[Message]:
    """The prompt of a retry: with the reply and what is wrong with it, where that fits."""
    longer = [
        *messages,
        Message("assistant", quoted(text[:_QUOTED_BACK])),
        Message("user", f"That cannot be used ({refusal}). Answer again, with JSON only."),
    ]
    fits = chat.count_tokens(longer) + max_tokens <= chat.context
    return longer if fits and text.strip() else list(messages)
