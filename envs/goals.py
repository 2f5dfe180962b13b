"""Goal-conditioned tasks over any simulator: a goal is drawn, pursued, reached, drawn again.

How a goal enters: the simulator's state holds `goal` (pursued from here on), `achieved_goal`,
`features` and `outcome` (`jaxagent.types.SimulatorState`); its `physics` is a `GoalState`, which
also holds the difficulty. A rollout records `goal`, `achieved_goal`, `next_achieved_goal`,
`features` and `next_features` (`jaxagent.types.Trajectory`). `aim` gives a running episode
another goal.

A task is one file in `envs/goal_tasks`, which defines `TASK`; nothing else has to know of it.
"""

import dataclasses
import functools
import importlib
import pkgutil
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float, Int, PRNGKeyArray

import envs.goal_tasks
from jaxagent.types import (
    Difficulty,
    GoalOutcome,
    GoalSpec,
    Restartable,
    Simulator,
    SimulatorState,
)

HELD_STEPS = 5  # in a row, the last of an episode, for which a goal counts as held


class GoalState(struct.PyTreeNode, kw_only=True):
    """What is underneath a goal-conditioned state."""

    simulator: SimulatorState  # the body, which knows nothing of goals
    difficulty: Difficulty
    key: PRNGKeyArray  # goals of this episode are drawn from it
    drawn: Int[Array, "*B"]  # goals drawn in this episode
    elapsed: Int[Array, "*B"]  # steps of this episode


