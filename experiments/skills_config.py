"""Options of `experiments.train_skills`: task, file and command line, checked together."""

import dataclasses
import pathlib
from collections.abc import Sequence
from typing import Any

from envs.brax_env import BACKENDS
from envs.goals import goal_task
from envs.randomise import Randomisation
from jaxagent.agents.behaviour_cloning import CloningConfig
from jaxagent.agents.ppo import PPOConfig
from jaxagent.agents.sac_config import SACConfig
from jaxagent.training.config import (
    PLACEMENT,
    RunConfig,
    overlay,
    parse_command_line,
    read_early,
    read_yaml,
    refuse,
)
from jaxagent.training.curriculum import CurriculumConfig
from jaxagent.training.inputs import read_inputs
from jaxagent.training.run_folder import CONFIG_FILE, has_checkpoint
from jaxagent.training.run_folder import continued as taken_up
from jaxagent.types import GOAL_REWARDS, ON_SUCCESS, GoalSpec

PROGRAM = "python -m experiments.train_skills"
DESCRIPTION = (
    "Train a goal-conditioned skill by PPO, or by soft actor-critic with hindsight. The options "
    "below are those of PPO or of the --algorithm that is given; those of the other: "
    "--algorithm sac_her --help."
)
ALGORITHMS = ("ppo", "sac_her")


@dataclasses.dataclass(frozen=True, kw_only=True)
class GoalConfig:
    """The goal space; None is what suits the task."""

    reach: tuple[float, float] | None = None
    """From where to where goals are drawn, in the task's own measure."""
    threshold: float | None = None
    """Success is a distance from the goal below this, in the goal's unit."""
    reward: str | None = None
    """sparse (-1, 0 on success), dense (10 success - 0.1 distance) or difference."""
    fall_cost: float | None = None
    """What a fall costs at once, in units of the reward, beside what failing for ever would cost,
    which it is always charged."""
    on_success: str | None = None
    """end, hold (the same goal) or redraw (a new goal in the same episode). Evaluation draws no
    second goal: it ends where training would redraw."""

    def __post_init__(self):
        for name, known in (("reward", GOAL_REWARDS), ("on_success", ON_SUCCESS)):
            value = getattr(self, name)
            if value is not None and value not in known:
                raise ValueError(f"{name} ({value}) must be one of {', '.join(known)}")

    @property
    def changes(self) -> dict[str, Any]:
        """What is to differ from the task's own goal space."""
        return {k: v for k, v in dataclasses.asdict(self).items() if v is not None}


@dataclasses.dataclass(frozen=True, kw_only=True)
class SkillsConfig:
    """Options of every algorithm."""

    task: str = "ant_goal"
    """One of the tasks in envs/goal_tasks."""
    algorithm: str = "ppo"
    """ppo, or sac_her: soft actor-critic with hindsight experience replay."""
    backend: str | None = None
    """Physics: spring, positional, generalized or mjx; None is what suits the task."""
    encoder_sizes: tuple[int, ...] = (64,)
    """Hidden layers of the state encoder, and of the goal encoder, of policy and critic."""
    warm_start: str | None = None
    """File of `experiments.record`, of the same task: the policy starts as a clone of it."""
    config: str | None = None
    """YAML file of options; the command line wins over it."""
    resume: bool = False
    """Go on with a run (--name, or the newest) from its last checkpoint."""
    dry_run: bool = False
    """Print the resolved configuration and what it amounts to; train nothing, write nothing."""
    run: RunConfig = dataclasses.field(default_factory=RunConfig)
    goals: GoalConfig = dataclasses.field(default_factory=GoalConfig)
    randomisation: Randomisation = dataclasses.field(default_factory=Randomisation)
    difficulty: CurriculumConfig = dataclasses.field(default_factory=CurriculumConfig)
    cloning: CloningConfig = dataclasses.field(default_factory=CloningConfig)

    def __post_init__(self):
        if self.algorithm not in ALGORITHMS:
            raise ValueError(f"algorithm ({self.algorithm}) must be one of {', '.join(ALGORITHMS)}")
        if self.backend is not None and self.backend not in BACKENDS:
            raise ValueError(f"backend ({self.backend}) must be one of {', '.join(BACKENDS)}")
        if any(size < 1 for size in self.encoder_sizes):
            raise ValueError(f"encoder_sizes {self.encoder_sizes} must be positive widths")
        self.difficulty.check(self.spec(), bool(self.randomisation.ranges))

    def spec(self) -> GoalSpec:
        """The goal space that is trained on, without what falls are charged.

        Raises:
            ValueError: it cannot be.
        """
        return dataclasses.replace(goal_task(self.task).spec, **self.goals.changes)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PPOSkillsConfig(SkillsConfig):
    """Options of a skill trained by PPO."""

    ppo: PPOConfig = dataclasses.field(default_factory=PPOConfig)

    def __post_init__(self):
        super().__post_init__()
        self.ppo.check_batch(self.run.num_envs, self.run.unroll_length)

    def spec(self) -> GoalSpec:
        """The goal space that is trained on; falls are charged by the discount factor."""
        return super().spec().charged(self.ppo.discount_factor)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SACSkillsConfig(SkillsConfig):
    """Options of a skill trained by soft actor-critic with hindsight experience replay."""

    algorithm: str = "sac_her"
    """ppo, or sac_her: soft actor-critic with hindsight experience replay."""
    sac: SACConfig = dataclasses.field(default_factory=SACConfig)

    def __post_init__(self):
        super().__post_init__()
        self.sac.sizes(self.run.num_envs, self.run.unroll_length)

    def spec(self) -> GoalSpec:
        """The goal space that is trained on; falls are charged by the discount factor."""
        return super().spec().charged(self.sac.discount_factor)


