"""Options of `experiments.ant_manager`: algorithm and command line, checked together."""

import dataclasses
import pathlib
from collections.abc import Sequence

from jaxagent.agents.ppo import PPOConfig
from jaxagent.agents.sac_config import SACConfig
from jaxagent.training.config import (
    RunConfig,
    overlay,
    parse_command_line,
    read_early,
    read_yaml,
    refuse,
)
from jaxagent.training.inputs import read_inputs
from jaxagent.training.run_folder import CONFIG_FILE, has_checkpoint
from jaxagent.training.run_folder import continued as taken_up

PROGRAM = "python -m experiments.ant_manager"
DESCRIPTION = (
    "Learn to manage a frozen skill, by PPO or by soft actor-critic. The options below are those "
    "of PPO or of the --algorithm that is given; those of the other: --algorithm sac --help."
)
ALGORITHMS = ("ppo", "sac")
INPUTS = ("skill", "start_from")  # options that may name files and folders


@dataclasses.dataclass(frozen=True, kw_only=True)
class ManagerConfig:
    """Options of every algorithm."""

    skill: str = "ant_goal"
    """A shipped skill by its name, a skill file, or the run folder of one."""
    algorithm: str = "ppo"
    """ppo, or sac: off-policy, soft actor-critic on a replay of decisions."""
    interval: int = 25
    """Environment steps between decisions of the manager."""
    subgoal_reach: float = 3.0
    """Metres along each axis within which the manager's sub-goals lie."""
    config: str | None = None
    """YAML file of options; the command line wins over it."""
    resume: bool = False
    """Go on with a run (--name, or the newest) from its last checkpoint."""
    dry_run: bool = False
    """Print the resolved configuration and what it amounts to; train nothing, write nothing."""
    run: RunConfig = dataclasses.field(default_factory=RunConfig)

    def __post_init__(self):
        if self.algorithm not in ALGORITHMS:
            raise ValueError(f"algorithm ({self.algorithm}) must be one of {', '.join(ALGORITHMS)}")
        for name, least in (("interval", 1), ("subgoal_reach", 0)):
            value = getattr(self, name)
            if not least <= value < float("inf") or value == 0:
                raise ValueError(f"{name} ({value}) must be finite and greater than 0")

    @property
    def steps_a_decision(self) -> int:
        """Environment steps in what `run` counts as one."""
        return self.interval

    @property
    def groups(self) -> int:
        """Of environments, which the number of devices must divide."""
        return 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class PPOManagerConfig(ManagerConfig):
    """Options of a manager trained by PPO."""

    flat: bool = False
    """No skill and no sub-goals: the joints are moved by the policy that learns."""
    ppo: PPOConfig = dataclasses.field(default_factory=PPOConfig)

    def __post_init__(self):
        super().__post_init__()
        self.ppo.check_batch(self.run.num_envs, self.run.unroll_length)

    @property
    def steps_a_decision(self) -> int:
        """Environment steps in what `run` counts as one."""
        return 1 if self.flat else self.interval

    @property
    def groups(self) -> int:
        """Those within which PPO shuffles."""
        return self.ppo.shuffle_groups


@dataclasses.dataclass(frozen=True, kw_only=True)
class SACManagerConfig(ManagerConfig):
    """Options of a manager trained off-policy."""

    algorithm: str = "sac"
    """ppo, or sac: off-policy, soft actor-critic on a replay of decisions."""
    start_from: str | None = None
    """Run folder of another run of --algorithm sac: begin with its manager and its replay, over
    the --skill of this one, which need not be the same."""
    correct_sub_goals: bool = False
    """Replace what the manager of --start-from asked for by what --skill would have to be asked
    for to do the same (HIRO's off-policy correction); over the same skill nothing changes."""
    sac: SACConfig = dataclasses.field(default_factory=SACConfig)

    def __post_init__(self):
        super().__post_init__()
        self.sac.sizes(self.run.num_envs, self.run.unroll_length)
        if self.correct_sub_goals and self.start_from is None:
            raise ValueError(
                "correct_sub_goals (True) needs start_from: a run's own skill is frozen, and its "
                "own decisions have nothing to be corrected for"
            )

    @property
    def groups(self) -> int:
        """Those within which the replay is sampled."""
        return self.sac.sample_groups


