"""JSON of a given schema as an automaton over tokens.

What is permitted is what `json.dumps` writes with its default separators (", " and ": "), in one
line, keys in the schema's order. The keywords of a schema are a conjunction; one outside the subset
that is understood is refused by name, never ignored.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

from jaxagent.models.llm.constrain import Automaton, NothingToSay
from jaxagent.models.llm.constrain_bytes import (
    Pattern,
    TooLarge,
    both,
    choice,
    compile_pattern,
    joined,
    literal,
    repeat,
    selection,
    sequence,
)
from jaxagent.models.llm.constrain_characters import CHARACTER, FORMATS, expression
from jaxagent.models.llm.constrain_numbers import MAX_DIVISOR, Limits, numbers, whole_numbers
from jaxagent.models.llm.constrain_schema import Flat, Reader, dumped, shown, types_of
from jaxagent.models.llm.constrain_tokens import TokenBytes, lift, token_bytes
from jaxagent.models.llm.constrain_values import allows

MAX_DEPTH = 64
"""Schemas inside one another; far more would not fit Python's own stack."""


@dataclasses.dataclass(frozen=True)
class NumberFormat:
    """How numbers may be spelled; a language model left alone would add digits for ever.

    Attributes:
        integer_digits: of the integer part where the schema leaves a side open, or one more than
            the limit on the other side has.
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

    Any tokenisation is permitted, since a model spells free text as it likes. What is written is
    always of the schema; of what the schema allows it is a part: objects have their `properties`
    in order and others only where `additionalProperties` is a schema, decimals have a few digits.

    Args:
        tokenizer: of the model.
        schema: as Pydantic's `model_json_schema` writes it. Types, `enum` and `const`, `anyOf`,
            `oneOf` of alternatives that exclude one another, `allOf`, `$ref` inside the document
            without recursion; `properties`, `required`, `additionalProperties`, `propertyNames`;
            `items`, `prefixItems`, `minItems`, `maxItems`; `minLength`, `maxLength`, `pattern`,
            `format` (those of `FORMATS`); limits and `multipleOf`. At most MAX_DEPTH schemas inside
            one another. Titles, descriptions, defaults and examples are passed over.
        end_token: follows a value that could also go on, such as a bare number.
        numbers: how numbers may be spelled.
        spelled: the tokeniser's tokens, where they have been read before.

    Raises:
        ValueError: the schema is not understood (the place and the keyword are named), permits
            nothing, or needs too many states (its largest part is named).
    """
    writer = _Writer(schema, numbers)
    try:
        machine = compile_pattern(writer.pattern(schema, "schema", 1, frozenset()))
        spelled = TokenBytes(token_bytes(tokenizer)) if spelled is None else spelled
        return lift(machine, spelled, end_token=end_token)
    except TooLarge as error:
        raise ValueError(f"{error}{writer.largest()}") from None
    except NothingToSay:
        raise ValueError("schema: permits nothing: its keywords contradict one another") from None
    except RecursionError:
        raise ValueError(f"schema: schemas may lie {MAX_DEPTH} deep inside one another") from None


