"""Run folders: where one is made, what stands in it, how it is found again."""

import dataclasses
import pathlib
import re
from typing import Any

import jax
import numpy as np
import yaml
from jax.experimental import multihost_utils

from jaxagent.training.config import PLACEMENT, RunConfig

CONFIG_FILE = "config.yaml"


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


def write_config(folder: pathlib.Path, config: dict[str, Any]) -> None:
    """Write the configuration, on process 0."""
    if jax.process_index() == 0:
        folder.mkdir(parents=True, exist_ok=True)
        text = yaml.safe_dump(config, sort_keys=False)
        (folder / CONFIG_FILE).write_text(text, encoding="utf-8")
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices("run folder")


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
