"""A learned manager: a policy whose actions are sub-goals, over a skill that is frozen.

`ManagedSimulator` turns the skill and its body into an environment of their own, one step of which
is one sub-goal: any agent that acts in [-1, 1] can learn to manage it, PPO or SAC for example.

A manager that learns from a replay buffer learns from what the skill of that time did. As long as
the skill stays the same that is what it would do again, and there is nothing to correct. Where
another skill takes over (the same one, trained further), a stored sub-goal no longer leads where
it led; `correct_sub_goals` (HIRO) replaces it by one that does, `correct_transitions` in a whole
buffer. The skill that takes over is frozen too, so correcting the buffer once, at that moment, is
all that HIRO's correction at every draw would do.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from jaxagent.replay import Transition, transitions
from jaxagent.types import GoalSpec, Restartable, Simulator, SimulatorState, Trajectory

CORRECTED_AT_ONCE = 32  # segments; with ten candidates and 25 steps each, 8,000 skill actions

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


class Below(NamedTuple):
    """What lies under a decision: `physics` of a managed state."""

    state: SimulatorState
    poses: Float[Array, "c Q"]  # of the body after each step, for drawing


@dataclasses.dataclass(frozen=True)
class ManagedSimulator:
    """Implements `jaxagent.types.Simulator`: one step is one sub-goal, held for `interval` steps.

    The action in [-1, 1] is the way to the sub-goal from where the body stands, in units of
    `reach`; the reward is the sum over the steps, and an episode that ends on the way ends there.
    The observation is the features of the body, which know no goal of the skill's. The state's own
    `features` are these, then what the skill saw and did on the way (`skill_record`).

    Attributes:
        simulator: the body with its task, whose goal the skill pursues.
        skill: distribution of the skill's action; its mode acts.
        interval: c, steps between decisions.
        reach: how far away a sub-goal may be along each axis, in the goal's unit.
        goal_size: G.
        target: the task's own goal, for an agent that learns from replay and judges there by
            goals (`arrival_spec`): it is then the state's `goal`, and observed. None is for one
            that learns from the reward as it comes.
    """

    simulator: Steerable
    skill: SkillDistribution
    interval: int
    reach: float
    goal_size: int = 2
    target: tuple[float, ...] | None = None

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
    def num_features(self) -> int:
        """F of the body."""
        key = jax.eval_shape(lambda: jax.random.key(0))
        return _features(jax.eval_shape(self.simulator.reset, key)).shape[-1]

    @property
    def observation_size(self) -> int:
        """F, and the size of the target where there is one."""
        return self.num_features + len(self.target or ())

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
            return self._begin(self.simulator.restart(state.physics.state, key))
        return self.reset(key)

    def step(self, state: SimulatorState, action: Float[Array, " G"]) -> SimulatorState:
        """Hand the skill a sub-goal and let it run."""
        below: SimulatorState = state.physics.state
        goal = sub_goal(_achieved(below), action, self.reach)

        def advance(carry, _):
            below, reward, steps = carry
            features = _features(below)
            chosen = jnp.tanh(self.skill(features, goal)[0])
            after = self.simulator.step(below, chosen)
            over = below.terminated | below.success
            reward = reward + jnp.where(over, 0.0, after.reward)
            below = jax.tree.map(lambda old, new: jnp.where(over, old, new), below, after)
            return (below, reward, steps + ~over), (features, chosen, self.simulator.pose(below))

        aimed = self.simulator.aim(below, goal).replace(success=jnp.zeros((), bool))
        begin = (aimed, jnp.zeros((), jnp.float32), jnp.zeros((), jnp.int32))
        (below, reward, steps), (features, chosen, poses) = jax.lax.scan(
            advance, begin, None, self.interval
        )
        managed = self._state(Below(below, poses), features, chosen, steps)
        return managed.replace(reward=reward, terminated=below.terminated, success=below.success)

    def pose(self, state: SimulatorState) -> Float[Array, "c Q"]:
        """The simulator's, after each step of the decision."""
        return state.physics.poses

    def log_prob(
        self,
        features: Float[Array, "*B F"],
        goal: Float[Array, "*B G"],
        action: Float[Array, "*B A"],
    ) -> Float[Array, "*B"]:
        """log μ(a | s, g) of the skill, whose mode acts, as HIRO has it: −½ ‖a − μ(s, g)‖²."""
        return -0.5 * jnp.sum((action - jnp.tanh(self.skill(features, goal)[0])) ** 2, axis=-1)

    def remember(self, trajectory: Trajectory) -> Transition:
        """What a replay buffer keeps of a manager's trajectory.

        The record of a decision lies in the features of the state after it; the state before
        carries that of the decision before, which is not kept twice.
        """
        kept = transitions(trajectory)
        return kept._replace(features=kept.features[..., : self.num_features])

    def _begin(self, below: SimulatorState) -> SimulatorState:
        features = jnp.zeros((self.interval, *_features(below).shape))
        action = jnp.zeros((self.interval, self.simulator.action_size))
        pose = self.simulator.pose(below)
        poses = jnp.broadcast_to(pose, (self.interval, *pose.shape))
        return self._state(Below(below, poses), features, action, jnp.zeros((), jnp.int32))

    def _state(self, physics: Below, features, action, steps) -> SimulatorState:
        below = physics.state
        seen = _features(below)
        target = None if self.target is None else jnp.array(self.target, jnp.float32)
        record = [features.ravel(), action.ravel(), steps[None].astype(jnp.float32)]
        return SimulatorState(
            physics=physics,
            observation=seen if target is None else jnp.concatenate([seen, target]),
            reward=jnp.zeros((), jnp.float32),
            terminated=below.terminated,
            success=jnp.zeros((), bool),
            body=below.body,
            goal=target,
            achieved_goal=below.achieved_goal,
            features=jnp.concatenate([seen, *record]),
        )


