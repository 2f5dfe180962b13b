"""Train a goal-conditioned skill: `python -m experiments.train_skills --task ant_goal`.

`--algorithm ppo`, or `sac_her` (soft actor-critic with hindsight experience replay). Goals and
start states are drawn afresh at every reset; every evaluation is deterministic, on fresh goals.
"""

import dataclasses
import json
import pathlib
import sys
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from envs.brax_env import BraxSimulator
from envs.difficulty import set_difficulty
from envs.goals import GoalSimulator, goal_simulator, goal_task
from envs.randomise import Randomisation, RandomisedBrax
from envs.skeleton import skeleton
from envs.vector import VectorEnv
from experiments.skills_config import (
    PPOSkillsConfig,
    SACSkillsConfig,
    SkillsConfig,
    continued,
    read_command_line,
    read_config,
)
from jaxagent.agents.ppo import PPO
from jaxagent.agents.sac_her import SACHER
from jaxagent.models.critics import SkillValue
from jaxagent.models.skill_policy import SkillPolicy
from jaxagent.replay import Replay
from jaxagent.training.checkpoint import Checkpoints
from jaxagent.training.config import refuse, to_plain
from jaxagent.training.curriculum import Curriculum
from jaxagent.training.devices import (
    AXIS,
    Layout,
    choose_layout,
    join_processes,
    local_chunk,
    prepare_cpu_devices,
    use_compilation_cache,
)
from jaxagent.training.ending import exit_status
from jaxagent.training.inputs import keep_inputs
from jaxagent.training.interruption import leave_on_signals
from jaxagent.training.loop import Arm
from jaxagent.training.metrics import read_metrics
from jaxagent.training.off_policy import OffPolicyTrainer
from jaxagent.training.plots import plot_curves, plot_paths
from jaxagent.training.progress import Reporter
from jaxagent.training.recording import load_recording, warm_start
from jaxagent.training.render import write_gif, write_html
from jaxagent.training.run_folder import (
    CONFIG_FILE,
    has_checkpoint,
    open_run_folder,
    record_of,
    write_config,
)
from jaxagent.training.trainer import Evaluation, Trainer, TrainState
from jaxagent.types import GoalSpec

PATHS_DRAWN = 24


def simulators(config: SkillsConfig) -> tuple[GoalSimulator, GoalSimulator]:
    """The task as it is trained on, and as it is evaluated: one goal an episode, full difficulty.

    Raises:
        ValueError: the configuration asks for a goal space that cannot be.
    """
    task = goal_task(config.task)
    if not config.randomisation.ranges:
        training = goal_simulator(config.task, config.backend, spec=config.spec())
        return training, dataclasses.replace(training, spec=_evaluated(training.spec))
    backend = config.backend or task.backend
    # Before a curriculum has set anything, its first episodes are of the model as it is.
    begin = 1.0 if config.difficulty.curriculum == "off" else 0.0
    training, evaluated = (
        goal_simulator(
            config.task,
            backend,
            randomised_body(config.task, backend, config.randomisation, strength),
            spec=config.spec(),
        )
        for strength in (begin, 1.0)
    )
    return training, dataclasses.replace(evaluated, spec=_evaluated(evaluated.spec))


def randomised_body(
    task: str, backend: str, randomisation: Randomisation, strength: float
) -> RandomisedBrax:
    """The body of a task with physics drawn at every reset."""
    plain: Any = goal_task(task).make(backend)
    return RandomisedBrax(
        plain.environment, plain.backend, randomisation=randomisation, strength=strength
    )


def _evaluated(spec: GoalSpec) -> GoalSpec:
    return dataclasses.replace(spec, on_success="end") if spec.on_success == "redraw" else spec


def warm_starter(
    config: SkillsConfig, folder: pathlib.Path, trainer: Trainer, reporter: Reporter
) -> Callable[[TrainState], TrainState]:
    """What prepares a fresh state: nothing, or a clone of what was recorded.

    Args:
        config: of the run.
        folder: of the run; with a checkpoint in it there is no fresh state to prepare.
        trainer: what the state is of.
        reporter: is told what came of it.

    Raises:
        ValueError: the recording cannot be read, or is of another task.
    """
    if config.warm_start is None or (config.resume and has_checkpoint(folder)):
        return lambda state: state
    simulator = simulators(config)[0]
    recording = load_recording(
        config.warm_start,
        task=simulator.name,
        observation_size=simulator.observation_size,
        action_size=simulator.action_size,
    )

    def prepare(state: TrainState) -> TrainState:
        state, metrics = warm_start(trainer, state, recording, config.cloning)
        before, after = (metrics[f"cloning_loss_{when}"].mean() for when in ("before", "after"))
        reporter.say(
            f"warm start from {recording.steps:,} steps: held-out {config.cloning.cloning_loss} "
            f"{before:.4g} -> {after:.4g}"
        )
        return state

    return prepare


