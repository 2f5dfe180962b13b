"""curves.png, the comparison, and paths seen from above; Agg only, no window."""

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from jaxagent.training.statistics import interquartile_mean, stratified_interval

_PANELS = (
    ("reward a step", ("reward_env", "reward_guidance", "reward_total")),
    ("lambda", ("guidance_lambda",)),
    ("KL (old, new), nats", ("kl",)),
    ("clip fraction", ("clip_fraction",)),
    ("explained variance", ("explained_variance",)),
    ("steps / s", ("steps_per_second",)),
    ("policy scale", ("policy_scale",)),
    ("distance from the goal at the end", ("final_distance",)),
    ("steps to the first success", ("steps_to_success",)),
    ("goals reached in an episode", ("goals_reached",)),
    ("temperature", ("temperature",)),
    ("critic loss", ("critic_loss",)),
)


def plot_curves(
    path: pathlib.Path, records: Sequence[dict[str, Any]], title: str, caption: str = ""
) -> None:
    """Draw the run's curves: evaluations, and every measure that its training has.

    Args:
        path: PNG.
        records: of metrics.jsonl.
        title: above all.
        caption: below all, the plan in words for example.
    """
    train = [r for r in records if r["kind"] == "train"]
    evaluations = [r for r in records if r["kind"] == "evaluation"]
    has_goals = any("fall_rate" in r for r in evaluations)
    measured = {key for record in train for key, value in record.items() if value is not None}
    panels = [panel for panel in _PANELS if measured & set(panel[1])]
    columns = max(2, -(-(1 + has_goals + len(panels)) // 2))
    figure = _figure((4.0 * columns, 7.5))
    axes = list(figure.subplots(2, columns).flat)
    figure.suptitle(title, wrap=True, fontsize=10)
    if caption:
        figure.supxlabel(caption, wrap=True, fontsize=9)
    first, *others = axes
    _returns(first, evaluations, "C0", "without guidance")
    first.set_title("evaluated return, without guidance", fontsize=9)
    if has_goals:
        _rates(others.pop(0), evaluations)
    for axis, (name, keys) in zip(others, panels):
        for key in keys:
            points = [(r["steps"], r[key]) for r in train if r.get(key) is not None]
            if points:
                axis.plot(*zip(*points), label=key, linewidth=0.9)
        axis.set_title(name, fontsize=9)
        if len(keys) > 1:
            axis.legend(fontsize=7)
    for axis in axes:
        _dress(axis)
    _save(figure, path)


def _rates(axis, evaluations: Sequence[dict[str, Any]]) -> None:
    """Success and falls of a goal-conditioned task."""
    axis.set_title("share of evaluated episodes", fontsize=9)
    names = {"success_rate": "succeed at the end", "touched_rate": "touch the goal on the way"}
    names["fall_rate"] = "fall"
    for number, (key, name) in enumerate(names.items()):
        _returns(axis, evaluations, f"C{number}", name, key)
    axis.legend(fontsize=7)


def plot_comparison(
    path: pathlib.Path, arms: Mapping[str, Sequence[dict[str, Any]]], title: str, success: bool
) -> None:
    """Draw evaluations of several arms over each other, each by the interquartile mean of its
    seeds, with 95 % intervals where there are five or more.

    Args:
        path: PNG.
        arms: records of each arm's metrics.jsonl.
        title: above.
        success: draw the success rate instead of the return.
    """
    figure = _figure((7, 4.6))
    axis = figure.subplots()
    for number, (name, records) in enumerate(arms.items()):
        evaluations = [r for r in records if r["kind"] == "evaluation"]
        key = "success_rate" if success else "episode_return"
        _returns(axis, evaluations, f"C{number}", name, key)
    axis.set_ylabel("share of episodes that arrive" if success else "return without guidance")
    axis.legend()
    axis.set_title(title, fontsize=9, wrap=True)
    _dress(axis)
    _save(figure, path)


def plot_paths(
    path: pathlib.Path, paths: np.ndarray, targets: Sequence[Sequence[float]], title: str
) -> None:
    """Draw where the evaluation episodes went, seen from above.

    Args:
        path: PNG.
        paths: [E, L, 2] metres.
        targets: sub-goals as (x, y, radius), metres.
        title: above, the plan's text for example.
    """
    figure = _figure((5.5, 5.5))
    axis = figure.subplots()
    for line in paths:
        axis.plot(line[:, 0], line[:, 1], linewidth=0.7, alpha=0.6)
    angle = np.linspace(0, 2 * np.pi, 60)
    for x, y, radius in targets:
        axis.plot(x + radius * np.cos(angle), y + radius * np.sin(angle), "k--", linewidth=0.8)
    axis.plot(0, 0, "k+", markersize=10)
    axis.set_xlabel("x, metres")
    axis.set_ylabel("y, metres")
    axis.set_aspect("equal", adjustable="datalim")
    axis.set_title(title, fontsize=8, wrap=True)
    axis.grid(alpha=0.3)
    _save(figure, path)


def _returns(axis, evaluations, colour: str, name: str, key: str = "episode_return") -> None:
    if not evaluations:
        return
    steps = [r["steps"] for r in evaluations]
    values = np.array([r[key] for r in evaluations], float)  # [evaluations, seeds]
    middle = [interquartile_mean(row) for row in values]
    axis.plot(steps, middle, "o-", color=colour, markersize=3, label=f"{name}, {_seeds(values)}")
    if values.shape[1] > 1:
        intervals = [stratified_interval(row) for row in values]
        if None not in intervals:  # fewer than five seeds have none
            axis.fill_between(steps, *zip(*intervals), color=colour, alpha=0.2, linewidth=0)  # type: ignore[misc]
        for seed in values.T:
            axis.plot(steps, seed, color=colour, alpha=0.35, linewidth=0.7)


def _seeds(values: np.ndarray) -> str:
    count = values.shape[1]
    return "one seed" if count == 1 else f"{count} seeds"


def _figure(inches: tuple[float, float]) -> Figure:
    figure = Figure(inches, dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _dress(axis) -> None:
    axis.set_xlabel("environment steps", fontsize=8)
    axis.tick_params(labelsize=7)
    axis.grid(alpha=0.3)


def _save(figure: Figure, path: pathlib.Path) -> None:
    draft = path.with_suffix(".tmp.png")
    figure.savefig(draft)
    draft.replace(path)
