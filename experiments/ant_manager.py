"""Learn to manage a frozen skill: `python -m experiments.ant_manager --skill ant_goal`.

A course with a wall between the Ant and a far place, and a reward only on arrival. The manager
names a sub-goal every `interval` steps and the skill pursues it; `--flat` learns the same course
with the same number of environment steps without a skill, for comparison.

`--algorithm sac` learns off-policy, from a replay of decisions. Its `--start-from RUN` goes on
with another run's manager and replay over another skill; what was asked of the old skill is then
not what the new one would have to be asked for, which `--correct-sub-goals` (HIRO) puts right.
"""

import dataclasses
import json
import pathlib
import sys
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from envs.brax_env import BraxSimulator
from envs.course import Course
from envs.goals import goal_simulator
from envs.vector import VectorEnv
from experiments.evaluate_skill import skill_of_run
from experiments.manager_config import (
    ManagerConfig,
    PPOManagerConfig,
    SACManagerConfig,
    continued,
    read_command_line,
    read_config,
    with_inputs,
)
from experiments.manager_pictures import draw_paths, picture
from jaxagent.agents.manager import ManagedSimulator, arrival_spec, correct_transitions
from jaxagent.agents.ppo import PPO
from jaxagent.agents.sac_her import SACHER
from jaxagent.models.skills import Skill, load_skill, save_skill, skill_file
from jaxagent.replay import Replay
from jaxagent.training.checkpoint import Checkpoints
from jaxagent.training.config import refuse, to_plain
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
from jaxagent.training.inputs import Source, Written, keep_inputs, run_files
from jaxagent.training.interruption import leave_on_signals
from jaxagent.training.loop import Arm
from jaxagent.training.metrics import read_metrics
from jaxagent.training.off_policy import OffPolicyTrainer
from jaxagent.training.plots import plot_curves
from jaxagent.training.progress import Reporter
from jaxagent.training.run_folder import (
    has_checkpoint,
    open_run_folder,
    record_of,
    write_config,
)
from jaxagent.training.trainer import Evaluation, Trainer, TrainState
from jaxagent.types import Simulator


def open_skill(name: str) -> Skill:
    """A skill whose goals are points of the plane.

    Raises:
        ValueError: there is none, or it reaches something else.
    """
    folder = pathlib.Path(name)
    skill = skill_of_run(folder, None) if folder.is_dir() else load_skill(name)
    if skill.meta["task"] != "ant_goal":
        raise ValueError(f"skill ({name}) must be of the task ant_goal, not {skill.meta['task']}")
    return skill


def make_simulator(config: ManagerConfig) -> Simulator:
    """The course as the policy that learns meets it.

    Raises:
        ValueError: there is no such skill.
    """
    if isinstance(config, PPOManagerConfig) and config.flat:
        return Course(BraxSimulator("ant"))
    skill = open_skill(config.skill)
    body = goal_simulator("ant_goal", skill.meta["backend"], on_success="hold")

    def distribution(features, goal):
        return skill.distribution(skill.params, body.spec.see(features, goal))

    course = Course(body)
    return ManagedSimulator(
        course,
        distribution,
        config.interval,
        config.subgoal_reach,
        target=course.target if isinstance(config, SACManagerConfig) else None,
    )


