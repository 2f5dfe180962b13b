"""JSON of a given schema as an automaton over tokens.

What is permitted is what `json.dumps` writes with its default separators (", " and ": "), in one
line, keys in the schema's order. A subset of JSON Schema is understood; a keyword outside it is
refused by name, never ignored.
"""

import dataclasses
import json
import math
import reprlib
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from jaxagent.models.llm.constrain import Automaton
from jaxagent.models.llm.constrain_bytes import (
    Pattern,
    TokenBytes,
    byte_range,
    choice,
    compile_pattern,
    joined,
    lift,
    literal,
    repeat,
    selection,
    sequence,
    token_bytes,
)

MAX_INTEGERS = 20_000
"""A bounded number's integer part is spelled out, one way for each value."""

MAX_DEPTH = 64
"""Schemas inside one another; far more would not fit Python's own stack."""

_IGNORED = {"title", "description", "$schema", "default", "examples"}
_KEYWORDS = {
    "object": {"properties", "required", "additionalProperties"},
    "array": {"items", "minItems", "maxItems"},
    "string": {"minLength", "maxLength"},
    "integer": {"minimum", "maximum"},
    "number": {"minimum", "maximum"},
    "boolean": set(),
    "null": set(),
}

_DIGIT, _LEADING_DIGIT = byte_range(0x30, 0x39), byte_range(0x31, 0x39)
_TAIL = byte_range(0x80, 0xBF)
# A character of a JSON string: well-formed UTF-8 without control characters, or a short escape.
_CHARACTER = choice(
    byte_range(0x20, 0x21),
    byte_range(0x23, 0x5B),
    byte_range(0x5D, 0x7E),
    sequence(byte_range(0xC2, 0xDF), _TAIL),
    sequence(byte_range(0xE0, 0xE0), byte_range(0xA0, 0xBF), _TAIL),
    sequence(choice(byte_range(0xE1, 0xEC), byte_range(0xEE, 0xEF)), _TAIL, _TAIL),
    sequence(byte_range(0xED, 0xED), byte_range(0x80, 0x9F), _TAIL),
    sequence(byte_range(0xF0, 0xF0), byte_range(0x90, 0xBF), _TAIL, _TAIL),
    sequence(byte_range(0xF1, 0xF3), _TAIL, _TAIL, _TAIL),
    sequence(byte_range(0xF4, 0xF4), byte_range(0x80, 0x8F), _TAIL, _TAIL),
    sequence(literal("\\"), choice(*(literal(c) for c in '"\\/bfnrt'))),
)


@dataclasses.dataclass(frozen=True)
class NumberFormat:
    """How numbers may be spelled; a language model left alone would add digits for ever.

    Attributes:
        integer_digits: of the integer part where the schema gives no range.
        fraction_digits: after the point; no exponents.
    """

    integer_digits: int = 9
    fraction_digits: int = 4


PLAIN_NUMBERS = NumberFormat()


def json_schema(
    tokenizer: Any,
    schema: Mapping[str, Any],
    *,
    end_token: int,
    numbers: NumberFormat = PLAIN_NUMBERS,
    spelled: TokenBytes | None = None,
) -> Automaton:
    """The automaton that permits JSON of a schema.

    Any tokenisation is permitted, since a model spells free text as it likes.

    Args:
        tokenizer: of the model.
        schema: of type object, array, string, integer, number, boolean or null, a list of these,
            or enum, const, anyOf; at most MAX_DEPTH schemas inside one another. Objects have
            `properties` (those not in `required` may be left out) and nothing besides; arrays
            `items`, `minItems`, `maxItems`; strings `minLength`, `maxLength`; numbers `minimum`,
            `maximum` (a fraction is only written between whole numbers that both lie inside).
            Titles and descriptions are passed over.
        end_token: follows a value that could also go on, such as a bare number.
        numbers: how numbers may be spelled.
        spelled: the tokeniser's tokens, where they have been read before.

    Raises:
        ValueError: the schema is not understood (the place and the keyword are named), permits
            nothing, or needs too many states.
    """
    machine = compile_pattern(schema_pattern(schema, numbers))
    spelled = TokenBytes(token_bytes(tokenizer)) if spelled is None else spelled
    return lift(machine, spelled, end_token=end_token)


