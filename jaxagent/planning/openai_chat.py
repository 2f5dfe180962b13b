"""Any OpenAI-compatible chat endpoint as a language model; needs the extra `openai`.

The key comes from the environment and stays inside the client: it is no attribute here, and no
message, log line or exception repeats what the endpoint sends back.
"""

import json
import logging
import os
import time
import urllib.parse
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jaxagent.planning.chat import ChatError, Message, Reply, Usage, estimate_tokens

KEY_VARIABLE = "OPENAI_API_KEY"
URL_VARIABLE = "OPENAI_BASE_URL"
MODEL_VARIABLE = "OPENAI_MODEL"
MAX_BODY = 1 << 20  # bytes; the largest reply that is asked for takes a few thousand
_FINISH = {"length": "length", "content_filter": "declined"}  # every other way to end is "stop"
_log = logging.getLogger(__name__)


class OpenAIChat:
    """A model behind an endpoint. Safe to use from several threads."""

    def __init__(
        self,
        model: str | None = None,
        *,
        base_url: str | None = None,
        context: int = 8192,
        timeout: float = 30.0,
        clock: Callable[[], float] = time.monotonic,
    ):
        """Open no connection yet.

        Args:
            model: as the endpoint calls it; None reads `OPENAI_MODEL`.
            base_url: of the endpoint; None reads `OPENAI_BASE_URL`, and is OpenAI's own without.
            context: tokens that prompt and reply may fill together.
            timeout: seconds for a whole call, however slowly the reply drips.
            clock: seconds.

        Raises:
            ValueError: no model, no key for an endpoint that needs one, a URL that is none, or
                the extra `openai` is missing.
        """
        model = model or os.environ.get(MODEL_VARIABLE)
        base_url = base_url or os.environ.get(URL_VARIABLE) or None
        key = os.environ.get(KEY_VARIABLE)
        if not model:
            raise ValueError(f"planner openai needs a model: openai:MODEL, or set {MODEL_VARIABLE}")
        parts = urllib.parse.urlsplit(base_url or "https://api.openai.com")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{URL_VARIABLE} must begin with http:// or https:// and name a host")
        if not key and not base_url:
            raise ValueError(f"planner openai needs a key in {KEY_VARIABLE}")
        if timeout <= 0 or context < 1:
            raise ValueError(
                f"timeout ({timeout}) must be greater than 0 and context ({context}) at least 1"
            )
        try:
            import openai
        except ImportError:
            raise ValueError(
                "planner openai needs the package openai: pip install openai"
            ) from None
        self._openai = openai
        # Endpoints on one's own machine often want no key, but the client wants one.
        self._client = openai.OpenAI(
            api_key=key or "none", base_url=base_url, timeout=timeout, max_retries=0
        )
        # The client's connections would otherwise stay open until the process ends.
        weakref.finalize(self, self._client.close)
        self._model, self._host, self._context = model, parts.hostname, context
        self._timeout, self._clock, self._stopped = timeout, clock, False
        self._takes_schemas = True  # until it is found out that the endpoint refuses them
        # Only OpenAI's own models refuse the older name, which everybody else understands.
        own = parts.hostname == "api.openai.com"
        self._limit = "max_completion_tokens" if own else "max_tokens"

    def __repr__(self) -> str:
        return f"OpenAIChat(model={self._model!r}, host={self._host!r})"

    @property
    def name(self) -> str:
        """The model and the host."""
        return f"{self._model}@{self._host}"

    @property
    def context(self) -> int:
        """Tokens that prompt and reply may fill together."""
        return self._context

    def count_tokens(self, messages: Sequence[Message]) -> int:
        """An estimate from the number of bytes: the endpoint's tokeniser is not known."""
        return estimate_tokens(messages)

    def stop(self) -> None:
        """Read no further; a thread that waits for a socket dies quietly with its process."""
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
        """Ask once; see `ChatModel`. Waiting and asking again are `serving.ResilientChat`'s.

        Raises:
            ChatError: with a reason and, where the endpoint said so, how long to wait.
        """
        request: dict[str, Any] = {
            "model": self._model,
            "messages": [message._asdict() for message in messages],
            "seed": seed,
            self._limit: max_tokens,
        }
        if temperature is not None:
            request["temperature"] = temperature
        if schema is not None and self._takes_schemas:
            form = {"name": "answer", "schema": dict(schema)}
            request["response_format"] = {"type": "json_schema", "json_schema": form}
        begin = self._clock()
        body = self._post_with_or_without_schema(request, begin + self._timeout)
        text, finish, usage = _read_body(body, self.name)
        return Reply(text, usage, self._clock() - begin, finish)

    def _post_with_or_without_schema(self, request: dict[str, Any], deadline: float) -> bytes:
        """Ask; where the request is refused, once more without the schema, if it had one."""
        try:
            return self._post(request, deadline)
        except ChatError as refusal:
            if refusal.reason != "refused_request" or "response_format" not in request:
                raise
            less = {name: value for name, value in request.items() if name != "response_format"}
            try:
                body = self._post(less, deadline)
            except ChatError as error:
                # Refused for another reason, then; the schema may be asked for again.
                raise (refusal if error.reason == "refused_request" else error) from None
        if self._takes_schemas:
            self._takes_schemas = False
            _log.warning(
                "%s refuses schemas of replies (response_format): asked without from here on",
                self.name,
            )
        return body

    def _post(self, request: dict[str, Any], deadline: float) -> bytes:
        openai = self._openai
        create = self._client.chat.completions.with_streaming_response.create
        try:
            with create(**request) as response:
                body = bytearray()
                for chunk in response.iter_bytes():
                    body += chunk
                    if len(body) > MAX_BODY:
                        raise ChatError(
                            "reply_too_large", f"{self.name} sent more than {MAX_BODY} bytes"
                        )
                    if self._stopped:
                        raise ChatError("stopped", f"{self.name} is asked no more")
                    if self._clock() > deadline:
                        raise ChatError("timeout", f"{self.name} took over {self._timeout:g} s")
                return bytes(body)
        except ChatError:
            raise
        except openai.APITimeoutError:
            raise ChatError("timeout", f"{self.name} took over {self._timeout:g} s") from None
        except openai.APIStatusError as error:
            raise self._refusal(error.status_code, error.response.headers) from None
        except openai.APIConnectionError:
            raise ChatError("unreachable", f"{self.name} cannot be reached") from None
        # Whatever goes wrong while the body is read comes from the transport below the client.
        except Exception as error:
            reason = "timeout" if "timeout" in type(error).__name__.lower() else "connection_closed"
            message = f"{self.name} broke off its reply ({type(error).__name__})"
            raise ChatError(reason, message) from None

    def _refusal(self, status: int, headers: Mapping[str, str]) -> ChatError:
        message = f"{self.name} answered with status {status}"
        if status in (401, 403):
            return ChatError("wrong_key", f"{message}: check {KEY_VARIABLE}")
        if status in (408, 504):
            return ChatError("timeout", message)
        if status in (429, 503):
            reason = "rate_limited" if status == 429 else "server_error"
            return ChatError(reason, message, _seconds(headers.get("retry-after")))
        return ChatError("server_error" if status >= 500 else "refused_request", message)