class SkillRecord(NamedTuple):
    """What the skill saw and did under one sub-goal."""

    features: Float[Array, "*B c F"]
    action: Float[Array, "*B c A"]
    live: Bool[Array, "*B c"]  # False after an end on the way: nothing was done there


def skill_record(features: Float[Array, "*B R"], interval: int, action_size: int) -> SkillRecord:
    """The record of the decision that led to a managed state.

    Args:
        features: of the state.
        interval: c.
        action_size: A of the skill.
    """
    axes = features.shape[:-1]
    size = (features.shape[-1] - 1 - interval * action_size) // (interval + 1)
    _, seen, done, steps = jnp.split(
        features, [size, size * (interval + 1), features.shape[-1] - 1], axis=-1
    )
    return SkillRecord(
        features=seen.reshape((*axes, interval, size)),
        action=done.reshape((*axes, interval, action_size)),
        live=jax.lax.broadcasted_iota(steps.dtype, (*axes, interval), len(axes)) < steps,
    )


@dataclasses.dataclass(frozen=True)
class ArrivalSpec(GoalSpec):
    """A goal space in which only arrival is rewarded, by 1, and nothing costs.

    At −1 a step (`sparse`) a manager whose episodes end at a fall learns to fall soon.
    """

    def judge(self, achieved, next_achieved, goal, fell, threshold=None):
        """(reward, success), as in `GoalSpec`."""
        _, success = super().judge(achieved, next_achieved, goal, fell, threshold)
        return success.astype(jnp.float32), success


def arrival_spec(
    simulator: ManagedSimulator, state_indices: tuple[int, ...], radius: float
) -> ArrivalSpec:
    """The goal space of a managed task whose one reward is 1 on arrival, which ends the episode.

    Args:
        simulator: with a `target`.
        state_indices: which of the body's features are the achieved goal.
        radius: within it the target is reached.

    Raises:
        ValueError: the simulator has no target.
    """
    target, cut = simulator.target, simulator.num_features
    if target is None:
        raise ValueError("target (None) must be given for a goal space to be made of it")
    return ArrivalSpec(
        state_indices=state_indices,
        see=lambda features, goal: jnp.concatenate([features[..., :cut], goal], axis=-1),
        goal_features=len(target),
        sample=lambda key, features, reach: jnp.array(target, jnp.float32),
        workspace=(0.0, 0.0),
        reach=(0.0, 0.0),
        threshold=radius,
        on_success="end",
    )


