"""What an evaluation says, in numbers."""

import dataclasses
import json
import pathlib
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from jaxagent.training.statistics import (
    bootstrap_interval,
    interquartile_mean,
    stratified_interval,
)
from jaxagent.training.trainer import Evaluation, Trainer, TrainState


@dataclasses.dataclass(frozen=True)
class Report:
    """One evaluation without guidance, over all seeds."""

    episode_return: list[float]
    """Mean over episodes, one a seed."""
    mean: float
    """Mean over seeds."""
    interquartile_mean: float
    """Over seeds."""
    low: float | None
    """95 % bootstrap interval: of the interquartile mean over five or more seeds, of the mean over
    episodes when there is one seed; None for two to four seeds, which are too few."""
    high: float | None
    episode_std: float
    """Standard deviation over all episodes."""
    episode_length: float
    success_rate: list[float]
    """Share of episodes that were a success at their end, one a seed."""
    fall_rate: list[float] | None = None
    """Share of episodes that the body ended itself; this and the following of goal tasks only."""
    touched_rate: list[float] | None = None
    """Share of episodes in which any step was a success, on whatever the rest was spent."""
    steps_to_success: list[float] | None = None
    """To the first, mean over the episodes that touched their goal; 0 where none did."""
    final_distance: list[float] | None = None
    """Mean distance from the goal after the last step."""

    @property
    def interval(self) -> str:
        """What the figures stand on: an interval where there can be one, and the seeds."""
        count = len(self.episode_return)
        if self.low is None or self.high is None:
            least, most = min(self.episode_return), max(self.episode_return)
            return f"{count} seeds, {least:,.1f} to {most:,.1f}"
        over = "episodes of one seed" if count == 1 else f"{count} seeds"
        return f"95 % [{self.low:,.1f}, {self.high:,.1f}] over {over}"

    def metrics(self) -> dict:
        """For the log; what the task or the number of seeds does not have is left out."""
        return {k: v for k, v in dataclasses.asdict(self).items() if v is not None}


def summarise(evaluation: Evaluation) -> Report:
    """Reduce the episodes of an evaluation, on the host."""
    returns = np.asarray(evaluation.episode_return, np.float64)
    seeds = returns.mean(axis=1)
    interval = stratified_interval(seeds) if len(seeds) > 1 else bootstrap_interval(returns[0])
    low, high = interval or (None, None)
    return Report(
        episode_return=seeds.tolist(),
        mean=float(seeds.mean()),
        interquartile_mean=interquartile_mean(seeds),
        low=low,
        high=high,
        episode_std=float(returns.std()),
        episode_length=float(np.mean(evaluation.episode_length)),
        success_rate=np.mean(evaluation.success, axis=1).tolist(),
        **_goal_figures(evaluation),
    )


def _goal_figures(evaluation: Evaluation) -> dict[str, Any]:
    goals = evaluation.goals
    if goals is None:
        return {}
    reached = np.maximum(np.sum(goals.touched, axis=1), 1)
    return {
        "fall_rate": np.mean(goals.fell, axis=1).tolist(),
        "touched_rate": np.mean(goals.touched, axis=1).tolist(),
        "steps_to_success": (np.sum(goals.steps_to_success, axis=1) / reached).tolist(),
        "final_distance": np.mean(goals.final_distance, axis=1, dtype=np.float64).tolist(),
    }


def evaluate(
    trainer: Trainer, program: Callable, state: TrainState, seed: int
) -> tuple[Evaluation, Report]:
    """Play the evaluation episodes; every process gets the result.

    Args:
        trainer: what made the program.
        program: the compiled evaluation.
        state: whose policy is evaluated; its environments are left alone.
        seed: of the start states, the same for every seed that is trained.
    """
    seeds = np.full(state.iteration.shape, seed, np.int32)
    evaluation = fetch(program(state.agent, trainer.replicate(seeds)))
    return evaluation, summarise(evaluation)


def fetch(tree):
    """Arrays on the host, whole, in every process."""
    if jax.process_count() == 1:
        return jax.device_get(tree)
    return jax.tree.map(
        lambda x: (
            np.asarray(x)
            if x.is_fully_replicated
            else multihost_utils.process_allgather(x, tiled=True)
        ),
        tree,
    )


def write_result(folder: pathlib.Path, settings: dict[str, Any], values: dict[str, Any]) -> None:
    """Write an evaluation under a name that tells its settings, and as evaluation.json, the last.

    Args:
        folder: that exists.
        settings: what makes it another evaluation, in the order of the name; None is left out.
        values: the result, its settings too.
    """
    parts = [f"{name}-{_told(value)}" for name, value in settings.items() if value is not None]
    for name in ("-".join(["evaluation", *parts]), "evaluation"):
        write_report(folder / f"{name}.json", values)


def _told(value: Any) -> str:
    """A setting as a name can hold it."""
    return "-".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def write_report(path: pathlib.Path, values: dict) -> None:
    """Write a small JSON file beside the run's others, whole or not at all."""
    draft = path.with_name(path.name + ".tmp")
    draft.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
    draft.replace(path)
