"""Audit of guidance while it trains: is the agent learning the task, or the guidance?"""

import dataclasses
from collections import deque

import jax.numpy as jnp
import numpy as np

from jaxagent.losses import hacking_alarm


@dataclasses.dataclass
class Audit:
    """Alarm when R_total rises while R_env falls.

    Looks at means a step over a sliding window of iterations. Both changes must exceed twice
    their standard error, so that the noise of single batches does not raise it.
    """

    window: int = 40

    def __post_init__(self):
        self._total: deque[float] = deque(maxlen=self.window)
        self._env: deque[float] = deque(maxlen=self.window)
        self.alarms = 0
        self._ringing = False

    def observe(self, reward_total: float, reward_env: float) -> bool:
        """Take in one iteration.

        Args:
            reward_total: mean R_env + λ·R_guidance a step.
            reward_env: mean R_env a step.

        Returns:
            True when an alarm *begins*; it then stays silent until the alarm has ended.
        """
        self._total.append(reward_total)
        self._env.append(reward_env)
        if len(self._total) < self.window:
            return False
        was_ringing, self._ringing = self._ringing, self._hacked()
        begins = self._ringing and not was_ringing
        self.alarms += begins
        return begins

    def _hacked(self) -> bool:
        total, env = np.array(self._total, np.float32), np.array(self._env, np.float32)
        opposite = bool(hacking_alarm(jnp.asarray(total), jnp.asarray(env)))
        return opposite and _change(total) > 2.0 and _change(env) < -2.0

    def snapshot(self) -> dict:
        """What a checkpoint keeps of it."""
        return {
            "total": list(self._total),
            "env": list(self._env),
            "alarms": self.alarms,
            "ringing": self._ringing,
        }

    def restore(self, snapshot: dict) -> None:
        """Go on from a snapshot."""
        self._total.extend(snapshot["total"])
        self._env.extend(snapshot["env"])
        self.alarms, self._ringing = snapshot["alarms"], snapshot["ringing"]


def _change(series: np.ndarray) -> float:
    """Second half against first, in standard errors."""
    first, second = np.array_split(series, 2)
    error = np.sqrt(first.var() / len(first) + second.var() / len(second))
    return float((second.mean() - first.mean()) / max(error, 1e-12))
