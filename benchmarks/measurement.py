"""What every measurement of speed here needs: a command line, medians, the machine it ran on."""

import argparse
import math
import os
import pathlib
import platform
import typing
from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np
from rich.console import Console

from jaxagent.training.config import refuse


class Spread(NamedTuple):
    """Several measurements of one figure."""

    median: float
    low: float
    high: float


def spread(values: Sequence[float]) -> Spread:
    """Median and extremes.

    Raises:
        ValueError: there is nothing to take them of.
    """
    if not len(values):
        raise ValueError("values must hold at least one measurement")
    return Spread(float(np.median(values)), float(min(values)), float(max(values)))


def ratio(ours: float, theirs: float) -> float:
    """ours / theirs; nan where either was not measured or the peer's is 0."""
    if not (math.isfinite(ours) and math.isfinite(theirs)) or theirs == 0:
        return math.nan
    return ours / theirs


class Parser(argparse.ArgumentParser):
    """A command line whose mistakes take one line and status 2."""

    def error(self, message: str) -> typing.NoReturn:
        """Refuse."""
        refuse(message)


def positive(text: str) -> int:
    """An option that counts something."""
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"({text}) must be a whole number of at least 1")
    return value


def json_file(text: str) -> pathlib.Path:
    """A file that can be written, known before minutes are spent on measuring."""
    path = pathlib.Path(text)
    if path.is_dir() or not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"({text}) must be a file in an existing folder")
    return path


def load_average() -> float:
    """Processes that ran or waited in the last minute; nan where the system does not count."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else math.nan


def machine() -> dict[str, typing.Any]:
    """What a figure of speed means nothing without."""
    affinity = getattr(os, "sched_getaffinity", None)  # not on macOS
    return {
        "processor": platform.machine(),
        "cores": len(affinity(0)) if affinity else os.cpu_count(),
        "devices": f"{jax.device_count()} x {jax.devices()[0].device_kind}",
        "python": platform.python_version(),
        "jax": jax.__version__,
        "load_average": load_average(),
    }


def describe(where: dict[str, typing.Any], load_after: float) -> str:
    """The machine in one line, and how busy it was before and after."""
    return (
        f"{where['cores']} cores ({where['processor']}), {where['devices']}, jax {where['jax']}; "
        f"load average {where['load_average']:.1f} before, {load_after:.1f} after"
    )


def consoles() -> tuple[Console, Console]:
    """Where results go, and where progress goes; a file gets whole rows."""
    result = Console(highlight=False)
    if not result.is_terminal:
        result = Console(highlight=False, width=140)
    return result, Console(stderr=True, highlight=False, soft_wrap=True)


def without_nan(tree):
    """JSON knows no nan: None stands for what was not measured."""
    if isinstance(tree, dict):
        return {key: without_nan(value) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [without_nan(value) for value in tree]
    return None if isinstance(tree, float) and not math.isfinite(tree) else tree
