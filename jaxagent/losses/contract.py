"""What a public loss promises about its arguments, and how a broken promise is reported.

Wrong kinds (dtype, rank, mismatched axes) are a TypeError, wrong values a ValueError; each is
one line that names the function, the argument, what it expected and what it found.
"""

import functools
import inspect
from collections.abc import Callable
from types import UnionType
from typing import Any, ParamSpec, TypeVar, get_args

import jax
import jax.numpy as jnp
from jax.core import Tracer
from jaxtyping import Array, Float, TypeCheckError, jaxtyped

P = ParamSpec("P")
R = TypeVar("R")

Scalar = float | int | Float[Array, ""]
"""A hyper-parameter: a Python number, or a traced scalar where a schedule moves it."""


def checked(function: Callable[P, R]) -> Callable[P, R]:
    """Check arguments against their jaxtyping annotations, at trace time only under jit.

    beartype is imported, and the checker built, at the first call: to do both for every function
    at import would make importing the losses half as slow again as importing jax.
    """
    signature = inspect.signature(function)

    @functools.cache
    def typed() -> Callable[P, R]:
        from beartype import beartype

        return jaxtyped(typechecker=beartype)(function)

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return typed()(*args, **kwargs)
        except TypeCheckError as error:
            complaint = _complaint(function.__name__, signature.bind(*args, **kwargs))
            if complaint is None:
                raise
            raise TypeError(complaint).with_traceback(error.__traceback__) from None

    return call


def _complaint(function: str, bound: inspect.BoundArguments) -> str | None:
    from beartype.door import is_bearable

    accepted = []
    with jaxtyped("context"):
        for name, value in bound.arguments.items():
            expected = bound.signature.parameters[name].annotation
            if not is_bearable(value, expected):
                beside = f" beside {', '.join(accepted)}" if accepted else ""
                return (
                    f"{function}: argument '{name}' must be {_expected(expected)}, "
                    f"found {_found(value)}{beside}"
                )
            if isinstance(value, jax.Array):
                accepted.append(f"{name} {_found(value)}")
    return None


def _expected(annotation: Any) -> str:
    if isinstance(annotation, UnionType) or get_args(annotation):
        return " | ".join(_expected(member) for member in get_args(annotation))
    if hasattr(annotation, "dim_str"):
        return f"{annotation.__name__.split('[')[0]}[{annotation.dim_str}]"
    return "None" if annotation is type(None) else getattr(annotation, "__name__", str(annotation))


def _found(value: Any) -> str:
    if isinstance(value, jax.Array):
        return f"{value.dtype}{list(value.shape)}"
    if hasattr(value, "__array__"):
        kind = f"{type(value).__module__.split('.')[0]}.{type(value).__name__}"
        return f"{kind} {value.dtype}{list(value.shape)} (convert it with jax.numpy.asarray)"
    return f"{type(value).__name__} {value!r}"[:120]


def require_unit_interval(function: str, name: str, value: Scalar) -> None:
    """Refuse a static number outside [0, 1]; a traced one is data and passes unchecked."""
    if isinstance(value, float | int) and not 0 <= value <= 1:
        raise ValueError(f"{function}: {name} must lie in [0, 1], found {value}")


def accumulate(*arrays: jax.Array) -> tuple[jax.Array, ...]:
    """The arrays in their common dtype, at least float32: bfloat16 in, float32 sums."""
    dtype = jnp.result_type(jnp.float32, *(array.dtype for array in arrays))
    return tuple(array.astype(dtype) for array in arrays)


def require_array(function: str, name: str, array: Any, kind: type, shape: tuple[int, ...]) -> None:
    """Refuse what is not of this kind and shape, where no annotation is looked at by `checked`.

    Those are the fields of a NamedTuple and what a caller's function returns.
    """
    fits = isinstance(array, jax.Array) and array.shape == shape
    if not (fits and jnp.issubdtype(array.dtype, kind)):
        wanted = {jnp.floating: "Float", jnp.integer: "Int", jnp.bool_: "Bool"}[kind]
        raise TypeError(f"{function}: {name} must be {wanted}{list(shape)}, found {_found(array)}")


def not_hidden(result: jax.Array, *inputs: jax.Array) -> jax.Array:
    """The result, NaN where an input is not finite: a minimum or a tanh would swallow that."""
    return functools.reduce(lambda shown, x: shown + 0.0 * x, inputs, result)


def require_range(
    function: str, name: str, ids: jax.Array, mask: jax.Array, upper: int
) -> jax.Array:
    """Refuse live ids outside [0, upper) where their values are known; say where they are inside.

    Under jit, grad and vmap the values are not known when this runs: there the caller turns
    the result of such an entry into NaN.
    """
    outside = mask & ((ids < 0) | (ids >= upper))
    if not isinstance(outside, Tracer) and bool(outside.any()):
        found = int(ids[outside][0])
        raise ValueError(f"{function}: {name} must lie in [0, {upper}), found {found}")
    return ~outside


def require_forward(function: str, name: str, ids: jax.Array, mask: jax.Array) -> jax.Array:
    """Refuse live ids that decrease along the leading axis; say which columns do not.

    Dead entries follow the live ones, so that before a live one stands a live one.
    """
    backward = mask[1:] & (ids[1:] < ids[:-1])
    if not isinstance(backward, Tracer) and bool(backward.any()):
        index = tuple(int(i[0]) for i in jnp.nonzero(backward))
        later = (index[0] + 1, *index[1:])
        raise ValueError(
            f"{function}: {name} must not decrease along its leading axis, found "
            f"{int(ids[index])} followed by {int(ids[later])} at step {later[0]}"
        )
    return ~backward.any(axis=0)
