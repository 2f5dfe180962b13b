"""What results over several seeds support: interquartile mean, bootstrap interval, or neither.

The convention is that of Agarwal et al. 2021 ("Deep reinforcement learning at the edge of the
statistical precipice", the `rliable` package): scores [S seeds, *tasks], the interquartile mean
over all of them, and a percentile bootstrap that resamples seeds within each task.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

FEWEST_SEEDS = 5
"""Below this many seeds no interval is given: a nominal 95 % interval of three normal scores holds
their true mean in 75 % of the cases, one of five in 90 %."""


def interquartile_mean(values: np.ndarray) -> float:
    """Mean of the middle half: a quarter of the values is left out at each end.

        IQM = mean of x₍ₖ₊₁₎ … x₍ₙ₋ₖ₎,  k = ⌊n / 4⌋

    Args:
        values: any shape, n numbers in all; one to three are averaged whole.

    Returns:
        The mean; NaN where any value is NaN.

    Raises:
        ValueError: there is no value.
    """
    ordered = np.sort(np.asarray(values, np.float64), axis=None)
    if not ordered.size:
        raise ValueError("interquartile_mean: values (none) must be at least one number")
    if np.isnan(ordered[-1]):  # sorted to the end, and would be trimmed away
        return float("nan")
    cut = len(ordered) // 4
    return float(ordered[cut : len(ordered) - cut].mean())


def stratified_interval(
    scores: np.ndarray,
    statistic: Callable[[np.ndarray], float] = interquartile_mean,
    *,
    level: float = 0.95,
    draws: int = 2000,
    seed: int = 0,
) -> tuple[float, float] | None:
    """Percentile bootstrap over seeds, stratified by task (Agarwal et al. 2021).

    Each draw picks S seeds with replacement within every task on its own, and takes the statistic
    of all scores picked. Percentile intervals of few values are narrower than they say: for one
    task with normal scores, a nominal 95 % interval holds the true value in 90 % of the cases with
    5 seeds, in 94 % with 10.

    Args:
        scores: [S] or [S, *tasks].
        statistic: of the scores of all tasks together.
        level: nominal coverage.
        draws: resamples.
        seed: of the resampling, so that a figure can be made again.

    Returns:
        Lower and upper bound; None for fewer than five seeds. NaN where a score is NaN.

    Raises:
        ValueError: there is no score, or level or draws is out of range.
    """
    scores = np.asarray(scores, np.float64)
    if not scores.size:
        raise ValueError("stratified_interval: scores (none) must be at least one number")
    if not 0 < level < 1 or draws < 1:
        raise ValueError(f"level ({level}) must lie in (0, 1) and draws ({draws}) be at least 1")
    if len(scores) < FEWEST_SEEDS:
        return None
    flat = scores.reshape(len(scores), -1)
    generator = np.random.default_rng(seed)
    picked = generator.integers(0, len(flat), (draws, *flat.shape))
    samples = np.take_along_axis(flat[None], picked, axis=1)
    return _tails(np.array([statistic(sample) for sample in samples]), level)


def bootstrap_interval(
    values: np.ndarray, level: float = 0.95, draws: int = 2000, seed: int = 0
) -> tuple[float, float]:
    """Percentile bootstrap interval of a mean over independent episodes (Efron 1979).

    For many episodes of one policy; over seeds use `stratified_interval`.

    Args:
        values: [N], one number an episode.
        level: coverage.
        draws: resamples.
        seed: of the resampling, so that a figure can be made again.

    Returns:
        Lower and upper bound; both the value itself for N = 1.
    """
    generator = np.random.default_rng(seed)
    picked = generator.integers(0, len(values), (draws, len(values)))
    return _tails(np.asarray(values, np.float64)[picked].mean(axis=1), level)


def _tails(draws: np.ndarray, level: float) -> tuple[float, float]:
    tail = (1 - level) / 2
    low, high = np.quantile(draws, [tail, 1 - tail])
    return float(low), float(high)


def over_seeds(scores: np.ndarray) -> dict[str, Any]:
    """What S seeds came to, as plain data for a report.

    Args:
        scores: [S], one number a seed.

    Returns:
        num_seeds, interquartile_mean, and interval_95 (None for fewer than five seeds).
    """
    interval = stratified_interval(scores)
    return {
        "num_seeds": len(scores),
        "interquartile_mean": interquartile_mean(scores),
        "interval_95": None if interval is None else list(interval),
    }


def describe_seeds(scores: np.ndarray, form: str = ",.2f") -> str:
    """The same in words; how many seeds there were is always said.

    Args:
        scores: [S], one number a seed.
        form: format of a number.

    Returns:
        "12.30 (one seed)", "12.30 (mean of 3 seeds, 11.90 to 12.70)", or
        "12.30 (interquartile mean of 5 seeds, 95 % interval 11.90 to 12.70)".
    """
    count, middle = len(scores), f"{interquartile_mean(scores):{form}}"
    interval = stratified_interval(scores)
    if interval is not None:
        low, high = interval
        bounds = f"95 % interval {low:{form}} to {high:{form}}"
        return f"{middle} (interquartile mean of {count} seeds, {bounds})"
    if count == 1:
        return f"{middle} (one seed)"
    low, high = float(np.min(scores)), float(np.max(scores))
    return f"{np.mean(scores):{form}} (mean of {count} seeds, {low:{form}} to {high:{form}})"