@dataclasses.dataclass(frozen=True)
class GoalSimulator:
    """Implements `jaxagent.types.Simulator`, and `Restartable`: difficulty outlives an episode.

    Goal and start are drawn afresh at every reset. With `on_success="redraw"` the next goal is
    drawn at the step that reaches the last one: that step is rewarded for the old goal and its
    successor already observes the new one, so the value of what follows counts.

    What an episode counts as when it ends (`GoalOutcome.success`), by `on_success`:
        end     1 where the last step is a success. What the body does after it is not seen.
        hold    1 where the last `HELD_STEPS` steps are successes: to pass through the goal, at
                the last step too, is none, nor is a fall after it was reached.
        redraw  the share of the goals drawn that were reached; the last one never was.

    Attributes:
        name: of the task and its body.
        simulator: the body; its own reward is not used, its own end is a fall.
        features: reads F features off the body's state, without the goal.
        spec: the goal space.
        show: (pose, goal) -> pose, for a renderer that can draw the goal.
    """

    name: str
    simulator: Simulator
    features: Callable[[SimulatorState], Array]
    spec: GoalSpec
    show: Callable[[Array, Array], Array] = lambda pose, goal: pose

    @property
    def observation_size(self) -> int:
        """O."""
        return self._observation_size

    @property
    def action_size(self) -> int:
        """A of the body."""
        return self.simulator.action_size

    def reset(self, key: PRNGKeyArray) -> SimulatorState:
        """Draw a start and a goal at the task's own difficulty."""
        difficulty = Difficulty(
            reach=jnp.array(self.spec.reach, jnp.float32),
            threshold=jnp.array(self.spec.threshold, jnp.float32),
        )
        start_key, goal_key = jax.random.split(key)
        return self._begin(self.simulator.reset(start_key), difficulty, goal_key)

    def restart(self, state: SimulatorState, key: PRNGKeyArray) -> SimulatorState:
        """Draw a start and a goal at the difficulty of the episode that ended."""
        before: GoalState = state.physics
        start_key, goal_key = jax.random.split(key)
        if isinstance(self.simulator, Restartable):
            start = self.simulator.restart(before.simulator, start_key)
        else:
            start = self.simulator.reset(start_key)
        return self._begin(start, before.difficulty, goal_key)

    def step(self, state: SimulatorState, action: Float[Array, " A"]) -> SimulatorState:
        """Advance; judge by the goal that was pursued."""
        goal, achieved, outcome = _present(state)
        before: GoalState = state.physics
        body = self.simulator.step(before.simulator, action)
        body, features = self._contain(body, state)
        after = self.spec.achieved(features)
        threshold = before.difficulty.threshold
        reward, success = self.spec.judge(achieved, after, goal, body.terminated, threshold)
        elapsed = before.elapsed + 1
        first = (outcome.goals_reached == 0) & success
        reached, held = outcome.goals_reached + success, jnp.where(success, outcome.held + 1, 0)
        outcome = GoalOutcome(
            distance=self.spec.distance(after, goal),
            goals_reached=reached,
            steps_to_success=jnp.where(first, elapsed, outcome.steps_to_success),
            held=held,
            success=self._counted(success, held, reached),
        )
        physics = before.replace(simulator=body, elapsed=elapsed)
        if self.spec.on_success == "redraw":
            goal, physics = self._redraw(goal, physics, features, success)
        ends = success & (self.spec.on_success == "end")
        state = self._state(physics, features, goal, outcome)
        return state.replace(reward=reward, success=success, terminated=body.terminated | ends)

    def aim(self, state: SimulatorState, goal: Float[Array, " G"]) -> SimulatorState:
        """The same episode with another goal from here on; what has happened stays counted."""
        _, _, outcome = _present(state)
        goal = jnp.asarray(goal, jnp.float32)
        aimed = self._state(state.physics, state.features, goal, outcome)
        return aimed.replace(
            reward=state.reward, success=state.success, terminated=state.terminated
        )

    def pose(self, state: SimulatorState) -> Float[Array, " Q"]:
        """The body's, with the goal in it where the body can show one."""
        return self.show(self.simulator.pose(state.physics.simulator), _present(state)[0])

    @functools.cached_property  # traces a reset
    def _observation_size(self) -> int:
        key = jax.eval_shape(lambda: jax.random.key(0))
        return jax.eval_shape(self.reset, key).observation.shape[-1]

    def _counted(self, success, held, reached) -> Float[Array, ""]:
        """What the episode counts as if it ends now."""
        counted = {
            "end": success,
            "hold": held >= HELD_STEPS,
            "redraw": reached / (reached + 1),
        }[self.spec.on_success]
        return counted.astype(jnp.float32)

    def _contain(self, body: SimulatorState, before: SimulatorState):
        """The body and its features; one that left the finite numbers fell where it was last seen.

        Judged like any other fall, an exploded simulation is no way out of a costly episode.
        """
        features = self.features(body)
        finite = jnp.isfinite(features).all()
        seen = jax.tree.map(
            lambda new, old: jnp.where(finite, new, old),
            (body.body, features),
            (before.body, before.features),
        )
        return body.replace(body=seen[0], terminated=body.terminated | ~finite), seen[1]

    def _begin(
        self, body: SimulatorState, difficulty: Difficulty, key: PRNGKeyArray
    ) -> SimulatorState:
        features = self.features(body)
        first_key, later_key = jax.random.split(key)
        goal = self.spec.sample(first_key, features, difficulty.reach)
        none_yet = jnp.zeros((), jnp.int32)
        distance = self.spec.distance(self.spec.achieved(features), goal)
        physics = GoalState(
            simulator=body, difficulty=difficulty, key=later_key, drawn=none_yet, elapsed=none_yet
        )
        outcome = GoalOutcome(distance, none_yet, none_yet, none_yet, jnp.zeros((), jnp.float32))
        return self._state(physics, features, goal, outcome)

    def _redraw(self, goal, physics: GoalState, features, success):
        fresh = self.spec.sample(
            jax.random.fold_in(physics.key, physics.drawn), features, physics.difficulty.reach
        )
        return jnp.where(success, fresh, goal), physics.replace(drawn=physics.drawn + success)

    def _state(self, physics: GoalState, features, goal, outcome: GoalOutcome) -> SimulatorState:
        body = physics.simulator
        return SimulatorState(
            physics=physics,
            observation=self.spec.see(features, goal),
            reward=jnp.zeros((), jnp.float32),
            terminated=body.terminated,
            success=jnp.zeros((), bool),
            body=body.body,
            goal=goal,
            achieved_goal=self.spec.achieved(features),
            features=features,
            outcome=outcome,
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class GoalTask:
    """One goal-conditioned task: how its simulator is made, and what suits it.

    Attributes:
        summary: one line for the help.
        make: backend -> the body.
        features: as in `GoalSimulator`.
        spec: the goal space, with the threshold and reach of the task.
        backend: the physics that suits it.
        episode_length: time limit that suits it, in steps.
        show: as in `GoalSimulator`.
    """

    summary: str
    make: Callable[[str], Simulator]
    features: Callable[[SimulatorState], Array]
    spec: GoalSpec
    backend: str = "spring"
    episode_length: int = 100
    show: Callable[[Array, Array], Array] = lambda pose, goal: pose


GOAL_TASKS = tuple(sorted(module.name for module in pkgutil.iter_modules(envs.goal_tasks.__path__)))


def goal_task(name: str) -> GoalTask:
    """A task by its name.

    Raises:
        ValueError: there is no such task.
    """
    if name not in GOAL_TASKS:
        raise ValueError(f"task ({name}) must be one of {', '.join(GOAL_TASKS)}")
    return importlib.import_module(f"envs.goal_tasks.{name}").TASK


def goal_simulator(
    name: str,
    backend: str | None = None,
    body: Simulator | None = None,
    spec: GoalSpec | None = None,
    **changes: Any,
) -> GoalSimulator:
    """A goal-conditioned simulator.

    Args:
        name: of the task.
        backend: None is the one that suits the task.
        body: use this instead of the task's own, one with randomised masses for example.
        spec: use this instead of the task's own.
        changes: fields of the `GoalSpec`: reach, threshold, reward, on_success, fall_cost.

    Raises:
        ValueError: an unknown task or backend, or a goal space that cannot be.
    """
    task = goal_task(name)
    spec = dataclasses.replace(spec or task.spec, **changes)
    backend = backend or task.backend
    body = body or task.make(backend)
    return GoalSimulator(f"{name}-{backend}", body, task.features, spec, task.show)


def _present(state: SimulatorState) -> tuple[Array, Array, GoalOutcome]:
    """Goal, achieved goal and outcome of a state that has them."""
    goal, achieved, outcome = state.goal, state.achieved_goal, state.outcome
    if goal is None or achieved is None or outcome is None:
        raise ValueError("state must come from a goal-conditioned simulator: it has no goal")
    return goal, achieved, outcome
