"""Who plans for the Ant: a straight line, a file, or a language model asked while it trains."""

import pathlib

from envs.ant import ARRIVAL_RADIUS, CORNER
from experiments.ant_config import AntConfig
from jaxagent.planning.backends import is_endpoint, make_planner
from jaxagent.planning.goal_planner import GoalTask
from jaxagent.planning.plan_guide import PlanGuide
from jaxagent.planning.plans import load_plan
from jaxagent.planning.rules import RulePlanner
from jaxagent.planning.serving.replanning import ReplanRule
from jaxagent.planning.serving.service import ServiceSettings
from jaxagent.training.plan_follower import PLAN_FILE
from jaxagent.training.run_folder import has_checkpoint
from jaxagent.types import Plan

EAST = (1000.0, 0.0)  # where `run` runs to, metres
START = (0.0, 0.0)  # where episodes begin, metres
CORNER_TASK = GoalTask(
    "move to the north-east corner, the point (10, 10)",
    CORNER,
    arrival_radius=ARRIVAL_RADIUS,
    most=4,
)
# A model on a slow CPU compiles for a minute before its first answer.
_PATIENCE_SECONDS = 600.0


def rule_planner(config: AntConfig) -> RulePlanner:
    """The straight line of a task."""
    return RulePlanner(CORNER if config.task == "corner" else EAST)


def plan_beforehand(config: AntConfig) -> Plan:
    """The plan of a rule or a file; the rule's in place of that of a language model.

    Raises:
        ValueError: the plan file is refused.
    """
    rule = rule_planner(config)
    planner = rule if config.asks_model else make_planner(config.planner, CORNER_TASK, rule)
    return planner.plan(config.task, START)


def plan_capacity(config: AntConfig) -> int | None:
    """Sub-goals for which a changing plan needs room; None: the plan does not change."""
    if not config.asks_model:
        return None
    return max(CORNER_TASK.most, len(plan_beforehand(config).sub_goals))


def make_guide(config: AntConfig, folder: pathlib.Path) -> PlanGuide | None:
    """The language model that plans a run; None where none does.

    Args:
        config: of the run.
        folder: of the run, in which answers are kept.

    Raises:
        ValueError: the model cannot be loaded, or what its endpoint needs is missing.
    """
    if not config.asks_model:
        return None
    rule = rule_planner(config)
    return PlanGuide(
        make_planner(config.planner, CORNER_TASK, rule),
        rule,
        config.task,
        START,
        replan=ReplanRule(patience=config.replan_patience),
        cache_folder=folder / "plans",
        service_settings=ServiceSettings(timeout=_PATIENCE_SECONDS),
        wait=config.planner_wait,
    )


def check_endpoint(config: AntConfig) -> None:
    """Refuse what a run would refuse of the endpoint that plans it, without asking it.

    Raises:
        ValueError: what it needs is missing.
    """
    if is_endpoint(config.planner):
        make_planner(config.planner, CORNER_TASK, rule_planner(config))


def begin_plan(config: AntConfig, guide: PlanGuide | None, folder: pathlib.Path) -> Plan:
    """The plan that training starts, or goes on, with.

    Args:
        config: of the run.
        guide: asked when the run is new; waits for the answer.
        folder: of the arm that is guided.
    """
    if guide is None:
        return plan_beforehand(config)
    if config.resume and has_checkpoint(folder):
        # Where it differs from the checkpoint's, that one is restored with the state.
        return plan_of_run(config, folder)
    return guide.begin()


def plan_of_run(config: AntConfig, folder: pathlib.Path) -> Plan:
    """The plan that a run followed last.

    Args:
        config: of the run.
        folder: of the run, or of an arm.

    Raises:
        ValueError: its file is refused.
    """
    kept = folder / PLAN_FILE
    return load_plan(kept) if config.asks_model and kept.exists() else plan_beforehand(config)
