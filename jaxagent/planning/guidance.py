"""Guidance as the trainer sees it: a trajectory goes in, R_total = R_env + λ·R_guidance comes out.

Guidance never touches the dynamics, so it is computed on the finished trajectory, and what it adds
to the reward is known to the last digit.
"""

import dataclasses
import math

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from jaxagent import losses
from jaxagent.losses import AdaptiveLambda
from jaxagent.models.normaliser import Normaliser, init_normaliser, update_normaliser
from jaxagent.planning.device_plan import (
    PlanArrays,
    distance,
    follow,
    nearest_leg,
    plan_arrays,
    to_go,
)
from jaxagent.types import Plan, Trajectory

VELOCITY_TERMS = (
    "velocity_linear",
    "velocity_saturated",
    "velocity_target",
    "velocity_threshold",
)
TERMS = (*VELOCITY_TERMS, "plan", "plan_potential")
SCHEDULES = ("constant", "linear", "cosine", "staged", "adaptive")


@dataclasses.dataclass(frozen=True)
class GuidanceConfig:
    """R_guidance and how strongly it counts."""

    guidance_terms: tuple[str, ...] = ("velocity_saturated",)
    """Terms that are summed: velocity_linear, plan (progress, arrival, heading) and plan_potential
    (optimum-preserving) earn nothing by walking in circles, but for heading; velocity_saturated,
    velocity_target and velocity_threshold are paid by the step, and may."""
    guidance_weights: tuple[float, ...] = ()
    """One weight a term; empty is 1 for each."""
    lambda_schedule: str = "constant"
    """How lambda moves: constant, linear, cosine, staged or adaptive (on evaluations)."""
    guidance_lambda: float = 1.0
    """lambda at the start, of every schedule."""
    final_lambda: float = 0.0
    """lambda at the end of the linear and cosine schedules."""
    refine_lambda: float = 0.35
    """lambda of the staged schedule's second stage; the third has 0."""
    refine_from: float = 0.4
    """Fraction of the training at which the second stage begins."""
    zero_from: float = 0.8
    """Fraction of the training at which the third stage begins."""
    adaptive_window: int = 3
    """K: evaluations in the mean that the adaptive schedule watches."""
    adaptive_growth: float = 1.0
    """Factor on lambda when evaluations stall or fall; 1 holds it."""
    adaptive_cap: float = 2.0
    """The adaptive schedule never raises lambda above this."""
    scale_match: float | None = None
    """c: lambda is at most c * std(R_env) / std(R_guidance); None does not bound it."""
    velocity_scale: float = 1.0
    """m/s that earn tanh(1) in velocity_saturated."""
    wanted_velocity: float = 3.0
    """m/s: the target of velocity_target and the threshold of velocity_threshold."""
    heading_weight: float = 0.0
    """Weight of facing the sub-goal, a step; standing still earns it too, so it is 0 unless asked
    for. A sub-goal's own heading counts only with it."""
    heading_threshold: float = 60.0
    """Degrees within which facing the sub-goal is rewarded."""
    progress_weight: float = 10.0
    """Weight of the decrease of the distance to the sub-goal, a metre."""
    arrival_weight: float = 5.0
    """Weight of reaching a sub-goal."""
    energy_cost: float = 0.0
    """Weight of the penalty on squared torques."""
    spin_cost: float = 0.0
    """Weight of the penalty on the torso's squared angular velocity."""

    def __post_init__(self):
        for term in self.guidance_terms:
            if term not in TERMS:
                raise ValueError(f"guidance_terms ({term}) must be among {', '.join(TERMS)}")
        if self.guidance_weights and len(self.guidance_weights) != len(self.guidance_terms):
            raise ValueError(
                f"guidance_weights ({len(self.guidance_weights)} of them) must be as many as "
                f"guidance_terms ({len(self.guidance_terms)})"
            )
        if self.lambda_schedule not in SCHEDULES:
            raise ValueError(
                f"lambda_schedule ({self.lambda_schedule}) must be one of {', '.join(SCHEDULES)}"
            )
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, float) and not math.isfinite(value):
                raise ValueError(f"{field.name} ({value}) must be finite")
        for name in ("guidance_lambda", "final_lambda", "refine_lambda", "adaptive_cap"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} ({getattr(self, name)}) must be at least 0")
        if not 0 <= self.refine_from <= self.zero_from <= 1:
            raise ValueError(
                f"refine_from ({self.refine_from}) and zero_from ({self.zero_from}) must satisfy "
                "0 <= refine_from <= zero_from <= 1"
            )
        if self.adaptive_window < 1:
            raise ValueError(f"adaptive_window ({self.adaptive_window}) must be at least 1")
        if self.adaptive_growth < 1:
            raise ValueError(f"adaptive_growth ({self.adaptive_growth}) must be at least 1")
        if self.scale_match is not None and not 0 < self.scale_match < 1:
            raise ValueError(f"scale_match ({self.scale_match}) must lie between 0 and 1")
        if self.velocity_scale <= 0:
            raise ValueError(f"velocity_scale ({self.velocity_scale}) must be greater than 0")
        if not 0 < self.heading_threshold <= 180:
            raise ValueError(f"heading_threshold ({self.heading_threshold}) must lie in (0, 180]")

    @property
    def needs_plan(self) -> bool:
        """Whether any term reads sub-goals."""
        return any(term.startswith("plan") for term in self.guidance_terms)


