"""Recorded trajectories: what a policy did, in a file; and policies that start from it."""

import functools
import json
import pathlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from jaxagent.agents.behaviour_cloning import CloningConfig, Demonstrations, clone_behaviour
from jaxagent.models.archives import read_archive
from jaxagent.rollout import collect
from jaxagent.training.trainer import Trainer, TrainState
from jaxagent.types import Env, Policy

FORMAT = "jaxagent.recording.1"
_ARRAYS = ("observation", "action", "pre_tanh", "reward", "terminated", "truncated", "success")


class Recording(NamedTuple):
    """T steps of B environments, host arrays, and of what."""

    observation: np.ndarray  # [T, B, O], raw
    action: np.ndarray  # [T, B, A]
    pre_tanh: np.ndarray  # [T, B, A]
    reward: np.ndarray  # [T, B]
    terminated: np.ndarray  # [T, B]
    truncated: np.ndarray  # [T, B]
    success: np.ndarray  # [T, B]
    task: str  # that it was recorded on

    @property
    def steps(self) -> int:
        """T · B."""
        return self.reward.size

    def demonstrations(self) -> Demonstrations:
        """All samples, one environment after the other."""

        def flat(x: np.ndarray):
            return jnp.asarray(x.swapaxes(0, 1).reshape(-1, x.shape[-1]))

        return Demonstrations(flat(self.observation), flat(self.action), flat(self.pre_tanh))


def record(
    env: Env, policy: Policy, key: PRNGKeyArray, *, num_envs: int, length: int, task: str
) -> Recording:
    """Play a policy and keep what it did.

    Args:
        env: of the task; episodes that end are followed by fresh ones.
        policy: what acts.
        key: consumed.
        num_envs: B.
        length: T.
        task: written beside the arrays; a recording is refused for any other.
    """
    start_key, act_key = jax.random.split(key)
    start = jax.jit(env.reset)(jax.random.split(start_key, num_envs))
    play = jax.jit(functools.partial(collect, env, policy, length=length))
    _, trajectory = play(start, jax.random.split(act_key, num_envs))
    arrays = {name: np.asarray(getattr(trajectory, name)) for name in _ARRAYS}
    return Recording(**arrays, task=task)


def save_recording(
    path: pathlib.Path, recording: Recording, made: Mapping[str, Any] | None = None
) -> None:
    """Write a recording, whole or not at all.

    Args:
        path: the file.
        recording: its content.
        made: how it came about, as JSON can hold it; kept in the description.
    """
    arrays: dict[str, Any] = recording._asdict()
    meta = {"format": FORMAT, "task": arrays.pop("task"), "made": dict(made or {})}
    draft = path.with_name(path.name + ".tmp")
    with draft.open("wb") as file:
        np.savez_compressed(file, meta=np.array(json.dumps(meta)), **arrays)
    draft.replace(path)


def load_recording(
    path: str | pathlib.Path, *, task: str, observation_size: int, action_size: int
) -> Recording:
    """Read a recording of a task.

    Args:
        path: the file.
        task: that it must be of.
        observation_size: O of whoever is to learn from it.
        action_size: A of the same.

    Raises:
        ValueError: no such file, no whole recording, or one of another task.
    """
    meta, arrays = read_archive(pathlib.Path(path), "recording", FORMAT)
    _check_arrays(path, arrays)
    recording = Recording(**arrays, task=str(meta.get("task")))
    found = recording.observation.shape[-1], recording.action.shape[-1]
    if recording.task != task or found != (observation_size, action_size):
        raise ValueError(
            f"recording ({path}) is of {recording.task} with {found[0]} observations and "
            f"{found[1]} actions; this run is of {task} with {observation_size} and {action_size}"
        )
    return recording


def _check_arrays(path: str | pathlib.Path, arrays: dict[str, np.ndarray]) -> None:
    """Refuse arrays that are not those of one rollout."""
    if arrays.keys() != set(_ARRAYS):
        odd = sorted(arrays.keys() ^ set(_ARRAYS))[0]
        raise ValueError(f"recording ({path}) must hold {', '.join(_ARRAYS)}; {odd} is one or none")
    steps = arrays["reward"].shape
    for name, array in arrays.items():
        is_wide = name in ("observation", "action", "pre_tanh")
        if array.ndim != 2 + is_wide or array.shape[:2] != steps or not array.size:
            raise ValueError(
                f"recording ({path}): {name} has shape {list(array.shape)}, reward {list(steps)}"
            )
    if arrays["action"].shape != arrays["pre_tanh"].shape:
        raise ValueError(f"recording ({path}): action and pre_tanh must have one shape")


def warm_start(
    trainer: Trainer, state: TrainState, recording: Recording, config: CloningConfig
) -> tuple[TrainState, dict[str, np.ndarray]]:
    """Clone a recording into the policy of a fresh state, for every seed.

    Args:
        trainer: what the state is of.
        state: fresh, on the devices of the run; its own keys choose the batches.
        recording: of the same task.
        config: how it is learnt.

    Returns:
        The state with the cloned policies and nothing else changed but the observation
        statistics; and the metrics of `clone_behaviour`, [S].
    """
    keys = jax.vmap(lambda key: jax.random.fold_in(key, 2**31 - 1))(state.key)
    clone = functools.partial(clone_behaviour, trainer.agent, config=config)
    over_seeds = jax.vmap(
        lambda agent, key, seen: clone(agent, demonstrations=seen, key=key), (0, 0, None)
    )
    place = trainer.shardings(state).agent
    agent, metrics = jax.jit(over_seeds, out_shardings=(place, None))(
        state.agent, keys, recording.demonstrations()
    )
    return state.replace(agent=agent), jax.device_get(metrics)
