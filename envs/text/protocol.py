"""What a batch of text environments offers, whoever plays the games behind it."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np

from envs.text.engine import Event
from envs.text.game import Game

GameSource = Game | str | Path
DEFAULT_HORIZON = 50


class TextInfo(NamedTuple):
    """What an agent may be told beside the observation, one entry per environment.

    ``admissible`` is empty where no episode runs (ended, lost, or never begun). ``event`` is the
    sub-goal that the last command completed. ``lost`` marks episodes that were cut off because
    their worker hung or died.
    """

    admissible: list[tuple[str, ...]]
    won: np.ndarray
    event: list[Event | None]
    valid: np.ndarray
    steps: np.ndarray
    lost: np.ndarray

    @property
    def score(self) -> np.ndarray:
        """Points, as the stock engine counts them: 1 once the game is won, 0 until then."""
        return self.won.astype(np.int32)


class TextStep(NamedTuple):
    """One step of a batch; ``terminated`` means won, ``truncated`` the horizon or a lost worker."""

    observations: list[str]
    rewards: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    info: TextInfo


class TextEnv(Protocol):
    """A batch of text environments that are reset to given games, without auto-reset.

    An environment whose episode has ended keeps its last observation, ignores commands and earns
    nothing until it is reset.
    """

    num_envs: int

    def reset(
        self, games: Sequence[GameSource], slots: Sequence[int] | None = None
    ) -> tuple[list[str], TextInfo]:
        """Begins an episode of ``games[i]`` in environment ``slots[i]`` (default: in all)."""
        ...

    def step(self, commands: Sequence[str]) -> TextStep:
        """Carries out one command per environment."""
        ...

    def close(self) -> None:
        """Frees processes and files; the environment cannot be used afterwards."""
        ...


@dataclass(frozen=True)
class Rewards:
    """The reward of a step, in units of the agent's choosing."""

    won: float = 10.0
    """Paid once, when the goal is reached."""
    inadmissible: float = -0.1
    """Paid for every command after which nothing happens."""
    subgoal: float = 0.0
    """Paid for each sub-goal event that serves the game's task, the first time in an episode."""


def check_batch(num_envs: int, games: Sequence, slots: Sequence[int] | None) -> list[int]:
    """The environments that a reset concerns.

    Args:
        num_envs: size of the batch.
        games: one game for each of them.
        slots: their indices, or None for all.

    Returns:
        The indices as a list.

    Raises:
        ValueError: the numbers do not match or an index is out of range or repeated.
    """
    chosen = list(range(num_envs)) if slots is None else list(slots)
    if len(games) != len(chosen):
        raise ValueError(f"{len(games)} games given for {len(chosen)} environments")
    if len(set(chosen)) != len(chosen) or not all(0 <= slot < num_envs for slot in chosen):
        raise ValueError(f"slots {chosen} must be distinct and in 0..{num_envs - 1}")
    return chosen


def check_open(closed: bool) -> None:
    """Refuses to go on with environments that have been closed.

    Args:
        closed: whether they have.

    Raises:
        RuntimeError: they have.
    """
    if closed:
        raise RuntimeError("the environments are closed and cannot be used again: make new ones")


def check_commands(num_envs: int, commands: Sequence[str]) -> None:
    """Refuses a list of commands that is not one text per environment.

    Args:
        num_envs: size of the batch.
        commands: what the agent sent.

    Raises:
        ValueError: wrong number, or a command that is not a text.
    """
    if isinstance(commands, str) or len(commands) != num_envs:
        raise ValueError(f"{len(commands)} commands given for {num_envs} environments")
    for slot, command in enumerate(commands):
        if not isinstance(command, str):
            raise ValueError(f"command {slot} is a {type(command).__name__}, not a text")