def schema_pattern(
    schema: Mapping[str, Any], numbers: NumberFormat, place: str = "schema", depth: int = 1
) -> Pattern:
    """The byte strings of a schema; see `json_schema`."""
    if depth > MAX_DEPTH:
        raise ValueError(f"{place}: schemas may lie {MAX_DEPTH} deep inside one another")
    if not isinstance(schema, Mapping):
        raise ValueError(f"{place} ({_shown(schema)}) must be an object")
    for keyword in ("enum", "const", "anyOf"):
        if keyword in schema:
            _refuse_others(schema, {keyword, "type"}, place)
            return _alternatives(schema, keyword, numbers, place, depth)
    kind = schema.get("type")
    kinds: list[Any] = list(kind) if isinstance(kind, list | tuple) else [kind]
    if not kinds or not all(isinstance(k, str) and k in _KEYWORDS for k in kinds):
        raise ValueError(
            f"{place}: type ({_shown(kind)}) must be one of {', '.join(_KEYWORDS)}, or a list of "
            "them, unless there is enum, const or anyOf"
        )
    _refuse_others(schema, {"type"}.union(*(_KEYWORDS[k] for k in kinds)), place)
    patterns = [_of_type(schema, k, numbers, place, depth) for k in dict.fromkeys(kinds)]
    return patterns[0] if len(patterns) == 1 else choice(*patterns)


def _of_type(
    schema: Mapping[str, Any], kind: str, numbers: NumberFormat, place: str, depth: int
) -> Pattern:
    if kind == "object":
        return _object(schema, numbers, place, depth)
    if kind == "array":
        return _array(schema, numbers, place, depth)
    if kind == "string":
        low, high = _counts(schema, "minLength", "maxLength", place)
        return sequence(literal('"'), repeat(_CHARACTER, low, high), literal('"'))
    if kind == "boolean":
        return choice(literal("true"), literal("false"))
    if kind == "null":
        return literal("null")
    return _number(schema, numbers, place, fraction=kind == "number")


def _shown(value: Any) -> str:
    """A value in a message: never long, however long or deep it is."""
    return reprlib.repr(value)


def _refuse_others(schema: Mapping[str, Any], known: set[str], place: str) -> None:
    for keyword in schema:
        if keyword not in known | _IGNORED:
            raise ValueError(f"{place}: keyword ({keyword}) is not supported here")


def _alternatives(
    schema: Mapping[str, Any], keyword: str, numbers: NumberFormat, place: str, depth: int
) -> Pattern:
    if keyword == "const":
        return literal(_dumped(schema["const"], f"{place}.const"))
    values = schema[keyword]
    if not isinstance(values, Sequence) or isinstance(values, str) or not len(values):
        raise ValueError(f"{place}.{keyword} ({_shown(values)}) must be a list of at least one")
    if keyword == "enum":
        return choice(*(literal(_dumped(value, f"{place}.enum")) for value in values))
    inner = [
        schema_pattern(s, numbers, f"{place}.anyOf[{i}]", depth + 1) for i, s in enumerate(values)
    ]
    return choice(*inner)


def _dumped(value: Any, place: str) -> str:
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
        text.encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"{place} ({_shown(value)}) must be JSON: {error}") from None
    return text


