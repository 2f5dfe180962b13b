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

from jaxagent.agents.behaviour_cloning import (
    CloningConfig,
    Demonstrations,
    clone_behaviour,
    undo_tanh,
)
from jaxagent.models.archives import read_archive
from jaxagent.rollout import collect
from jaxagent.training.nonfinite import NonFiniteTraining
from jaxagent.training.trainer import WARM_START, Trainer, TrainState
from jaxagent.types import Env, Policy

FORMAT = "jaxagent.recording.1"
ROUNDING = 1e-4  # by which an action may lie beyond ±1, and tanh(pre_tanh) beside the action
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

    Returns:
        The recording, its actions in [-1, 1] and its `pre_tanh` finite: what was rounded beyond
        ±1 is ±1, and where `pre_tanh` is infinite or NaN there, `undo_tanh` gives it.

    Raises:
        ValueError: no such file, no whole recording, or one of another task; arrays of other
            shapes, no steps; a number that is not finite, or an action outside [-1, 1].
    """
    meta, arrays = read_archive(pathlib.Path(path), "recording", FORMAT)
    if arrays.keys() != set(_ARRAYS):
        odd = sorted(arrays.keys() ^ set(_ARRAYS))[0]
        raise ValueError(f"recording ({path}) must hold {', '.join(_ARRAYS)}, no more: see {odd}")
    recording = _checked(path, Recording(**arrays, task=str(meta.get("task"))))
    found = recording.observation.shape[-1], recording.action.shape[-1]
    if recording.task != task or found != (observation_size, action_size):
        raise ValueError(
            f"recording ({path}) is of {recording.task} with {found[0]} observations and "
            f"{found[1]} actions; this run is of {task} with {observation_size} and {action_size}"
        )
    return recording


def _checked(path: str | pathlib.Path, recording: Recording) -> Recording:
    """The recording with its edges mended, or a refusal of the first thing that cannot be."""

    def refuse(name: str, rule: str, bad: np.ndarray) -> None:
        if bad.any():
            index = tuple(int(i) for i in np.argwhere(bad)[0])
            raise ValueError(
                f"recording ({path}): {name} {rule}, found {getattr(recording, name)[index]} at "
                f"{list(index)}"
            )

    steps = recording.observation.shape[:2]
    for name in _ARRAYS:
        array = getattr(recording, name)
        rank = 3 if name in ("observation", "action", "pre_tanh") else 2
        if array.ndim != rank or array.shape[:2] != steps or not array.size:
            axes = f"[{steps[0]}, {steps[1]}]" if len(steps) == 2 else "[T, B]"
            raise ValueError(
                f"recording ({path}): {name} must have the axes {axes} of steps and environments"
                f"{' and one more' if rank == 3 else ''}, none empty, found {list(array.shape)}"
            )
        if array.dtype.kind not in "fiub":
            raise ValueError(f"recording ({path}): {name} must hold numbers, found {array.dtype}")
    for name in ("observation", "action", "reward"):
        refuse(name, "must be finite", ~np.isfinite(getattr(recording, name)))
    action, pre_tanh = recording.action, recording.pre_tanh
    refuse("action", "must lie in [-1, 1]", np.abs(action) > 1.0 + ROUNDING)
    if pre_tanh.shape != action.shape:
        raise ValueError(
            f"recording ({path}): pre_tanh {list(pre_tanh.shape)} must have the shape of action "
            f"{list(action.shape)}"
        )
    action = np.clip(action, -1.0, 1.0)
    is_edge = (np.abs(action) >= 1.0 - ROUNDING) & ~np.isfinite(pre_tanh)
    pre_tanh = np.where(is_edge, np.asarray(undo_tanh(jnp.asarray(action))), pre_tanh)
    refuse(
        "pre_tanh",
        "must be what tanh makes the action of",
        ~(np.abs(np.tanh(pre_tanh) - action) <= ROUNDING),
    )
    return recording._replace(action=action, pre_tanh=pre_tanh)


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

    Raises:
        NonFiniteTraining: the held-out loss is not finite at the end.
    """
    keys = jax.vmap(lambda key: jax.random.fold_in(key, WARM_START))(state.key)
    clone = functools.partial(clone_behaviour, trainer.agent, config=config)
    over_seeds = jax.vmap(
        lambda agent, key, seen: clone(agent, demonstrations=seen, key=key), (0, 0, None)
    )
    place = trainer.shardings(state).agent
    agent, metrics = jax.jit(over_seeds, out_shardings=(place, None))(
        state.agent, keys, recording.demonstrations()
    )
    metrics = jax.device_get(metrics)
    if not np.isfinite(metrics["cloning_loss_after"]).all():
        raise NonFiniteTraining(
            f"the warm start's {config.cloning_loss} loss is not finite after "
            f"{config.cloning_steps} steps: {metrics['cloning_loss_after'].tolist()}"
        )
    return state.replace(agent=agent), metrics
