"""Ctrl-C and SIGTERM as a question that the loop asks between iterations."""

import contextlib
import signal
import threading
from collections.abc import Iterator

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
    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    before = {n: signal.signal(n, request) for n in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