def preset(algorithm: str = "ppo", flat: bool = False) -> ManagerConfig:
    """The defaults, with the same number of environment steps each way.

    Args:
        algorithm: ppo or sac.
        flat: as in PPOManagerConfig; `run` then counts environment steps instead of decisions.

    Raises:
        ValueError: there is no such algorithm.
    """
    ManagerConfig(algorithm=algorithm)
    interval = ManagerConfig.interval
    run = RunConfig(
        total_steps=50_000, num_envs=128, unroll_length=8, episode_length=24,
        num_evaluations=6, evaluation_episodes=64,
    )  # fmt: skip
    if algorithm == "sac":
        # A decision is the outcome of many steps of physics: it is worth learning from often.
        sac = SACConfig(
            discount_factor=0.95, reward_scale=10.0, relabel_share=0.0,
            updates_per_iteration=64, buffer_size=20_480, learning_starts=2_000,
        )  # fmt: skip
        run = dataclasses.replace(run, num_envs=64)
        return SACManagerConfig(run=run, sac=sac)
    # Arrivals are so rare at first that at a scale of 1 what the critic was initialised with
    # would outweigh them: the manager would learn to stand still.
    scale = 20.0
    if flat:
        run = dataclasses.replace(
            run,
            total_steps=run.total_steps * interval,
            unroll_length=16,
            num_envs=256,
            episode_length=run.episode_length * interval,
        )
        # The same horizon in simulated time, and the rest as the Ant's main job has it.
        ppo = PPOConfig(num_minibatches=4, discount_factor=0.99, reward_scale=scale)
        return PPOManagerConfig(flat=True, run=run, ppo=ppo)
    ppo = PPOConfig(
        num_minibatches=4, discount_factor=0.95, reward_scale=scale, entropy_cost=0.005,
        policy_learning_rate=5e-4, critic_hidden_sizes=(128, 128), initial_scale=1.2,
    )  # fmt: skip
    return PPOManagerConfig(run=run, ppo=ppo)


def read_command_line(arguments: Sequence[str]) -> ManagerConfig:
    """Algorithm, then --config, then the command line; a mistake is one line, status 2.

    Args:
        arguments: without the program's name.
    """
    try:
        known = read_early(arguments, ("algorithm",))
        file = read_yaml(known.config) if known.config else {}
        is_flat = "--no-flat" not in arguments and (
            "--flat" in arguments or file.get("flat", False)
        )
        algorithm = known.algorithm or str(file.get("algorithm", "ppo"))
        default = overlay(preset(algorithm, is_flat is True), file, str(known.config))
    except ValueError as error:
        refuse(str(error))
    return parse_command_line(type(default), arguments, default, PROGRAM, DESCRIPTION)


def read_config(folder: pathlib.Path) -> ManagerConfig:
    """The configuration of a run, as its folder has it.

    Raises:
        ValueError: there is none, or none of this experiment's.
    """
    path = folder / CONFIG_FILE
    values = read_yaml(path)
    if "interval" not in values:
        raise ValueError(f"config ({path}) is not of a run of experiments.ant_manager")
    return overlay(preset(str(values.get("algorithm", "ppo"))), values, str(path))


def with_inputs(
    config: ManagerConfig, folder: pathlib.Path, needed: Sequence[str]
) -> ManagerConfig:
    """A run's configuration with what the run has kept in place of the originals.

    Args:
        config: of the run.
        folder: of the run.
        needed: of `INPUTS`.

    Raises:
        ValueError: something that is needed is gone.
    """
    return dataclasses.replace(config, **read_inputs(folder, needed))


def continued(folder: pathlib.Path, arguments: Sequence[str]) -> ManagerConfig:
    """The configuration of a run that is taken up again: its own, only placed anew.

    Raises:
        ValueError: the command line asks for something else than was begun.
    """
    config = taken_up(read_config(folder), folder, arguments, PROGRAM, DESCRIPTION)
    # Another run's replay is taken over at the very beginning only.
    return with_inputs(config, folder, INPUTS[:1] if has_checkpoint(folder) else INPUTS)
