"""Run folders: where one is made, what stands in it, how it is found again."""

import dataclasses
import pathlib
import re
from collections.abc import Sequence
from typing import Any, TypeVar

import jax
import numpy as np
import yaml
from jax.experimental import multihost_utils

from jaxagent.training.config import (
    PLACEMENT,
    RunConfig,
    overlay,
    parse_command_line,
    read_early,
    read_yaml,
    to_plain,
)

CONFIG_FILE = "config.yaml"
Config = TypeVar("Config")
# What is said of one start of the program and not of the run: a file of options with these in it
# would take up another run, or join processes that are long gone.
_OF_ONE_START = (
    "resume",
    "dry_run",
    "config",
    "name",
    "coordinator",
    "num_processes",
    "process_id",
)


def open_run_folder(run: RunConfig, prefix: str, resume: bool) -> pathlib.Path:
    """The folder of a new run, or of the one to go on with.

    Args:
        run: its name (empty: a number is found) and where run folders are kept.
        prefix: of numbered names.
        resume: look for a run instead of making one; without a name, the newest.

    Raises:
        ValueError: the name is taken, or there is nothing to resume.
    """
    root = pathlib.Path(run.runs_dir)
    if run.name:
        folder = root / run.name
        if resume and not (folder / CONFIG_FILE).exists():
            raise ValueError(f"resume: {folder} is not a run (it has no {CONFIG_FILE})")
        if not resume and (folder / CONFIG_FILE).exists():
            raise ValueError(
                f"name ({run.name}): {folder} exists; --resume goes on with it, another --name "
                "starts anew"
            )
        return folder
    last = _agree(max(_numbers(root, prefix), default=0))
    if resume and not last:
        raise ValueError(f"resume: there is no run {prefix}-* in {root}")
    return root / f"{prefix}-{last if resume else last + 1}"


def _numbers(root: pathlib.Path, prefix: str) -> list[int]:
    found = [path.parent.name for path in root.glob(f"{prefix}-*/{CONFIG_FILE}")]
    tails = [name.removeprefix(f"{prefix}-") for name in found]
    return [int(tail) for tail in tails if re.fullmatch("[0-9]+", tail)]


def _agree(number: int) -> int:
    """Process 0's number: the others may look a moment later."""
    if jax.process_count() == 1:
        return number
    return int(multihost_utils.broadcast_one_to_all(np.int32(number)))


def record_of(config: Any) -> dict[str, Any]:
    """The configuration as a run records it: what is said of one start only is left out."""
    return _without(to_plain(config), _OF_ONE_START)


def _without(values: dict[str, Any], names: Sequence[str]) -> dict[str, Any]:
    return {
        key: _without(value, names) if isinstance(value, dict) else value
        for key, value in values.items()
        if key not in names
    }


def write_config(folder: pathlib.Path, config: dict[str, Any]) -> None:
    """Write the configuration, on process 0, without what is said of one start only.

    Args:
        folder: of a run that begins.
        config: as of `to_plain`; given to --config, the file begins the same run anew.
    """
    if jax.process_index() == 0:
        folder.mkdir(parents=True, exist_ok=True)
        draft = folder / f"{CONFIG_FILE}.tmp"
        draft.write_text(
            yaml.safe_dump(_without(config, _OF_ONE_START), sort_keys=False), encoding="utf-8"
        )
        draft.replace(folder / CONFIG_FILE)
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices("run folder")


def has_checkpoint(folder: pathlib.Path) -> bool:
    """Whether something of a run was saved, so that it does not begin at its beginning."""
    return any(path.name.isdecimal() for path in folder.glob("checkpoints/*"))


def continued(
    saved: Config, folder: pathlib.Path, arguments: Sequence[str], program: str, description: str
) -> Config:
    """The configuration of a run that is taken up again: its own, only placed anew.

    Args:
        saved: as the run was begun.
        folder: of the run.
        arguments: of the command line; options of its --config count as if they stood there.
        program: as of `parse_command_line`.
        description: as of `parse_command_line`.

    Raises:
        ValueError: something else is asked for than was begun.
    """
    early = read_early(arguments)
    file = read_yaml(early.config) if early.config else {}
    default = overlay(saved, file, str(early.config))
    return take_up(
        saved, parse_command_line(type(saved), arguments, default, program, description), folder
    )


def take_up(saved: Any, asked: Any, folder: pathlib.Path) -> Any:
    """The configuration of a run that is taken up again: its own, only placed anew.

    Args:
        saved: as the run was begun; a dataclass with `resume`, `dry_run` and a `run`.
        asked: the same, with what the command line says on top.
        folder: of the run.

    Raises:
        ValueError: something else is asked for than was begun.
    """
    placement = {name: getattr(asked.run, name) for name in PLACEMENT}
    run = dataclasses.replace(saved.run, **placement)
    placed = dataclasses.replace(saved, resume=True, dry_run=asked.dry_run, run=run)
    # How the options were found does not matter, only what they came to.
    told = [f.name for f in dataclasses.fields(saved) if f.name in ("preset", "config")]
    wanted = dataclasses.replace(
        asked,
        resume=True,
        run=dataclasses.replace(asked.run, name=saved.run.name),
        **{name: getattr(saved, name) for name in told},
    )
    for field in dataclasses.fields(placed):
        before, after = getattr(placed, field.name), getattr(wanted, field.name)
        if dataclasses.is_dataclass(before):
            _refuse_changes(before, after, folder)
    _refuse_changes(placed, wanted, folder)
    return placed


def _refuse_changes(saved: Any, asked: Any, folder: pathlib.Path) -> None:
    for field in dataclasses.fields(saved):
        before, after = getattr(saved, field.name), getattr(asked, field.name)
        if before != after and not dataclasses.is_dataclass(before):
            raise ValueError(
                f"resume: {folder} was begun with {field.name} {before}, not {after}; "
                "start another run to change it"
            )
