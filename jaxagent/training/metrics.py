"""Where metrics go: metrics.jsonl, TensorBoard, Weights & Biases."""

import json
import math
import pathlib
import secrets
from collections.abc import Mapping
from typing import Any

import numpy as np
from tensorboardX import SummaryWriter


class MetricsLog:
    """Writes records of one run; process 0 only."""

    def __init__(self, folder: pathlib.Path, resume_from: int | None, wandb: bool, config: dict):
        """Open the sinks.

        Args:
            folder: the run folder.
            resume_from: iteration of the checkpoint a run goes on from: what was logged after it
                is cut off, since it will be computed again. None is a run that begins: all that
                was logged before is cut off.
            wandb: also log to Weights & Biases.
            config: what Weights & Biases shows beside the run.

        Raises:
            ValueError: wandb is asked for and not installed.
        """
        self._wandb = _open_wandb(folder, config) if wandb else None
        self.path = folder / "metrics.jsonl"
        keep = []
        if resume_from is not None:
            keep = [r for r in read_metrics(self.path) if r["iteration"] <= resume_from]
        replacement = self.path.with_suffix(".tmp")
        replacement.write_text("".join(json.dumps(record) + "\n" for record in keep))
        replacement.replace(self.path)
        self._file = self.path.open("a", encoding="utf-8")
        board = folder / "tensorboard"
        # In steps, as its scalars are; a run that has no events yet has none to hide.
        purge = 1 + max((r["steps"] for r in keep), default=-1)
        self._board = SummaryWriter(str(board), purge_step=purge if board.exists() else None)

    def write(self, kind: str, iteration: int, steps: int, values: Mapping[str, Any]) -> None:
        """Append one record.

        Args:
            kind: "train" or "evaluation".
            iteration: iterations done.
            steps: environment steps done, a seed.
            values: numbers, or lists of numbers (one a seed); non-finite numbers become null.
        """
        record = {"kind": kind, "iteration": iteration, "steps": steps}
        record |= {name: _plain(value) for name, value in values.items()}
        self._file.write(json.dumps(record) + "\n")
        self._file.flush()
        numbers = {
            f"{kind}/{name}": float(value)
            for name, value in values.items()
            if np.ndim(value) == 0 and value is not None and not isinstance(value, str)
        }
        for name, value in numbers.items():
            self._board.add_scalar(name, value, steps)
        if self._wandb:
            self._wandb.log(numbers, step=steps)

    def close(self) -> None:
        """Flush and close the sinks."""
        self._file.close()
        self._board.close()
        if self._wandb:
            self._wandb.finish()


def _open_wandb(folder: pathlib.Path, config: dict):
    try:
        import wandb  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise ValueError("wandb (True) needs the package: pip install wandb") from None
    # Kept in the folder, so that a run that is taken up goes on as the same run there.
    path = folder / "wandb-run-id"
    if not path.exists():
        path.write_text(secrets.token_hex(8), encoding="utf-8")
    return wandb.init(
        project="jaxagent",
        name=folder.name,
        dir=str(folder),
        config=config,
        id=path.read_text(encoding="utf-8").strip(),
        resume="allow",
    )


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray | list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float | np.floating):
        return float(value) if math.isfinite(value) else None
    return value.item() if isinstance(value, np.generic) else value


def read_metrics(path: pathlib.Path) -> list[dict[str, Any]]:
    """The records of a metrics.jsonl; a last line that a killed process left half is skipped.

    Raises:
        ValueError: a line before the last is not JSON.
    """
    if not path.exists():
        return []
    # Whatever stands where a record was torn, it is no JSON.
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    records = []
    for number, line in enumerate(lines, 1):
        try:
            records.append(json.loads(line))
        except (ValueError, RecursionError):
            if number < len(lines):
                raise ValueError(f"{path}:{number}: not a JSON record") from None
    return records