def make_curriculum(config: SkillsConfig) -> Curriculum | None:
    """What moves the difficulty, or nothing."""
    if config.difficulty.curriculum == "off":
        return None
    run = config.run
    return Curriculum(
        config.difficulty,
        config.spec(),
        set_difficulty,
        num_seeds=run.num_seeds,
        num_envs=run.num_envs,
    )


def make_sac(config: SACSkillsConfig, simulator: GoalSimulator) -> SACHER:
    """Soft actor-critic that learns in hindsight."""
    return SACHER(
        config.sac,
        simulator.spec,
        observation_size=simulator.observation_size,
        action_size=simulator.action_size,
        encoder_sizes=config.encoder_sizes,
        axis_name=AXIS,
    )


def make_ppo(config: PPOSkillsConfig, simulator: GoalSimulator) -> PPO:
    """PPO with goal-conditioned networks."""
    ppo, goal_features = config.ppo, simulator.spec.goal_features
    return PPO(
        ppo,
        observation_size=simulator.observation_size,
        action_size=simulator.action_size,
        num_updates=config.run.num_iterations,
        axis_name=AXIS,
        policy=SkillPolicy(
            action_size=simulator.action_size,
            goal_features=goal_features,
            encoder_sizes=config.encoder_sizes,
            hidden_sizes=ppo.policy_hidden_sizes,
            activation=ppo.activation,
            initial_scale=ppo.initial_scale,
        ),
        critic=SkillValue(
            goal_features, config.encoder_sizes, ppo.critic_hidden_sizes, ppo.activation
        ),
    )