def build(config: ManagerConfig, layout: Layout) -> Trainer:
    """Bind environments and agent.

    Raises:
        ValueError: the sizes do not fit together, or there is no such skill.
    """
    run, simulator = config.run, make_simulator(config)
    if run.evaluation_episodes % layout.size:
        raise ValueError(
            f"evaluation_episodes ({run.evaluation_episodes}) must be divisible by the number of "
            f"devices ({layout.size})"
        )
    chunk = local_chunk(run.evaluation_episodes // layout.size) if layout.chunk_size else None
    common: dict[str, Any] = {
        "env": VectorEnv(simulator, run.episode_length, layout.chunk_size),
        "evaluation_env": VectorEnv(simulator, run.episode_length, chunk),
        "pose": simulator.pose,
        "guidance": None,
        "layout": layout,
        "num_envs": run.num_envs,
        "unroll_length": run.unroll_length,
        "num_iterations": run.num_iterations,
        "evaluation_episodes": run.evaluation_episodes,
        "evaluation_length": run.episode_length,
    }
    sizes = {
        "observation_size": simulator.observation_size,
        "action_size": simulator.action_size,
        "axis_name": AXIS,
    }
    if isinstance(config, SACManagerConfig) and isinstance(simulator, ManagedSimulator):
        return _off_policy(config, simulator, sizes, common)
    if not isinstance(config, PPOManagerConfig):
        raise ValueError(f"algorithm ({config.algorithm}) must be among those that are known")
    return Trainer(agent=PPO(config.ppo, num_updates=run.num_iterations, **sizes), **common)


def _off_policy(
    config: SACManagerConfig,
    simulator: ManagedSimulator,
    sizes: dict[str, Any],
    common: dict[str, Any],
) -> OffPolicyTrainer:
    """Soft actor-critic on decisions, judged by arrival at the course's target."""
    run = config.run
    course: Any = simulator.simulator
    spec = arrival_spec(simulator, course.simulator.spec.state_indices, course.radius)
    buffer = config.sac.sizes(run.num_envs, run.unroll_length)
    return OffPolicyTrainer(
        agent=SACHER(config.sac, spec, **sizes),
        replay=Replay(buffer.rows, buffer.row_length),
        groups=config.sac.sample_groups,
        warmup_iterations=buffer.warmup_iterations,
        remember=simulator.remember,
        **common,
    )


def starter(
    config: ManagerConfig, folder: pathlib.Path, trainer: Trainer, reporter: Reporter
) -> Callable[[TrainState], TrainState]:
    """What prepares a fresh state: nothing, or the manager and the replay of another run.

    Args:
        config: of the run.
        folder: of the run; with a checkpoint in it there is no fresh state to prepare.
        trainer: what the state is of.
        reporter: is told what came of it.

    Raises:
        ValueError: the other run is none, or its decisions mean something else.
    """
    if not isinstance(config, SACManagerConfig) or not isinstance(trainer, OffPolicyTrainer):
        return lambda state: state
    if config.start_from is None or (config.resume and has_checkpoint(folder)):
        return lambda state: state
    before = _other_run(config, trainer)
    is_corrected = config.correct_sub_goals

    def prepare(state: TrainState) -> TrainState:
        state = state.replace(agent=before.agent, replay=before.replay)
        reporter.say(f"started from {config.start_from}, iteration {int(before.iteration[0]):,}")
        return correct(trainer, state, reporter) if is_corrected else state

    return prepare


def _other_run(config: SACManagerConfig, trainer: Trainer) -> TrainState:
    """The last state of the run to start from."""
    folder = pathlib.Path(config.start_from or "")
    if not (folder / "checkpoints").is_dir():
        raise ValueError(f"start_from ({folder}) is not a run folder: it has no checkpoints")
    other = read_config(folder)
    for name in ("algorithm", "interval", "subgoal_reach"):
        theirs, ours = getattr(other, name), getattr(config, name)
        if theirs != ours:
            raise ValueError(f"start_from ({folder}) has {name} {theirs}, this run has {ours}")
    return _restored(folder, config, trainer)


def _restored(
    folder: pathlib.Path, config: ManagerConfig, trainer: Trainer, iteration: int | None = None
) -> TrainState:
    """A state that a run has saved; the last without a number."""
    like = trainer.abstract_state(config.run.num_seeds)
    checkpoints = Checkpoints(folder / "checkpoints", config.run.checkpoints_kept)
    try:
        return checkpoints.restore(like, trainer.shardings(like), iteration)[0]
    finally:
        checkpoints.close()


def load_run(
    folder: pathlib.Path, iteration: int | None = None, episodes: int | None = None
) -> tuple[ManagerConfig, Trainer, TrainState]:
    """A run as it was saved: configuration, what it was made of, and its state.

    Args:
        folder: a run folder.
        iteration: of the checkpoint; None is the last.
        episodes: evaluate on this many instead of as many as in training.

    Raises:
        ValueError: not a run folder, or what is in it cannot be used.
    """
    if not (folder / "checkpoints").is_dir():
        raise ValueError(f"{folder} is not a run folder: it has no checkpoints")
    config = with_inputs(read_config(folder), folder, ("skill",))
    if episodes is not None:
        run = dataclasses.replace(config.run, evaluation_episodes=episodes)
        config = dataclasses.replace(config, run=run)
    trainer = build(config, choose_layout(config.run.num_envs, config.groups))
    return config, trainer, _restored(folder, config, trainer, iteration)


def input_sources(config: ManagerConfig) -> dict[str, Source]:
    """The files and folders that a run of this configuration depends on, by option."""
    sources: dict[str, Source] = {}
    if not (isinstance(config, PPOManagerConfig) and config.flat):
        skill = pathlib.Path(config.skill)
        if skill.is_dir():
            read = open_skill(config.skill)
            sources["skill"] = Written(
                ".npz", lambda path: save_skill(path, read.policy, read.params, read.meta)
            )
        elif skill_file(config.skill).is_file():
            # One that is shipped as well: the next version may ship another.
            sources["skill"] = skill_file(config.skill)
    if isinstance(config, SACManagerConfig) and config.start_from is not None:
        sources["start_from"] = run_files(pathlib.Path(config.start_from))
    return sources


def correct(trainer: OffPolicyTrainer, state: TrainState, reporter: Reporter) -> TrainState:
    """The state with HIRO's correction of every decision that its replay holds.

    Args:
        trainer: with the skill as it is now.
        state: with the replay as it was collected.
        reporter: is told what came of it.
    """
    env: Any = trainer.env

    def rewriting(key, kept, written):
        found = correct_transitions(key, kept, env.simulator, trainer.agent.spec)
        counted = jnp.broadcast_to(written[None], kept.fell.shape)
        is_other = (found.action != kept.action).any(-1)
        counts = {
            "decisions": counted.sum(),
            "changed": (counted & is_other).sum(),
            "given": jnp.sum(found.given, where=counted),
            "likeliest": jnp.sum(found.likeliest, where=counted),
        }
        return kept._replace(action=found.action), counts

    state, counts = trainer.rewrite_replay(state, rewriting)
    total = {name: float(np.sum(x)) for name, x in jax.device_get(counts).items()}
    reporter.say(
        f"corrected {total['changed']:,.0f} of {total['decisions']:,.0f} sub-goals; mean "
        f"log-likelihood of what the skill did {total['given'] / total['decisions']:.3g} -> "
        f"{total['likeliest'] / total['decisions']:.3g}"
    )
    return state


def describe(config: ManagerConfig, layout: Layout, trainer: Trainer) -> str:
    """What the configuration amounts to."""
    run = config.run
    total = run.num_iterations * run.num_envs * run.unroll_length
    each = config.steps_a_decision
    decisions = "" if each == 1 else f" ({total:,} decisions of {each} steps)"
    is_flat = isinstance(config, PPOManagerConfig) and config.flat
    told = [
        f"{'flat policy' if is_flat else f'manager of {config.skill}'} by {config.algorithm}: "
        f"{total * each:,} environment steps{decisions}, "
        f"{run.num_iterations:,} iterations, {run.num_seeds} seed(s)",
        f"devices: {layout.describe()}",
    ]
    kept = jax.tree.leaves(trainer.abstract_state(run.num_seeds).replay)
    if kept:
        megabytes = sum(x.size * x.dtype.itemsize for x in kept) / 1e6
        told.append(f"replay: {megabytes:.0f} MB, with what the skill saw and did")
    return "\n".join(told)


def train(config: ManagerConfig, folder: pathlib.Path, layout: Layout, reporter: Reporter) -> None:
    """Train what the configuration asks for, in its folder, to the end."""
    trainer = build(config, layout)
    prepare = starter(config, folder, trainer, reporter)
    reporter.say(describe(config, layout, trainer))
    reporter.say(f"run folder: {folder}")
    if not config.resume:
        sources = input_sources(config)
        keep_inputs(folder, sources, {name: getattr(config, name) for name in sources})
        write_config(folder, to_plain(config))
    seeds = range(config.run.seed, config.run.seed + config.run.num_seeds)
    programs = trainer.compile(trainer.init(list(seeds)))
    reporter.say(f"compiled in {programs.compile_seconds:.0f} s")

    latest: list[Evaluation] = []

    def draw(where: pathlib.Path, evaluation: Evaluation) -> None:
        plot_curves(where / "curves.png", read_metrics(where / "metrics.jsonl"), where.name)
        share = float(np.mean(evaluation.success))
        draw_paths(where / "paths.png", evaluation, f"{where.name}: {share:.0%} arrive")
        latest[:] = [evaluation]

    arm = Arm(
        trainer, programs, config.run, folder, reporter, draw=draw, config=record_of(config),
        prepare=prepare,
    )  # fmt: skip
    arm.train(resume=config.resume)
    if latest:  # process 0
        share = float(np.mean(latest[0].success))
        env: Any = trainer.evaluation_env
        picture(folder, env.simulator, latest[0], f"{folder.name}: {share:.0%} arrive")


@leave_on_signals()
def main(arguments: Sequence[str] | None = None) -> int:
    """Train; the exit status."""
    arguments = sys.argv[1:] if arguments is None else arguments
    prepare_cpu_devices(spare_threads=True)
    config = read_command_line(arguments)
    try:
        join_processes(config.run.coordinator, config.run.num_processes, config.run.process_id)
        folder = open_run_folder(config.run, folder_prefix(config), config.resume)
        if config.resume:
            config = continued(folder, arguments)
        layout = choose_layout(config.run.num_envs, config.groups, config.run.num_devices)
        if config.dry_run:
            trainer = build(config, layout)
            starter(config, folder, trainer, Reporter())  # what cannot be started from is refused
            print(json.dumps(to_plain(config), indent=2))
            print(describe(config, layout, trainer))
            return 0
        use_compilation_cache()
        return exit_status(folder, lambda: train(config, folder, layout, Reporter()))
    except ValueError as error:
        refuse(str(error))


def folder_prefix(config: ManagerConfig) -> str:
    """Of numbered run folders."""
    if isinstance(config, PPOManagerConfig):
        return "ant-flat" if config.flat else "ant-manager"
    return f"ant-manager-{config.algorithm}"


if __name__ == "__main__":
    sys.exit(main())
