"""Memory of this process that nobody uses any more."""

import ctypes
import functools
import sys
from collections.abc import Callable
from typing import Any


def give_back_memory() -> None:
    """What has been freed, to the system, where the C library keeps it: in some ten milliseconds.

    glibc keeps it in pieces too small for what comes next. Loading SmolLM2-135M leaves 90 MB of
    them, each compilation tens.
    """
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # other C libraries have none
        if trim is not None:
            trim(0)


def gives_back_memory(program: Any) -> Callable:
    """A jitted function that gives back what its compilations have freed.

    Args:
        program: what `jax.jit` returned.
    """

    @functools.wraps(program)
    def call(*args: Any, **kwargs: Any) -> Any:
        compiled = program._cache_size()
        result = program(*args, **kwargs)
        if program._cache_size() > compiled:
            give_back_memory()
        return result

    setattr(call, "_cache_size", program._cache_size)  # noqa: B010
    return call
