"""A learned manager: a policy whose actions are sub-goals, over a skill that is frozen.

`ManagedSimulator` turns the skill and its body into an environment of their own, one step of which
is one sub-goal: any agent that acts in [-1, 1] can learn to manage it, PPO for example. Learning
from old decisions needs `correct_sub_goals` (HIRO) when the skill goes on learning meanwhile.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from jaxagent.types import Restartable, Simulator, SimulatorState

# (features [*B, F], goal [*B, G]) -> (loc, scale) of the skill's action before tanh.
SkillDistribution = Callable[
    [Float[Array, "*B F"], Float[Array, "*B G"]],
    tuple[Float[Array, "*B A"], Float[Array, "*B A"]],
]


class Steerable(Simulator, Protocol):
    """A simulator with a goal that can be changed, which a skill pursues."""

    def aim(self, state: SimulatorState, goal: Float[Array, " G"]) -> SimulatorState:
        """The same episode with another goal from here on."""
        ...


@dataclasses.dataclass(frozen=True)
class ManagedSimulator:
    """Implements `jaxagent.types.Simulator`: one step is one sub-goal, held for `interval` steps.

    The action in [-1, 1] is the way to the sub-goal from where the body stands, in units of
    `reach`; the reward is the sum over the steps, and an episode that ends on the way ends there.
    The observation is the features of the body, which know no goal of the skill's; the state's own
    `features` are what the skill saw and did on the way (`skill_record`).

    Attributes:
        simulator: the body with its task, whose goal the skill pursues.
        skill: distribution of the skill's action; its mode acts.
        interval: c, steps between decisions.
        reach: how far away a sub-goal may be along each axis, in the goal's unit.
        goal_size: G.
    """

    simulator: Steerable
    skill: SkillDistribution
    interval: int
    reach: float
    goal_size: int = 2

    def __post_init__(self):
        if self.interval < 1:
            raise ValueError(f"interval ({self.interval}) must be at least 1")
        if not 0 < self.reach < float("inf"):
            raise ValueError(f"reach ({self.reach}) must be a positive, finite number")

    @property
    def name(self) -> str:
        """The simulator's, and the interval."""
        return f"{self.simulator.name}-managed-{self.interval}"

    @property
    def observation_size(self) -> int:
        """F."""
        key = jax.eval_shape(lambda: jax.random.key(0))
        return _features(jax.eval_shape(self.simulator.reset, key)).shape[-1]

    @property
    def action_size(self) -> int:
        """G."""
        return self.goal_size

    def reset(self, key: PRNGKeyArray) -> SimulatorState:
        """A start state of the simulator."""
        return self._begin(self.simulator.reset(key))

    def restart(self, state: SimulatorState, key: PRNGKeyArray) -> SimulatorState:
        """The same, inheriting what the simulator lets an episode inherit."""
        if isinstance(self.simulator, Restartable):
            return self._begin(self.simulator.restart(state.physics, key))
        return self.reset(key)

    def step(self, state: SimulatorState, action: Float[Array, " G"]) -> SimulatorState:
        """Hand the skill a sub-goal and let it run."""
        below: SimulatorState = state.physics
        goal = sub_goal(_achieved(below), action, self.reach)

        def advance(carry, _):
            below, reward = carry
            features = _features(below)
            chosen = jnp.tanh(self.skill(features, goal)[0])
            after = self.simulator.step(below, chosen)
            over = below.terminated | below.success
            reward = reward + jnp.where(over, 0.0, after.reward)
            below = jax.tree.map(lambda old, new: jnp.where(over, old, new), below, after)
            return (below, reward), (features, chosen)

        aimed = self.simulator.aim(below, goal).replace(success=jnp.zeros((), bool))
        begin = (aimed, jnp.zeros((), jnp.float32))
        (below, reward), record = jax.lax.scan(advance, begin, None, self.interval)
        managed = self._state(below, *record)
        return managed.replace(reward=reward, terminated=below.terminated, success=below.success)

    def pose(self, state: SimulatorState) -> Float[Array, " Q"]:
        """The simulator's."""
        return self.simulator.pose(state.physics)

    def _begin(self, below: SimulatorState) -> SimulatorState:
        features = jnp.zeros((self.interval, *_features(below).shape))
        return self._state(below, features, jnp.zeros((self.interval, self.simulator.action_size)))

    def _state(self, below: SimulatorState, features, action) -> SimulatorState:
        return SimulatorState(
            physics=below,
            observation=_features(below),
            reward=jnp.zeros((), jnp.float32),
            terminated=below.terminated,
            success=jnp.zeros((), bool),
            body=below.body,
            achieved_goal=below.achieved_goal,
            features=jnp.concatenate([features.ravel(), action.ravel()]),
        )


def skill_record(
    record: Float[Array, "*B R"], interval: int, action_size: int
) -> tuple[Float[Array, "*B c F"], Float[Array, "*B c A"]]:
    """What the skill saw and did under one sub-goal, from the `features` of a managed state.

    Args:
        record: of the state after the sub-goal.
        interval: c.
        action_size: A of the skill.
    """
    cut = record.shape[-1] - interval * action_size
    rows = record.shape[:-1] + (interval, -1)
    return record[..., :cut].reshape(rows), record[..., cut:].reshape(rows)


def sub_goal(
    achieved: Float[Array, "*B G"], action: Float[Array, "*B G"], reach: float
) -> Float[Array, "*B G"]:
    """The sub-goal that a manager's action in [-1, 1] means from where the body stands."""
    return achieved + reach * jnp.clip(action, -1.0, 1.0)


def correct_sub_goals(
    key: PRNGKeyArray,
    log_prob: Callable[[Float[Array, "c F"], Float[Array, "c G"], Float[Array, "c A"]], Any],
    features: Float[Array, "c F"],
    action: Float[Array, "c A"],
    goal: Float[Array, " G"],
    reached: Float[Array, " G"],
    *,
    spread: float,
    num_candidates: int = 8,
) -> Float[Array, " G"]:
    """The sub-goal that the skill of today would have to be given to do what it did (HIRO).

        g̃ = argmax_g Σ_{j<c} log μ(a_{t+j} | s_{t+j}, g)

    over the sub-goal as it was given, the place that was reached, and normal draws around it
    (Nachum et al. 2018, "Data-Efficient Hierarchical Reinforcement Learning", section 3.3).

    Args:
        key: consumed by the draws.
        log_prob: log μ(a | s, g) of each step under the skill as it is now, nats, [c].
        features: s_{t+j}.
        action: a_{t+j}.
        goal: g as it was given.
        reached: the achieved goal at t + c.
        spread: standard deviation of the draws, in the goal's unit.
        num_candidates: draws, besides the two.

    Returns:
        One of the candidates; of several that are equal, the one that was given.
    """
    drawn = reached[None] + spread * jax.random.normal(key, (num_candidates, *goal.shape))
    candidates = jnp.concatenate([goal[None], reached[None], drawn])

    def likelihood(candidate):
        held = jnp.broadcast_to(candidate, (features.shape[0], *goal.shape))
        return log_prob(features, held, action).sum()

    return candidates[jnp.argmax(jax.vmap(likelihood)(candidates))]


def _features(state: SimulatorState) -> Float[Array, "*B F"]:
    if state.features is None:
        raise ValueError("simulator must be goal-conditioned: its states have no features")
    return state.features


def _achieved(state: SimulatorState) -> Float[Array, "*B G"]:
    if state.achieved_goal is None:
        raise ValueError("simulator must be goal-conditioned: its states have no achieved goal")
    return state.achieved_goal
