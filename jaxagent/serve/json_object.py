"""Any JSON object as a constraint, for requests that give no schema."""

from jaxagent.models.llm.constrain_bytes import Pattern, choice, joined, literal, sequence
from jaxagent.models.llm.constrain_json import PLAIN_NUMBERS, schema_pattern

DEPTH = 4
"""Objects and lists inside one another; an automaton has to end its nesting somewhere."""


def any_object() -> Pattern:
    """The byte strings of JSON objects whose values lie at most `DEPTH` deep."""
    text = schema_pattern({"type": "string"}, PLAIN_NUMBERS)
    value = plain = schema_pattern({"type": ["string", "number", "boolean", "null"]}, PLAIN_NUMBERS)
    for _ in range(DEPTH - 1):
        value = choice(plain, _object(text, value), _list(value))
    return _object(text, value)


def _object(name: Pattern, value: Pattern) -> Pattern:
    member = sequence(name, literal(": "), value)
    return sequence(literal("{"), _some(member), literal("}"))


def _list(value: Pattern) -> Pattern:
    return sequence(literal("["), _some(value), literal("]"))


def _some(part: Pattern) -> Pattern:
    return choice(literal(""), joined(part, literal(", "), 1, None))
