"""Planners by name: rules, a plan file, a Flax model, an OpenAI-compatible endpoint.

    planner = make_planner("smollm2-135m", GoalTask("walk to the point (10, 10)", (10.0, 10.0)),
                           RulePlanner((10.0, 10.0)))
    plan = planner.plan("corner", (0.0, 0.0))

What is imported is only what the name needs.
"""

import dataclasses
import pathlib

from jaxagent.planning.asking import AskSettings, PlannerLog
from jaxagent.planning.chat import ChatModel
from jaxagent.planning.goal_planner import GoalPlanner, GoalTask
from jaxagent.planning.plans import load_plan
from jaxagent.planning.rules import FixedPlanner
from jaxagent.planning.subgoal_planner import SubGoalPlanner
from jaxagent.planning.text_agent import RulePlanner as TextRulePlanner
from jaxagent.planning.text_agent import TextPlanner
from jaxagent.types import Planner

PACKAGED = ("smollm2-135m",)  # models that an extra of the same family installs
_PLAN_FILES = (".yaml", ".yml", ".json")


def check_planner(name: str) -> None:
    """Refuse a name that no planner has, without loading anything.

    Args:
        name: as of `make_planner`.

    Raises:
        ValueError: nothing has that name.
    """
    path = pathlib.Path(name)
    is_model = (bool(name) and path.is_dir()) or (path.suffix == ".gguf" and path.is_file())
    is_plan = path.suffix in _PLAN_FILES and path.is_file()
    if path.suffix in (*_PLAN_FILES, ".gguf") and not path.exists():
        raise ValueError(f"planner ({name}): there is no such file")
    if not (name in ("rule", *PACKAGED) or is_endpoint(name) or is_model or is_plan):
        raise ValueError(
            f"planner ({name}) must be rule, a plan file ({', '.join(_PLAN_FILES)}), "
            f"{', '.join(PACKAGED)}, openai, openai:MODEL, or an existing model: a folder or a "
            ".gguf file"
        )


def is_language_model(name: str) -> bool:
    """Whether a name that `check_planner` takes is that of a language model.

    Args:
        name: as of `make_planner`.
    """
    return name != "rule" and pathlib.Path(name).suffix not in _PLAN_FILES


def is_endpoint(name: str) -> bool:
    """Whether a name that `check_planner` takes is that of an OpenAI-compatible endpoint.

    Args:
        name: as of `make_planner`.
    """
    return name == "openai" or (name.startswith("openai:") and name != "openai:")


def make_chat(name: str, *, context: int = 2048, conversations: int = 1) -> ChatModel:
    """A language model by name.

    Args:
        name: "openai" or "openai:MODEL" (key and endpoint from the environment: OPENAI_API_KEY,
            OPENAI_BASE_URL, OPENAI_MODEL), "smollm2-135m", a Hugging Face folder, or a GGUF file.
        context: tokens that prompt and reply may fill together.
        conversations: that a Flax model keeps in its caches side by side.

    Raises:
        ValueError: no such model, or what it needs is missing.
    """
    check_planner(name)
    if is_endpoint(name):
        from jaxagent.planning.openai_chat import OpenAIChat
        from jaxagent.planning.serving.resilience import ResilientChat

        model = name.removeprefix("openai").removeprefix(":")
        return ResilientChat(OpenAIChat(model or None, context=context))
    if not is_language_model(name):
        raise ValueError(f"{name} is no language model")
    from jaxagent.models.llm.load import load_model
    from jaxagent.planning.flax_chat import FlaxChat

    return FlaxChat(load_model(name), context=context, conversations=conversations)


def make_planner(
    name: str,
    task: GoalTask,
    rule: Planner,
    *,
    settings: AskSettings | None = None,
    log: PlannerLog | None = None,
) -> Planner:
    """A planner of points by name.

    Args:
        name: "rule", a plan file, or a language model as of `make_chat`.
        task: what a language model is asked for.
        rule: the planner of that name, and the fallback of every language model.
        settings: how a language model is asked.
        log: its counts; the planner has a fresh one, `planner.log`, if None.

    Returns:
        The planner; a `GoalPlanner` for a language model. Its first plan may take seconds (a model
        compiles, an endpoint thinks): `plan_guide.PlanGuide` asks while training goes on.

    Raises:
        ValueError: no such planner, a plan file that is refused, or what a model needs is missing.
    """
    check_planner(name)
    if name == "rule":
        return rule
    if pathlib.Path(name).suffix in _PLAN_FILES:
        return FixedPlanner(load_plan(name))
    return GoalPlanner(
        make_chat(name), task, rule, settings=_suited(name, settings or AskSettings()), log=log
    )


def make_subgoal_planner(
    chat: ChatModel,
    *,
    fallback: TextPlanner | None = None,
    settings: AskSettings | None = None,
    log: PlannerLog | None = None,
) -> SubGoalPlanner:
    """A planner of text sub-goals for one episode.

    Args:
        chat: from `make_chat`, shared by all episodes; with as many conversations as there are
            episodes side by side, each keeps its cache.
        fallback: the rules if None.
        settings: how it is asked.
        log: counts, to be shared by the episodes of an evaluation.
    """
    return SubGoalPlanner(chat, fallback or TextRulePlanner(), settings=settings, log=log)


def _suited(name: str, settings: AskSettings) -> AskSettings:
    """Some endpoints refuse every temperature but their own, and sample by themselves."""
    if is_endpoint(name):
        return dataclasses.replace(settings, temperature=None, retry_temperature=None)
    return settings