class GuidanceState(struct.PyTreeNode, kw_only=True):
    """What guidance remembers between iterations."""

    cursor: Int[Array, " B"]  # sub-goal each environment is at; N once all are reached
    episode: Float[Array, "B 2"]  # sums of (R_env, R_guidance) in the episode so far
    fresh: Bool[Array, " B"]  # no step of the episode was rewarded yet
    potential: Float[Array, " B"]  # λΦ of the state each environment is in, as last counted
    moments: Normaliser  # of (R_env, R_guidance) a step
    adaptive: AdaptiveLambda
    switch: Float[Array, ""]  # 1; 0 takes all guidance away (comparison, removal test)
    plan: PlanArrays | None = None  # where the plan may change while it is followed


class Guidance:
    """R_total of a trajectory (action guidance); pure functions of `GuidanceState`."""

    def __init__(
        self,
        config: GuidanceConfig,
        plan: Plan | None,
        *,
        discount_factor: float,
        axis_name: str | None = None,
        plan_capacity: int | None = None,
    ):
        """Bind the terms.

        Args:
            config: terms, weights and schedule.
            plan: sub-goals; needed where a term reads them.
            discount_factor: of the agent; potential shaping is exact for no other.
            axis_name: mapped device axis over which statistics are averaged.
            plan_capacity: sub-goals for which there is room when the plan changes; the plan is
                then part of the state. None compiles the plan in.

        Raises:
            ValueError: a term needs a plan and there is none, or there is no room for it.
        """
        if config.needs_plan and plan is None:
            raise ValueError(
                f"guidance_terms {config.guidance_terms} need a plan and there is none"
            )
        self.config = config
        self.plan = plan_arrays(plan, plan_capacity) if config.needs_plan and plan else None
        self.plan_capacity = plan_capacity
        self.discount_factor = discount_factor
        self.axis_name = axis_name

    def init(self, num_envs: int) -> GuidanceState:
        """At the first sub-goal, nothing measured."""
        config = self.config
        return GuidanceState(
            cursor=jnp.zeros(num_envs, jnp.int32),
            episode=jnp.zeros((num_envs, 2), jnp.float32),
            fresh=jnp.ones(num_envs, bool),
            potential=jnp.zeros(num_envs, jnp.float32),
            moments=init_normaliser(2),
            adaptive=losses.adaptive_lambda(
                config.guidance_lambda, window_size=config.adaptive_window
            ),
            switch=jnp.ones((), jnp.float32),
            plan=None if self.plan_capacity is None else self.plan,
        )

    def change_plan(
        self, state: GuidanceState, plan: PlanArrays, position: Float[Array, "B 2"]
    ) -> GuidanceState:
        """Go on with another plan, from wherever each environment is.

        An environment goes on with the sub-goal at the end of the leg that is nearest to it: those
        on their way are not sent back to the start.

        Args:
            state: of a guidance with a plan_capacity.
            plan: of that capacity.
            position: of each environment's body, metres.

        Raises:
            ValueError: the plan is compiled in, or has another capacity.
        """
        if state.plan is None or plan.radius.shape != (self.plan_capacity,):
            raise ValueError(
                f"a plan of capacity {plan.radius.shape[-1]} cannot take the place of the plan: "
                f"plan_capacity is {self.plan_capacity}"
            )
        return state.replace(plan=plan, cursor=nearest_leg(plan, position))

    def observe_evaluation(
        self, state: GuidanceState, mean_return: Float[Array, ""]
    ) -> GuidanceState:
        """Move the adaptive schedule after an evaluation without guidance."""
        adaptive = losses.adapt_lambda(
            state.adaptive,
            mean_return,
            growth=self.config.adaptive_growth,
            cap=self.config.adaptive_cap,
        )
        return state.replace(adaptive=adaptive)

    def reward(
        self, state: GuidanceState, trajectory: Trajectory, fraction: Float[Array, ""]
    ) -> tuple[GuidanceState, Float[Array, "T B"], dict[str, Float[Array, ""]]]:
        """R_total = R_env + λ·R_guidance.

        λ is that of the iteration. Of `plan_potential` it is part of the potential, λΦ, which at
        an iteration's first step is taken back as it was counted, with the λ and the plan of the
        iteration before (Devlin & Kudenko 2012): the shaping telescopes while both change.

        Args:
            state: sub-goal cursors and statistics.
            trajectory: finished experience; its reward is R_env.
            fraction: share of the training done, in [0, 1].

        Returns:
            The next state, R_total, and the metrics reward_env, reward_guidance, reward_total
            (means a step), guidance_lambda, and guidance_correlation over the sums of the episodes
            that ended, on all devices; 0 where fewer than two did.
        """
        plan = self.plan if state.plan is None else state.plan
        cursor, next_cursor, last = follow(plan, state.cursor, trajectory)
        guidance = self._terms(trajectory, plan, cursor, next_cursor)
        both = jnp.stack([trajectory.reward, guidance], axis=-1)
        moments = update_normaliser(state.moments, both, self.axis_name)
        strength = self._strength(state.adaptive, moments, fraction) * state.switch
        total = trajectory.reward + strength * guidance
        potential = state.potential
        if "plan_potential" in self.config.guidance_terms:
            first, potential = (
                -strength * self._weight("plan_potential") * to_go(_require(plan), place, at)
                for place, at in (
                    (trajectory.body.position[0, ..., :2], cursor[0]),
                    (trajectory.next_body.position[-1, ..., :2], next_cursor[-1]),
                )
            )
            counted = jnp.where(state.fresh, first, state.potential * state.switch)
            total = total.at[0].add(first - counted)
        episode, sums = _sum_episodes(state.episode, both, trajectory.episode_end)
        metrics = {
            "reward_env": trajectory.reward.mean(),
            "reward_guidance": guidance.mean(),
            "reward_total": total.mean(),
            "guidance_lambda": strength,
            "guidance_correlation": self._correlation(sums, trajectory.episode_end),
        }
        if self.axis_name:
            metrics = jax.lax.pmean(metrics, self.axis_name)
        state = state.replace(
            cursor=last,
            episode=episode,
            fresh=trajectory.episode_end[-1],
            potential=potential,
            moments=moments,
        )
        return state, total, metrics

    def _correlation(self, sums: Float[Array, "T B 2"], ended: Bool[Array, "T B"]):
        """Over the episodes of all devices: a mean of each device's own would be another number."""
        if self.axis_name:
            sums, ended = jax.lax.all_gather((sums, ended), self.axis_name, axis=1, tiled=True)
        return losses.guidance_correlation(sums[..., 0], sums[..., 1], ended)

    def _weight(self, term: str) -> float:
        """Of a term, wherever it stands."""
        names = self.config.guidance_terms
        weights = self.config.guidance_weights or (1.0,) * len(names)
        return sum(weight for name, weight in zip(names, weights, strict=True) if name == term)

    def _strength(self, adaptive: AdaptiveLambda, moments: Normaliser, fraction):
        config = self.config
        start = config.guidance_lambda
        schedules = {
            "constant": lambda: losses.constant_lambda(fraction, guidance_lambda=start),
            "linear": lambda: losses.linear_lambda(fraction, start=start, end=config.final_lambda),
            "cosine": lambda: losses.cosine_lambda(fraction, start=start, end=config.final_lambda),
            "staged": lambda: losses.staged_lambda(
                fraction,
                explore_lambda=start,
                refine_lambda=config.refine_lambda,
                refine_from=config.refine_from,
                zero_from=config.zero_from,
            ),
            "adaptive": lambda: adaptive.guidance_lambda,
        }
        strength = schedules[config.lambda_schedule]()
        if config.scale_match is None:
            return strength
        deviation = jnp.sqrt(moments.squared_deviation / jnp.maximum(moments.count, 1.0))
        return losses.scale_matched_lambda(
            strength, deviation[0], deviation[1], ratio=config.scale_match
        )

    def _terms(
        self, trajectory: Trajectory, plan: PlanArrays | None, cursor, next_cursor
    ) -> Float[Array, "T B"]:
        config = self.config
        speed = trajectory.next_body.velocity[..., 0]
        wanted = config.wanted_velocity
        terms = {
            "velocity_linear": lambda: losses.velocity_linear(speed),
            "velocity_saturated": lambda: losses.velocity_saturated(
                speed, velocity_scale=config.velocity_scale
            ),
            "velocity_target": lambda: losses.velocity_target(speed, target_velocity=wanted),
            "velocity_threshold": lambda: losses.velocity_threshold(
                speed, threshold_velocity=wanted
            ),
            "plan": lambda: self._plan_reward(trajectory, _require(plan), cursor),
            "plan_potential": lambda: self._plan_potential(
                trajectory, _require(plan), cursor, next_cursor
            ),
        }
        weights = config.guidance_weights or (1.0,) * len(config.guidance_terms)
        total = jnp.zeros(trajectory.reward.shape, jnp.float32)
        for name, weight in zip(config.guidance_terms, weights, strict=True):
            total = total + weight * terms[name]()
        if config.energy_cost:
            total = total + config.energy_cost * losses.energy_penalty(trajectory.action)
        if config.spin_cost:
            spin = trajectory.next_body.angular_velocity
            total = total + config.spin_cost * losses.angular_velocity_penalty(spin)
        return total

    def _plan_reward(self, trajectory: Trajectory, plan: PlanArrays, cursor: Int[Array, "T B"]):
        """Heading, progress and arrival at the sub-goal each step was made for."""
        config, count = self.config, plan.count
        at = jnp.minimum(cursor, count - 1)
        target, radius = plan.target[at], plan.radius[at]
        position, after = trajectory.body.position[..., :2], trajectory.next_body.position[..., :2]
        facing = plan.facing[at]
        # A sub-goal's own heading is a direction, not a point: aim one metre along it.
        aim = jnp.where((facing == 0).all(-1, keepdims=True), target, position + facing)
        reward = losses.plan_guidance(
            losses.heading(
                trajectory.body.heading,
                position,
                aim,
                angle_threshold=math.radians(config.heading_threshold),
            ),
            # Metres nearer, not metres along a line that turns with the body or that goes on
            # behind the sub-goal: a closed path adds up to 0, whatever its speed.
            distance(position, target) - distance(after, target),
            (distance(after, target) < radius).astype(jnp.float32),
            heading_weight=config.heading_weight,
            progress_weight=config.progress_weight,
            arrival_weight=config.arrival_weight,
        )
        return jnp.where(cursor < count, reward, 0.0)

    def _plan_potential(self, trajectory: Trajectory, plan: PlanArrays, cursor, next_cursor):
        """Φ = −(metres still to go along the plan), as potential-based shaping."""
        return losses.potential_shaping(
            -to_go(plan, trajectory.body.position[..., :2], cursor),
            -to_go(plan, trajectory.next_body.position[..., :2], next_cursor),
            trajectory.terminated,
            discount_factor=self.discount_factor,
        )


def _sum_episodes(start: Float[Array, "B 2"], rewards: Float[Array, "T B 2"], ended):
    """Sums since each episode began: after the last step, and [T, B, 2] after every step."""

    def add(so_far, step):
        reward, end = step
        so_far = so_far + reward
        return jnp.where(end[:, None], 0.0, so_far), so_far

    return jax.lax.scan(add, start, (rewards, ended))


def _require(plan: PlanArrays | None) -> PlanArrays:
    if plan is None:
        raise ValueError("this guidance term needs a plan and there is none")
    return plan
