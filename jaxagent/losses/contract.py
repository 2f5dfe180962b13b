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

    NumPy arrays, and numbers where an array may be a scalar, become JAX arrays first (`_admit`).

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
            given = signature.bind(*args, **kwargs)
        except TypeError:
            function(*args, **kwargs)  # Python's own complaint names the function
            raise
        admitted = signature.bind(*args, **kwargs)
        for name, value in given.arguments.items():
            label = f"{function.__name__}: argument '{name}'"
            annotation = signature.parameters[name].annotation
            admitted.arguments[name] = _admit(label, annotation, value)
        try:
            return typed()(*admitted.args, **admitted.kwargs)
        except TypeCheckError as error:
            complaint = _complaint(function.__name__, given, admitted)
            if complaint is None:
                raise
            raise TypeError(complaint).with_traceback(error.__traceback__) from None

    return call


def _admit(label: str, annotation: Any, value: Any) -> Any:
    """The value as a JAX array where it is NumPy's, or a number, and an array is asked for.

    A NumPy scalar where a Python number may stand becomes one, so that it stays a static value.
    What cannot be converted is given back as it is, for the checker to refuse by name.
    """
    if isinstance(value, jax.Array):
        return value
    if hasattr(annotation, "_fields") and isinstance(value, annotation):
        kinds = annotation.__annotations__
        return annotation(*(_admit(f"{label}.{n}", kinds[n], x) for n, x in zip(kinds, value)))
    members = get_args(annotation) or (annotation,)
    array_kinds = [_expected(m).split("[")[0] for m in members if hasattr(m, "dim_str")]
    takes_numbers = any(m in (bool, int, float) for m in members)
    if _is_numpy(value):
        if takes_numbers and value.ndim == 0:
            return value.item()
        return as_array(label, value) if array_kinds else value
    if not takes_numbers:
        for kind, numbers, dtype in _NUMBERS:
            if kind in array_kinds and type(value) in numbers:
                return jnp.asarray(value, jnp.result_type(dtype))
    return value


_NUMBERS = (("Bool", (bool,), bool), ("Int", (int,), int), ("Float", (int, float), float))


def _is_numpy(value: Any) -> bool:
    """Whether the value is NumPy's array or scalar of numbers that JAX has a type for.

    Masked arrays are not: their mask would be lost. NumPy itself is not imported here.
    """
    if type(value).__module__ != "numpy" or not hasattr(value, "dtype"):
        return False
    kinds = (jnp.floating, jnp.integer, jnp.bool_)
    is_number = any(jnp.issubdtype(value.dtype, kind) for kind in kinds)
    return is_number and value.dtype.itemsize <= 8


def as_array(label: str, value: Any) -> Any:
    """A NumPy array as a JAX array, of either byte order; anything else as it is.

    Raises:
        ValueError: it holds an integer that 32 bits do not, while 64 bits are not enabled.
    """
    if not _is_numpy(value):
        return value
    array = jnp.asarray(value.astype(value.dtype.newbyteorder("=")))
    if jnp.issubdtype(array.dtype, jnp.integer) and array.dtype != value.dtype and value.size:
        limits = jnp.iinfo(array.dtype)
        for extreme in (int(value.min()), int(value.max())):
            if not limits.min <= extreme <= limits.max:
                raise ValueError(
                    f"{label} must fit {array.dtype} unless jax_enable_x64 is set, found {extreme}"
                )
    return array


def _complaint(
    function: str, given: inspect.BoundArguments, admitted: inspect.BoundArguments
) -> str | None:
    from beartype.door import is_bearable

    accepted = []
    with jaxtyped("context"):
        for name, value in given.arguments.items():
            expected = given.signature.parameters[name].annotation
            if not is_bearable(admitted.arguments[name], expected):
                beside = f" beside {', '.join(accepted)}" if accepted else ""
                return (
                    f"{function}: argument '{name}' must be {_expected(expected)}, "
                    f"found {_found(value)}{beside}"
                )
            if isinstance(admitted.arguments[name], jax.Array):
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
    if hasattr(value, "__array__") and hasattr(value, "dtype"):
        kind = f"{type(value).__module__.split('.')[0]}.{type(value).__name__}"
        advice = "" if _is_numpy(value) else " (convert it with jax.numpy.asarray)"
        return f"{kind} {value.dtype}{list(value.shape)}{advice}"
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
