"""Record what a trained run does: `python -m experiments.record RUN`.

Writes one file of trajectories, from which `experiments.train_skills --warm-start FILE` starts.
"""

import dataclasses
import pathlib
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
import tyro

from envs.vector import VectorEnv
from experiments import ant_guidance, train_skills
from experiments.run_kinds import check_kind
from jaxagent.training.config import parse_command_line, refuse
from jaxagent.training.devices import (
    local_chunk,
    prepare_cpu_devices,
    use_compilation_cache,
)
from jaxagent.training.recording import record, save_recording
from jaxagent.training.trainer import Trainer, TrainState
from jaxagent.types import Policy, PolicySample

PROGRAM = "python -m experiments.record"


@dataclasses.dataclass(frozen=True)
class RecordConfig:
    """Options of a recording."""

    folder: Annotated[str, tyro.conf.Positional] = ""
    """Run folder."""
    out: str | None = None
    """File to write; None is recording.npz in the run folder."""
    steps: int = 100_000
    """Environment steps to record, rounded up to a whole number for each environment."""
    num_envs: int = 64
    """Environments that are played side by side."""
    deterministic: bool = False
    """Act without exploration; with it the recording shows how to come back from mistakes."""
    checkpoint: int | None = None
    """Iteration of the checkpoint; None is the last."""
    seed: int = 2_000_000
    """Of start states, goals and exploration; not one that training or evaluation used."""

    def __post_init__(self):
        for name in ("steps", "num_envs"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} ({getattr(self, name)}) must be at least 1")
        if not 0 <= self.seed < 2**31:
            raise ValueError(f"seed ({self.seed}) must lie in [0, 2^31)")


def load_any_run(
    folder: pathlib.Path, iteration: int | None = None
) -> tuple[Any, Trainer, TrainState]:
    """A run of `ant_guidance` or of `train_skills`, on one device.

    Raises:
        ValueError: not a run folder, or its checkpoint cannot be used.
    """
    is_skill = check_kind(folder, "ant_guidance", "train_skills") == "train_skills"
    load = train_skills.load_run if is_skill else ant_guidance.load_run
    return load(folder, num_devices=1, iteration=iteration)


def as_policy(trainer: Trainer, state: TrainState, deterministic: bool) -> Policy:
    """The policy of a run's first seed."""
    learnt = jax.tree.map(lambda x: np.asarray(x[0]), jax.device_get(state.agent))

    def act(observation, keys) -> PolicySample:
        if not deterministic:
            return trainer.agent.act(learnt, observation, keys)
        loc, _ = trainer.agent.distribution(learnt, observation)
        return PolicySample(jnp.tanh(loc), loc, jnp.zeros(loc.shape[:-1]))

    return act


def main(arguments: Sequence[str] | None = None) -> int:
    """Record; the exit status."""
    arguments = sys.argv[1:] if arguments is None else arguments
    options = parse_command_line(RecordConfig, arguments, RecordConfig(), PROGRAM, __doc__ or "")
    prepare_cpu_devices()
    use_compilation_cache()
    folder = pathlib.Path(options.folder)
    out = pathlib.Path(options.out) if options.out else folder / "recording.npz"
    try:
        if not options.folder:
            raise ValueError(f"folder must be given: {PROGRAM} RUN")
        if options.out and not out.parent.is_dir():
            raise ValueError(f"out ({out}) must lie in a folder that exists")
        _, trainer, state = load_any_run(folder, options.checkpoint)
    except ValueError as error:
        refuse(str(error))
    played: Any = trainer.env
    chunk = local_chunk(options.num_envs) if trainer.layout.chunk_size else None
    recording = record(
        VectorEnv(played.simulator, played.episode_length, chunk),
        as_policy(trainer, state, options.deterministic),
        jax.random.key(options.seed),
        num_envs=options.num_envs,
        length=-(-options.steps // options.num_envs),
        task=played.simulator.name,
    )
    made = {"run": folder.name, "iteration": int(state.iteration[0])}
    made |= {name: getattr(options, name) for name in ("seed", "num_envs", "deterministic")}
    save_recording(out, recording, made)
    ended = recording.terminated | recording.truncated
    print(
        f"{recording.steps:,} steps of {recording.task}, {ended.sum():,} episodes ended, "
        f"{recording.success.sum():,} successes; {out}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
