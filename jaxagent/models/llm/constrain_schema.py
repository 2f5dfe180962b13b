"""JSON Schema brought into one form: alternatives, each the conjunction of its keywords."""

import json
import math
import reprlib
from collections.abc import Collection, Mapping, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

from jaxagent.models.llm.constrain_numbers import MAX_DIGITS
from jaxagent.models.llm.constrain_values import KEYWORDS, TYPES, is_same

MAX_ALTERNATIVES = 256
"""Of one place in a schema, once its references, `allOf` and `anyOf` are multiplied out."""

_OF_VALUES = {keyword for keywords in KEYWORDS.values() for keyword in keywords}
_ANNOTATIONS = {
    "title",
    "description",
    "default",
    "examples",
    "deprecated",
    "readOnly",
    "writeOnly",
    "discriminator",
    "$schema",
    "$comment",
    "$defs",
    "definitions",
}
_COMBINED = {"$ref", "allOf", "anyOf", "oneOf"}


class Flat(NamedTuple):
    """Keywords that a value must all satisfy: none of them combines or refers.

    Attributes:
        keywords: by name; `type` is a list, `const` became `enum`, `pattern` and `format`
            are lists.
        refs: references that were followed on the way, to notice schemas that hold themselves.
    """

    keywords: Mapping[str, Any]
    refs: frozenset[str]


class Reader:
    """Brings schemas of one document into alternatives.

    Args:
        root: the document, which references begin at.
    """

    def __init__(self, root: Any) -> None:
        self._root = root

    def alternatives(self, schema: Any, place: str, refs: frozenset[str]) -> list[Flat]:
        """What a schema allows, as alternatives; those that contradict themselves are left out.

        Args:
            schema: a JSON object, or a truth value.
            place: of the schema, for messages.
            refs: references that it lies in.

        Raises:
            ValueError: a keyword is not understood, or holds what it may not hold; both named.
        """
        if schema is False:
            return []
        if schema is True:
            schema = {}
        if not isinstance(schema, Mapping):
            raise ValueError(f"{place} ({shown(schema)}) must be an object")
        for keyword in schema:
            if keyword not in _OF_VALUES | _ANNOTATIONS | _COMBINED | {"type", "enum", "const"}:
                raise ValueError(f"{place}: keyword ({keyword}) is not supported")
        found = [Flat(_own(schema, place), refs)]
        groups = []
        if "$ref" in schema:
            groups.append(self._referred(schema["$ref"], place, refs))
        for number, each in enumerate(_list_of(schema, "allOf", place)):
            groups.append(self.alternatives(each, f"{place}.allOf[{number}]", refs))
        for keyword in ("anyOf", "oneOf"):
            if keyword in schema:
                groups.append(self._any_of(schema, keyword, place, refs))
        for group in groups:
            if len(found) * len(group) > MAX_ALTERNATIVES:
                raise ValueError(
                    f"{place}: more than {MAX_ALTERNATIVES} alternatives, multiplied out"
                )
            merged = [merge(a, b, place) for a in found for b in group]
            found = [each for each in merged if each is not None]
        return found

    def _referred(self, ref: Any, place: str, refs: frozenset[str]) -> list[Flat]:
        if ref in refs:
            raise ValueError(f"{place}: $ref ({ref}) holds itself, which is not supported")
        if not isinstance(ref, str) or not (ref == "#" or ref.startswith("#/")):
            raise ValueError(f"{place}: $ref ({shown(ref)}) must begin with #/")
        target: Any = self._root
        for part in ref.split("/")[1:]:
            name: Any = part.replace("~1", "/").replace("~0", "~")
            if isinstance(target, list | tuple) and name.isdecimal():
                name = int(name)
            try:
                target = target[name]
            except (KeyError, IndexError, TypeError):
                raise ValueError(f"{place}: $ref ({ref}) leads nowhere") from None
        return self.alternatives(target, place, refs | {ref})

    def _any_of(
        self, schema: Mapping[str, Any], keyword: str, place: str, refs: frozenset[str]
    ) -> list[Flat]:
        inner = _list_of(schema, keyword, place)
        groups = []
        for number, each in enumerate(inner):
            found = self.alternatives(each, f"{place}.{keyword}[{number}]", refs)
            tag = schema.get("discriminator")
            if isinstance(tag, Mapping) and isinstance(tag.get("propertyName"), str):
                # What tells them apart is always written, even where it has a default.
                told = Flat({"required": [tag["propertyName"]]}, refs)
                found = [f for f in (merge(f, told, place) for f in found) if f]
            groups.append(found)
        if keyword == "oneOf":
            self._check_exclusive(groups, place)
        return [each for group in groups for each in group]

    def _check_exclusive(self, groups: list[list[Flat]], place: str) -> None:
        for second in range(len(groups)):
            for first in range(second):
                for a in groups[first]:
                    if not all(self._are_exclusive(a, b, place) for b in groups[second]):
                        raise ValueError(
                            f"{place}: oneOf[{first}] and oneOf[{second}] may both hold; they must "
                            "differ in type or in the const of a required property (or use anyOf)"
                        )

    def _are_exclusive(self, a: Flat, b: Flat, place: str) -> bool:
        merged = merge(a, b, place)
        if merged is None:
            return True
        of_both = merged.keywords
        if types_of(of_both) != ["object"]:
            return False
        for name in of_both.get("required", ()):
            inner = of_both.get("properties", {}).get(name, True)
            if not self.alternatives(inner, f"{place}.{name}", merged.refs):
                return True
        return False


