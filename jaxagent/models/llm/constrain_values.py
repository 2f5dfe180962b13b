"""Values of JSON against the keywords that stand beside their `enum`."""

import re
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from jaxagent.models.llm.constrain_characters import FORMATS

TYPES = ("object", "array", "string", "integer", "number", "boolean", "null")
KEYWORDS = {
    "object": (
        "properties",
        "required",
        "additionalProperties",
        "propertyNames",
        "minProperties",
        "maxProperties",
    ),
    "array": ("items", "prefixItems", "minItems", "maxItems"),
    "string": ("minLength", "maxLength", "pattern", "format"),
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
}
KEYWORDS["integer"] = KEYWORDS["number"]


def is_same(a: Any, b: Any) -> bool:
    """Whether two values are one in JSON: 1 and 1.0 are, 1 and true are not."""
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return a.keys() == b.keys() and all(is_same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(map(is_same, a, b))
    return isinstance(a, bool) == isinstance(b, bool) and a == b


def allows(keywords: Mapping[str, Any], value: Any, place: str) -> bool:
    """Whether a value of `enum` satisfies the other keywords beside it.

    Raises:
        ValueError: that is not looked at: keywords of objects and arrays beside such values.
    """
    kind = next(name for name, is_of in _IS.items() if is_of(value))
    kinds = keywords.get("type", TYPES)
    if kind not in kinds and not (kind == "integer" and "number" in kinds):
        return False
    for keyword in KEYWORDS.get(kind, ()):
        if keyword in keywords:
            if kind in ("object", "array"):
                raise ValueError(
                    f"{place}: keyword ({keyword}) is not supported beside enum or const"
                )
            if not _CHECKS[keyword](value, keywords[keyword]):
                return False
    return True


_IS = {
    "boolean": lambda v: isinstance(v, bool),
    "integer": lambda v: isinstance(v, int) or (isinstance(v, float) and v.is_integer()),
    "number": lambda v: isinstance(v, float),
    "string": lambda v: isinstance(v, str),
    "null": lambda v: v is None,
    "array": lambda v: isinstance(v, list | tuple),
    "object": lambda v: isinstance(v, Mapping),
}


_NOTHING = r"(?!)"


def _found(value: str, sources: list[str]) -> bool:
    try:
        return all(re.search(source, value) for source in sources)
    except re.error:
        return False


_CHECKS = {
    "minimum": lambda v, limit: Fraction(repr(v)) >= limit,
    "maximum": lambda v, limit: Fraction(repr(v)) <= limit,
    "exclusiveMinimum": lambda v, limit: Fraction(repr(v)) > limit,
    "exclusiveMaximum": lambda v, limit: Fraction(repr(v)) < limit,
    "multipleOf": lambda v, unit: (Fraction(repr(v)) / unit).denominator == 1,
    "minLength": lambda v, limit: len(v) >= limit,
    "maxLength": lambda v, limit: len(v) <= limit,
    "pattern": _found,
    "format": lambda v, names: _found(v, [FORMATS.get(name, _NOTHING) for name in names]),
}
