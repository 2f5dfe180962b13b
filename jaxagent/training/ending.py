"""How a run of the command line ends: what it says last, and its exit status."""

import pathlib
import sys
from collections.abc import Callable

from jaxagent.training.interruption import Interrupted
from jaxagent.training.loop import NonFiniteTraining


def exit_status(folder: pathlib.Path, train: Callable[[], object]) -> int:
    """Trains; 0 at the end, 128 + the signal that stopped it, 1 if gradients were not finite.

    Args:
        folder: of the run, named to whoever wants to take it up again.
        train: saves before it raises `Interrupted` or `NonFiniteTraining`.
    """
    try:
        train()
    except Interrupted as stop:
        print(f"interrupted by {stop}; saved in {folder}; go on with --resume --name {folder.name}")
        return 128 + stop.signal_number
    except NonFiniteTraining as failure:
        print(f"error: {failure}", file=sys.stderr)
        return 1
    return 0
