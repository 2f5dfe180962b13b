"""A curriculum: goals, thresholds and randomised physics get harder as success is measured.

One number a seed, the level, goes from 0 (easy) to 1 (the task itself). Evaluations are always of
the task itself.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxagent.training.trainer import Trainer, TrainState
from jaxagent.types import Difficulty, EnvState, GoalSpec, SimulatorState

SCHEDULES = ("off", "linear", "staircase", "adaptive")
# (state, difficulty, strength of the randomisation) -> the same episodes; the next are of these.
SetDifficulty = Callable[[SimulatorState, Difficulty, Float[Array, "..."]], SimulatorState]


@dataclasses.dataclass(frozen=True)
class CurriculumConfig:
    """How difficulty grows."""

    curriculum: str = "off"
    """off; linear (level 1 is reached at full_from, whatever happens); staircase (a step up where
    success is high); adaptive (a step down as well where it is low)."""
    easy_reach: tuple[float, float] | None = None
    """Where goals are drawn at level 0; None is the task's own reach."""
    easy_threshold: float | None = None
    """Threshold of success at level 0; None is the task's own."""
    curriculum_step: float = 0.1
    """By how much the level moves at a time."""
    raise_success: float = 0.8
    """Success from which staircase and adaptive move up: the mean of what episodes count as at
    their end; where reached goals are redrawn, the share of goals drawn that was reached."""
    lower_success: float = 0.4
    """Success below which adaptive moves down."""
    curriculum_episodes: int = 256
    """Episodes in a success rate; those that were under way when the level moved are not in it."""
    full_from: float = 0.5
    """Fraction of the training at which linear reaches level 1."""

    def __post_init__(self):
        if self.curriculum not in SCHEDULES:
            raise ValueError(
                f"curriculum ({self.curriculum}) must be one of {', '.join(SCHEDULES)}"
            )
        for name in ("curriculum_step", "full_from"):
            if not 0 < getattr(self, name) <= 1:
                raise ValueError(f"{name} ({getattr(self, name)}) must lie in (0, 1]")
        if not 0 <= self.lower_success < self.raise_success <= 1:
            raise ValueError(
                f"lower_success ({self.lower_success}) and raise_success ({self.raise_success}) "
                "must satisfy 0 <= lower_success < raise_success <= 1"
            )
        if self.curriculum_episodes < 1:
            raise ValueError(f"curriculum_episodes ({self.curriculum_episodes}) must be at least 1")

    def check(self, spec: GoalSpec, randomised: bool) -> None:
        """Whether there is a curriculum where one is asked for, and only there.

        Args:
            spec: the task itself.
            randomised: whether its physics is.

        Raises:
            ValueError: the easy end is given and not used, cannot be, or is the task itself.
        """
        easier = self.easy(spec) != spec
        if self.curriculum == "off" and easier:
            raise ValueError(
                f"easy_reach ({self.easy_reach}) and easy_threshold ({self.easy_threshold}) need "
                f"a curriculum: {', '.join(SCHEDULES[1:])}"
            )
        if self.easy_threshold is not None and self.easy_threshold < spec.threshold:
            raise ValueError(
                f"easy_threshold ({self.easy_threshold}) must be at least the task's threshold "
                f"({spec.threshold}): the curriculum begins with what is easier"
            )
        if self.curriculum != "off" and not easier and not randomised:
            raise ValueError(
                f"curriculum ({self.curriculum}) needs something that grows: easy_reach, "
                "easy_threshold, or a randomisation"
            )

    def easy(self, spec: GoalSpec) -> GoalSpec:
        """The goal space at level 0.

        Raises:
            ValueError: it cannot be.
        """
        reach = self.easy_reach or spec.reach
        threshold = spec.threshold if self.easy_threshold is None else self.easy_threshold
        return dataclasses.replace(spec, reach=reach, threshold=threshold)


