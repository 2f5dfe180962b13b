"""curves.png of a supervised run."""

import pathlib
from collections.abc import Sequence
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

_PANELS = (
    ("train", "loss", "cross-entropy, nats a target"),
    ("train", "accuracy", "targets that are the most likely token"),
    ("evaluation", "success", "validation games won, free generation"),
    ("evaluation", "mean_steps", "steps a validation game"),
    ("train", "learning_rate", "learning rate"),
    ("train", "tokens_per_second", "tokens / s"),
)


def plot_teaching(path: pathlib.Path, records: Sequence[dict[str, Any]]) -> None:
    """Draw the run's curves.

    Args:
        path: PNG.
        records: of metrics.jsonl.
    """
    figure = Figure((12, 6), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    for axis, (kind, key, title) in zip(figure.subplots(2, 3).flat, _PANELS, strict=True):
        points = [
            (r["iteration"], r[key])
            for r in records
            if r["kind"] == kind and r.get(key) is not None
        ]
        if points:
            axis.plot(*zip(*points), "o-" if kind == "evaluation" else "-", linewidth=0.9)
        axis.set_title(title, fontsize=9)
        axis.set_xlabel("updates", fontsize=8)
        axis.tick_params(labelsize=7)
        axis.grid(alpha=0.3)
    draft = path.with_suffix(".tmp.png")
    figure.savefig(draft)
    draft.replace(path)
