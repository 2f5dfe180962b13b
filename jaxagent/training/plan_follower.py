"""A language model's plan in a training run: reviewed at evaluations, changed on the device.

The host asks and goes on; a new plan takes the old one's place between two iterations, without
compiling again. What was planned, when and why stands in plans.json.
"""

import itertools
import pathlib
from typing import Any

import jax
import numpy as np

from jaxagent.planning.asking import accepted_share
from jaxagent.planning.device_plan import plan_arrays
from jaxagent.planning.goal_planner import describe_plan
from jaxagent.planning.plan_guide import PlanGuide
from jaxagent.planning.plans import dump_plan
from jaxagent.training.evaluate import write_report
from jaxagent.training.trainer import Evaluation, Trainer, TrainState

PLAN_FILE, HISTORY_FILE = "plan.json", "plans.json"


class PlanFollower:
    """Brings the plans of a `PlanGuide` into the state of a run."""

    def __init__(self, guide: PlanGuide, trainer: Trainer, folder: pathlib.Path):
        """Bind the run.

        Args:
            guide: whom to ask.
            trainer: its guidance has the guide's capacity.
            folder: of the run; gets plan.json and plans.json.

        Raises:
            ValueError: the trainer's plan cannot be changed, or there are several processes.
        """
        if jax.process_count() > 1:
            raise ValueError(
                f"a language model plans in runs of one process, not of {jax.process_count()}"
            )
        self.guide, self._folder = guide, folder
        self._change = trainer.compile_change_plan()
        self._earlier: dict[str, Any] = {}

    def review(
        self, state: TrainState, number: int, evaluation: Evaluation
    ) -> tuple[TrainState, str | None]:
        """Look at how far the policy gets along the plan, and go on with another where one came.

        Args:
            state: of the run.
            number: of the evaluation.
            evaluation: of the policy, on the host.

        Returns:
            The state to go on with, and why its plan is another one; None where it is the same.
        """
        path = np.asarray(evaluation.path)
        plan = self.guide.review(number, path.reshape(-1, *path.shape[2:]))
        if plan is not None:
            arrays = plan_arrays(plan, self.guide.capacity)
            position = state.env.simulator.body.position[..., :2]
            state = state.replace(guidance=self._change(state.guidance, arrays, position))
        self.write()
        return state, None if plan is None else str(self.guide.events[-1]["reason"])

    def summary(self) -> dict[str, Any]:
        """`PlanGuide.summary`, with what was counted before the run was taken up again."""
        values = self.guide.summary()
        return values | {"planner": _added(self._earlier, values["planner"])}

    def tell(self) -> str:
        """What became of the questions, in one line."""
        summary = self.summary()
        counts, pending = summary["planner"], summary["service"]["pending"]
        refused = ", ".join(f"{count} {why}" for why, count in sorted(counts["refused"].items()))
        share = counts["accepted_share"]
        plans = [event["plan"] for event in self.guide.events]
        changes = sum(new != old for old, new in itertools.pairwise(plans))
        return (
            f"plans: {counts['questions']} questions to the model, {counts['accepted']} accepted"
            + ("" if share is None else f" ({share:.0%})")
            + f"; refused replies and calls: {refused or 'none'}; the rule planned "
            f"{counts['fell_back']} times; replanned {len(plans) - 1} times, {changes} with "
            "another plan" + (f"; {pending} question not yet answered" if pending else "")
        )

    def write(self) -> None:
        """Bring the run folder's plan.json and plans.json up to date."""
        write_report(self._folder / PLAN_FILE, dump_plan(self.guide.plan))
        write_report(self._folder / HISTORY_FILE, self.summary())

    def describe(self) -> str:
        """The plan that is followed now, in words."""
        return describe_plan(self.guide.plan)

    def snapshot(self) -> dict[str, Any]:
        """What a checkpoint keeps, as JSON can hold it."""
        return {"guide": self.guide.snapshot(), "planner": self.summary()["planner"]}

    def restore(self, values: dict[str, Any]) -> None:
        """Take up what `snapshot` gave; the plan on the device is part of the state."""
        self.guide.restore(values["guide"])
        self._earlier = values["planner"]


def _added(before: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    """Counts of two parts of a run as those of one."""
    total = dict(now)
    for name, value in before.items():
        if isinstance(value, dict):
            total[name] = _added(value, now.get(name, {}))
        elif value is not None:
            total[name] = value + (now.get(name) or 0)
    if "accepted_share" in total:
        total["accepted_share"] = accepted_share(total)
    return total
