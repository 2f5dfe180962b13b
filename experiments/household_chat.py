"""A language model that converses, as the planner of the household games."""

from typing import Any

from jaxagent.planning.asking import AskSettings, PlannerLog
from jaxagent.planning.backends import (
    check_planner,
    is_language_model,
    make_chat,
    make_subgoal_planner,
)
from jaxagent.planning.subgoal_planner import SubGoalPlanner


def chat_name(agent: str) -> str | None:
    """Name, folder or endpoint of the language model that an agent is; None if it is none.

    Args:
        agent: as on the command line, `planner:smollm2-135m` for example.
    """
    name = agent.removeprefix("planner:")
    if name == agent:
        return None
    try:
        check_planner(name)
    except ValueError:
        return None
    return name if is_language_model(name) else None


class ChatAdvisor:
    """Proposes the sub-goals of episodes, which are played one after the other.

    Each proposal is constrained to the verbs of the white-list and the names that were read; where
    no reply can be used the rules propose, and that is counted.
    """

    def __init__(self, name: str, seed: int):
        """Load the model.

        Args:
            name: of `chat_name`.
            seed: of retries, the only replies that are sampled.

        Raises:
            ValueError: it cannot be loaded, or what an endpoint needs is missing.
        """
        self._chat, self._log = make_chat(name), PlannerLog()
        # Endpoints may refuse every temperature but their own.
        warm = None if name.startswith("openai") else AskSettings.retry_temperature
        self._settings = AskSettings(max_tokens=64, retry_temperature=warm, seed=seed)

    def planner(self) -> SubGoalPlanner:
        """A planner for one episode."""
        return make_subgoal_planner(self._chat, settings=self._settings, log=self._log)

    def summary(self) -> dict[str, Any]:
        """Counts of questions, accepted and refused replies; see `PlannerLog.summary`."""
        return self._log.summary()

    def notes(self) -> list[str]:
        """What became of the questions."""
        counts = self.summary()
        share = counts["accepted_share"]
        return [
            f"{counts['questions']} sub-goals asked for, {counts['accepted']} accepted"
            + ("" if share is None else f" ({share:.0%})")
            + f"; refused: {counts['refused'] or 'none'}; the rules proposed {counts['fell_back']}"
        ]
