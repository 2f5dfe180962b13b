"""Rounds of household games played by a planner model, and what an expert says of them."""

from collections.abc import Sequence

from envs.text.bridge import BatchEnv
from envs.text.engine import admissible_commands, step
from envs.text.game import Game
from envs.text.noisy import Reached
from envs.text.protocol import DEFAULT_HORIZON
from envs.text.scores import Episode
from envs.text.searching import SearchingExpert
from experiments.alfworld_data import with_goal
from jaxagent.planning.household_player import HouseholdPlayer
from jaxagent.training.written import LabelledTurn


def play_games(
    player: HouseholdPlayer,
    games: Sequence[Game],
    goals: Sequence[str],
    horizon: int = DEFAULT_HORIZON,
) -> list[Episode]:
    """Plays every game once, all of them side by side.

    Args:
        player: who plays.
        games: what is played.
        goals: another wording of each game's task for the player; "" keeps it.
        horizon: steps after which an episode is lost.

    Returns:
        One episode per game, in the order of the games.
    """
    env = BatchEnv(len(games), horizon=horizon)
    observations, info = env.reset(games)
    player.begin([
        with_goal(text, goal) if goal else text for text, goal in zip(observations, goals)
    ])  # fmt: skip
    episodes = [
        Episode(game.name, game.task.kind if game.task else "other", goal or game.task_text,
                [text], [], [], [], False)
        for game, goal, text in zip(games, goals, observations)
    ]  # fmt: skip
    subgoals = [""] * len(games)
    while any(info.admissible):
        running = [bool(commands) for commands in info.admissible]
        replies = player.act(observations, info.admissible)
        taken = env.step([reply.command for reply in replies])
        observations, info = taken.observations, taken.info
        for slot, reply in enumerate(replies):
            if running[slot]:
                subgoals[slot] = reply.subgoal or subgoals[slot]
                episodes[slot].commands.append(reply.command)
                episodes[slot].subgoals.append(subgoals[slot])
                episodes[slot].valid.append(bool(info.valid[slot]))
                episodes[slot].observations.append(observations[slot])
    return [episode._replace(won=bool(won)) for episode, won in zip(episodes, info.won)]


def label_episode(game: Game, episode: Episode) -> tuple[str, list[LabelledTurn]]:
    """An episode with what the searching expert would have done in each state.

    Args:
        game: that was played; its task must be worded in the benchmark's templates.
        episode: what was done in it.

    Returns:
        The opening, and the turns with their labels.
    """
    state, text = game.initial, episode.observations[0]
    expert, reached = SearchingExpert(text), Reached()
    turns = []
    for command in episode.commands:
        choice = expert.act(text, admissible_commands(game, state))
        label = reached.visible(choice, expert.memory)
        state, text, _, _ = step(game, state, command)
        reached.read(command, text)
        turns.append(LabelledTurn(command, label, choice.subgoal, text))
    return episode.observations[0], turns
