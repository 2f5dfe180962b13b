"""Evaluate and draw a skill: `python -m experiments.evaluate_skill ant_goal`.

Takes the name of a skill that is shipped, a skill file, or a run folder of
`experiments.train_skills`. Plays fresh goals with the deterministic policy, prints a table, and
writes evaluation.json and pictures; `--export FILE.npz` writes a run's policy as a skill file, and
FILE.json beside it: its hash, the command that trains it, and the figures of this evaluation.
"""

import dataclasses
import hashlib
import pathlib
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
import tyro
from rich.console import Console
from rich.table import Table

from envs.goals import GoalSimulator, goal_simulator, goal_task
from envs.randomise import Randomisation
from envs.text.scores import wilson_interval
from envs.vector import VectorEnv
from experiments.run_kinds import check_kind
from experiments.skills_config import SkillsConfig, command_of
from experiments.train_skills import load_run, picture, randomised_body, simulators
from jaxagent.models.skills import Skill, SkillParams, load_skill, save_skill
from jaxagent.training.config import PLACEMENT, parse_command_line, refuse
from jaxagent.training.devices import (
    choose_layout,
    local_chunk,
    prepare_cpu_devices,
    use_compilation_cache,
)
from jaxagent.training.evaluate import evaluate, write_report, write_result
from jaxagent.training.run_folder import record_of
from jaxagent.training.trainer import Evaluation, Trainer, TrainState


@dataclasses.dataclass(frozen=True)
class EvaluateSkillConfig:
    """Options of the evaluation of a skill."""

    skill: Annotated[str, tyro.conf.Positional] = ""
    """Name of a shipped skill, an .npz file, or a run folder."""
    episodes: int = 1000
    """Episodes, each from a fresh start to a fresh goal."""
    seed: int = 1_000_000
    """Of starts and goals; not one that training evaluated on."""
    reach: tuple[float, float] | None = None
    """From where to where goals are drawn; None is as in training."""
    threshold: float | None = None
    """Success is a distance below this; None is as in training."""
    episode_length: int | None = None
    """Time limit in steps; None is as in training."""
    checkpoint: int | None = None
    """Iteration of a run's checkpoint; None is the last."""
    out: str | None = None
    """Folder for evaluation.json and pictures; None is RUN/evaluation for a run, else none."""
    export: str | None = None
    """Write the policy of a run as this .npz file, with the figures of this evaluation."""

    def __post_init__(self):
        if self.episodes < 1:
            raise ValueError(f"episodes ({self.episodes}) must be at least 1")
        if not 0 <= self.seed < 2**31:
            raise ValueError(f"seed ({self.seed}) must lie in [0, 2^31)")
        if self.export is not None and not self.export.endswith(".npz"):
            raise ValueError(f"export ({self.export}) must end in .npz")


def skill_of_run(folder: pathlib.Path, checkpoint: int | None) -> Skill:
    """The policy of a run's first seed.

    Raises:
        ValueError: not a run folder of train_skills, or its checkpoint cannot be used.
    """
    check_kind(folder, "train_skills")
    config, trainer, state = load_run(folder, iteration=checkpoint)
    agent = jax.tree.map(lambda x: np.asarray(x[0]), jax.device_get(state.agent))
    normalises = trainer.agent.config.normalise_observations
    params = SkillParams(
        policy_params=agent.policy_params, normaliser=agent.normaliser if normalises else None
    )
    done = int(state.iteration[0])
    meta = describe(config) | {"iteration": done, "steps": done * steps_per_iteration(config)}
    return Skill(folder.name, trainer.agent.policy, params, meta)


def describe(config: SkillsConfig) -> dict[str, Any]:
    """What a skill file says about where it comes from."""
    evaluated, task = simulators(config)[1], goal_task(config.task)
    plain = record_of(config)
    for where in PLACEMENT:  # where it ran is nobody's business
        plain["run"].pop(where, None)
    return {
        "task": config.task,
        "backend": config.backend or task.backend,
        "reach": list(evaluated.spec.reach),
        "threshold": evaluated.spec.threshold,
        "on_success": evaluated.spec.on_success,
        "reward": evaluated.spec.reward,
        "fall_cost": evaluated.spec.fall_cost,
        "fall_steps": evaluated.spec.fall_steps,
        "episode_length": config.run.episode_length,
        "command": command_of(config),
        "seed": config.run.seed,
        "configuration": plain,
    }


def evaluation_settings(skill: Skill, options: EvaluateSkillConfig) -> dict[str, Any]:
    """What makes this evaluation another than one of the same skill; None is as in training."""
    return {
        "iteration": skill.meta.get("iteration"),
        "seed": options.seed,
        "episodes": options.episodes,
        "reach": options.reach and list(options.reach),
        "threshold": options.threshold,
        "episode_length": options.episode_length,
    }


def steps_per_iteration(config: SkillsConfig) -> int:
    """Environment steps of one iteration."""
    return config.run.num_envs * config.run.unroll_length


