"""A batch of text environments over the engine, in this process."""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from envs.household.describe import opening_text
from envs.household.engine import Event, admissible_commands, step
from envs.household.game import Game, load_game
from envs.household.state import State
from envs.household.subgoals import serves
from jaxagent.text import DEFAULT_HORIZON, GameSource, TextInfo, TextStep


@dataclass(frozen=True)
class Rewards:
    """The reward of a step, in units of the agent's choosing."""

    won: float = 10.0
    """Paid once, when the goal is reached."""
    inadmissible: float = -0.1
    """Paid for every command after which nothing happens."""
    subgoal: float = 0.0
    """Paid for each sub-goal event that serves the game's task, the first time in an episode."""


# All games of the benchmark: about 50 kB each, against 3 ms for every game read again.
GAMES_KEPT = 4096


class GameCache:
    """Loaded games by path, the least recently used forgotten first."""

    def __init__(self, size: int = GAMES_KEPT) -> None:
        self._size = size
        self._games: OrderedDict[str, Game] = OrderedDict()

    def get(self, source: GameSource) -> Game:
        """The game itself, or the one in the file, read at most once while it is kept."""
        if isinstance(source, Game):
            return source
        key = str(Path(source))
        game = self._games.pop(key, None) or load_game(key)
        self._games[key] = game
        if len(self._games) > self._size:
            self._games.popitem(last=False)
        return game


class Snapshot(NamedTuple):
    """One environment at one moment. The game is shared, so keeping many of these is cheap."""

    game: Game
    state: State
    steps: int
    ended: bool
    paid: frozenset[Event]
    observation: str
    admissible: tuple[str, ...]


class SlotStep(NamedTuple):
    """One environment's part of a `TextStep`."""

    observation: str
    reward: float
    terminated: bool
    truncated: bool
    admissible: tuple[str, ...]
    won: bool
    event: Event | None
    valid: bool
    steps: int


class BatchEnv:
    """Episodes of the engine side by side; see `TextEnv` for how it is used.

    Args (of the constructor):
        num_envs: size of the batch.
        horizon: steps after which an episode that is not won is truncated.
        rewards: what a step pays.
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
        self._cache = GameCache()
        self._episodes: list[Snapshot | None] = [None] * num_envs
        self._closed = False

    def reset(
        self, games: Sequence[GameSource], slots: Sequence[int] | None = None
    ) -> tuple[list[str], TextInfo]:
        """Begins an episode of ``games[i]`` in environment ``slots[i]`` (default: in all).

        Args:
            games: loaded games or paths of game files.
            slots: the environments to reset; the others go on.

        Returns:
            Observations and information of the whole batch.

        Raises:
            GameFileError: a file cannot be played; no environment has then been reset.
            ValueError: games and slots do not match.
            RuntimeError: after `close`.
        """
        standing = stack_steps(self.reset_slots(games, slots))
        return standing.observations, standing.info

    def step(self, commands: Sequence[str]) -> TextStep:
        """Carries out one command per environment.

        Args:
            commands: one text per environment; ended environments ignore theirs.

        Returns:
            The batch's step; ``observations`` are the true successors, never those of a reset.

        Raises:
            ValueError: not one text per environment.
            RuntimeError: after `close`.
        """
        return stack_steps(self.step_slots(commands))

    def reset_slots(
        self, games: Sequence[GameSource], slots: Sequence[int] | None = None
    ) -> list[SlotStep]:
        """`reset`, environment by environment instead of stacked."""
        check_open(self._closed)
        chosen = check_batch(self.num_envs, games, slots)
        loaded = [self._cache.get(source) for source in games]
        for slot, game in zip(chosen, loaded):
            text, won = opening_text(game, game.initial), game.initial.won
            running = () if won else admissible_commands(game, game.initial)
            self._episodes[slot] = Snapshot(game, game.initial, 0, won, frozenset(), text, running)
        return [self._standing(slot) for slot in range(self.num_envs)]

    def step_slots(self, commands: Sequence[str]) -> list[SlotStep]:
        """`step`, environment by environment instead of stacked."""
        check_open(self._closed)
        check_commands(self.num_envs, commands)
        return [self._act(slot, command) for slot, command in enumerate(commands)]

    def snapshot(self, slot: int) -> Snapshot:
        """The environment as it stands, to be restored later, here or in another slot."""
        episode = self._episodes[slot]
        if episode is None:
            raise ValueError(f"environment {slot} has not been reset")
        return episode

    def restore(self, slot: int, snapshot: Snapshot) -> None:
        """Continues from a snapshot, whatever environment it was taken in."""
        self._episodes[slot] = snapshot

    def close(self) -> None:
        """Forgets all episodes; nothing else is held."""
        self._closed = True
        self._episodes = [None] * self.num_envs

    def _standing(self, slot: int) -> SlotStep:
        """The environment's last observation, without a step."""
        episode = self._episodes[slot]
        if episode is None:
            return SlotStep("", 0.0, False, False, (), False, None, False, 0)
        won = episode.state.won
        return SlotStep(
            episode.observation,
            0.0,
            episode.ended and won,
            episode.ended and not won,
            episode.admissible,
            won,
            None,
            False,
            episode.steps,
        )

    def _act(self, slot: int, command: str) -> SlotStep:
        episode = self._episodes[slot]
        if episode is None or episode.ended:
            return self._standing(slot)
        game, outcome = episode.game, step(episode.game, episode.state, command)
        won, steps = outcome.state.won, episode.steps + 1
        ended = won or steps >= self.horizon
        reward = self.rewards.won if won else 0.0
        if not outcome.valid:
            reward += self.rewards.inadmissible
        paid, event = episode.paid, outcome.event
        if event is not None and event not in paid and serves(game.task, event):
            reward += self.rewards.subgoal
            paid = paid | {event}
        if ended:
            admissible: tuple[str, ...] = ()
        elif outcome.state is episode.state:
            admissible = episode.admissible
        else:
            admissible = admissible_commands(game, outcome.state)
        self._episodes[slot] = Snapshot(
            game, outcome.state, steps, ended, paid, outcome.feedback, admissible
        )
        return SlotStep(
            outcome.feedback,
            reward,
            won,
            ended and not won,
            admissible,
            won,
            event,
            outcome.valid,
            steps,
        )


def stack_steps(parts: list[SlotStep], lost: Sequence[bool] | None = None) -> TextStep:
    """One step of a batch from those of its environments.

    Args:
        parts: in the order of the environments.
        lost: which of them were cut off with their worker; None for none.

    Returns:
        The batch's step, rewards as float32.
    """
    columns = list(zip(*parts))
    info = TextInfo(
        admissible=list(columns[4]),
        won=np.array(columns[5], bool),
        event=list(columns[6]),
        valid=np.array(columns[7], bool),
        steps=np.array(columns[8], np.int32),
        lost=np.zeros(len(parts), bool) if lost is None else np.array(lost, bool),
    )
    return TextStep(
        observations=list(columns[0]),
        rewards=np.array(columns[1], np.float32),
        terminated=np.array(columns[2], bool),
        truncated=np.array(columns[3], bool),
        info=info,
    )


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