def preset(task: str, algorithm: str) -> SkillsConfig:
    """The defaults for a task and an algorithm, sized for a few CPU cores.

    Raises:
        ValueError: there is no such task or algorithm.
    """
    SkillsConfig(task=task, algorithm=algorithm)
    length = goal_task(task).episode_length
    if algorithm == "sac_her":
        run = RunConfig(
            total_steps=500_000, num_envs=64, unroll_length=8, episode_length=length,
            evaluation_episodes=128,
        )  # fmt: skip
        if task != "ant_goal":
            return SACSkillsConfig(task=task, run=run, goals=GoalConfig(reward="sparse"))
        # Eight joints have to learn to walk before a goal metres away is ever met: the reward is
        # for progress beside hindsight, and more is learnt from every step.
        sac = SACConfig(
            actor_learning_rate=6e-4, critic_learning_rate=6e-4, discount_factor=0.98,
            reward_scale=1.0, num_steps=3, target_entropy=-4.0, relabel_share=0.5, batch_size=512,
            updates_per_iteration=32, buffer_size=500_000, learning_starts=10_000,
        )  # fmt: skip
        run = dataclasses.replace(run, total_steps=1_500_000)
        return SACSkillsConfig(task=task, run=run, goals=GoalConfig(reward="difference"), sac=sac)
    run = RunConfig(
        total_steps=3_000_000 if task == "ant_goal" else 2_000_000, num_envs=256,
        unroll_length=16, episode_length=length, evaluation_episodes=128,
    )  # fmt: skip
    return PPOSkillsConfig(
        task=task,
        run=run,
        # A reached goal is followed by another at once: the skill then also turns while running.
        goals=GoalConfig(on_success="redraw", reward="difference"),
        ppo=PPOConfig(
            num_minibatches=4,
            discount_factor=0.98,
            policy_hidden_sizes=(128, 128),
            critic_hidden_sizes=(256, 256),
        ),
    )


def read_command_line(arguments: Sequence[str]) -> SkillsConfig:
    """Task and algorithm, then --config, then the command line; a mistake is one line, status 2.

    Args:
        arguments: without the program's name.
    """
    try:
        known = read_early(arguments, ("task", "algorithm"))
        file = read_yaml(known.config) if known.config else {}
        task = known.task or str(file.get("task", "ant_goal"))
        algorithm = known.algorithm or str(file.get("algorithm", "ppo"))
        default = overlay(preset(task, algorithm), file, str(known.config))
    except ValueError as error:
        refuse(str(error))
    return parse_command_line(type(default), arguments, default, PROGRAM, DESCRIPTION)


def command_of(config: SkillsConfig) -> str:
    """The command that trains this configuration: everything in which it is not the preset's.

    Where it ran and what its folder is called is left out, and the seed is always said.
    """
    usual = _leaves(preset(config.task, config.algorithm))
    told = {"task": config.task, "algorithm": config.algorithm, "seed": config.run.seed}
    words = [PROGRAM]
    for name, value in (told | _leaves(config)).items():
        if name in _NOT_TOLD or (name not in told and value == usual[name]):
            continue
        if isinstance(value, bool):
            words.append(f"--{'' if value else 'no-'}{name.replace('_', '-')}")
            continue
        values = value if isinstance(value, tuple) else (value,)
        words.append(" ".join([f"--{name.replace('_', '-')}", *map(str, values)]))
    return " ".join(words)


_NOT_TOLD = (*PLACEMENT, "name", "config", "resume", "dry_run")


def _leaves(config: Any) -> dict[str, Any]:
    """Options by name; those of sections lose their prefix, as on the command line."""
    found: dict[str, Any] = {}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        found |= _leaves(value) if dataclasses.is_dataclass(value) else {field.name: value}
    return found


def read_config(path: pathlib.Path) -> SkillsConfig:
    """The configuration of a run, as its folder has it.

    Raises:
        ValueError: there is none, or none of this experiment's.
    """
    values = read_yaml(path)
    if "task" not in values or "algorithm" not in values:
        raise ValueError(f"config ({path}) must name a task and an algorithm")
    return overlay(preset(str(values["task"]), str(values["algorithm"])), values, str(path))


def continued(folder: pathlib.Path, arguments: Sequence[str]) -> SkillsConfig:
    """The configuration of a run that is taken up again: its own, only placed anew.

    Raises:
        ValueError: the command line asks for something else than was begun.
    """
    saved = read_config(folder / CONFIG_FILE)
    config = taken_up(saved, folder, arguments, PROGRAM, DESCRIPTION)
    # A recording is learnt from at the very beginning only.
    needed = () if has_checkpoint(folder) else ("warm_start",)
    return dataclasses.replace(config, **read_inputs(folder, needed))