def evaluator(skill: Skill, options: EvaluateSkillConfig) -> tuple[Trainer, GoalSimulator]:
    """What plays a skill's evaluation episodes: the task as the run was rewarded and evaluated.

    Raises:
        ValueError: the options ask for a goal space that cannot be.
    """
    meta = skill.meta
    for name in ("reach", "threshold", "on_success", "episode_length"):
        if name not in meta:
            raise ValueError(f"skill ({skill.name}): its description lacks {name}")
    ranges = meta.get("configuration", {}).get("randomisation", {})
    randomisation = Randomisation(**{k: v and tuple(v) for k, v in ranges.items()})
    body = None
    if randomisation.ranges:
        body = randomised_body(meta["task"], meta["backend"], randomisation, 1.0)
    simulator = goal_simulator(
        meta["task"],
        meta["backend"],
        body,
        **{name: meta[name] for name in ("reward", "fall_cost", "fall_steps") if name in meta},
        reach=tuple(options.reach or meta["reach"]),
        threshold=meta["threshold"] if options.threshold is None else options.threshold,
        on_success=meta["on_success"],
    )
    length = options.episode_length or meta["episode_length"]
    layout = choose_layout(options.episodes, options.episodes)
    chunk = local_chunk(options.episodes // layout.size) if layout.chunk_size else None
    env = VectorEnv(simulator, length, chunk)
    trainer = Trainer(
        env=env,
        evaluation_env=env,
        pose=simulator.pose,
        agent=skill,
        guidance=None,
        layout=layout,
        num_envs=options.episodes,
        unroll_length=1,
        num_iterations=1,
        evaluation_episodes=options.episodes,
        evaluation_length=length,
    )
    return trainer, simulator


def play(
    skill: Skill, trainer: Trainer, seed: int
) -> tuple[Evaluation, dict[str, float | list[float]]]:
    """One evaluation, and its figures with 95 % Wilson intervals of the shares."""
    one_seed = jax.tree.map(lambda x: trainer.replicate(np.asarray(x)[None]), skill.params)
    state = TrainState(
        agent=one_seed,
        env=None,  # type: ignore[arg-type]
        guidance=None,
        key=None,  # type: ignore[arg-type]
        iteration=jnp.zeros(1, jnp.int32),
    )
    evaluation, report = evaluate(trainer, trainer.compile_evaluation(state), state, seed)
    figures: dict[str, float | list[float]] = {
        name: value[0] if isinstance(value, list) else value
        for name, value in report.metrics().items()
    }
    for name in ("success_rate", "touched_rate", "fall_rate"):
        count = evaluation.success.shape[1]
        succeeded = round(float(figures[name]) * count)  # type: ignore[arg-type]
        figures[f"{name}_interval_95"] = list(wilson_interval(succeeded, count))
    return evaluation, figures


def table(figures: dict[str, Any], reward: str) -> Table:
    """The figures for a person.

    Args:
        figures: of `play`.
        reward: that the return is of.
    """
    meaning = f"success: at the end of the episode; touched: at any step; return: {reward} reward"
    shown = Table("measure", "value", "95 % interval", caption=meaning, caption_justify="left")
    for name in ("success_rate", "touched_rate", "fall_rate"):
        low, high = figures[f"{name}_interval_95"]
        shown.add_row(name, f"{figures[name]:.1%}", f"{low:.1%} to {high:.1%}")
    for name in ("episode_return", "steps_to_success", "final_distance", "episode_length"):
        shown.add_row(name, f"{figures[name]:.4g}", "")
    return shown


def certificate(
    options: EvaluateSkillConfig, meta: dict[str, Any], result: dict[str, Any]
) -> dict[str, Any]:
    """What stands beside a skill file, for a person and for the test that compares the two."""
    content = pathlib.Path(options.export or "").read_bytes()
    return {
        "sha256": hashlib.sha256(content).hexdigest(),
        "command": meta["command"],
        "iteration": meta["iteration"],
        "steps": meta["steps"],
        "result": {name: value for name, value in result.items() if name != "skill"},
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Evaluate; the exit status."""
    arguments = sys.argv[1:] if arguments is None else arguments
    options = parse_command_line(
        EvaluateSkillConfig,
        arguments,
        EvaluateSkillConfig(),
        "python -m experiments.evaluate_skill",
        __doc__ or "",
    )
    prepare_cpu_devices()
    use_compilation_cache()
    folder = pathlib.Path(options.skill)
    try:
        if not options.skill:
            raise ValueError("skill must be given: python -m experiments.evaluate_skill ant_goal")
        is_run = folder.is_dir()
        skill = skill_of_run(folder, options.checkpoint) if is_run else load_skill(options.skill)
        if options.export is not None and not is_run:
            raise ValueError(f"export ({options.export}) needs a run folder, not {options.skill}")
        trainer, simulator = evaluator(skill, options)
    except ValueError as error:
        refuse(str(error))
    evaluation, figures = play(skill, trainer, options.seed)
    reward, settings = simulator.spec.reward, evaluation_settings(skill, options)
    result = {"skill": skill.name} | settings | {"reward": reward} | figures
    Console(highlight=False).print(table(figures, reward))
    out = options.out or (str(folder / "evaluation") if is_run else None)
    if out is not None:
        place = pathlib.Path(out)
        place.mkdir(parents=True, exist_ok=True)
        write_result(place, settings, result)
        picture(place, simulator, evaluation, f"{skill.name}: {skill.meta['task']}")
        print(f"evaluation.json and pictures in {place}")
    if options.export is not None:
        save_skill(
            pathlib.Path(options.export),
            skill.policy,
            skill.params,
            skill.meta | {"result": result},
        )
        write_report(
            pathlib.Path(options.export).with_suffix(".json"),
            certificate(options, skill.meta, result),
        )
        print(f"skill written to {options.export}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
