"""When a plan is to be made anew: every so often, and when it leads nowhere."""

import dataclasses
import math
from typing import Any


@dataclasses.dataclass(frozen=True)
class ReplanRule:
    """What makes a plan too old."""

    every: int | None = None
    """N: steps after which a plan is made anew in any case; None never."""
    patience: int | None = 3
    """K: steps without progress after which it is; None never."""
    least_progress: float = 0.25
    """Less than this does not count as progress, in the caller's unit."""

    def __post_init__(self):
        for name in ("every", "patience"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} ({value}) must be at least 1, or None")
        if not 0 <= self.least_progress < math.inf:
            raise ValueError(
                f"least_progress ({self.least_progress}) must be finite and at least 0"
            )


class ReplanTrigger:
    """Watches the progress made under one plan after another."""

    def __init__(self, rule: ReplanRule):
        """Begin at step 0, with nothing achieved."""
        self.rule = rule
        self.planned(0)

    def planned(self, step: int) -> None:
        """A plan was made at this step: what was achieved under the last one counts no more."""
        self._begun = self._best_step = step
        self._best = -math.inf

    def due(self, step: int, progress: float) -> str | None:
        """Why a new plan is needed now.

        Args:
            step: in the unit of the rule: environment steps, iterations, evaluations.
            progress: under the present plan, more is better; what is not finite counts as none.

        Returns:
            "interval", "no_progress", or None.
        """
        if math.isfinite(progress) and (
            self._best == -math.inf or progress > self._best + self.rule.least_progress
        ):
            self._best_step, self._best = step, progress
        if self.rule.every is not None and step - self._begun >= self.rule.every:
            return "interval"
        if self.rule.patience is not None and step - self._best_step >= self.rule.patience:
            return "no_progress"
        return None

    def snapshot(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        best = None if self._best == -math.inf else self._best
        return {"begun": self._begun, "best_step": self._best_step, "best": best}

    def restore(self, values: dict[str, Any]) -> None:
        """Take up what `snapshot` gave."""
        self._begun, self._best_step = values["begun"], values["best_step"]
        self._best = -math.inf if values["best"] is None else values["best"]
