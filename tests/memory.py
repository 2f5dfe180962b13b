"""Memory of the suite: what a module leaves behind is dropped, and workers follow what is free."""

import contextlib
import functools
import gc
import os
from pathlib import Path

import jax

from jaxagent.models.llm.host_memory import give_back_memory

WORKER_BYTES = 1_500_000_000
"""What one worker needs at most, its largest module included."""
LARGE_BYTES = 1_000_000_000
"""A test that leaves the worker with more than this has its compiled programs dropped at once."""


def drop_if_large() -> None:
    """Between two tests of one module: drops what `drop_what_a_module_left` does, if it is much."""
    if resident_bytes() > LARGE_BYTES:
        drop_what_a_module_left()


def resident_bytes() -> int:
    """Memory that this process holds now; 0 where unknown."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, ValueError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def drop_what_a_module_left() -> None:
    """Drops compiled programs and the tests' own cached models, and gives freed memory back.

    What the library caches by function (checkers of arguments, word lists) is small and stays.
    """
    for cached in [each for each in gc.get_objects() if _is_cache_of_tests(each)]:
        cached.cache_clear()
    jax.clear_caches()
    gc.collect()
    give_back_memory()


def _is_cache_of_tests(each: object) -> bool:
    return type(each) is functools._lru_cache_wrapper and each.__module__.startswith("tests.")


def workers_for(cores: int, available: int) -> int:
    """Workers that cores and memory allow, at least one.

    Args:
        cores: what pytest-xdist would start.
        available: bytes free for all of them together.
    """
    return max(1, min(cores, available // WORKER_BYTES))


def available_bytes() -> int:
    """Memory free for new processes, by the machine and by the control group around us."""
    free = [_free_on_machine()]
    try:
        group = Path("/sys/fs/cgroup")
        limit, used = (group / "memory.max").read_text(), (group / "memory.current").read_text()
        free.append(int(limit) - int(used))
    except (OSError, ValueError):  # no control groups, or no limit ("max")
        pass
    return min(free)


def _free_on_machine() -> int:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        (line,) = [line for line in lines if line.startswith("MemAvailable:")]
        return int(line.split()[1]) * 1024
    except (OSError, ValueError):  # not Linux: half of what is built in
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2


def begin_peak() -> None:
    """Lets the peak of this process count from here (Linux; elsewhere it counts from its start)."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def peak_bytes() -> int | None:
    """The most memory that this process has held since `begin_peak`; None where unknown."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
        (line,) = [line for line in lines if line.startswith("VmHWM:")]
        return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        return None
