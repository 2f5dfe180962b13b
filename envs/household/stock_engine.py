"""The stock ALFWorld engine behind the same protocol (extra ``alfworld``), as an oracle.

It is some thousand times slower than the engine here. Faults of the package that are mended from
outside: every environment has its own wrappers (the package shares one, so that all show the same
room), nothing is forked, and ``sys.argv`` and ``sys.stdout`` survive the loading of a game. What
cannot be mended: about 0.8 MB is lost per game loaded, and it must stay in one thread.
"""

import contextlib
import json
import re
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from envs.household.engine import NOTHING_HAPPENS, Event
from envs.household.game import Game, load_game
from envs.household.panels import Panel
from envs.household.subgoals import serves
from envs.household.task import Task
from envs.text.batch import Rewards, SlotStep, check_batch, check_commands, check_open, stack_steps
from jaxagent.text import DEFAULT_HORIZON, Episode, GameSource, TextInfo, TextStep

_EVENTS = (
    (re.compile(r"go to ()(.+)"), "at"),
    (re.compile(r"open ()(.+)"), "opened"),
    (re.compile(r"close ()(.+)"), "closed"),
    (re.compile(r"take (.+) from (.+)"), "holds"),
    (re.compile(r"move (.+) to (.+)"), "placed"),
    (re.compile(r"put (.+) in/on (.+)"), "placed"),
    (re.compile(r"clean (.+) with (.+)"), "cleaned"),
    (re.compile(r"heat (.+) with (.+)"), "heated"),
    (re.compile(r"cool (.+) with (.+)"), "cooled"),
    (re.compile(r"use (.+)()"), "used"),
    (re.compile(r"slice (.+) with ()"), "sliced"),
)


class StockEnv:
    """The stock engine; see `TextEnv` for how it is used. Games are given as paths.

    Args (of the constructor):
        num_envs: size of the batch.
        horizon: steps after which an episode that is not won is truncated.
        rewards: what a step pays.

    Raises:
        ImportError: the extra ``alfworld`` is not installed.
    """

    def __init__(
        self,
        num_envs: int,
        *,
        horizon: int = DEFAULT_HORIZON,
        rewards: Rewards | None = None,
    ) -> None:
        if num_envs < 1 or horizon < 1:
            raise ValueError(
                f"num_envs ({num_envs}) and horizon ({horizon}) must both be at least 1"
            )
        self.num_envs = num_envs
        self.horizon = horizon
        self.rewards = rewards or Rewards()
        self._players = [stock_player() for _ in range(num_envs)]
        self._tasks: list[Task | None] = [None] * num_envs
        self._paid: list[set[Event]] = [set() for _ in range(num_envs)]
        self._last = [
            SlotStep("", 0.0, False, False, (), False, None, False, 0) for _ in range(num_envs)
        ]

    def reset(
        self, games: Sequence[GameSource], slots: Sequence[int] | None = None
    ) -> tuple[list[str], TextInfo]:
        """Begins an episode of ``games[i]`` in environment ``slots[i]`` (default: in all).

        Args:
            games: paths of game files.
            slots: the environments to reset; the others go on.

        Returns:
            Observations and information of the whole batch.

        Raises:
            GameFileError: a file is no household game (found out by this project's reader).
            ValueError: games and slots do not match, or a game is not given as a path.
            RuntimeError: after `close`.
        """
        check_open(not self._players)
        chosen = check_batch(self.num_envs, games, slots)
        paths = [_path_of(source) for source in games]
        tasks = [load_game(path).task for path in paths]
        for slot, path, task in zip(chosen, paths, tasks):
            with _process_state_kept():
                # As a document: the package leaves the files that it opens itself open.
                self._players[slot].load(json.loads(path.read_text(encoding="utf-8")))
                state = self._players[slot].reset()
            self._tasks[slot], self._paid[slot] = task, set()
            self._last[slot] = SlotStep(
                state["feedback"],
                0.0,
                bool(state["won"]),
                False,
                tuple(state["admissible_commands"]),
                bool(state["won"]),
                None,
                False,
                0,
            )
        whole = stack_steps(self._last)
        return whole.observations, whole.info

    def step(self, commands: Sequence[str]) -> TextStep:
        """Carries out one command per environment.

        Args:
            commands: one text per environment; ended environments ignore theirs. As everywhere
                here, ``put X in/on Y`` and ``move X to Y`` are the same.

        Returns:
            The batch's step.

        Raises:
            ValueError: not one text per environment.
            RuntimeError: after `close`.
        """
        check_open(not self._players)
        check_commands(self.num_envs, commands)
        self._last = [self._act(slot, command) for slot, command in enumerate(commands)]
        return stack_steps(self._last)

    def close(self) -> None:
        """Forgets the games; the native planner libraries stay loaded until the process ends."""
        self._players = []

    def _act(self, slot: int, command: str) -> SlotStep:
        last = self._last[slot]
        if last.terminated or last.truncated or not last.admissible:
            return last._replace(reward=0.0, event=None, valid=False)
        command = _worded_as(command.strip(), last.admissible)
        with _process_state_kept():
            state, _, _ = self._players[slot].step(command)
        won, steps = bool(state["won"]), last.steps + 1
        valid = state["feedback"] != NOTHING_HAPPENS
        event = event_of(command) if valid else None
        reward = (self.rewards.won if won else 0.0) + (0.0 if valid else self.rewards.inadmissible)
        if event and event not in self._paid[slot] and serves(self._tasks[slot], event):
            self._paid[slot].add(event)
            reward += self.rewards.subgoal
        ended = won or steps >= self.horizon
        admissible = () if ended else tuple(state["admissible_commands"])
        return SlotStep(
            state["feedback"], reward, won, ended and not won, admissible, won, event, valid, steps
        )


