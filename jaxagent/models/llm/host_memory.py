"""Memory of this process that nobody uses any more."""

import ctypes
import functools
import sys
from collections.abc import Callable
from typing import Any

_M_MMAP_THRESHOLD = -3
_BLOCK = 4 * 2**20


def give_back_memory() -> None:
    """What has been freed, to the system, where the C library keeps it: in some ten milliseconds.

    glibc keeps it in pieces too small for what comes next. Loading SmolLM2-135M leaves 90 MB of
    them, each compilation tens.
    """
    _glibc("malloc_trim", 0)


def give_back_blocks_at_once() -> None:
    """Have the C library take blocks of 4 MB and more from the system, and give them back there.

    glibc does so from 128 kB at first, but only from up to 32 MB once such blocks have been
    freed: caches of keys and values, which grow by getting new ones, then leave holes.
    """
    _glibc("mallopt", _M_MMAP_THRESHOLD, _BLOCK)


def _glibc(name: str, *arguments: int) -> None:
    if sys.platform == "linux":
        function = getattr(ctypes.CDLL(None), name, None)  # other C libraries have none
        if function is not None:
            function(*arguments)


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
