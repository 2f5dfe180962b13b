"""What a part of skill learning gains: `python -m experiments.compare_skills hindsight`.

Two arms that differ in one thing, over the same seeds:

    hindsight    SAC with goals chosen in hindsight, and with none (reacher_goal, sparse reward)
    warm_start   SAC from a clone of 100,000 recorded steps, and from nothing (reacher_goal)
    curriculum   PPO with a staircase from near, wide goals, and without (ant_goal)

What was recorded for the warm start is the policy that the arm without it ends with. Tells the
success at the end of the episode as interquartile mean over seeds with a stratified bootstrap
interval (Agarwal et al. 2021), after each evaluation and over all of them; writes compare.json and
compare.png. Called again, it goes on where it stopped. Options that it does not know are those of
`experiments.train_skills`, for both arms.
"""

import argparse
import pathlib
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from experiments import record, skills_config, train_skills
from jaxagent.training.config import refuse
from jaxagent.training.evaluate import write_report
from jaxagent.training.metrics import read_metrics
from jaxagent.training.plots import plot_comparison
from jaxagent.training.statistics import FEWEST_SEEDS, describe_seeds, over_seeds

PROGRAM = "python -m experiments.compare_skills"
REACHER = "--task reacher_goal --algorithm sac_her --total-steps 393216 --num-evaluations 12"
ANT = "--task ant_goal --algorithm ppo --total-steps 1000000 --num-evaluations 10"
EASY = "--curriculum staircase --easy-reach 1 2 --easy-threshold 1.0"
# What both arms are given, then what each is given besides. The first arm is trained first.
COMPARISONS: dict[str, tuple[str, dict[str, str]]] = {
    "hindsight": (REACHER, {"without": "--relabel-share 0", "with": ""}),
    "warm_start": (REACHER, {"without": "", "with": "--warm-start {recording}"}),
    "curriculum": (ANT, {"without": "", "with": EASY}),
}
RECORDED = 100_000  # steps for the warm start


def run_arm(folder: pathlib.Path, name: str, options: Sequence[str]) -> list[dict[str, Any]]:
    """Train an arm, or go on with it.

    Args:
        folder: in which its run folder lies.
        name: of the arm.
        options: of `experiments.train_skills`.

    Returns:
        Its evaluations.
    """
    begun = ["--resume"] if (folder / name / "config.yaml").exists() else []
    status = train_skills.main([*options, "--runs-dir", str(folder), "--name", name, *begun])
    if status:  # interrupted: the same command goes on
        sys.exit(status)
    records = read_metrics(folder / name / "metrics.jsonl")
    return [r for r in records if r["kind"] == "evaluation"]


def recording_of(run: pathlib.Path) -> str:
    """File of what a run's policy does, made when it is not there.

    Args:
        run: folder of a finished run.
    """
    file = run.parent / "recording.npz"
    if not file.exists():
        record.main([str(run), "--out", str(file), "--steps", str(RECORDED)])
    return str(file)


def summarise(arms: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Scores of both arms over seeds.

    Args:
        arms: evaluations of each, with `steps` and `success_rate` [S].

    Returns:
        For each arm: success of each seed at each evaluation, `final` and `whole` (the mean over
        all evaluations but the one before training) over seeds.
    """
    result: dict[str, Any] = {}
    for name, evaluations in arms.items():
        success = np.array([r["success_rate"] for r in evaluations], float)  # [E, S]
        result[name] = {
            "steps": [r["steps"] for r in evaluations],
            "success_rate": success.tolist(),
            "touched_rate": [r["touched_rate"] for r in evaluations],
            "final": over_seeds(success[-1]),
            "whole": over_seeds(success[1:].mean(axis=0)),
        }
    return result


def table(result: dict[str, Any], title: str) -> Table:
    """Success at the end of the episode after each evaluation, of both arms."""
    shown = Table("steps", *result, title=title)
    first = next(iter(result.values()))
    for row, steps in enumerate(first["steps"]):
        scores = [np.array(arm["success_rate"][row]) for arm in result.values()]
        shown.add_row(f"{steps:,}", *(describe_seeds(s, ".3f") for s in scores))
    means = [np.array(arm["success_rate"])[1:].mean(axis=0) for arm in result.values()]
    shown.add_row("mean of all", *(describe_seeds(s, ".3f") for s in means))
    return shown


def read_command_line(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Our own options, and `others`, those of `experiments.train_skills`.

    A mistake in either is one line and status 2, before anything is trained.
    """
    parser = argparse.ArgumentParser(
        prog=PROGRAM,
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("comparison", choices=COMPARISONS)
    parser.add_argument("--num-seeds", type=int, default=FEWEST_SEEDS)
    parser.add_argument("--runs-dir", default="runs")
    known, known.others = parser.parse_known_args(arguments)
    if known.num_seeds < 1:
        refuse(f"num_seeds ({known.num_seeds}) must be at least 1")
    for option in COMPARISONS[known.comparison][1].values():
        skills_config.read_command_line(options_of(known, option))
    return known


def options_of(known: argparse.Namespace, option: str) -> list[str]:
    """What an arm gives to `experiments.train_skills`; what the user asks for comes last and wins.

    Args:
        known: from `read_command_line`.
        option: that the arm is given besides.
    """
    both = COMPARISONS[known.comparison][0].split()
    return [*both, "--num-seeds", str(known.num_seeds), *option.split(), *known.others]


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare; the exit status."""
    known = read_command_line(arguments)
    folder = pathlib.Path(known.runs_dir) / f"compare-{known.comparison}"
    found: dict[str, list[dict[str, Any]]] = {}
    for name, option in COMPARISONS[known.comparison][1].items():
        if "{recording}" in option:
            option = option.format(recording=recording_of(folder / "without"))
        found[name] = run_arm(folder, name, options_of(known, option))
    result = summarise(found)
    write_report(folder / "compare.json", {"comparison": known.comparison} | result)
    title = f"{known.comparison}: success at the end of the episode"
    plot_comparison(folder / "compare.png", found, title, success=True)
    Console(highlight=False, width=200).print(table(result, title))
    print(f"compare.json and compare.png in {folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
