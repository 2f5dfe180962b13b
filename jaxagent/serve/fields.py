"""Fields of a request's JSON, read strictly, and the errors that OpenAI's clients understand."""

import json
from collections.abc import Mapping
from typing import Any


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


def read_json(body: bytes) -> dict[str, Any]:
    """The object that a body holds.

    Raises:
        ApiError: 400, it holds none.
    """

    def refuse(name: str) -> Any:
        raise ValueError(f"{name} is not JSON")

    try:
        fields = json.loads(body, parse_constant=refuse)
    except (ValueError, RecursionError):
        raise ApiError(400, "the body is not JSON") from None
    if not isinstance(fields, dict):
        raise ApiError(400, "the body must be a JSON object")
    return fields


def text(value: Any, place: str, param: str) -> str:
    """A text that can be encoded as UTF-8.

    Raises:
        ApiError: 400, it is none.
    """
    if not isinstance(value, str):
        raise ApiError(400, f"{place} must be text", param=param)
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ApiError(400, f"{place} holds half of a surrogate pair", param=param) from None
    return value


def whole(fields: Mapping[str, Any], name: str, low: int | None, high: int | None) -> int | None:
    """A whole number in [low, high]; None where it is not given.

    Raises:
        ApiError: 400 with the rule.
    """
    value = fields.get(name)
    if value is None:
        return None
    is_low = type(value) is int and low is not None and value < low
    is_high = type(value) is int and high is not None and value > high
    if type(value) is not int or is_low or is_high:
        rule = "a whole number"
        if high is not None:
            rule += f" from {low} to {high}"
        elif low is not None:
            rule += f" of at least {low}"
        raise ApiError(400, f"{name} must be {rule}", param=name)
    return value


def number(fields: Mapping[str, Any], name: str, usual: float, low: float, high: float) -> float:
    """A number in [low, high]; `usual` where it is not given.

    Raises:
        ApiError: 400 with the rule.
    """
    value = fields.get(name)
    if value is None:
        return usual
    if type(value) not in (int, float) or not low <= value <= high:
        raise ApiError(400, f"{name} must lie between {low:g} and {high:g}", param=name)
    return float(value)


def flag(fields: Mapping[str, Any], name: str) -> bool:
    """True or false; false where it is not given.

    Raises:
        ApiError: 400, it is neither.
    """
    value = fields.get(name)
    if value is not None and not isinstance(value, bool):
        raise ApiError(400, f"{name} must be true or false", param=name)
    return bool(value)