class Curriculum:
    """The level of every seed, on the host; moves between iterations."""

    def __init__(
        self,
        config: CurriculumConfig,
        spec: GoalSpec,
        set_difficulty: SetDifficulty,
        *,
        num_seeds: int,
        num_envs: int,
    ):
        """Start at level 0.

        Args:
            config: how difficulty grows.
            spec: the task itself, level 1.
            set_difficulty: puts a difficulty into states of the environment.
            num_seeds: S.
            num_envs: B of each seed, all devices.

        Raises:
            ValueError: the curriculum is off, or its easy end cannot be.
        """
        if config.curriculum == "off":
            raise ValueError("curriculum (off) must be a schedule, to make a curriculum")
        self.config, self._spec, self._easy = config, spec, config.easy(spec)
        self._set, self._num_envs = set_difficulty, num_envs
        self.level = np.zeros(num_seeds)
        self._episodes, self._successes = np.zeros(num_seeds), np.zeros(num_seeds)
        self._to_skip = np.full(num_seeds, float(num_envs))
        self._put: Callable[..., EnvState] | None = None  # compiled by `begin`

    def begin(self, trainer: Trainer, state: TrainState) -> TrainState:
        """Compile what moves a state, and put it at the level; episodes under way keep their goals.

        Args:
            trainer: what the state is of.
            state: fresh, or restored together with `restore`.
        """

        def put(env, reach, threshold, level):
            def over_envs(x):
                return jnp.broadcast_to(
                    x[:, None], (x.shape[0], env.elapsed.shape[1], *x.shape[1:])
                )

            difficulty = Difficulty(reach=over_envs(reach), threshold=over_envs(threshold))
            simulator = self._set(env.simulator, difficulty, over_envs(level))
            return env.replace(simulator=simulator)

        self._put = jax.jit(put, out_shardings=trainer.shardings(state).env)
        return self._place(state)

    def advance(
        self, state: TrainState, metrics: Mapping[str, np.ndarray], fraction: float
    ) -> TrainState:
        """Move the levels after an iteration.

        Args:
            state: after it.
            metrics: of the iteration, [S]: `episodes` that ended and their `episode_success`.
            fraction: of the training done.
        """
        before = self.level.copy()
        if self.config.curriculum == "linear":
            self.level[:] = min(1.0, fraction / self.config.full_from)
        else:
            self._count(np.asarray(metrics["episodes"]), np.asarray(metrics["episode_success"]))
            self._step()
        return state if (self.level == before).all() else self._place(state)

    @property
    def metrics(self) -> dict[str, Any]:
        """For the log, means over seeds: level, highest reach, threshold."""
        reach, threshold = self._difficulty()
        return {
            "curriculum_level": float(self.level.mean()),
            "curriculum_reach": float(reach[:, 1].mean()),
            "curriculum_threshold": float(threshold.mean()),
        }

    def snapshot(self) -> dict[str, list[float]]:
        """What a checkpoint keeps."""
        return {name: getattr(self, name).tolist() for name in _KEPT}

    def restore(self, saved: Mapping[str, list[float]]) -> None:
        """Go on from a snapshot."""
        for name in _KEPT:
            getattr(self, name)[:] = saved[name]

    def _count(self, episodes: np.ndarray, success: np.ndarray) -> None:
        skipped = np.minimum(self._to_skip, episodes)
        self._to_skip -= skipped
        counted = episodes - skipped
        self._episodes += counted
        self._successes += counted * success

    def _step(self) -> None:
        config = self.config
        full = self._episodes >= config.curriculum_episodes
        rate = self._successes / np.maximum(self._episodes, 1.0)
        up = full & (rate >= config.raise_success)
        down = full & (rate < config.lower_success) & (config.curriculum == "adaptive")
        moved = np.round(self.level + config.curriculum_step * (up * 1.0 - down), 6)
        moved = np.clip(moved, 0.0, 1.0)
        self._to_skip[moved != self.level] = self._num_envs
        self.level[:] = moved
        self._episodes[full] = 0.0
        self._successes[full] = 0.0

    def _difficulty(self) -> tuple[np.ndarray, np.ndarray]:
        """(reach [S, 2], threshold [S]) on the straight line from easy to the task."""
        level = self.level[:, None]
        easy, task = np.array(self._easy.reach), np.array(self._spec.reach)
        reach = easy[None] * (1 - level) + task[None] * level
        threshold = self._easy.threshold * (1 - self.level) + self._spec.threshold * self.level
        return reach.astype(np.float32), threshold.astype(np.float32)

    def _place(self, state: TrainState) -> TrainState:
        if self._put is None:
            raise ValueError("a curriculum moves no state before `begin`")
        level = self.level.astype(np.float32)
        return state.replace(env=self._put(state.env, *self._difficulty(), level))


_KEPT = ("level", "_episodes", "_successes", "_to_skip")
