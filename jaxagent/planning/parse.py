"""Read JSON out of whatever a language model wrote: strict, with bounded repair, in linear time.

Repaired are a fence around the JSON, prose before and after it, and single quotes. What a reasoning
model thinks before it answers is not read. Everything else is refused with a reason from
`REFUSALS`. Nothing here recurses with the depth of the reply.
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

MAX_CHARACTERS = 16_384  # of an answer; a plan takes a few hundred
MAX_REPLY = 262_144  # with the thoughts before it
MAX_DEPTH = 8
MAX_CANDIDATES = 8  # places where JSON may begin that are looked at: bounds the work

REFUSALS = (
    "empty",
    "cut_short",
    "declined",
    "too_long",
    "unfinished_thought",
    "no_json",
    "malformed_json",
    "too_deep",
    "not_finite",
    "duplicate_key",
    "wrong_shape",
    "unknown_skill",
    "out_of_range",
    "misses_destination",
    "not_allowed",
)

# How models set off their thoughts: <think> (DeepSeek, Qwen, and most others), <thinking>,
# <reasoning>, <seed:think>, [THINK] (Mistral), ◁think▷ (Kimi), <|START_THINKING|> (Cohere), and the
# channels of gpt-oss and Gemma. Templates that open the thought in the prompt leave the end alone.
_WORD = r"[\w:|]{0,16}(?:think|thought|reason|reflect|scratchpad|analysis)[\w:|]{0,16}"
_THOUGHT_ENDS = re.compile(
    rf"</{_WORD}\s{{0,8}}>|\[/THINK\]|◁/think▷|<\|END_THINKING\|>|<channel\|>"
    r"|<\|channel\|>final\b.{0,60}?<\|message\|>|assistantfinal",
    re.IGNORECASE | re.DOTALL,
)
_THOUGHT_BEGINS = re.compile(
    rf"<(?!/){_WORD}(?:\s[^<>]{{0,80}})?>|\[THINK\]|◁think▷|<\|START_THINKING\|>|<\|channel\|?>",
    re.IGNORECASE,
)
_STRUCTURE = re.compile(r"[{}\[\]\"'\\]")
_OPENING = re.compile(r"[{\[]")
_STRING = re.compile(r""""(?:[^"\\]|\\.)*+"|'(?:[^'\\]|\\.)*+'""", re.DOTALL)
_INNER = re.compile(r"""\\.|\"""", re.DOTALL)
_REQUOTED = {"\\'": "'", '"': '\\"'}


class RefusedReply(ValueError):
    """A reply that is no plan.

    Attributes:
        reason: one of `REFUSALS`, to be counted.
    """

    def __init__(self, reason: str, message: str):
        super().__init__(f"{reason}: {message}")
        self.reason = reason


def read_json_object(text: str) -> dict[str, Any]:
    """The first JSON object of a reply's answer, which begins where its thoughts end.

    Args:
        text: what the model wrote.

    Returns:
        The object. Its numbers are finite, its keys unique, its depth at most `MAX_DEPTH`; what
        it says is not checked.

    Raises:
        RefusedReply: there is none.
    """
    if not text.strip():
        raise RefusedReply("empty", "the reply is empty")
    if len(text) > MAX_REPLY:
        raise RefusedReply("too_long", f"{len(text)} characters, at most {MAX_REPLY}")
    text, end_of_answer = _answer(text)
    if len(text) > MAX_CHARACTERS:
        raise RefusedReply("too_long", f"{len(text)} characters, at most {MAX_CHARACTERS}")
    refusal = RefusedReply("no_json", "there is no JSON object in the reply")
    start = 0
    for _ in range(MAX_CANDIDATES):
        found = _OPENING.search(text, start)
        if found is None:
            break
        if found.start() >= end_of_answer:
            raise RefusedReply("unfinished_thought", "the reply ends before its thought does")
        end = _closing(text, found.start())
        try:
            if end is None:
                raise RefusedReply("malformed_json", "a bracket is never closed")
            value = _decode(text[found.start() : end])
            if isinstance(value, dict):
                return value
            raise RefusedReply("wrong_shape", "an array where an object was asked for")
        except RefusedReply as error:
            refusal = error if refusal.reason == "no_json" else refusal
        # Inside brackets that did close there is nothing else to be found.
        start = end or found.end()
    raise refusal


def _answer(text: str) -> tuple[str, int]:
    """What follows the last thought of a reply, and where in it another begins that never ends.

    A mark of a beginning inside an object is quoted: what counts is where objects begin.
    """
    if _is_json(text):  # a mark of an end inside of it is quoted, too
        return text, len(text)
    start = 0
    for found in _THOUGHT_ENDS.finditer(text):
        start = found.end()
    answer = text[start:]
    if not answer.strip():
        raise RefusedReply("empty", "there is nothing after the thought")
    begun = _THOUGHT_BEGINS.search(answer)
    if begun is not None and "{" not in answer:
        raise RefusedReply("unfinished_thought", "the reply ends before its thought does")
    return answer, len(answer) if begun is None else begun.start()


def _is_json(text: str) -> bool:
    if len(text) > MAX_CHARACTERS or not text.lstrip().startswith("{"):
        return False
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _closing(text: str, start: int) -> int | None:
    """Where the bracket at `start` is closed; None: nowhere."""
    depth, quote, skip = 0, "", -1
    for found in _STRUCTURE.finditer(text, start):
        mark = found.group()
        if found.start() == skip:
            continue
        if quote:
            if mark == "\\":
                skip = found.end()
            elif mark == quote:
                quote = ""
        elif mark in "\"'":
            quote = mark
        elif mark in "{[":
            depth += 1
            if depth > MAX_DEPTH:
                raise RefusedReply("too_deep", f"nested more than {MAX_DEPTH} deep")
        elif mark in "}]":
            depth -= 1
            if depth == 0:
                return found.end()
    return None


def _decode(text: str) -> Any:
    """JSON, or JSON written with single quotes; `text` is known to be balanced and shallow."""
    try:
        return _loads(text)
    except RefusedReply:
        raise
    except ValueError:
        pass
    try:
        return _loads(_STRING.sub(_requote, text))
    except RefusedReply:
        raise
    except ValueError:
        raise RefusedReply("malformed_json", "the brackets close but this is not JSON") from None


def _loads(text: str) -> Any:
    return json.loads(
        text, parse_constant=_refuse_constant, parse_float=_finite, object_pairs_hook=_unique
    )


def _requote(found: re.Match[str]) -> str:
    """A string of either quotes as a JSON string."""
    string = found.group()
    if string[0] == '"':
        return string
    return (
        '"' + _INNER.sub(lambda part: _REQUOTED.get(part.group(), part.group()), string[1:-1]) + '"'
    )


def _refuse_constant(name: str) -> Any:
    raise RefusedReply("not_finite", f"{name} is not a number")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise RefusedReply("not_finite", f"{text[:20]} is not finite")
    return value


def _unique(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise RefusedReply("duplicate_key", f"{key[:40]!r} stands twice")
        found[key] = value
    return found


def require_keys(value: Any, keys: Sequence[str], what: str) -> Mapping[str, Any]:
    """A mapping with exactly these keys.

    Args:
        value: what was found.
        keys: that it must have, no more and no less.
        what: it is, for the message.

    Raises:
        RefusedReply: wrong_shape.
    """
    if not isinstance(value, dict) or set(value) != set(keys):
        raise RefusedReply("wrong_shape", f"{what} must be an object of {', '.join(keys)}")
    return value
