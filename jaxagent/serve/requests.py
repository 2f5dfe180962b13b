"""What OpenAI's chat completions and completions ask for, read strictly.

A field that would change the reply and cannot be honoured is refused by name; one that is null or
has the value that means "as usual" is passed over.
"""

import hashlib
import json
import secrets
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from jaxagent.models.llm.sampling import SamplingConfig
from jaxagent.serve.fields import ApiError, flag, number, read_json, text, whole
from jaxagent.serve.messages import Tools, read_messages, read_tools

MAX_STOPS = 4
MAX_CHOICES = 128
MAX_TOP_LOGPROBS = 20
_SHARED = {
    "model", "max_tokens", "temperature", "top_p", "stop", "seed", "n", "logprobs", "stream",
    "stream_options",
}  # fmt: skip
_CHAT = _SHARED | {
    "messages", "max_completion_tokens", "response_format", "tools", "tool_choice", "top_logprobs",
    "parallel_tool_calls",
}  # fmt: skip
_TEXT = _SHARED | {"prompt", "echo"}
_LABELS = {"user", "metadata", "safety_identifier", "prompt_cache_key"}  # for the caller's books
# Each with the values that ask for nothing special.
_AS_USUAL: dict[str, tuple[Any, ...]] = {
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "logit_bias": ({},),
    "modalities": (["text"],),
    "service_tier": ("auto", "default"),
    "store": (False,),
    "functions": ([],),
    "best_of": (1,),
    "suffix": ("",),
}


class Wanted(NamedTuple):
    """What is asked of every choice, by chat and by text alike."""

    max_tokens: int | None  # None: as many as the context leaves
    temperature: float
    top_p: float
    stop: tuple[str, ...]
    seed: int
    choices: int
    logprobs: int | None  # of how many likeliest tokens besides the one said; None: of none
    stream: bool
    include_usage: bool  # of a stream, in a chunk of its own at the end

    def sampling(self, room: int, choice: int = 0) -> SamplingConfig:
        """How the tokens of one choice are drawn.

        Args:
            room: tokens that the context leaves.
            choice: its number; the seeds of two choices have nothing in common, so that no choice
                of one request is one of another whose seed is the next.
        """
        seed = self.seed
        if choice:
            digest = hashlib.sha256(f"{self.seed} {choice}".encode()).digest()
            seed = int.from_bytes(digest[:4])
        return SamplingConfig(
            max_new_tokens=room if self.max_tokens is None else self.max_tokens,
            temperature=self.temperature,
            top_p=max(self.top_p, 1e-6),  # 0 is the likeliest token alone
            seed=seed,
            stop_strings=self.stop,
        )


class ChatRequest(NamedTuple):
    """A chat completion as it was asked for."""

    messages: list[dict[str, Any]]
    wanted: Wanted
    schema: Mapping[str, Any] | None  # JSON schema of the reply
    any_object: bool  # the reply is a JSON object, of no schema
    tools: Tools


class TextRequest(NamedTuple):
    """A completion of bare text as it was asked for."""

    prompts: list[str] | list[list[int]]
    wanted: Wanted
    echo: bool


def read_chat(body: bytes, model: str) -> ChatRequest:
    """Read the body of a chat completion.

    Args:
        body: as it came.
        model: the name that is served.

    Raises:
        ApiError: 400 with the field and the rule, or 404 for another model's name.
    """
    fields = _read(body, model, _CHAT)
    limits = [whole(fields, name, 1, None) for name in ("max_completion_tokens", "max_tokens")]
    top = whole(fields, "top_logprobs", 0, MAX_TOP_LOGPROBS)
    asked = flag(fields, "logprobs")
    if top and not asked:
        raise ApiError(400, "top_logprobs needs logprobs to be true", param="top_logprobs")
    limit = next((limit for limit in limits if limit is not None), None)
    schema, any_object = _form(fields.get("response_format"))
    flag(fields, "parallel_tool_calls")  # one call at a time is one of the ways to do so
    tools = read_tools(fields.get("tools"), fields.get("tool_choice"))
    if tools.offered and (schema is not None or any_object):
        message = "response_format must be text beside tools, unless tool_choice is none"
        raise ApiError(400, message, param="response_format")
    return ChatRequest(
        messages=read_messages(fields.get("messages")),
        wanted=_wanted(fields, limit, (top or 0) if asked else None),
        schema=schema,
        any_object=any_object,
        tools=tools,
    )


