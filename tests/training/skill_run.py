"""A real run of the off-policy trainer on a point that moves along a line."""

import pathlib

from rich.console import Console

from envs.goals import GoalSimulator
from envs.vector import VectorEnv
from jaxagent.agents.sac_config import SACConfig
from jaxagent.agents.sac_her import SACHER
from jaxagent.replay import Replay
from jaxagent.training.config import RunConfig
from jaxagent.training.devices import AXIS, choose_layout
from jaxagent.training.loop import Arm
from jaxagent.training.off_policy import OffPolicyTrainer
from jaxagent.training.progress import Reporter
from tests.envs.test_goals import line

NUM_ENVS, LENGTH, EPISODE = 16, 8, 12
SMALL = SACConfig(
    policy_hidden_sizes=(16,), critic_hidden_sizes=(16,), batch_size=64,
    updates_per_iteration=8, buffer_size=16 * 128, learning_starts=1,
)  # fmt: skip


def run_config(iterations: int) -> RunConfig:
    return RunConfig(
        total_steps=iterations * NUM_ENVS * LENGTH,
        num_envs=NUM_ENVS,
        unroll_length=LENGTH,
        episode_length=EPISODE,
        num_evaluations=2,
        evaluation_episodes=32,
        seed=1,
    )


def make_trainer(
    run: RunConfig,
    config: SACConfig = SMALL,
    num_devices: int | None = None,
    simulator: GoalSimulator | None = None,
) -> OffPolicyTrainer:
    simulator = simulator or line(on_success="hold", reach=(1.0, 3.0))
    sizes = config.sizes(run.num_envs, run.unroll_length)
    env = VectorEnv(simulator, run.episode_length)
    return OffPolicyTrainer(
        env=env,
        evaluation_env=env,
        pose=simulator.pose,
        agent=SACHER(
            config,
            simulator.spec,
            observation_size=2,
            action_size=1,
            encoder_sizes=(8,),
            axis_name=AXIS,
        ),
        guidance=None,
        layout=choose_layout(run.num_envs, config.sample_groups, num_devices),
        num_envs=run.num_envs,
        unroll_length=run.unroll_length,
        num_iterations=run.num_iterations,
        evaluation_episodes=run.evaluation_episodes,
        evaluation_length=run.episode_length,
        replay=Replay(sizes.rows, sizes.row_length),
        groups=config.sample_groups,
        warmup_iterations=sizes.warmup_iterations,
    )


def make_arm(folder: pathlib.Path, run: RunConfig) -> Arm:
    """On one device: pytest has started JAX without the spare threads that two need for long."""
    trainer = make_trainer(run, num_devices=1)
    programs = trainer.compile(trainer.init([run.seed]))
    folder.mkdir(parents=True, exist_ok=True)
    return Arm(trainer, programs, run, folder, Reporter(Console(quiet=True)))
