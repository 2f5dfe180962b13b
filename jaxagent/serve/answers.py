"""Replies on the wire: chat completions and completions, whole or in chunks."""

import codecs
import json
import secrets
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from jaxagent.serve.logprobs import TokenLog


class Said(NamedTuple):
    """One choice of a reply, complete."""

    text: str
    finish_reason: str  # in OpenAI's words
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    calls: tuple[tuple[str, str], ...] = ()  # name and arguments of each function called
    logs: list[TokenLog] | None = None


class ChatAnswer:
    """A chat completion; all its chunks bear the same id."""

    prefix, kind, chunk_kind = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def __init__(self, model: str, choices: int):
        """Take an id and the time.

        Args:
            model: the name that is served.
            choices: of each prompt.
        """
        self._model, self._choices, self._created = model, choices, int(time.time())
        self._id = f"{self.prefix}-{secrets.token_hex(12)}"

    def whole(self, choices: Sequence[Said]) -> dict[str, Any]:
        """The reply as one object."""
        shown = [self._choice(index, said) for index, said in enumerate(choices)]
        return self._object(self.kind, shown) | {"usage": self._usage(choices)}

    def begin(self, index: int) -> list[dict[str, Any]]:
        """Chunks before the first text of a choice."""
        return [self._chunk(index, {"role": "assistant", "content": ""})]

    def more(self, index: int, text: str, logs: list[TokenLog] | None = None) -> dict[str, Any]:
        """A chunk of text."""
        return self._chunk(index, {"content": text}, None, _chat_logs(logs))

    def end(self, index: int, said: Said) -> list[dict[str, Any]]:
        """Chunks after the last text of a choice: calls, and why it ended."""
        chunks = []
        if said.calls:
            calls = [{"index": i, **call} for i, call in enumerate(_calls(said))]
            chunks.append(self._chunk(index, {"tool_calls": calls}))
        chunks.append(self._chunk(index, {}, said.finish_reason))
        return chunks

    def usage(self, choices: Sequence[Said]) -> dict[str, Any]:
        """The chunk after the end that counts tokens."""
        return self._object(self.chunk_kind, []) | {"usage": self._usage(choices)}

    def _usage(self, choices: Sequence[Said]) -> dict[str, Any]:
        """A prompt counts once for all its choices, as OpenAI counts it."""
        prompts = choices[:: self._choices]
        read = sum(said.prompt_tokens for said in prompts)
        wrote = sum(said.completion_tokens for said in choices)
        return {
            "prompt_tokens": read,
            "completion_tokens": wrote,
            "total_tokens": read + wrote,
            "prompt_tokens_details": {"cached_tokens": sum(said.cached_tokens for said in prompts)},
        }

    def _choice(self, index: int, said: Said) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": said.text, "refusal": None}
        if said.calls:
            message |= {"content": said.text or None, "tool_calls": _calls(said)}
        return {
            "index": index,
            "message": message,
            "logprobs": _chat_logs(said.logs),
            "finish_reason": said.finish_reason,
        }

    def _chunk(
        self, index: int, delta: dict[str, Any], finish: str | None = None, logs: Any = None
    ) -> dict[str, Any]:
        choice = {"index": index, "delta": delta, "logprobs": logs, "finish_reason": finish}
        return self._object(self.chunk_kind, [choice])

    def _object(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self._id,
            "object": kind,
            "created": self._created,
            "model": self._model,
            "choices": choices,
        }


class TextAnswer(ChatAnswer):
    """A completion of bare text."""

    prefix, kind, chunk_kind = "cmpl", "text_completion", "text_completion"

    def begin(self, index: int) -> list[dict[str, Any]]:
        """Nothing comes before the text."""
        return []

    def more(self, index: int, text: str, logs: list[TokenLog] | None = None) -> dict[str, Any]:
        """A chunk of text."""
        return self._text_chunk(index, text, None, _text_logs(logs))

    def end(self, index: int, said: Said) -> list[dict[str, Any]]:
        """The chunk that says why it ended."""
        return [self._text_chunk(index, "", said.finish_reason, None)]

    def _choice(self, index: int, said: Said) -> dict[str, Any]:
        return {
            "index": index,
            "text": said.text,
            "logprobs": _text_logs(said.logs),
            "finish_reason": said.finish_reason,
        }

    def _text_chunk(self, index: int, text: str, finish: str | None, logs: Any) -> dict[str, Any]:
        choice = {"index": index, "text": text, "logprobs": logs, "finish_reason": finish}
        return self._object(self.chunk_kind, [choice])


def event(value: dict[str, Any] | None) -> bytes:
    """A server-sent event; None is the mark of the end."""
    return f"data: {'[DONE]' if value is None else json.dumps(value)}\n\n".encode()


def _calls(said: Said) -> list[dict[str, Any]]:
    return [
        {
            "id": f"call_{secrets.token_hex(12)}",
            "type": "function",
            "function": {"name": name, "arguments": arguments},
        }
        for name, arguments in said.calls
    ]


def _chat_logs(logs: list[TokenLog] | None) -> dict[str, Any] | None:
    if logs is None:
        return None
    content = [
        {
            "token": log.token,
            "logprob": log.log_prob,
            "bytes": log.bytes,
            "top_logprobs": [
                {"token": other.token, "logprob": other.log_prob, "bytes": other.bytes}
                for other in log.likeliest
            ],
        }
        for log in logs
    ]
    return {"content": content, "refusal": None}


def _text_logs(logs: list[TokenLog] | None) -> dict[str, Any] | None:
    if logs is None:
        return None
    offsets, length = [], 0
    decoder = codecs.getincrementaldecoder("utf-8")("replace")  # a character may take two tokens
    for log in logs:
        offsets.append(length)
        length += len(decoder.decode(bytes(log.bytes)))
    return {
        "tokens": [log.token for log in logs],
        "token_logprobs": [log.log_prob for log in logs],
        # The token that was said is among them, as in OpenAI's replies.
        "top_logprobs": [
            {each.token: each.log_prob for each in (*log.likeliest, log)} if log.likeliest else None
            for log in logs
        ],
        "text_offset": offsets,
    }
