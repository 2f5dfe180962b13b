"""Ctrl-C and SIGTERM: in a loop a question that it asks between iterations, elsewhere the end."""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils


class Interrupted(Exception):
    """The run was asked to stop and has saved; `signal_number` says by what."""

    def __init__(self, signal_number: int):
        """Remember the signal."""
        super().__init__(signal.Signals(signal_number).name)
        self.signal_number = signal_number


class StopRequest:
    """The first signal asks to stop; a second Ctrl-C does not wait."""

    def __init__(self):
        """Nothing asked for."""
        self.signal_number = 0

    def __call__(self, number: int, frame) -> None:
        """Signal handler."""
        if self.signal_number and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.signal_number = number

    def agreed(self) -> int:
        """The signal to stop for, or 0; the same in every process of the run.

        Processes may be signalled an iteration apart, and must save the same one.
        """
        if jax.process_count() == 1:
            return self.signal_number
        return int(np.max(multihost_utils.process_allgather(np.int32(self.signal_number))))


@contextlib.contextmanager
def watch_signals() -> Iterator[StopRequest]:
    """Catch SIGTERM and SIGINT inside the block (in the main thread only)."""
    request = StopRequest()
    with _handled_by(request):
        yield request


@contextlib.contextmanager
def leave_on_signals(
    told: Callable[[], str] = lambda: " before anything was trained; nothing to save",
) -> Iterator[None]:
    """End the process on a signal inside the block: one line, and the status 128 + signal.

    Outside of a loop, that is: while programs compile, pictures are drawn, panels are played.

    Args:
        told: what the line says after "interrupted by SIGINT".
    """

    def leave(number: int, frame) -> None:
        line = f"interrupted by {signal.Signals(number).name}{told()}\n"
        # It may come in the midst of a print, or after whoever read them has gone.
        with contextlib.suppress(RuntimeError, OSError):
            sys.stdout.flush()
        with contextlib.suppress(OSError):
            os.write(1, line.encode())
        # At once: an exception would wait for the threads that compile, and then crash in them.
        os._exit(128 + number)

    with _handled_by(leave):
        yield


@contextlib.contextmanager
def _handled_by(handler: Callable[[int, Any], None]) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {n: signal.signal(n, handler) for n in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)