def _seconds(text: str | None) -> float | None:
    """Retry-After in seconds; None for the form with a date, and for nonsense."""
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if 0 <= value < float("inf") else None


def _read_body(body: bytes, name: str) -> tuple[str, str, Usage]:
    """Text, way to end and usage of a chat completion; of its fields only these are looked at."""
    try:
        content = json.loads(body)
        choice = content["choices"][0]
        text = _text(choice["message"]["content"])
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError):
        raise ChatError("bad_response", f"{name} sent something else than a completion") from None
    finish = choice.get("finish_reason")
    finish = _FINISH.get(finish, "stop") if isinstance(finish, str) else "stop"
    if choice["message"].get("refusal"):
        finish = "declined"
    usage = content.get("usage")
    counts = usage if isinstance(usage, dict) else {}
    read, wrote = (counts.get(key) for key in ("prompt_tokens", "completion_tokens"))
    # Half of a surrogate pair can be written in JSON but never be sent back in a retry.
    text = text.encode("utf-8", "replace").decode("utf-8")
    counted = Usage(*(n if type(n) is int and n >= 0 else 0 for n in (read, wrote)))
    return text, finish, counted


def _text(content: Any) -> str:
    """A message's content, which some endpoints send in parts; of these the text alone."""
    if isinstance(content, list):
        content = "".join(part["text"] for part in content if part.get("type") == "text")
    if content is not None and not isinstance(content, str):
        raise TypeError
    return content or ""