def _list_of(schema: Mapping[str, Any], keyword: str, place: str) -> Sequence[Any]:
    value = schema.get(keyword, ())
    if keyword not in schema:
        return value
    if not isinstance(value, Sequence) or isinstance(value, str) or not len(value):
        raise ValueError(f"{place}.{keyword} ({shown(value)}) must be a list of at least one")
    return value


def shown(value: Any) -> str:
    """A value in a message: never long, however long or deep it is."""
    return reprlib.repr(value)


def dumped(value: Any, place: str) -> str:
    """A value as JSON.

    Raises:
        ValueError: it is none.
    """
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
        text.encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"{place} ({shown(value)}) must be JSON: {error}") from None
    return text


def _own(schema: Mapping[str, Any], place: str) -> dict[str, Any]:
    """The keywords of a schema itself, each checked and in the form of `Flat`."""
    own: dict[str, Any] = {}
    if "type" in schema:
        kind = schema["type"]
        kinds = list(kind) if isinstance(kind, list | tuple) else [kind]
        if not kinds or not all(isinstance(k, str) and k in TYPES for k in kinds):
            raise ValueError(
                f"{place}: type ({shown(kind)}) must be one of {', '.join(TYPES)}, or a list of "
                "them"
            )
        own["type"] = list(dict.fromkeys(kinds))
    if "enum" in schema:
        own["enum"] = list(_list_of(schema, "enum", place))
        for value in own["enum"]:
            dumped(value, f"{place}.enum")
    if "const" in schema:
        dumped(schema["const"], f"{place}.const")
        consts = [schema["const"]]
        own["enum"] = _common(own["enum"], consts) if "enum" in own else consts
    for keyword in KEYWORDS["number"]:
        if keyword in schema:
            own[keyword] = _number_of(schema[keyword], keyword, place)
    for keyword in (
        "minLength",
        "maxLength",
        "minItems",
        "maxItems",
        "minProperties",
        "maxProperties",
    ):
        if keyword in schema:
            own[keyword] = _count_of(schema[keyword], keyword, place)
    for keyword in ("pattern", "format"):
        if keyword in schema:
            if not isinstance(schema[keyword], str):
                raise ValueError(f"{place}: {keyword} ({shown(schema[keyword])}) must be a string")
            own[keyword] = [schema[keyword]]
    own |= {k: schema[k] for k in ("items", "additionalProperties", "propertyNames") if k in schema}
    if "prefixItems" in schema:
        own["prefixItems"] = list(_list_of(schema, "prefixItems", place))
    return own | _members_of(schema, place)


def _number_of(value: Any, keyword: str, place: str) -> Fraction:
    # JSON's own 1e400 is read as infinite.
    if type(value) not in (int, float) or (type(value) is float and not math.isfinite(value)):
        raise ValueError(f"{place}: {keyword} ({shown(value)}) must be a finite number")
    # A float is what is written, 0.1 a tenth: what is spelled is compared with it as decimals.
    number = Fraction(value) if type(value) is int else Fraction(repr(value))
    if abs(number) >= 10**MAX_DIGITS:
        raise ValueError(f"{place}: {keyword} must have at most {MAX_DIGITS} digits")
    if keyword == "multipleOf" and number <= 0:
        raise ValueError(f"{place}: multipleOf ({shown(value)}) must be above 0")
    return number


