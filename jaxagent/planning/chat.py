"""What a planner needs of a language model: messages in, text out, and failures with a name.

Three things answer: a Flax model in this process (`flax_chat`), an endpoint (`openai_chat`), and
whatever a test or a user writes with the members of `ChatModel`.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

# Why a call gave no reply. The transient ones may work a moment later.
TRANSIENT = frozenset(
    {"timeout", "unreachable", "connection_closed", "rate_limited", "server_error"}
)
CALL_FAILURES = TRANSIENT | {
    "wrong_key",
    "refused_request",
    "bad_response",
    "reply_too_large",
    "circuit_open",
    "model_failed",
    "stopped",
}


class Message(NamedTuple):
    """One turn of a conversation."""

    role: str  # "system", "user" or "assistant"
    content: str


class Usage(NamedTuple):
    """Tokens that a call read and wrote."""

    prompt_tokens: int
    completion_tokens: int


class Reply(NamedTuple):
    """What a language model said."""

    text: str
    usage: Usage
    seconds: float  # from the question to the last token
    finish: str = "stop"  # "length": cut at max_tokens; "declined": it would not answer


class ChatError(Exception):
    """A call that gave no reply.

    The message never holds what the endpoint sent, which may repeat the key.
    """

    def __init__(self, reason: str, message: str, retry_after: float | None = None):
        """Name the failure.

        Args:
            reason: one of `CALL_FAILURES`.
            message: one line for a person.
            retry_after: seconds that the endpoint asked to wait.
        """
        super().__init__(message)
        self.reason = reason
        self.retry_after = retry_after

    @property
    def transient(self) -> bool:
        """Whether the same call may succeed later."""
        return self.reason in TRANSIENT


class ChatModel(Protocol):
    """A language model that holds a conversation."""

    @property
    def name(self) -> str:
        """What caches and reports call it."""
        ...

    @property
    def context(self) -> int:
        """Tokens that prompt and reply may fill together."""
        ...

    def count_tokens(self, messages: Sequence[Message]) -> int:
        """Tokens of a prompt; never fewer than the model will read."""
        ...

    def complete(
        self,
        messages: Sequence[Message],
        *,
        max_tokens: int,
        schema: Mapping[str, Any] | None = None,
        temperature: float | None = None,
        seed: int = 0,
    ) -> Reply:
        """The next turn of the conversation.

        Args:
            messages: the conversation so far; the last one is the user's.
            max_tokens: the reply ends after these at the latest.
            schema: JSON schema of the reply. A backend that can keeps the reply inside it; the
                caller checks it all the same.
            temperature: None leaves it to the backend.
            seed: of sampling, where the backend can be seeded.

        Raises:
            ChatError: there is no reply, and why.
        """
        ...

    def stop(self) -> None:
        """Answer no more: calls under way, on other threads, end as soon as they can."""
        ...


def estimate_tokens(messages: Sequence[Message]) -> int:
    """Tokens of a prompt whose tokeniser is not known, an upper estimate for ordinary text.

        Σ over messages (UTF-8 bytes / 3, rounded up, + 4 for the role and its marks)

    Args:
        messages: the prompt.

    Returns:
        The estimate. Byte-pair tokenisers make about one token of four bytes of English.
    """
    return sum(
        4 + math.ceil(len(message.content.encode("utf-8", "surrogatepass")) / 3)
        for message in messages
    )
