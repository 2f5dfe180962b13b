"""Learn to manage a frozen skill: `python -m experiments.ant_manager --skill ant_goal`.

A course with a wall between the Ant and a far place, and a reward only on arrival. The manager
names a sub-goal every `interval` steps and the skill pursues it; `--flat` learns the same course
with the same number of environment steps without a skill, for comparison.
"""

import dataclasses
import json
import math
import pathlib
import sys
from collections.abc import Sequence

import numpy as np

from envs.brax_env import BraxSimulator
from envs.course import Course
from envs.goals import goal_simulator
from envs.vector import VectorEnv
from experiments.evaluate_skill import skill_of_run
from jaxagent.agents.manager import ManagedSimulator
from jaxagent.agents.ppo import PPO, PPOConfig
from jaxagent.models.skills import Skill, load_skill
from jaxagent.training.config import (
    RunConfig,
    overlay,
    parse_command_line,
    read_yaml,
    refuse,
    to_plain,
)
from jaxagent.training.devices import (
    AXIS,
    Layout,
    choose_layout,
    local_chunk,
    prepare_cpu_devices,
    use_compilation_cache,
)
from jaxagent.training.interruption import Interrupted
from jaxagent.training.loop import Arm, NonFiniteTraining
from jaxagent.training.metrics import read_metrics
from jaxagent.training.plots import plot_curves, plot_paths
from jaxagent.training.progress import Reporter
from jaxagent.training.run_folder import CONFIG_FILE, open_run_folder, take_up, write_config
from jaxagent.training.trainer import Evaluation, Trainer
from jaxagent.types import Simulator

PROGRAM = "python -m experiments.ant_manager"
PATHS_DRAWN = 24


@dataclasses.dataclass(frozen=True)
class ManagerConfig:
    """Options of the learned manager."""

    skill: str = "ant_goal"
    """A shipped skill by its name, a skill file, or the run folder of one."""
    flat: bool = False
    """No skill and no sub-goals: the joints are moved by the policy that learns."""
    interval: int = 25
    """Environment steps between decisions of the manager."""
    subgoal_reach: float = 3.0
    """Metres along each axis within which the manager's sub-goals lie."""
    resume: bool = False
    """Go on with a run (--name, or the newest) from its last checkpoint."""
    dry_run: bool = False
    """Print the resolved configuration and what it amounts to; train nothing, write nothing."""
    run: RunConfig = dataclasses.field(default_factory=RunConfig)
    ppo: PPOConfig = dataclasses.field(default_factory=PPOConfig)

    def __post_init__(self):
        self.ppo.check_batch(self.run.num_envs, self.run.unroll_length)
        for name, least in (("interval", 1), ("subgoal_reach", 0)):
            value = getattr(self, name)
            if not least <= value < float("inf") or value == 0:
                raise ValueError(f"{name} ({value}) must be finite and greater than 0")

    @property
    def steps_a_decision(self) -> int:
        """Environment steps in what `run` counts as one."""
        return 1 if self.flat else self.interval


def preset(flat: bool) -> ManagerConfig:
    """The defaults, with the same number of environment steps either way.

    Args:
        flat: as in ManagerConfig; `run` then counts environment steps instead of decisions.
    """
    interval = ManagerConfig.interval
    # Arrivals are so rare at first that at a scale of 1 what the critic was initialised with
    # would outweigh them: the manager would learn to stand still.
    scale = 20.0
    ppo = PPOConfig(
        num_minibatches=4, discount_factor=0.95, reward_scale=scale, entropy_cost=0.005,
        policy_learning_rate=5e-4, critic_hidden_sizes=(128, 128), initial_scale=1.2,
    )  # fmt: skip
    run = RunConfig(
        total_steps=50_000, num_envs=128, unroll_length=8, episode_length=24,
        num_evaluations=6, evaluation_episodes=64,
    )  # fmt: skip
    if not flat:
        return ManagerConfig(run=run, ppo=ppo)
    run = dataclasses.replace(
        run,
        total_steps=run.total_steps * interval,
        unroll_length=16,
        num_envs=256,
        episode_length=run.episode_length * interval,
    )
    # The same horizon in simulated time, and the rest as the Ant's main job has it.
    ppo = PPOConfig(num_minibatches=4, discount_factor=0.99, reward_scale=scale)
    return ManagerConfig(flat=True, run=run, ppo=ppo)


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
    if config.flat:
        return Course(BraxSimulator("ant"))
    skill = open_skill(config.skill)
    body = goal_simulator("ant_goal", skill.meta["backend"], on_success="hold")

    def distribution(features, goal):
        return skill.distribution(skill.params, body.spec.see(features, goal))

    return ManagedSimulator(Course(body), distribution, config.interval, config.subgoal_reach)


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
    return Trainer(
        env=VectorEnv(simulator, run.episode_length, layout.chunk_size),
        evaluation_env=VectorEnv(simulator, run.episode_length, chunk),
        pose=simulator.pose,
        agent=PPO(
            config.ppo,
            observation_size=simulator.observation_size,
            action_size=simulator.action_size,
            num_updates=run.num_iterations,
            axis_name=AXIS,
        ),
        guidance=None,
        layout=layout,
        num_envs=run.num_envs,
        unroll_length=run.unroll_length,
        num_iterations=run.num_iterations,
        evaluation_episodes=run.evaluation_episodes,
        evaluation_length=run.episode_length,
    )


