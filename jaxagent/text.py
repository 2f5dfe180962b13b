"""The protocols of a text world: what agents, trainers and environments agree on.

A text world plays games by printed text. It implements `TextEnv` for batches of games and gives
one `TextFormat` for each way in which a language model may read and continue its episodes. Neither
the batch nor the model needs to know which world it is.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

DEFAULT_HORIZON = 50
KEEP, SWITCH = "keep", "switch"
"""First word of a hierarchical reply: the sub-goal stays, or another one follows."""

GameSource = Any
"""A loaded game of the world, or the path of a game file."""


class TextInfo(NamedTuple):
    """What an agent may be told beside the observation, one entry per environment.

    ``admissible`` is empty where no episode runs (ended, lost, or never begun). ``event`` is the
    sub-goal that the last command completed, as the world describes it. ``lost`` marks episodes
    that were cut off because their worker hung or died.
    """

    admissible: list[tuple[str, ...]]
    won: np.ndarray
    event: list[Any]
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


class Episode(NamedTuple):
    """One played game. ``observations[i]`` is what ``commands[i]`` answers; one more follows."""

    game: str
    task_type: str
    task: str
    observations: list[str]
    commands: list[str]
    subgoals: list[str]
    valid: list[bool]
    won: bool


class Reply(NamedTuple):
    """What an agent answers in a turn. An empty sub-goal keeps the one before."""

    command: str
    subgoal: str = ""


class Notes(Protocol):
    """What is kept of one episode, for the markers in it."""

    def read(self, observation: str) -> None:
        """Takes in what a command printed."""
        ...

    def marker(self) -> str:
        """The text before the next reply."""
        ...


class TextFormat(Protocol):
    """How an episode is written for a model: an opening, then turns of marker, reply, observation.

    Attributes:
        name: by which configurations and saved planners choose it.
        version: changes whenever the same episode is written otherwise.
        hierarchical: whether a reply begins with `KEEP`, or with `SWITCH` and a sub-goal.
        command_arity: of each first word of a command, the number of things that follow it; None
            where a reply is one or two lines of free text.
        subgoal_arity: the same of sub-goals.
        task_prefix: the text before the task in an opening; the place is described before it.
    """

    name: str
    version: int
    hierarchical: bool
    command_arity: Mapping[str, int] | None
    subgoal_arity: Mapping[str, int] | None
    task_prefix: str

    def notes(self, opening: str) -> Notes:
        """Of an episode that begins, given the first observation as printed."""
        ...

    def opening(self, text: str) -> str:
        """The first observation."""
        ...

    def observation(self, text: str) -> str:
        """What a command printed."""
        ...

    def command(self, command: str) -> str:
        """A command; lossless for everything that the games understand."""
        ...

    def subgoal(self, reply: Reply) -> str:
        """The text before the command: "" outside the hierarchical formats."""
        ...

    def read(self, text: str) -> Reply:
        """The reply in a model's text; nonsense comes out as a command as it is."""
        ...


class TextWorld(Protocol):
    """A text world as a whole, by whose name commands choose it.

    Attributes:
        name: of the world.
        formats: by name, how its episodes are written for a model.
        planners: by name, the folders of the trained planners that come with it.
    """

    name: str
    formats: Mapping[str, TextFormat]
    planners: Mapping[str, Path]