def sub_goal(
    achieved: Float[Array, "*B G"], action: Float[Array, "*B G"], reach: float
) -> Float[Array, "*B G"]:
    """The sub-goal that a manager's action in [-1, 1] means from where the body stands."""
    return achieved + reach * jnp.clip(action, -1.0, 1.0)


class Correction(NamedTuple):
    """A sub-goal as a manager's action, and how well it explains what the skill did."""

    action: Float[Array, "*B G"]  # in [-1, 1]
    given: Float[Array, "*B"]  # log-likelihood of the skill's actions under the one that was given
    likeliest: Float[Array, "*B"]  # and under this one


def correct_sub_goals(
    key: PRNGKeyArray,
    log_prob: Callable[[Float[Array, "c F"], Float[Array, "c G"], Float[Array, "c A"]], Any],
    record: SkillRecord,
    action: Float[Array, " G"],
    start: Float[Array, " G"],
    reached: Float[Array, " G"],
    *,
    reach: float,
    spread: float = 0.5,
    num_candidates: int = 8,
) -> Correction:
    """The sub-goal that the skill of today would have to be given to do what it did (HIRO).

        g̃ = argmax_g Σ_{j<c} log μ(a_{t+j} | s_{t+j}, g)

    over the sub-goal as it was given, the place that was reached, and normal draws around it, all
    within reach (Nachum et al. 2018, "Data-Efficient Hierarchical Reinforcement Learning", section
    3.3). The sub-goal is a place, so it is held over the segment where HIRO's would shift.

    Args:
        key: consumed by the draws.
        log_prob: log μ(a | s, g) of each step under the skill as it is now, nats, [c].
        record: s_{t+j} and a_{t+j}.
        action: g as it was given, as the manager's action.
        start: the achieved goal at t.
        reached: the achieved goal at t + c, or where the episode ended on the way.
        reach: as in `ManagedSimulator`.
        spread: standard deviation of the draws, in units of reach.
        num_candidates: draws, besides the two.

    Returns:
        One of the candidates; of several that are equally likely, the one that was given.
    """
    way = (reached - start) / reach
    drawn = way[None] + spread * jax.random.normal(key, (num_candidates, *way.shape))
    candidates = jnp.clip(jnp.concatenate([action[None], way[None], drawn]), -1.0, 1.0)

    def likelihood(candidate):
        goal = sub_goal(start, candidate, reach)
        held = jnp.broadcast_to(goal, (record.live.shape[0], *goal.shape))
        return jnp.sum(log_prob(record.features, held, record.action), where=record.live)

    likelihoods = jax.vmap(likelihood)(candidates)
    best = jnp.argmax(likelihoods)
    return Correction(candidates[best], likelihoods[0], likelihoods[best])


def correct_transitions(
    key: PRNGKeyArray, kept: Transition, simulator: ManagedSimulator, spec: GoalSpec
) -> Correction:
    """`correct_sub_goals` for everything that a manager's replay buffer holds.

    Args:
        key: consumed.
        kept: as `ManagedSimulator.remember` makes them, any leading axes.
        simulator: with the skill as it is now, and reach and interval as they were.
        spec: the goal space of the manager.

    Returns:
        Leading axes as in `kept`; the buffer is not changed here.
    """

    def one(numbered):
        key, step = numbered
        record = skill_record(
            step.next_features, simulator.interval, simulator.simulator.action_size
        )
        places = spec.achieved(step.features), spec.achieved(step.next_features)
        return correct_sub_goals(
            key, simulator.log_prob, record, step.action, *places, reach=simulator.reach
        )

    axes = kept.fell.shape
    flat = jax.tree.map(lambda x: x.reshape((-1, *x.shape[len(axes) :])), kept)
    keys = jax.random.split(key, kept.fell.size)
    found = jax.lax.map(one, (keys, flat), batch_size=CORRECTED_AT_ONCE)
    return jax.tree.map(lambda x: x.reshape(axes + x.shape[1:]), found)


def _features(state: SimulatorState) -> Float[Array, "*B F"]:
    if state.features is None:
        raise ValueError("simulator must be goal-conditioned: its states have no features")
    return state.features


def _achieved(state: SimulatorState) -> Float[Array, "*B G"]:
    if state.achieved_goal is None:
        raise ValueError("simulator must be goal-conditioned: its states have no achieved goal")
    return state.achieved_goal