class _Writer:
    """The byte strings of the schemas of one document."""

    def __init__(self, root: Any, numbers: NumberFormat) -> None:
        self._reader, self._numbers = Reader(root), numbers
        self._sizes: dict[str, int] = {}

    def largest(self) -> str:
        """The part of most states, for messages."""
        if not self._sizes:
            return ""
        place = max(self._sizes, key=lambda place: self._sizes[place])
        return f"; the largest part is {place}, about {self._sizes[place]} states"

    def pattern(self, schema: Any, place: str, depth: int, refs: frozenset[str]) -> Pattern:
        """What a schema permits."""
        if depth > MAX_DEPTH:
            raise ValueError(f"{place}: schemas may lie {MAX_DEPTH} deep inside one another")
        found = self._patterns(schema, place, depth, refs)
        if not found:
            raise ValueError(f"{place}: permits nothing: its keywords contradict one another")
        return found[0] if len(found) == 1 else choice(*found)

    def _patterns(self, schema: Any, place: str, depth: int, refs: frozenset[str]) -> list[Pattern]:
        found = []
        for flat in self._reader.alternatives(schema, place, refs):
            if "enum" in flat.keywords:
                values = [v for v in flat.keywords["enum"] if allows(flat.keywords, v, place)]
                found += [literal(dumped(value, place)) for value in values]
                continue
            kinds = types_of(flat.keywords)
            if not kinds:
                raise ValueError(
                    f"{place}: type must be given, unless there is enum, const, anyOf or $ref"
                )
            for kind in kinds:
                pattern = self._of_type(flat, kind, place, depth)
                if pattern is None:
                    continue
                found.append(pattern)
                if kind not in ("object", "array"):
                    self._sizes[place] = max(pattern.size, self._sizes.get(place, 0))
        return found

    def _of_type(self, flat: Flat, kind: str, place: str, depth: int) -> Pattern | None:
        """None where nothing is permitted."""
        if kind == "object":
            return self._object(flat, place, depth)
        if kind == "array":
            return self._array(flat, place, depth)
        if kind == "string":
            return _string(flat.keywords, place)
        if kind == "boolean":
            return choice(literal("true"), literal("false"))
        if kind == "null":
            return literal("null")
        return self._number(flat.keywords, kind, place)

    def _object(self, flat: Flat, place: str, depth: int) -> Pattern | None:
        keywords = flat.keywords
        rest = keywords.get("additionalProperties", False)
        properties, required = dict(keywords.get("properties", {})), keywords.get("required", [])
        is_map = isinstance(rest, Mapping)
        for name in required:
            if name not in properties:
                if rest is False or not is_map:
                    raise ValueError(f"{place}: required ({name}) must be one of its properties")
                properties[name] = rest
        if rest is True and not properties:
            raise ValueError(
                f"{place}: additionalProperties (True) must be a schema, or false beside properties"
            )
        if is_map and properties:
            raise ValueError(
                f"{place}: additionalProperties beside properties must be false or true"
            )
        if is_map:
            return self._map(flat, rest, place, depth)
        if "propertyNames" in keywords:
            raise ValueError(
                f"{place}: keyword (propertyNames) needs a schema of additionalProperties"
            )
        members, needed = [], []
        for name, value in properties.items():
            inner = f"{place}.{name}"
            found = self._patterns(value, inner, self._deeper(inner, depth), flat.refs)
            if not found and name in required:
                return None
            if found:
                key = literal(f"{dumped(name, place)}: ")
                members.append(sequence(key, choice(*found) if len(found) > 1 else found[0]))
                needed.append(name in required)
        low, high = _counts(keywords, "minProperties", "maxProperties", place)
        if low > sum(needed) or (high is not None and high < len(members)):
            raise ValueError(
                f"{place}: minProperties and maxProperties are not supported beside properties "
                "that may be left out"
            )
        return sequence(literal("{"), selection(members, needed, literal(", ")), literal("}"))

    def _deeper(self, place: str, depth: int) -> int:
        if depth >= MAX_DEPTH:
            raise ValueError(f"{place}: schemas may lie {MAX_DEPTH} deep inside one another")
        return depth + 1

    def _map(self, flat: Flat, rest: Any, place: str, depth: int) -> Pattern:
        """An object of any names."""
        low, high = _counts(flat.keywords, "minProperties", "maxProperties", place)
        if low > 1:
            # What is written twice counts once.
            raise ValueError(f"{place}: minProperties ({low}) must be at most 1: names may repeat")
        names = {"allOf": [{"type": "string"}, flat.keywords.get("propertyNames", True)]}
        key = self.pattern(names, f"{place}.propertyNames", depth, flat.refs)
        inner = f"{place}.additionalProperties"
        value = self.pattern(rest, inner, self._deeper(inner, depth), flat.refs)
        entry = sequence(key, literal(": "), value)
        return _listed("{", entry, low, high, "}")

    def _array(self, flat: Flat, place: str, depth: int) -> Pattern | None:
        keywords = flat.keywords
        low, high = _counts(keywords, "minItems", "maxItems", place)
        inner, depth = f"{place}.items", self._deeper(f"{place}.items", depth)
        first = []
        for number, each in enumerate(keywords.get("prefixItems", [])):
            first.append(self.pattern(each, f"{place}.prefixItems[{number}]", depth, flat.refs))
        rest = keywords.get("items", not first)
        if rest is True and high == 0:
            return literal("[]")
        if rest is True and not first:
            raise ValueError(f"{place}: an array must have items")
        item = None
        if rest not in (False, True):
            found = self._patterns(rest, inner, depth, flat.refs)
            item = choice(*found) if found else None
        if not first and item is None:
            return None if low else literal("[]")
        if item is not None and not first:
            return _listed("[", item, low, high, "]")
        return _tuple(first, item, low, high)

    def _number(self, keywords: Mapping[str, Any], kind: str, place: str) -> Pattern | None:
        low, is_above = _tighter(keywords, "minimum", "exclusiveMinimum", max)
        high, is_below = _tighter(keywords, "maximum", "exclusiveMaximum", min)
        multiple = keywords.get("multipleOf")
        form = self._numbers
        if multiple is not None:
            # Others divide floats: only halves of halves come out exactly.
            if (
                multiple.denominator & (multiple.denominator - 1)
                or multiple.numerator > MAX_DIVISOR
            ):
                raise ValueError(
                    f"{place}: multipleOf ({float(multiple):g}) must be a whole number up to "
                    f"{MAX_DIVISOR} or such a number over a power of two"
                )
            if multiple.denominator > 2**6:
                raise ValueError(f"{place}: multipleOf ({multiple}) must not be below 1/64")
        limits = Limits(low, high, is_above, is_below, multiple)
        if kind == "integer":
            return whole_numbers(limits, form.integer_digits)
        return numbers(limits, form.integer_digits, form.fraction_digits)


