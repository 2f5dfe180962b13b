"""Which experiment a run folder is of, and what reads it."""

import pathlib

from jaxagent.training.config import read_yaml
from jaxagent.training.run_folder import CONFIG_FILE

# By experiment: an option that no other has, and the command that evaluates its runs.
_KINDS = {
    "ant_guidance": ("guidance", "python -m experiments.evaluate {}"),
    "ant_manager": ("subgoal_reach", "python -m experiments.evaluate {}"),
    "train_skills": ("encoder_sizes", "python -m experiments.evaluate_skill {}"),
    "alfworld_planner": (
        "imitation",
        "python -m experiments.evaluate_text --agent planner:{}/best",
    ),
}


def kind_of_run(folder: pathlib.Path) -> str:
    """The experiment whose run this is.

    Raises:
        ValueError: not a run folder.
    """
    path = folder / CONFIG_FILE
    if not path.exists():
        raise ValueError(f"{folder} is not a run folder: it has no {CONFIG_FILE}")
    options = read_yaml(path)
    for kind, (option, _) in _KINDS.items():
        if option in options:
            return kind
    raise ValueError(f"{folder} is not a run folder: {path} is of no experiment")


def check_kind(folder: pathlib.Path, *wanted: str) -> str:
    """The experiment whose run this is, one of those that are wanted.

    Raises:
        ValueError: it is another; the message says what evaluates it.
    """
    kind = kind_of_run(folder)
    if kind not in wanted:
        command = _KINDS[kind][1].format(folder)
        names = " or ".join(f"experiments.{name}" for name in wanted)
        raise ValueError(
            f"{folder} is a run of experiments.{kind}, not of {names}: evaluate it with {command}"
        )
    return kind