def _count_of(value: Any, keyword: str, place: str) -> int:
    if type(value) is float and value.is_integer():
        value = int(value)
    if type(value) is not int or value < 0:
        raise ValueError(
            f"{place}: {keyword} ({shown(value)}) must be a whole number of at least 0"
        )
    return value


def _members_of(schema: Mapping[str, Any], place: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if "properties" in schema:
        properties = schema["properties"]
        if not isinstance(properties, Mapping) or not all(isinstance(n, str) for n in properties):
            raise ValueError(
                f"{place}: properties ({shown(properties)}) must be an object of schemas by name"
            )
        for name in properties:
            dumped(name, place)
        found["properties"] = dict(properties)
    if "required" in schema:
        required = schema["required"]
        # Python's callers may give a set.
        is_list = isinstance(required, Collection) and not isinstance(required, str | Mapping)
        if not is_list or not all(isinstance(name, str) for name in required):
            raise ValueError(f"{place}: required ({shown(required)}) must be a list of names")
        found["required"] = list(dict.fromkeys(required))
    return found


def merge(a: Flat, b: Flat, place: str) -> Flat | None:
    """What satisfies both; None where that is nothing.

    Raises:
        ValueError: the two hold one keyword in ways that cannot be put together.
    """
    one, two = _closed(a.keywords, b.keywords), _closed(b.keywords, a.keywords)
    made = {**one, **two}
    for keyword in one.keys() & two.keys():
        made[keyword] = _merged(keyword, one[keyword], two[keyword], place)
    if "type" in made and not made["type"]:
        return None
    if "enum" in made and not made["enum"]:
        return None
    return Flat(made, a.refs | b.refs)


def _closed(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """`one` with what it says of the properties that only the other one names."""
    rest = one.get("additionalProperties", True)
    new = [n for n in other.get("properties", {}) if n not in one.get("properties", {})]
    if rest is True or not new:
        return dict(one)
    return {**one, "properties": {**one.get("properties", {}), **dict.fromkeys(new, rest)}}


def _merged(keyword: str, one: Any, two: Any, place: str) -> Any:
    if keyword == "type":
        # An integer is a number, too.
        kinds = [k for k in one if k in two or (k == "integer" and "number" in two)]
        return kinds + [k for k in two if k == "integer" and "number" in one and k not in one]
    if keyword == "enum":
        return _common(one, two)
    if keyword in ("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties"):
        return max(one, two)
    if keyword in ("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties"):
        return min(one, two)
    if keyword == "multipleOf":
        # lcm(a/b, c/d) = lcm(a·d, c·b) / (b·d)
        parts = one.numerator * two.denominator, two.numerator * one.denominator
        return Fraction(math.lcm(*parts), one.denominator * two.denominator)
    if keyword in ("pattern", "format", "required"):
        return list(dict.fromkeys([*one, *two]))
    if keyword == "properties":
        names = dict.fromkeys([*one, *two])
        return {n: _all_of(*(each[n] for each in (one, two) if n in each)) for n in names}
    if keyword == "prefixItems" and one != two:
        raise ValueError(f"{place}: prefixItems of several schemas cannot be put together")
    return _all_of(one, two)


def _all_of(*schemas: Any) -> Any:
    if any(schema is False for schema in schemas):
        return False
    distinct = [s for n, s in enumerate(schemas) if s is not True and s not in schemas[:n]]
    if not distinct:
        return True
    return distinct[0] if len(distinct) == 1 else {"allOf": distinct}


def _common(one: Sequence[Any], two: Sequence[Any]) -> list[Any]:
    return [value for value in one if any(is_same(value, other) for other in two)]


def types_of(keywords: Mapping[str, Any]) -> list[str]:
    """The types that a value may have; where none is given, those that the keywords are about."""
    if "type" in keywords:
        kinds = keywords["type"]
        return [k for k in kinds if not (k == "integer" and "number" in kinds)]
    return [k for k in TYPES if k != "integer" and set(KEYWORDS.get(k, ())) & keywords.keys()]