def read_text(body: bytes, model: str) -> TextRequest:
    """Read the body of a completion.

    Args:
        body: as it came.
        model: the name that is served.

    Raises:
        ApiError: 400 with the field and the rule, or 404 for another model's name.
    """
    fields = _read(body, model, _TEXT)
    limit = whole(fields, "max_tokens", 1, None)
    prompts = _prompts(fields.get("prompt"))
    wanted = _wanted(fields, 16 if limit is None else limit, whole(fields, "logprobs", 0, 5))
    if len(prompts) * wanted.choices > MAX_CHOICES:
        message = f"prompts ({len(prompts)}) times n ({wanted.choices}) must be {MAX_CHOICES}"
        raise ApiError(400, f"{message} at most", param="n")
    return TextRequest(prompts, wanted, flag(fields, "echo"))


def _read(body: bytes, model: str, known: set[str]) -> dict[str, Any]:
    fields = read_json(body)
    if fields.get("model") != model:
        shown = json.dumps(fields.get("model"))[:80]
        raise ApiError(
            404,
            f"the model {shown} does not exist; this server has {model}",
            param="model",
            code="model_not_found",
        )
    for name, value in fields.items():
        if value is None or name in known | _LABELS:
            continue
        if name not in _AS_USUAL:
            raise ApiError(400, f"unknown field {name[:80]!r}", param=name[:80])
        if value not in _AS_USUAL[name]:
            raise ApiError(400, f"{name} is not supported by this server", param=name)
    return fields


def _wanted(fields: Mapping[str, Any], limit: int | None, logprobs: int | None) -> Wanted:
    options = fields.get("stream_options") or {}
    if not isinstance(options, dict):
        raise ApiError(400, "stream_options must be an object", param="stream_options")
    seed = whole(fields, "seed", None, None)
    return Wanted(
        max_tokens=limit,
        temperature=number(fields, "temperature", 1.0, 0.0, 2.0),
        top_p=number(fields, "top_p", 1.0, 0.0, 1.0),
        stop=_stop(fields.get("stop")),
        # Without a seed two equal requests are to differ.
        seed=secrets.randbits(32) if seed is None else seed % 2**32,
        choices=whole(fields, "n", 1, MAX_CHOICES) or 1,
        logprobs=logprobs,
        stream=flag(fields, "stream"),
        include_usage=flag(options, "include_usage"),
    )


def _stop(value: Any) -> tuple[str, ...]:
    stops = [value] if isinstance(value, str) else [] if value is None else value
    rule = f"stop must be text, or a list of at most {MAX_STOPS} texts, none of them empty"
    if not isinstance(stops, list) or len(stops) > MAX_STOPS:
        raise ApiError(400, rule, param="stop")
    if not all(isinstance(stop, str) and stop for stop in stops):
        raise ApiError(400, rule, param="stop")
    return tuple(stops)


def _form(value: Any) -> tuple[Mapping[str, Any] | None, bool]:
    """The schema of the reply, and whether it is to be an object of any."""
    if value is None or value == {"type": "text"}:
        return None, False
    if value == {"type": "json_object"}:
        return None, True
    rule = (
        'response_format must be {"type": "text"}, {"type": "json_object"} or '
        '{"type": "json_schema", "json_schema": ...}'
    )
    if not isinstance(value, dict) or value.get("type") != "json_schema":
        raise ApiError(400, rule, param="response_format")
    form = value.get("json_schema")
    if not isinstance(form, dict) or not isinstance(form.get("schema"), dict):
        raise ApiError(400, "response_format.json_schema must hold a schema", param="json_schema")
    return form["schema"], False


def _prompts(value: Any) -> list[str] | list[list[int]]:
    rule = "prompt must be text, token ids, or a list of texts or of lists of token ids"
    if isinstance(value, str):
        return [text(value, "prompt", "prompt")]
    if not isinstance(value, list) or not 0 < len(value) <= 1 << 20:
        raise ApiError(400, rule, param="prompt")
    if _are_ids(value):
        return [value]
    if len(value) > MAX_CHOICES:
        message = f"prompt ({len(value)}) must hold at most {MAX_CHOICES} prompts"
        raise ApiError(400, message, param="prompt")
    if all(isinstance(each, str) for each in value):
        return [text(each, f"prompt[{i}]", "prompt") for i, each in enumerate(value)]
    if all(isinstance(each, list) and each and _are_ids(each) for each in value):
        return value
    raise ApiError(400, rule, param="prompt")


def _are_ids(value: Sequence[Any]) -> bool:
    return all(type(each) is int for each in value)
