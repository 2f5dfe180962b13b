"""Experiments on guidance itself: with against without, and what is left when it is taken away."""

import pathlib
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxagent.training.config import RunConfig
from jaxagent.training.evaluate import evaluate, fetch, write_report
from jaxagent.training.loop import switch_guidance
from jaxagent.training.metrics import read_metrics
from jaxagent.training.plots import plot_comparison
from jaxagent.training.progress import Reporter
from jaxagent.training.statistics import (
    FEWEST_SEEDS,
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
    guided: TrainState,
    unguided: TrainState,
    run: RunConfig,
    iterations: int,
    learning_rate: float,
    folder: pathlib.Path,
    reporter: Reporter,
) -> dict[str, Any]:
    """Train a guided policy on without guidance, and with it, and an unguided one beside them.

    All three train on at one constant learning rate, so that a policy that learnt the guidance
    instead of the task has room to change. At the end of an annealed rate nothing would move.

    Args:
        trainer: what made the programs; its agent's rate is constant, its lambda not 0.
        programs: compiled.
        guided: trained with guidance; kept.
        unguided: trained as long without; kept.
        run: size of the run; its seed draws the evaluation's start states.
        iterations: M.
        learning_rate: of the trainer's agent, for the report.
        folder: where removal_test.json goes.
        reporter: says the result.

    Returns:
        Mean returns without guidance: before, and after M iterations at lambda 0 (removed), with
        guidance (kept), and of the unguided policy after M iterations at lambda 0; the two
        differences that matter over seeds, and the verdict.
    """
    returns = {"before": _returns(trainer, programs, guided, run)}
    strength = 0.0
    for name, state, switch in (
        ("removed", guided, 0.0),
        ("kept", guided, 1.0),
        ("unguided", unguided, 0.0),
    ):
        # A copy: an iteration takes over the buffers of the state it is given.
        state = switch_guidance(jax.tree.map(jnp.copy, state), switch)
        for _ in range(iterations):
            state, metrics = programs.iterate(state)
            strength = max(strength, float(np.max(fetch(metrics)["guidance_lambda"])))
        returns[name] = _returns(trainer, programs, state, run)
    verdict, reason = judge_removal(returns["removed"], returns["kept"], returns["unguided"])
    result = {
        "iterations": iterations,
        "learning_rate": learning_rate,
        "guidance_lambda": strength,
        **{f"return_{name}": float(value.mean()) for name, value in returns.items()},
        "removed_minus_kept": over_seeds((returns["removed"] - returns["kept"]).mean(1)),
        "kept_minus_unguided": over_seeds((returns["kept"] - returns["unguided"]).mean(1)),
        "verdict": verdict,
        "reason": reason,
    }
    write_report(folder / "removal_test.json", result)
    reporter.say(_removal_in_words(result))
    return result


def _returns(trainer: Trainer, programs: Programs, state: TrainState, run: RunConfig) -> np.ndarray:
    """[S, E] without guidance, from the same start states each time, so that episodes pair up."""
    evaluation, _ = evaluate(trainer, programs.evaluate, state, run.seed)
    return np.asarray(evaluation.episode_return, np.float64)


def _removal_in_words(result: dict[str, Any]) -> str:
    count = result["removed_minus_kept"]["num_seeds"]
    return (
        f"removal test, {result['iterations']} iterations at learning rate "
        f"{result['learning_rate']:g}: return {result['return_before']:,.2f} -> "
        f"{result['return_removed']:,.2f} at lambda 0, {result['return_kept']:,.2f} at lambda "
        f"{result['guidance_lambda']:g}; unguided policy {result['return_unguided']:,.2f} "
        f"({'one seed' if count == 1 else f'{count} seeds'})\n"
        f"removal test: {result['verdict']}: {result['reason']}"
    )


def judge_removal(removed: np.ndarray, kept: np.ndarray, unguided: np.ndarray) -> tuple[str, str]:
    """What a guided policy learnt, by three returns of the task, each [S seeds, E episodes].

    A difference counts where it exceeds 5 % of the largest of the three mean returns and its 95 %
    interval leaves out 0: over five seeds or more, otherwise over the episodes of every seed.

    Args:
        removed: of the guided policy after training on at lambda 0.
        kept: of the guided policy after training on with guidance.
        unguided: of a policy that never had guidance, after as many iterations.

    Returns:
        "hacked" (it learnt the guidance: worse at the task than without, or better once guidance
        is gone), "dependent" (the return falls without guidance), "learnt", or "undecided" where
        a return is not finite; and why.
    """
    scale = float(np.max(np.abs([x.mean() for x in (removed, kept, unguided)])))
    if not np.isfinite(scale):
        return "undecided", "a return is not finite"
    against, change = _sign(kept - unguided, scale), _sign(removed - kept, scale)
    if against < 0:
        return "hacked", "the policy learnt the guidance: without any, the task's return is higher"
    if change > 0:
        return "hacked", "the policy learnt the guidance: taken away, the task's return rises"
    if change < 0:
        return "dependent", "the task's return falls when guidance is taken away"
    return "learnt", "the task's return does not depend on guidance going on"


def _sign(difference: np.ndarray, scale: float) -> int:
    """1 or -1 where a paired difference [S, E] counts, 0 where it does not."""
    seeds = difference.mean(axis=1)
    if not abs(seeds.mean()) > 0.05 * scale:
        return 0
    intervals = [stratified_interval(seeds) or (0.0, 0.0)]
    if len(seeds) < FEWEST_SEEDS:
        intervals = [bootstrap_interval(episodes) for episodes in difference]
    return int(all(low > 0 for low, _ in intervals)) - int(all(high < 0 for _, high in intervals))


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
        if not curve[first] >= threshold:  # also where it is NaN throughout
            reached.append(None)
        elif first == 0 or np.isnan(curve[first - 1]):
            reached.append(float(steps[first]))
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
