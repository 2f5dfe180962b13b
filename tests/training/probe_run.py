"""A real run of the trainer on a probe environment, small enough to be killed twenty times.

Also a program: `python tests/training/probe_run.py FOLDER` trains in a process of its own.
"""

import argparse
import pathlib
import sys

import jax
import numpy as np
from rich.console import Console

from envs.probe import ProbeSimulator, goal_reach
from envs.vector import VectorEnv
from jaxagent.agents.ppo import PPO, PPOConfig
from jaxagent.planning.guidance import Guidance, GuidanceConfig
from jaxagent.training.config import RunConfig
from jaxagent.training.devices import (
    AXIS,
    choose_layout,
    join_processes,
    prepare_cpu_devices,
    use_compilation_cache,
)
from jaxagent.training.interruption import Interrupted
from jaxagent.training.loop import Arm
from jaxagent.training.progress import Reporter
from jaxagent.training.trainer import Trainer
from jaxagent.types import Plan, SubGoal

NUM_ENVS, LENGTH, EPISODE = 16, 8, 12


def run_config(iterations: int = 6, **options) -> RunConfig:
    sizes = {
        "total_steps": iterations * NUM_ENVS * LENGTH,
        "num_envs": NUM_ENVS,
        "unroll_length": LENGTH,
        "episode_length": EPISODE,
        "num_evaluations": 3,
        "evaluation_episodes": 4,
    }
    return RunConfig(**sizes | options)


def make_trainer(
    run: RunConfig, simulator: ProbeSimulator | None = None, num_devices: int | None = None
) -> Trainer:
    simulator = simulator or goal_reach()
    ppo = PPOConfig(
        policy_hidden_sizes=(8,), critic_hidden_sizes=(8,), num_minibatches=2, num_epochs=2
    )
    config = GuidanceConfig(guidance_terms=("plan",), lambda_schedule="adaptive", adaptive_window=1)
    layout = choose_layout(run.num_envs, ppo.shuffle_groups, num_devices)
    env = VectorEnv(simulator, run.episode_length)
    return Trainer(
        env=env,
        evaluation_env=env,
        pose=simulator.pose,
        agent=PPO(
            ppo,
            observation_size=simulator.observation_size,
            action_size=simulator.action_size,
            num_updates=run.num_iterations,
            axis_name=AXIS,
        ),
        guidance=Guidance(
            config, Plan((SubGoal((2.0, 0.0)),), "test"), discount_factor=0.97, axis_name=AXIS
        ),
        layout=layout,
        num_envs=run.num_envs,
        unroll_length=run.unroll_length,
        num_iterations=run.num_iterations,
        evaluation_episodes=run.evaluation_episodes,
        evaluation_length=run.episode_length,
    )


def make_arm(
    folder: pathlib.Path, run: RunConfig, trainer: Trainer | None = None, programs=None
) -> Arm:
    trainer = trainer or make_trainer(run)
    seeds = range(run.seed, run.seed + run.num_seeds)
    programs = programs or trainer.compile(trainer.init(list(seeds)))
    folder.mkdir(parents=True, exist_ok=True)
    return Arm(trainer, programs, run, folder, Reporter(Console(quiet=True)))


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--iterations", type=int, default=6)
    parser.add_argument("--evaluations", type=int, default=3)
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--coordinator")
    parser.add_argument("--num-processes", type=int)
    parser.add_argument("--process-id", type=int)
    options = parser.parse_args()
    prepare_cpu_devices()
    join_processes(options.coordinator, options.num_processes, options.process_id)
    use_compilation_cache()
    run = run_config(options.iterations, num_evaluations=options.evaluations)
    arm = make_arm(options.folder, run)
    print("compiled", flush=True)
    try:
        state, report = arm.train(options.resume)
    except Interrupted as stop:
        print(f"interrupted by {stop}", flush=True)
        return 128 + stop.signal_number
    leaves = [np.asarray(x) for x in jax.tree.leaves(state.agent)]
    if options.process_id in (None, 0):
        np.savez(options.folder / "final.npz", *leaves)
    print(f"done {report.mean}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
