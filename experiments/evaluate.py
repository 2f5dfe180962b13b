"""Evaluate and draw a run of `ant_guidance` or `ant_manager`: `python -m experiments.evaluate RUN`.

Plays fresh episodes with the deterministic policy, always without guidance, prints a table, and
writes evaluation.json, rollout.gif, rollout.html and paths.png into RUN/evaluation. Each result is
kept beside it under a name of its own: iteration, seed and episodes.
"""

import dataclasses
import pathlib
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np
import tyro
from rich.console import Console
from rich.table import Table

from envs.ant import ant
from experiments import ant_guidance, ant_manager, manager_pictures
from experiments.ant_plan import plan_of_run
from experiments.run_kinds import check_kind
from jaxagent.training.config import parse_command_line, refuse
from jaxagent.training.devices import prepare_cpu_devices, use_compilation_cache
from jaxagent.training.evaluate import evaluate, summarise, write_result
from jaxagent.training.statistics import bootstrap_interval
from jaxagent.training.trainer import Evaluation


@dataclasses.dataclass(frozen=True)
class EvaluateConfig:
    """Options of the evaluation of a run."""

    folder: Annotated[str, tyro.conf.Positional] = ""
    """Run folder, or one arm of a comparison."""
    episodes: int | None = None
    """Episodes for each seed of the run; None is as many as in training."""
    seed: int = 1_000_000
    """Of the start states; not one that training evaluated on."""
    checkpoint: int | None = None
    """Iteration of the checkpoint; None is the last."""

    def __post_init__(self):
        if self.episodes is not None and self.episodes < 1:
            raise ValueError(f"episodes ({self.episodes}) must be at least 1")
        if not 0 <= self.seed < 2**31:
            raise ValueError(f"seed ({self.seed}) must lie in [0, 2^31)")


def table(evaluation: Evaluation, first_seed: int) -> Table:
    """One row a seed, one for all."""
    shown = Table("seed", "episodes", "return", "spread", "length", "success")
    returns = np.asarray(evaluation.episode_return)
    for row, episodes in enumerate(returns):
        low, high = bootstrap_interval(episodes)
        shown.add_row(
            str(first_seed + row),
            str(len(episodes)),
            f"{episodes.mean():,.1f}",
            f"95 % [{low:,.1f}, {high:,.1f}] over episodes",
            f"{evaluation.episode_length[row].mean():,.1f}",
            f"{evaluation.success[row].mean():.1%}",
        )
    if len(returns) > 1:
        report = summarise(evaluation)
        shown.add_row(
            "all",
            str(returns.size),
            f"{report.interquartile_mean:,.1f}",
            report.interval,
            f"{report.episode_length:,.1f}",
            f"{np.mean(report.success_rate):.1%}",
        )
    return shown


def main(arguments: Sequence[str] | None = None) -> int:
    """Evaluate; the exit status."""
    arguments = sys.argv[1:] if arguments is None else arguments
    options = parse_command_line(
        EvaluateConfig, arguments, EvaluateConfig(), "python -m experiments.evaluate", __doc__ or ""
    )
    prepare_cpu_devices()
    use_compilation_cache()
    folder = pathlib.Path(options.folder)
    try:
        if not options.folder:
            raise ValueError("folder must be given: python -m experiments.evaluate RUN")
        kind = check_kind(folder, "ant_guidance", "ant_manager")
        load: Any = ant_manager.load_run if kind == "ant_manager" else ant_guidance.load_run
        config, trainer, state = load(
            folder, iteration=options.checkpoint, episodes=options.episodes
        )
    except ValueError as error:
        refuse(str(error))
    evaluation, report = evaluate(trainer, trainer.compile_evaluation(state), state, options.seed)
    out = folder / "evaluation"
    out.mkdir(exist_ok=True)
    iteration = int(np.asarray(state.iteration)[0])
    episodes = {
        "returns": evaluation.episode_return.tolist(),
        "lengths": evaluation.episode_length.tolist(),
        "successes": evaluation.success.tolist(),
    }
    count = config.run.evaluation_episodes
    settings = {"iteration": iteration, "seed": options.seed, "episodes": count}
    write_result(out, settings, settings | report.metrics() | episodes)
    env: Any = trainer.evaluation_env
    if kind == "ant_manager":
        title = f"{folder.name}: iteration {iteration}"
        manager_pictures.picture(out, env.simulator, evaluation, title)
    else:
        title = f"{folder.name}: {config.task}, iteration {iteration}"
        plan = plan_of_run(config, folder)
        ant_guidance.picture(out, ant(config.task, config.backend), evaluation, plan, title)
    console = Console(highlight=False)
    console.print(table(evaluation, config.run.seed))
    console.print(f"without guidance, deterministic policy; pictures in {out}", markup=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
