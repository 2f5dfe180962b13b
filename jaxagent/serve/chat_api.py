"""What OpenAI's chat completions look like on the wire: requests read strictly, replies, errors.

A field that would change the reply and cannot be honoured is refused by name; one that is null or
has the value that means "as usual" is passed over.
"""

import json
import secrets
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

from jaxagent.models.llm.generate_reply import Completion

_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
_FINISH = {"length": "length"}  # every other way to end is "stop"
MAX_STOPS = 4
# Each with the values that ask for nothing special.
_AS_USUAL: dict[str, tuple[Any, ...]] = {
    "n": (1,),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "logit_bias": ({},),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "parallel_tool_calls": (True, False),
    "modalities": (["text"],),
    "service_tier": ("auto", "default"),
    "store": (False,),
}
_LABELS = {"user", "metadata", "safety_identifier", "prompt_cache_key"}  # for the caller's books
_READ = {
    "model", "messages", "max_tokens", "max_completion_tokens", "temperature", "top_p", "stop",
    "seed", "stream", "stream_options", "response_format",
}  # fmt: skip


class ApiError(Exception):
    """A request that gets no completion, in OpenAI's words."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ):
        """Name the failure.

        Args:
            status: HTTP status.
            message: one line for a person.
            param: the field of the request that is to blame.
            code: OpenAI's word for it, where there is one.
            headers: of the reply, besides the usual ones.
        """
        super().__init__(message)
        self.status, self.param, self.code = status, param, code
        self.headers = dict(headers or {})

    def body(self) -> dict[str, Any]:
        """The JSON that clients expect."""
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        kind = "rate_limit_error" if self.status == 429 else kind
        said = {"message": str(self), "type": kind, "param": self.param, "code": self.code}
        return {"error": said}


class ChatRequest(NamedTuple):
    """A chat completion as it was asked for."""

    messages: list[dict[str, str]]  # role and content
    max_tokens: int | None  # None: as many as the context leaves
    temperature: float
    top_p: float
    stop: tuple[str, ...]
    seed: int
    schema: Mapping[str, Any] | None  # JSON schema of the reply
    stream: bool
    include_usage: bool  # of a stream, in a chunk of its own at the end


def read_request(body: bytes, model: str) -> ChatRequest:
    """Read a request's body.

    Args:
        body: as it came.
        model: the name that is served.

    Raises:
        ApiError: 400 with the field and the rule, or 404 for another model's name.
    """
    fields = _read_json(body)
    if fields.get("model") != model:
        shown = json.dumps(fields.get("model"))[:80]
        raise ApiError(
            404,
            f"the model {shown} does not exist; this server has {model}",
            param="model",
            code="model_not_found",
        )
    _refuse_unsupported(fields)
    limits = [_whole(fields, name, 1) for name in ("max_completion_tokens", "max_tokens")]
    options = fields.get("stream_options") or {}
    if not isinstance(options, dict):
        raise ApiError(400, "stream_options must be an object", param="stream_options")
    seed = _whole(fields, "seed", None)
    return ChatRequest(
        messages=_messages(fields.get("messages")),
        max_tokens=next((limit for limit in limits if limit is not None), None),
        temperature=_number(fields, "temperature", 1.0, 0.0, 2.0),
        top_p=_number(fields, "top_p", 1.0, 0.0, 1.0),
        stop=_stop(fields.get("stop")),
        # Without a seed two equal requests are to differ.
        seed=secrets.randbits(32) if seed is None else seed % 2**32,
        schema=_schema(fields.get("response_format")),
        stream=_flag(fields, "stream"),
        include_usage=_flag(options, "include_usage"),
    )


def _read_json(body: bytes) -> dict[str, Any]:
    def refuse(name: str) -> Any:
        raise ValueError(f"{name} is not JSON")

    try:
        fields = json.loads(body, parse_constant=refuse)
    except (ValueError, RecursionError):
        raise ApiError(400, "the body is not JSON") from None
    if not isinstance(fields, dict):
        raise ApiError(400, "the body must be a JSON object")
    return fields


def _refuse_unsupported(fields: Mapping[str, Any]) -> None:
    for name, value in fields.items():
        if value is None or name in _READ | _LABELS:
            continue
        if name not in _AS_USUAL:
            raise ApiError(400, f"unknown field {name[:80]!r}", param=name[:80])
        if value not in _AS_USUAL[name]:
            raise ApiError(400, f"{name} is not supported by this server", param=name)


def _messages(value: Any) -> list[dict[str, str]]:
    if not isinstance(value, list) or not value:
        raise ApiError(400, "messages must be a list of at least one", param="messages")
    return [_message(entry, f"messages[{i}]") for i, entry in enumerate(value)]


def _message(entry: Any, place: str) -> dict[str, str]:
    if not isinstance(entry, dict):
        raise ApiError(400, f"{place} must be an object", param=place)
    role = entry.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        raise ApiError(400, f"{place}.role must be one of {', '.join(_ROLES)}", param=place)
    content = entry.get("content")
    if isinstance(content, list):
        content = "".join(_part(part, place) for part in content)
    return {"role": _ROLES[role], "content": _text(content, f"{place}.content", place)}


def _part(part: Any, place: str) -> str:
    if not isinstance(part, dict) or part.get("type") != "text":
        raise ApiError(400, f"{place}.content: only parts of type text are read", param=place)
    return _text(part.get("text"), f"{place}.content.text", place)


def _text(value: Any, place: str, param: str) -> str:
    if not isinstance(value, str):
        raise ApiError(400, f"{place} must be text", param=param)
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ApiError(400, f"{place} holds half of a surrogate pair", param=param) from None
    return value


def _stop(value: Any) -> tuple[str, ...]:
    stops = [value] if isinstance(value, str) else [] if value is None else value
    rule = f"stop must be text, or a list of at most {MAX_STOPS} texts, none of them empty"
    if not isinstance(stops, list) or len(stops) > MAX_STOPS:
        raise ApiError(400, rule, param="stop")
    if not all(isinstance(stop, str) and stop for stop in stops):
        raise ApiError(400, rule, param="stop")
    return tuple(stops)


def _schema(value: Any) -> Mapping[str, Any] | None:
    if value is None or value == {"type": "text"}:
        return None
    rule = 'response_format must be {"type": "text"} or {"type": "json_schema", "json_schema": ...}'
    if not isinstance(value, dict) or value.get("type") != "json_schema":
        raise ApiError(400, rule, param="response_format")
    form = value.get("json_schema")
    if not isinstance(form, dict) or not isinstance(form.get("schema"), dict):
        raise ApiError(400, "response_format.json_schema must hold a schema", param="json_schema")
    return form["schema"]


def _whole(fields: Mapping[str, Any], name: str, least: int | None) -> int | None:
    value = fields.get(name)
    if value is None:
        return None
    if type(value) is not int or (least is not None and value < least):
        rule = "a whole number" + ("" if least is None else f" of at least {least}")
        raise ApiError(400, f"{name} must be {rule}", param=name)
    return value


def _number(fields: Mapping[str, Any], name: str, usual: float, low: float, high: float) -> float:
    value = fields.get(name)
    if value is None:
        return usual
    if type(value) not in (int, float) or not low <= value <= high:
        raise ApiError(400, f"{name} must lie between {low:g} and {high:g}", param=name)
    return float(value)


def _flag(fields: Mapping[str, Any], name: str) -> bool:
    value = fields.get(name)
    if value is not None and not isinstance(value, bool):
        raise ApiError(400, f"{name} must be true or false", param=name)
    return bool(value)


class Answer:
    """The reply to one request, whole or in chunks; all of them bear the same id."""

    def __init__(self, model: str):
        """Take an id and the time.

        Args:
            model: the name that is served.
        """
        self._model, self._created = model, int(time.time())
        self._id = f"chatcmpl-{secrets.token_hex(12)}"

    def whole(self, said: Completion) -> dict[str, Any]:
        """A chat.completion object."""
        message = {"role": "assistant", "content": said.text, "refusal": None}
        choice = {"index": 0, "message": message, "logprobs": None}
        choice["finish_reason"] = _FINISH.get(said.finish_reason, "stop")
        return self._object("chat.completion", [choice]) | {"usage": _usage(said)}

    def begin(self) -> dict[str, Any]:
        """The first chunk, which says who speaks."""
        return self._chunk({"role": "assistant", "content": ""}, None)

    def more(self, text: str) -> dict[str, Any]:
        """A chunk of text."""
        return self._chunk({"content": text}, None)

    def end(self, said: Completion) -> dict[str, Any]:
        """The chunk that says why it ended."""
        return self._chunk({}, _FINISH.get(said.finish_reason, "stop"))

    def usage(self, said: Completion) -> dict[str, Any]:
        """The chunk after the end that counts tokens."""
        return self._object("chat.completion.chunk", []) | {"usage": _usage(said)}

    def _chunk(self, delta: dict[str, str], finish: str | None) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return self._object("chat.completion.chunk", [choice])

    def _object(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self._id,
            "object": kind,
            "created": self._created,
            "model": self._model,
            "choices": choices,
        }


def _usage(said: Completion) -> dict[str, Any]:
    return {
        "prompt_tokens": said.prompt_length,
        "completion_tokens": len(said.tokens),
        "total_tokens": said.prompt_length + len(said.tokens),
        "prompt_tokens_details": {"cached_tokens": said.reused_length},
    }
