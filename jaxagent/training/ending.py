"""How a run of the command line ends: what it says last, and its exit status."""

import pathlib
import shlex
import signal
import sys
from collections.abc import Callable

from jaxagent.training.config import RunConfig
from jaxagent.training.interruption import Interrupted, leave_on_signals
from jaxagent.training.nonfinite import NonFiniteTraining
from jaxagent.training.run_folder import CONFIG_FILE, has_checkpoint
from jaxagent.training.trials import ARMS


def exit_status(folder: pathlib.Path, train: Callable[[], object]) -> int:
    """Trains; 0 at the end, 128 + the signal that stopped it, 1 if gradients were not finite.

    Args:
        folder: of the run, named to whoever wants to take it up again.
        train: saves before it raises `Interrupted` or `NonFiniteTraining`.
    """
    try:
        with leave_on_signals(lambda: _left(folder)):
            train()
    except Interrupted as stop:
        print(f"interrupted by {stop}; saved in {folder}; go on with {_again(folder)}")
        return 128 + stop.signal_number
    except KeyboardInterrupt:  # the second, which does not wait
        print(f"interrupted by SIGINT{_left(folder)}")
        return 128 + signal.SIGINT
    except NonFiniteTraining as failure:
        print(f"error: {failure}", file=sys.stderr)
        return 1
    return 0


def _left(folder: pathlib.Path) -> str:
    """What a line about a run ends with that had no time to save."""
    # A comparison has a folder for each arm.
    if has_checkpoint(folder) or any(has_checkpoint(folder / arm) for arm in ARMS):
        return f"; saved last in {folder}; go on with {_again(folder)}"
    told = " before anything was trained; nothing to save"
    # Its name is taken now, and a new run may not have it.
    return f"{told}; begin with {_again(folder)}" if (folder / CONFIG_FILE).exists() else told


def _again(folder: pathlib.Path) -> str:
    """The options that take a run up."""
    usual = folder.parent == pathlib.Path(RunConfig.runs_dir)
    where = "" if usual else f" --runs-dir {shlex.quote(str(folder.parent))}"
    return f"--resume --name {folder.name}{where}"