def build(config: SkillsConfig, layout: Layout) -> Trainer:
    """Bind environments and agent.

    Args:
        config: what to build.
        layout: devices.

    Raises:
        ValueError: the sizes do not fit together.
    """
    run = config.run
    if run.evaluation_episodes % layout.size:
        raise ValueError(
            f"evaluation_episodes ({run.evaluation_episodes}) must be divisible by the number of "
            f"devices ({layout.size})"
        )
    training, evaluated = simulators(config)
    evaluation_chunk = (
        local_chunk(run.evaluation_episodes // layout.size) if layout.chunk_size else None
    )
    common: dict[str, Any] = {
        "env": VectorEnv(training, run.episode_length, layout.chunk_size),
        "evaluation_env": VectorEnv(evaluated, run.episode_length, evaluation_chunk),
        "pose": training.pose,
        "guidance": None,
        "layout": layout,
        "num_envs": run.num_envs,
        "unroll_length": run.unroll_length,
        "num_iterations": run.num_iterations,
        "evaluation_episodes": run.evaluation_episodes,
        "evaluation_length": run.episode_length,
    }
    if isinstance(config, PPOSkillsConfig):
        return Trainer(agent=make_ppo(config, training), **common)
    if not isinstance(config, SACSkillsConfig):
        raise ValueError(f"algorithm ({config.algorithm}) must be among those that are known")
    sizes = config.sac.sizes(run.num_envs, run.unroll_length)
    return OffPolicyTrainer(
        agent=make_sac(config, training),
        replay=Replay(sizes.rows, sizes.row_length),
        groups=config.sac.sample_groups,
        warmup_iterations=sizes.warmup_iterations,
        **common,
    )


def lay_out(config: SkillsConfig, num_devices: int | None = None) -> Layout:
    """Devices for a configuration; the groups in which experience is drawn are not cut.

    Raises:
        ValueError: the devices that are asked for do not divide the work.
    """
    if isinstance(config, SACSkillsConfig):
        groups = config.sac.sample_groups
    else:
        groups = config.ppo.shuffle_groups if isinstance(config, PPOSkillsConfig) else 1
    return choose_layout(config.run.num_envs, groups, num_devices)


def load_run(
    folder: pathlib.Path,
    num_devices: int | None = None,
    iteration: int | None = None,
    episodes: int | None = None,
) -> tuple[SkillsConfig, Trainer, TrainState]:
    """A run as it was saved: configuration, what it was made of, and its state.

    Args:
        folder: a run folder.
        num_devices: as in RunConfig; the devices need not be those that trained.
        iteration: of the checkpoint; None is the last.
        episodes: evaluate on this many instead of as many as in training.

    Raises:
        ValueError: not a run folder, or its checkpoint cannot be used (CheckpointError).
    """
    if not (folder / "checkpoints").is_dir():
        raise ValueError(f"{folder} is not a run folder: it has no checkpoints")
    config = read_config(folder / CONFIG_FILE)
    if episodes is not None:
        run = dataclasses.replace(config.run, evaluation_episodes=episodes)
        config = dataclasses.replace(config, run=run)
    trainer = build(config, lay_out(config, num_devices))
    like = trainer.abstract_state(config.run.num_seeds)
    checkpoints = Checkpoints(folder / "checkpoints", config.run.checkpoints_kept)
    try:
        state, _ = checkpoints.restore(like, trainer.shardings(like), iteration)
    finally:
        checkpoints.close()
    return config, trainer, state


def picture(
    folder: pathlib.Path, simulator: GoalSimulator, evaluation: Evaluation, title: str
) -> None:
    """Write rollout.gif, rollout.html and paths.png of an evaluation's first seed."""
    length = int(evaluation.episode_length[0, 0])
    if isinstance(simulator.simulator, BraxSimulator):
        drawn = skeleton(simulator.simulator, np.asarray(evaluation.pose)[0, 0, :length])
        write_gif(folder / "rollout.gif", drawn, title)
        write_html(folder / "rollout.html", drawn, title)
    goals = evaluation.goals
    if goals is None or goals.goal.shape[-1] != 2:
        return  # goals that are no points of the plane make no map
    radius = simulator.spec.threshold
    targets = [(x, y, radius) for x, y in np.asarray(goals.goal)[0, :PATHS_DRAWN]]
    plot_paths(folder / "paths.png", np.asarray(evaluation.path)[0, :PATHS_DRAWN], targets, title)


def describe(config: SkillsConfig, layout: Layout, trainer: Trainer) -> str:
    """What the configuration amounts to."""
    run, spec = config.run, config.spec()
    batch = run.num_envs * run.unroll_length
    like = trainer.abstract_state(1).agent
    count = sum(np.prod(x.shape) for x in jax.tree.leaves((like.policy_params, like.critic_params)))
    return (
        f"task {config.task} ({trainer.env.observation_size} observations, "
        f"{trainer.env.action_size} actions), {config.algorithm}\n"
        f"goals: reach {spec.reach[0]:g} to {spec.reach[1]:g}, threshold {spec.threshold:g}, "
        f"{spec.reward} reward, {spec.on_success} on success\n"
        f"devices: {layout.describe()}\n"
        f"{run.num_envs} environments x {run.unroll_length} steps = {batch:,} an iteration; "
        f"{run.num_iterations:,} iterations; {int(count):,} parameters; {run.num_seeds} seed(s)"
    )


def train(config: SkillsConfig, folder: pathlib.Path, layout: Layout, reporter: Reporter) -> None:
    """Train what the configuration asks for, in its folder, to the end."""
    trainer = build(config, layout)
    prepare = warm_starter(config, folder, trainer, reporter)
    reporter.say(describe(config, layout, trainer))
    reporter.say(f"run folder: {folder}")
    if not config.resume:
        warm_start_of = config.warm_start or ""
        sources = {"warm_start": pathlib.Path(warm_start_of)} if warm_start_of else {}
        keep_inputs(folder, sources, {"warm_start": warm_start_of})
        write_config(folder, to_plain(config))
    seeds = range(config.run.seed, config.run.seed + config.run.num_seeds)
    programs = trainer.compile(trainer.init(list(seeds)))
    reporter.say(f"compiled in {programs.compile_seconds:.0f} s")
    title = f"{config.task}, {config.algorithm}"
    latest: list[Evaluation] = []

    def draw(where: pathlib.Path, evaluation: Evaluation) -> None:
        records = read_metrics(where / "metrics.jsonl")
        plot_curves(where / "curves.png", records, f"{where.name}: {title}")
        latest[:] = [evaluation]

    arm = Arm(
        trainer,
        programs,
        config.run,
        folder,
        reporter,
        draw=draw,
        config=record_of(config),
        prepare=prepare,
        curriculum=make_curriculum(config),
    )
    arm.train(resume=config.resume)
    if latest:  # process 0
        picture(folder, simulators(config)[1], latest[0], title)


@leave_on_signals()
def main(arguments: Sequence[str] | None = None) -> int:
    """Train; the exit status."""
    arguments = sys.argv[1:] if arguments is None else arguments
    prepare_cpu_devices(spare_threads=True)
    config = read_command_line(arguments)
    try:
        join_processes(config.run.coordinator, config.run.num_processes, config.run.process_id)
        prefix = f"{config.task}-{config.algorithm}"
        folder = open_run_folder(config.run, prefix, config.resume)
        if config.resume:
            config = continued(folder, arguments)
        layout = lay_out(config, config.run.num_devices)
        if config.dry_run:
            trainer = build(config, layout)
            warm_starter(config, folder, trainer, Reporter())  # what cannot be read is refused
            print(json.dumps(to_plain(config), indent=2))
            print(describe(config, layout, trainer))
            return 0
        use_compilation_cache()
        return exit_status(folder, lambda: train(config, folder, layout, Reporter()))
    except ValueError as error:
        refuse(str(error))


if __name__ == "__main__":
    sys.exit(main())
