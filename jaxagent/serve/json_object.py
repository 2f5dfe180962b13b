"""Any JSON object as a schema, for requests that give none."""

from typing import Any

DEPTH = 4
"""Objects and lists inside one another; an automaton has to end its nesting somewhere."""


def any_object() -> dict[str, Any]:
    """The schema of JSON objects whose values lie at most `DEPTH` deep."""
    plain: dict[str, Any] = {"type": ["string", "number", "boolean", "null"]}
    value = plain
    for _ in range(DEPTH - 1):
        value = {"anyOf": [plain, {"type": "array", "items": value}, _object(value)]}
    return _object(value)


def _object(value: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "additionalProperties": value}
