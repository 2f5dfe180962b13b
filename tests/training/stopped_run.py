"""Processes that train, and are stopped by a signal on the way."""

import os
import pathlib
import signal
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).parents[2]


def start(*arguments: str, **environment: str) -> subprocess.Popen:
    """Python with these arguments, in a process of its own."""
    return subprocess.Popen(
        [sys.executable, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)} | environment,
        cwd=ROOT,
    )


def stop_midway(
    process: subprocess.Popen, metrics: pathlib.Path, records: int, number: signal.Signals
) -> str:
    """Send a signal as soon as the run has written so many records; what it said until its end."""
    deadline = time.monotonic() + 480
    try:
        while not (metrics.exists() and metrics.read_text().count("\n") >= records):
            assert time.monotonic() < deadline
            assert process.poll() is None, process.communicate()[0]
            time.sleep(0.01)
        process.send_signal(number)
        return process.communicate(timeout=240)[0]
    finally:
        process.kill()
