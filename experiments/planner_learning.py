"""Learn household games without demonstrations, arm by arm, several seeds each.

    python -m experiments.planner_learning --arms hindsight own_successes --seeds 3

Every arm is a run of `experiments.alfworld_planner --stage rl` on the train games of all but 15 %
of the floor plans; other options are those of that program and are given to every arm. Judged are
the planners of the last update, greedily, within 50 steps, each game once: on valid_seen, on the
floor plans held out, and on the generated games. The same command goes on with a run that was
interrupted.
"""

import argparse
import json
import pathlib
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from experiments import alfworld_planner, planner_config
from jaxagent.training.config import refuse
from jaxagent.training.evaluate import write_report
from jaxagent.training.run_folder import CONFIG_FILE
from jaxagent.training.statistics import describe_seeds, over_seeds

PROGRAM = "python -m experiments.planner_learning"
COMMON = "--stage rl --hold-out-floor-plans --num-updates 2000"
# What each arm is given besides.
ARMS: Mapping[str, str] = {
    "hindsight": "",
    "without_play": "--play-interval 0",
    "without_visits": "--no-inserted-visits",
    "without_other_things": "--other-things 0",
    "own_successes": "--algorithm own_successes",
}


def read_command_line(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Our own options, and `others`, those of `experiments.alfworld_planner`.

    A mistake in either is one line and status 2, before anything is trained.
    """
    parser = argparse.ArgumentParser(
        prog=PROGRAM,
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS), metavar="ARM",
                        help=f"of {', '.join(ARMS)}; all of them by default")  # fmt: skip
    parser.add_argument("--seeds", type=int, default=3, help="runs of each arm, seeds 0, 1, ...")
    parser.add_argument("--runs-dir", default="runs", help="where planner-learning is written")
    known, known.others = parser.parse_known_args(arguments)
    if known.seeds < 1:
        refuse(f"seeds ({known.seeds}) must be at least 1")
    for option in ("--seed", "--name", "--resume", "--stage"):
        if any(other.partition("=")[0] == option for other in known.others):
            refuse(f"{option} is given to each run by this program")
    for arm in known.arms:
        planner_config.read_command_line(options_of(known, arm, 0))
    return known


def options_of(known: argparse.Namespace, arm: str, seed: int) -> list[str]:
    """What one run gives to `experiments.alfworld_planner`; what the user asks for wins."""
    return [*COMMON.split(), *ARMS[arm].split(), "--seed", str(seed), *known.others]


def run(folder: pathlib.Path, name: str, options: Sequence[str]) -> dict[str, Any]:
    """Train and judge one planner, go on with it, or read what it came to.

    Args:
        folder: in which its run folder lies.
        name: of the run.
        options: of `experiments.alfworld_planner`.

    Returns:
        The content of its evaluation.json.
    """
    judged = folder / name / "evaluation.json"
    if not judged.exists():
        begun = ["--resume"] if (folder / name / CONFIG_FILE).exists() else []
        placed = ["--runs-dir", str(folder), "--name", name]
        if status := alfworld_planner.main([*options, *placed, *begun]):
            sys.exit(status)  # interrupted: the same command goes on
    return json.loads(judged.read_text(encoding="utf-8"))


def summarize(judged: Mapping[str, Sequence[dict[str, Any]]]) -> dict[str, Any]:
    """Success of every arm on every panel, over seeds and by type of task.

    Args:
        judged: of each arm, the evaluation of every seed.

    Returns:
        By panel and way of decoding, then by arm: won and games of every seed, their statistics
        over seeds, and the mean of each task type.
    """
    panels = [name for name in next(iter(judged.values()))[0] if name != "panels"]
    result: dict[str, Any] = {}
    for panel in panels:
        result[panel] = {}
        for arm, seeds in judged.items():
            totals = [seed[panel]["all"] for seed in seeds]
            success = np.array([total["success"] for total in totals])
            kinds = [kind for kind in seeds[0][panel] if kind != "all"]
            result[panel][arm] = {
                "games": totals[0]["games"],
                "won": [total["won"] for total in totals],
                "wilson_95": [[t["success_low"], t["success_high"]] for t in totals],
                "over_seeds": over_seeds(success),
                "by_type": {
                    kind: float(np.mean([seed[panel][kind]["success"] for seed in seeds]))
                    for kind in kinds
                },
            }
    return result


def table(result: Mapping[str, Any]) -> Table:
    """Success of every arm on every panel."""
    arms = list(next(iter(result.values())))
    shown = Table("panel", *arms, title="games won within 50 steps, share")
    for panel, by_arm in result.items():
        scores = [np.array(by_arm[arm]["won"]) / by_arm[arm]["games"] for arm in arms]
        shown.add_row(panel, *(describe_seeds(s, ".3f") for s in scores))
    return shown


def main(arguments: Sequence[str] | None = None) -> int:
    """Train, judge and compare; the exit status."""
    known = read_command_line(arguments)
    folder = pathlib.Path(known.runs_dir) / "planner-learning"
    folder.mkdir(parents=True, exist_ok=True)
    plan = {"arms": {arm: options_of(known, arm, 0) for arm in known.arms}, "seeds": known.seeds}
    write_report(folder / "plan.json", plan)
    judged = {
        arm: [
            run(folder, f"{arm}-{seed}", options_of(known, arm, seed))
            for seed in range(known.seeds)
        ]
        for arm in known.arms
    }
    result, panels = summarize(judged), judged[known.arms[0]][0]["panels"]
    write_report(folder / "compare.json", {**plan, "panels": panels, "result": result})
    Console(highlight=False, width=200).print(table(result))
    print(f"compare.json in {folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