def describe(config: ManagerConfig, layout: Layout) -> str:
    """What the configuration amounts to."""
    run = config.run
    total = run.num_iterations * run.num_envs * run.unroll_length
    decisions = "" if config.flat else f" ({total:,} decisions of {config.interval} steps)"
    return (
        f"{'flat policy' if config.flat else f'manager of {config.skill}'}: "
        f"{total * config.steps_a_decision:,} environment steps{decisions}, "
        f"{run.num_iterations:,} iterations, {run.num_seeds} seed(s)\n"
        f"devices: {layout.describe()}"
    )


def picture(path: pathlib.Path, evaluation: Evaluation, title: str) -> None:
    """The paths of an evaluation's first seed from above; walls are rows of small circles."""
    course = Course(BraxSimulator("ant"))
    paths = np.asarray(evaluation.path)[0, :PATHS_DRAWN]
    marks = [(*course.target, course.radius)]
    for x0, y0, x1, y1 in course.walls:
        for share in np.linspace(0.0, 1.0, 2 + round(5 * math.dist((x0, y0), (x1, y1)))):
            marks.append((x0 + share * (x1 - x0), y0 + share * (y1 - y0), 0.05))
    plot_paths(path, paths, marks, title)


def train(config: ManagerConfig, folder: pathlib.Path, layout: Layout, reporter: Reporter) -> None:
    """Train what the configuration asks for, in its folder, to the end."""
    trainer = build(config, layout)
    reporter.say(describe(config, layout))
    reporter.say(f"run folder: {folder}")
    plain = to_plain(config)
    write_config(folder, plain)
    seeds = range(config.run.seed, config.run.seed + config.run.num_seeds)
    programs = trainer.compile(trainer.init(list(seeds)))
    reporter.say(f"compiled in {programs.compile_seconds:.0f} s")

    def draw(where: pathlib.Path, evaluation: Evaluation) -> None:
        plot_curves(where / "curves.png", read_metrics(where / "metrics.jsonl"), where.name)
        share = float(np.mean(evaluation.success))
        picture(where / "paths.png", evaluation, f"{where.name}: {share:.0%} arrive")

    Arm(trainer, programs, config.run, folder, reporter, draw=draw, config=plain).train(
        resume=config.resume
    )


def continued(folder: pathlib.Path, arguments: Sequence[str]) -> ManagerConfig:
    """The configuration of a run that is taken up again: its own, only placed anew.

    Raises:
        ValueError: the command line asks for something else than was begun.
    """
    path = folder / CONFIG_FILE
    saved = overlay(ManagerConfig(), read_yaml(path), str(path))
    asked = parse_command_line(ManagerConfig, arguments, saved, PROGRAM, __doc__ or "")
    return take_up(saved, asked, folder)


def main(arguments: Sequence[str] | None = None) -> int:
    """Train; the exit status."""
    arguments = sys.argv[1:] if arguments is None else arguments
    prepare_cpu_devices()
    default = preset("--flat" in arguments)
    config = parse_command_line(ManagerConfig, arguments, default, PROGRAM, __doc__ or "")
    try:
        run = config.run
        if config.dry_run:
            layout = choose_layout(run.num_envs, config.ppo.shuffle_groups, run.num_devices)
            build(config, layout)
            print(json.dumps(to_plain(config), indent=2))
            print(describe(config, layout))
            return 0
        prefix = "ant-flat" if config.flat else "ant-manager"
        folder = open_run_folder(run, prefix, config.resume)
        if config.resume:
            config = continued(folder, arguments)
        layout = choose_layout(run.num_envs, config.ppo.shuffle_groups, config.run.num_devices)
        use_compilation_cache()
        train(config, folder, layout, Reporter())
    except Interrupted as stop:
        print(f"interrupted by {stop}; saved in {folder}; go on with --resume --name {folder.name}")
        return 128 + stop.signal_number
    except NonFiniteTraining as failure:
        print(f"error: {failure}", file=sys.stderr)
        return 1
    except ValueError as error:
        refuse(str(error))
    return 0


if __name__ == "__main__":
    sys.exit(main())