def _tighter(
    keywords: Mapping[str, Any], limit: str, exclusive: str, choose: Any
) -> tuple[Fraction | None, bool]:
    """(limit, whether it is itself excluded)."""
    closed, opened = keywords.get(limit), keywords.get(exclusive)
    if closed is None or opened is None:
        return (closed, False) if opened is None else (opened, True)
    return (opened, True) if choose(opened, closed) == opened else (closed, False)


def _counts(
    keywords: Mapping[str, Any], least: str, most: str, place: str
) -> tuple[int, int | None]:
    low, high = keywords.get(least, 0), keywords.get(most)
    if high is not None and low > high:
        raise ValueError(f"{place}: {least} ({low}) must not be above {most} ({high})")
    return low, high


def _listed(begin: str, item: Pattern, low: int, high: int | None, end: str) -> Pattern:
    if high == 0:
        return literal(begin + end)
    full = joined(item, literal(", "), max(low, 1), high)
    return sequence(literal(begin), full if low else choice(full, literal("")), literal(end))


def _tuple(
    first: Sequence[Pattern], rest: Pattern | None, low: int, high: int | None
) -> Pattern | None:
    """Items of a place each, then those that are alike."""
    comma, found = literal(", "), []

    def beginning(count: int) -> list[Pattern]:
        return [part for each in first[:count] for part in (comma, each)][1:]

    most = len(first) if high is None else min(high, len(first))
    # Without a schema for the rest the whole is one of these.
    for count in range(min(low, most + 1), most + 1):
        found.append(sequence(*beginning(count)))
    if rest is not None and (high is None or high > len(first)):
        more = None if high is None else high - len(first)
        least = max(low - len(first), 1)
        found.append(sequence(*beginning(len(first)), comma, joined(rest, comma, least, more)))
    if low > len(first):
        found = found[-1:] if rest is not None else []
    if not found:
        return None
    return sequence(literal("["), choice(*found), literal("]"))


def _string(keywords: Mapping[str, Any], place: str) -> Pattern:
    low, high = _counts(keywords, "minLength", "maxLength", place)
    sources = [("pattern", source) for source in keywords.get("pattern", [])]
    for name in keywords.get("format", []):
        if name not in FORMATS:
            raise ValueError(
                f"{place}: format ({shown(name)}) is not supported; supported: {', '.join(FORMATS)}"
            )
        sources.append(("format", FORMATS[name]))
    inside = []
    for keyword, source in sources:
        try:
            inside.append(expression(source))
        except ValueError as error:
            if isinstance(error, TooLarge):
                raise
            raise ValueError(f"{place}: {keyword} ({shown(source)}) {error}") from None
    if low or high is not None or not inside:
        inside.append(repeat(CHARACTER, low, high))
    return sequence(literal('"'), both(*inside), literal('"'))