def _path_of(source: GameSource) -> Path:
    if isinstance(source, Game):
        raise ValueError(f"the stock engine reads files: give the path of {source.name}")
    return Path(source)


def stock_version() -> str:
    """Versions of the packages that make up the stock engine.

    Raises:
        ImportError: the extra ``alfworld`` is not installed.
    """
    from importlib.metadata import PackageNotFoundError, version

    try:
        return f"alfworld {version('alfworld')}, textworld {version('textworld')}"
    except PackageNotFoundError:
        raise ImportError(_MISSING) from None


_MISSING = (
    "the stock ALFWorld engine is not installed: pip install alfworld "
    "(it compiles for a few minutes and needs g++ and cmake)"
)


def stock_player() -> Any:
    """One game of the stock engine, with ``load(document)``, ``reset()`` and ``step(command)``.

    Unlike `StockEnv` it goes on after a win. Loading changes ``sys.argv`` and ``sys.stdout``.

    Returns:
        The package's own environment in its naming wrapper.

    Raises:
        ImportError: the extra ``alfworld`` is not installed.
    """
    try:
        import textworld  # pyright: ignore[reportMissingImports]
        from alfworld.agents.environment.alfred_tw_env import (  # pyright: ignore[reportMissingImports]
            AlfredDemangler,
        )
        from textworld.envs.pddl import PddlEnv  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise ImportError(f"{_MISSING}; the import failed with: {error}") from None
    with _process_state_kept():
        requested = textworld.EnvInfos(won=True, admissible_commands=True)
        return AlfredDemangler(PddlEnv(requested))


@contextlib.contextmanager
def _process_state_kept() -> Iterator[None]:
    arguments, stdout = sys.argv, sys.stdout
    try:
        yield
    finally:
        sys.argv, sys.stdout = arguments, stdout


def _worded_as(command: str, admissible: Sequence[str]) -> str:
    """A put in the wording of the game at hand, if it is admissible in that wording."""
    if command in admissible:
        return command
    for pattern, other in (
        (r"put (.+) in/on (.+)", r"move \1 to \2"),
        (r"move (.+) to (.+)", r"put \1 in/on \2"),
    ):
        reworded = re.sub(rf"^{pattern}$", other, command)
        if reworded in admissible:
            return reworded
    return command


def event_of(command: str) -> Event | None:
    """The sub-goal that a command completes, if it is one and something happens.

    Args:
        command: as the stock engine understands it; its admissible commands name all that the
            event of this project's engine holds.

    Returns:
        The event; None for a command that only looks.
    """
    for pattern, kind in _EVENTS:
        found = pattern.match(command)
        if found:
            return Event(kind, *found.groups())
    return None


def written_game(data: dict, folder: str | None = None) -> Path:
    """A game document in a file of its own, for an engine that reads files only.

    Args:
        data: the content of ``game.tw-pddl``.
        folder: where to write; None is a new temporary folder, which the caller removes.

    Returns:
        The path of the file.
    """
    path = Path(folder or tempfile.mkdtemp(prefix="household-")) / "game.tw-pddl"
    path.write_text(json.dumps(data))
    return path


def replay_on_stock(panel: Panel, episodes: Sequence[Episode], horizon: int) -> list[str]:
    """Plays won episodes again on the stock engine.

    Args:
        panel: the games, in the order of the episodes.
        episodes: what was played here.
        horizon: the episodes' horizon.

    Returns:
        Names of the games that the stock engine does not count as won.

    Raises:
        ImportError: the extra ``alfworld`` is not installed.
    """
    env = StockEnv(1, horizon=horizon)
    refused = []
    for (_, document), episode in zip(panel.games, episodes):
        if not episode.won:
            continue
        with tempfile.TemporaryDirectory(prefix="household-") as folder:
            _, info = env.reset([written_game(document, folder)])
            for command in episode.commands:
                info = env.step([command]).info
        if not info.won[0]:
            refused.append(episode.game)
    return refused
