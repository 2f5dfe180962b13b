"""Household games played side by side by a team of agents, and what an expert says of them."""

from collections.abc import Callable, Sequence
from typing import Protocol

from envs.household.data import DataError
from envs.household.describe import opening_text
from envs.household.engine import NOTHING_HAPPENS, admissible_commands, step
from envs.household.game import Game
from envs.household.noisy_demonstrations import Reached
from envs.household.searching_expert import SearchingExpert
from envs.text.batch import BatchEnv
from experiments.alfworld_data import with_goal
from jaxagent.planning.household_player import HouseholdPlayer
from jaxagent.text import DEFAULT_HORIZON, Episode, TextEnv
from jaxagent.training.written import LabelledTurn

_REFUSALS = 3


class Team(Protocol):
    """Agents in the middle of their episodes, one each."""

    def act(
        self, observations: Sequence[str], admissible: Sequence[Sequence[str]]
    ) -> list[tuple[str, str]]:
        """Of each agent the command and the sub-goal it serves; ("", "") where its game is over."""
        ...


class ModelTeam:
    """One planner model plays all games.

    Args (of the constructor):
        player: the model.
        openings: the first observations.
    """

    def __init__(self, player: HouseholdPlayer, openings: Sequence[str]) -> None:
        self._player = player
        self._subgoals = [""] * len(openings)
        player.begin(openings)

    def act(
        self, observations: Sequence[str], admissible: Sequence[Sequence[str]]
    ) -> list[tuple[str, str]]:
        """See `Team`; a sub-goal is kept until the model names another."""
        replies = self._player.act(observations, admissible)
        self._subgoals = [r.subgoal or before for r, before in zip(replies, self._subgoals)]
        return [(r.command, subgoal) for r, subgoal in zip(replies, self._subgoals)]


def play(
    env: TextEnv,
    games: Sequence[Game],
    gather: Callable[[list[str]], Team],
    goals: Sequence[str] | None = None,
) -> list[Episode]:
    """Plays every game once, all of them side by side.

    Args:
        env: with one environment for each game.
        games: what is played.
        gather: makes the team from the first observations.
        goals: another wording of each game's task; "" keeps it.

    Returns:
        One episode per game, in the order of the games.

    Raises:
        DataError: an episode was cut off because its worker hung or died.
    """
    observations, info = env.reset(games)
    goals = goals or [""] * len(games)
    openings = [with_goal(text, goal) if goal else text for text, goal in zip(observations, goals)]
    team = gather(openings)
    episodes = [
        Episode(game.name, game.task.kind if game.task else "other", goal or game.task_text,
                [text], [], [], [], False)
        for game, goal, text in zip(games, goals, openings)
    ]  # fmt: skip
    observations = openings
    while any(info.admissible):
        running = [bool(commands) for commands in info.admissible]
        chosen = team.act(observations, info.admissible)
        taken = env.step([command for command, _ in chosen])
        observations, info = taken.observations, taken.info
        for slot, (command, subgoal) in enumerate(chosen):
            if running[slot]:
                episodes[slot].commands.append(command)
                episodes[slot].subgoals.append(subgoal)
                episodes[slot].valid.append(bool(info.valid[slot]))
                episodes[slot].observations.append(observations[slot])
    if info.lost.any():
        raise DataError(
            f"{int(info.lost.sum())} of {len(games)} episodes were cut off because their worker "
            "hung or died; a score without them would not be that of the panel"
        )
    return [episode._replace(won=bool(won)) for episode, won in zip(episodes, info.won)]


def play_games(
    player: HouseholdPlayer,
    games: Sequence[Game],
    goals: Sequence[str] | None = None,
    horizon: int = DEFAULT_HORIZON,
) -> list[Episode]:
    """`play`, by one model in this process; no more at once than its caches have memory for."""
    episodes: list[Episode] = []
    for some in batches(len(games), player.most_games):
        env = BatchEnv(len(games[some]), horizon=horizon)
        own = goals[some] if goals else None
        episodes += play(env, games[some], lambda openings: ModelTeam(player, openings), own)
    return episodes


def batches(count: int, most: int) -> list[slice]:
    """Consecutive parts of so many games, with at most so many in each."""
    return [slice(start, start + most) for start in range(0, count, most)]


def label_episode(game: Game, episode: Episode) -> tuple[str, list[LabelledTurn]]:
    """An episode with what the searching expert would have done in each state.

    Args:
        game: that was played. The expert reads its task as the benchmark words it.
        episode: what was done in it, whatever words the task had there.

    Returns:
        The opening, and the turns with their labels; none after a command that was refused for the
        third time in a row, from where on nothing new is visited.
    """
    state, text = game.initial, opening_text(game, game.initial)
    expert, reached = SearchingExpert(text), Reached()
    turns = []
    for command in episode.commands:
        choice = expert.act(text, admissible_commands(game, state))
        label = reached.visible(choice, expert.memory)
        state, text, _, _ = step(game, state, command)
        reached.read(command, text)
        turns.append(LabelledTurn(command, label, choice.subgoal, text))
        last = {(turn.command, turn.observation) for turn in turns[-_REFUSALS:]}
        if len(turns) >= _REFUSALS and last == {(command, NOTHING_HAPPENS)}:
            break
    return episode.observations[0], turns
