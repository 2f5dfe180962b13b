"""Experiments on guidance itself: with against without, and what is left when it is taken away."""

import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxagent.training.config import RunConfig
from jaxagent.training.evaluate import evaluate, write_report
from jaxagent.training.loop import switch_guidance
from jaxagent.training.metrics import read_metrics
from jaxagent.training.plots import plot_comparison
from jaxagent.training.progress import Reporter
from jaxagent.training.statistics import (
    bootstrap_interval,
    describe_seeds,
    over_seeds,
    stratified_interval,
)
from jaxagent.training.trainer import Programs, Trainer, TrainState

ARMS = ("guided", "unguided")


def removal_test(
    trainer: Trainer,
    programs: Programs,
    state: TrainState,
    run: RunConfig,
    iterations: int,
    folder: pathlib.Path,
    reporter: Reporter,
) -> dict[str, Any]:
    """Train on at λ = 0 and report by how much the return falls.

    A policy that learnt the task keeps its return; one that learnt the guidance loses it.

    Args:
        trainer: what made the programs.
        programs: compiled.
        state: the trained state; consumed.
        run: size of the run; its seed draws the evaluation's start states.
        iterations: M.
        folder: where removal_test.json goes.
        reporter: says the result.

    Returns:
        Mean return before and after, the drop, and its interval over seeds (over episodes, taken
        as independent, when there is one seed).
    """
    before, _ = evaluate(trainer, programs.evaluate, state, run.seed)
    state = switch_guidance(state, 0.0)
    for _ in range(iterations):
        state, _ = programs.iterate(state)
    after, _ = evaluate(trainer, programs.evaluate, state, run.seed)
    # The same start states before and after, so that episodes pair up.
    drop = np.asarray(before.episode_return, float) - np.asarray(after.episode_return, float)
    seeds = drop.mean(axis=1)
    interval = stratified_interval(seeds) if len(seeds) > 1 else bootstrap_interval(drop[0])
    result = {
        "iterations": iterations,
        "return_before": float(np.mean(before.episode_return)),
        "return_after": float(np.mean(after.episode_return)),
        "drop": float(drop.mean()),
        "drop_interval_95": None if interval is None else list(interval),
    }
    write_report(folder / "removal_test.json", result)
    reporter.say(
        f"removal test: return {result['return_before']:,.1f} -> {result['return_after']:,.1f} "
        f"after {iterations} iterations at lambda 0 ; drop "
        f"{describe_seeds(seeds, ',.1f')}"
    )
    return result


def steps_to_reach(
    records: Sequence[dict[str, Any]], key: str, threshold: float
) -> list[float | None]:
    """Environment steps at which each seed's evaluation first reaches a threshold.

    Args:
        records: of metrics.jsonl.
        key: "episode_return" or "success_rate".
        threshold: to reach.

    Returns:
        One number a seed, linearly interpolated between evaluations; None where it never did.
    """
    evaluations = [r for r in records if r["kind"] == "evaluation"]
    steps = [r["steps"] for r in evaluations]
    curves = np.array([r[key] for r in evaluations], float).T
    reached: list[float | None] = []
    for curve in curves:
        first = int(np.argmax(curve >= threshold))
        if curve[first] < threshold:
            reached.append(None)
        elif first == 0:
            reached.append(float(steps[0]))
        else:
            share = (threshold - curve[first - 1]) / (curve[first] - curve[first - 1])
            reached.append(float(steps[first - 1] + share * (steps[first] - steps[first - 1])))
    return reached


def compare_arms(
    folder: pathlib.Path, title: str, success: bool, threshold: float, reporter: Reporter
) -> dict[str, Any]:
    """Draw and tell the guided and the unguided arm of a run against each other.

    Args:
        folder: holds a folder for each arm; gets compare.png and compare.json.
        title: of the picture.
        success: compare success rates instead of returns.
        threshold: of the return (success rate) whose first reaching is compared.
        reporter: says the result.
    """
    key = "success_rate" if success else "episode_return"
    records = {arm: read_metrics(folder / arm / "metrics.jsonl") for arm in ARMS}
    plot_comparison(folder / "compare.png", records, title, success)
    result: dict[str, Any] = {"measure": key, "threshold": threshold}
    for arm in ARMS:
        final = [r for r in records[arm] if r["kind"] == "evaluation"][-1]
        reached = steps_to_reach(records[arm], key, threshold)
        scores = np.array(final[key], float)
        known = [steps for steps in reached if steps is not None]
        result[arm] = {
            "final": final[key],
            "final_over_seeds": over_seeds(scores),
            "steps_to_threshold": reached,
            # A mean over the seeds that got there would leave out those that did not.
            "steps_to_threshold_over_seeds": (
                over_seeds(np.array(known)) if len(known) == len(reached) else None
            ),
        }
        steps = ", ".join("never" if s is None else f"{s:,.0f}" for s in reached)
        reporter.say(
            f"{arm:>9}: final {key} {describe_seeds(scores)}; steps to {threshold:g}: {steps}"
        )
    write_report(folder / "compare.json", result)
    return result