def _object(schema: Mapping[str, Any], numbers: NumberFormat, place: str, depth: int) -> Pattern:
    if schema.get("additionalProperties", False) is not False:
        raise ValueError(f"{place}: additionalProperties must be false")
    properties, required = schema.get("properties", {}), schema.get("required", [])
    if not isinstance(properties, Mapping) or not all(isinstance(name, str) for name in properties):
        raise ValueError(
            f"{place}: properties ({_shown(properties)}) must be an object of schemas by name"
        )
    # Python's callers may give a set.
    is_list = isinstance(required, Collection) and not isinstance(required, str | Mapping)
    if not is_list or not all(isinstance(name, str) for name in required):
        raise ValueError(f"{place}: required ({_shown(required)}) must be a list of names")
    for name in required:
        if name not in properties:
            raise ValueError(f"{place}: required ({name}) must be one of its properties")
    members = []
    for name, value in properties.items():
        key = literal(f"{_dumped(name, place)}: ")
        members.append(sequence(key, schema_pattern(value, numbers, f"{place}.{name}", depth + 1)))
    needed = [name in required for name in properties]
    return sequence(literal("{"), selection(members, needed, literal(", ")), literal("}"))


def _array(schema: Mapping[str, Any], numbers: NumberFormat, place: str, depth: int) -> Pattern:
    if "items" not in schema:
        raise ValueError(f"{place}: an array must have items")
    item = schema_pattern(schema["items"], numbers, f"{place}.items", depth + 1)
    low, high = _counts(schema, "minItems", "maxItems", place)
    if high == 0:
        return literal("[]")
    full = joined(item, literal(", "), max(low, 1), high)
    return sequence(literal("["), full if low else choice(full, literal("")), literal("]"))


def _counts(schema: Mapping[str, Any], least: str, most: str, place: str) -> tuple[int, int | None]:
    low, high = schema.get(least, 0), schema.get(most)
    for name, value in ((least, low), (most, high)):
        if value is not None and (type(value) is not int or value < 0):
            raise ValueError(
                f"{place}: {name} ({_shown(value)}) must be a whole number of at least 0"
            )
    if high is not None and low > high:
        raise ValueError(f"{place}: {least} ({low}) must not be above {most} ({high})")
    return low, high


def _is_finite(value: float) -> bool:
    return isinstance(value, int) or math.isfinite(value)


def _number(
    schema: Mapping[str, Any], numbers: NumberFormat, place: str, *, fraction: bool
) -> Pattern:
    low, high = schema.get("minimum", -math.inf), schema.get("maximum", math.inf)
    for name, value in (("minimum", low), ("maximum", high)):
        # JSON's own 1e400 is read as infinite.
        if name in schema and (type(value) not in (int, float) or not _is_finite(value)):
            raise ValueError(f"{place}: {name} ({_shown(value)}) must be a finite number")
    digits = repeat(_DIGIT, 1, numbers.fraction_digits)
    point = sequence(literal("."), digits)
    with_fraction = fraction and numbers.fraction_digits > 0
    if math.isinf(low) and math.isinf(high):
        more = repeat(_DIGIT, 0, numbers.integer_digits - 1)
        whole = choice(literal("0"), sequence(_LEADING_DIGIT, more))
        sign = repeat(literal("-"), 0, 1)
        return sequence(sign, whole, repeat(point, 0, 1 if with_fraction else 0))
    bound = 10**numbers.integer_digits - 1
    first, last = math.ceil(max(low, -bound)), math.floor(min(high, bound))
    if not first <= last:
        raise ValueError(f"{place}: no whole number lies in [{low}, {high}]")
    if last - first >= MAX_INTEGERS:
        raise ValueError(
            f"{place}: a range ({first} to {last}) may span at most {MAX_INTEGERS} whole numbers; "
            "leave minimum and maximum out"
        )
    spelled = [literal(str(value)) for value in range(first, last + 1)]
    if with_fraction:
        # n.f lies between n and n + 1 for n ≥ 0, and −n.f between −n − 1 and −n.
        spelled += [sequence(literal(f"{n}."), digits) for n in range(max(first, 0), last)]
        below = range(0, -first) if first < 0 else range(0)
        spelled += [sequence(literal(f"-{n}."), digits) for n in below if -n <= last]
    return choice(*spelled)
