"""Agents of the household games, one for each episode, and a team of them."""

import random
from collections.abc import Sequence
from typing import Protocol

from jaxagent.planning.text_agent import TextAgent


class Player(Protocol):
    """An agent in the middle of one episode."""

    def act(self, observation: str, admissible: Sequence[str]) -> tuple[str, str]:
        """The command, and the sub-goal it serves ("" if the agent has none)."""
        ...


class RandomPlayer:
    """Chooses among the admissible commands, each alike."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)

    def act(self, observation: str, admissible: Sequence[str]) -> tuple[str, str]:
        """A random admissible command."""
        return self._rng.choice(admissible), ""


class PlanPlayer:
    """Follows a plan made in advance."""

    def __init__(self, plan: Sequence[str]) -> None:
        self._plan = list(plan)

    def act(self, observation: str, admissible: Sequence[str]) -> tuple[str, str]:
        """The next command of the plan."""
        return (self._plan.pop(0) if self._plan else "look"), ""


class LoopPlayer:
    """The loop of planner and worker."""

    def __init__(self, agent: TextAgent) -> None:
        self._agent = agent

    def act(self, observation: str, admissible: Sequence[str]) -> tuple[str, str]:
        """The loop's command and its sub-goal."""
        command = self._agent.act(observation, admissible)
        return command, self._agent.subgoal


class PlayerTeam:
    """Agents of which each decides alone."""

    def __init__(self, players: Sequence[Player]) -> None:
        self._players = players

    def act(
        self, observations: Sequence[str], admissible: Sequence[Sequence[str]]
    ) -> list[tuple[str, str]]:
        """See `Team`."""
        return [
            player.act(text, commands) if commands else ("", "")
            for player, text, commands in zip(self._players, observations, admissible)
        ]
