"""Audit of guidance while it trains: is the agent learning the task, or the guidance?"""

import dataclasses
from collections import deque
from typing import Any

import numpy as np

LEAST_TREND = 7.5
"""A trend must be this many times its standard error, and stay so for PERSISTENCE iterations."""
PERSISTENCE = 10
"""Together they hold false alarms under 2 % of runs of 1,000 iterations of pure noise, be it
correlated from iteration to iteration by up to 0.9, and also where R_env and R_total are each
other's mirror image. Noise with a longer memory than that looks like a trend."""
_LARGEST_MEMORY = 0.95


@dataclasses.dataclass
class Audit:
    """Alarm when R_total rises while R_env falls.

    Fits a line to the means a step of the last iterations, `window` to three times as many, and
    compares both slopes with their standard errors.

    Attributes:
        window: iterations before the first judgement.
    """

    window: int = 40

    def __post_init__(self):
        self._history: deque[tuple[float, float]] = deque(maxlen=3 * self.window)
        self.alarms = 0
        self._streak = 0

    def observe(self, reward_total: float, reward_env: float) -> bool:
        """Take in one iteration; one that is not finite is left out.

        Args:
            reward_total: mean R_env + λ·R_guidance a step.
            reward_env: mean R_env a step.

        Returns:
            True when an alarm *begins*; it then stays silent until the alarm has ended.
        """
        if not np.isfinite([reward_total, reward_env]).all():
            return False
        self._history.append((float(reward_total), float(reward_env)))
        if len(self._history) < self.window:
            return False
        total, env = trend(np.array(self._history).T)
        self._streak = self._streak + 1 if total > LEAST_TREND and env < -LEAST_TREND else 0
        begins = self._streak == PERSISTENCE
        self.alarms += begins
        return begins

    def snapshot(self) -> dict[str, Any]:
        """What a checkpoint keeps of it."""
        total, env = zip(*self._history) if self._history else ((), ())
        return {
            "total": list(total),
            "env": list(env),
            "alarms": self.alarms,
            "streak": self._streak,
        }

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Go on from a snapshot."""
        self._history.extend(zip(snapshot["total"], snapshot["env"], strict=True))
        self.alarms, self._streak = snapshot["alarms"], snapshot.get("streak", 0)


def trend(series: np.ndarray) -> np.ndarray:
    """Slopes of least-squares lines, in standard errors for noise that remembers.

        t = b / √(s² (1 + φ) / (1 − φ) / Σ(t − t̄)²)

    Args:
        series: [*S, N], N ≥ 5, evenly spaced.

    Returns:
        t of each series. s² is the variance of what the line leaves, φ its correlation from one
        number to the next, corrected for the line that was fitted and held in [0, 0.95].
    """
    count = series.shape[-1]
    time = np.arange(count) - (count - 1) / 2
    spread = np.sum(time**2)
    centred = series - series.mean(axis=-1, keepdims=True)
    slope = centred @ time / spread
    rest = centred - slope[..., None] * time
    # Rounding of constant rewards is no noise.
    rounding = (1e-6 * np.abs(series).max(axis=-1)) ** 2 + 1e-30
    squares = np.sum(rest**2, axis=-1)
    memory = np.sum(rest[..., 1:] * rest[..., :-1], axis=-1) / np.maximum(squares, 1e-30)
    memory = np.clip((memory * count + 2) / (count - 4), 0.0, _LARGEST_MEMORY)
    variance = np.maximum(squares / (count - 2), rounding) * (1 + memory) / (1 - memory)
    return slope / np.sqrt(variance / spread)
