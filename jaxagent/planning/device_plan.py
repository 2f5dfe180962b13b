"""A plan on the device: its arrays, and which sub-goal each environment is at."""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxagent.types import Plan, Trajectory


class PlanArrays(NamedTuple):
    """A plan on the device, with room for N sub-goals."""

    target: Float[Array, "*S N 2"]  # metres
    radius: Float[Array, "*S N"]  # metres
    facing: Float[Array, "*S N 2"]  # unit vector; zero where the sub-goal has no heading
    remaining: Float[Array, "*S N"]  # metres of path that follow sub-goal i
    count: Int[Array, "*S"]  # sub-goals there are; rows from there on repeat the last


def plan_arrays(plan: Plan, capacity: int | None = None) -> PlanArrays:
    """Bring a plan to the device.

    Args:
        plan: the plan.
        capacity: N; None is as many as there are. Plans of one capacity take each other's place
            without compiling again.

    Raises:
        ValueError: the plan has no sub-goal, or more than there is room for.
    """
    count = len(plan.sub_goals)
    room = count if capacity is None else capacity
    if not 1 <= count <= room:
        rule = "have at least one sub-goal" + (f", at most {room}" if capacity else "")
        raise ValueError(f"plan ({plan.source}, {count} sub-goals) must {rule}")
    plan = plan._replace(sub_goals=plan.sub_goals + plan.sub_goals[-1:] * (room - count))
    target = np.array([goal.target for goal in plan.sub_goals], np.float32)
    legs = np.linalg.norm(np.diff(target, axis=0), axis=-1)
    facing = [
        (0.0, 0.0)
        if goal.heading is None
        else (math.cos(math.radians(goal.heading)), math.sin(math.radians(goal.heading)))
        for goal in plan.sub_goals
    ]
    return PlanArrays(
        target=jnp.asarray(target),
        radius=jnp.array([goal.radius for goal in plan.sub_goals], jnp.float32),
        facing=jnp.array(facing, jnp.float32),
        remaining=jnp.asarray(np.append(np.cumsum(legs[::-1])[::-1], 0.0), jnp.float32),
        count=jnp.array(count, jnp.int32),
    )


def distance(position: Float[Array, "*S 2"], target: Float[Array, "*S 2"]) -> Float[Array, "*S"]:
    """Metres between positions and targets."""
    return jnp.linalg.norm(position - target, axis=-1)


def to_go(
    plan: PlanArrays, position: Float[Array, "*S 2"], cursor: Int[Array, "*S"]
) -> Float[Array, "*S"]:
    """Metres still to go along the plan; 0 once all sub-goals are reached.

    Args:
        plan: sub-goals.
        position: metres.
        cursor: index of the sub-goal that is next.
    """
    at = jnp.minimum(cursor, plan.count - 1)
    left = distance(position, plan.target[at]) + plan.remaining[at]
    return jnp.where(cursor < plan.count, left, 0.0)


def follow(plan: PlanArrays | None, cursor: Int[Array, " B"], trajectory: Trajectory):
    """The sub-goal before and after each step, and the one to go on with.

    Args:
        plan: sub-goals; None leaves the cursors where they are.
        cursor: index of the sub-goal that each environment is at.
        trajectory: T steps of experience.

    Returns:
        Cursors [T, B] before and after each step, and [B] after the last; `count` where all
        sub-goals are reached, 0 where a new episode begins.
    """
    if plan is None:
        still = jnp.broadcast_to(cursor, trajectory.reward.shape)
        return still, still, cursor
    count = plan.count

    def advance(cursor, step):
        position, episode_end = step
        at = jnp.minimum(cursor, count - 1)
        near = distance(position, plan.target[at]) < plan.radius[at]
        reached = jnp.minimum(cursor + near.astype(jnp.int32), count)
        return jnp.where(episode_end, 0, reached), (cursor, reached)

    position = trajectory.next_body.position[..., :2]
    last, (before, after) = jax.lax.scan(advance, cursor, (position, trajectory.episode_end))
    return before, after, last


def nearest_leg(plan: PlanArrays, position: Float[Array, "B 2"]) -> Int[Array, " B"]:
    """The sub-goal that ends the leg nearest to each position; the first leg is its end alone.

    Args:
        plan: sub-goals.
        position: metres.
    """
    start = jnp.concatenate([plan.target[:1], plan.target[:-1]])
    leg = plan.target - start
    offset = position[:, None] - start[None]
    length = jnp.maximum(jnp.sum(leg**2, axis=-1), 1e-12)
    share = jnp.clip(jnp.einsum("bnd,nd->bn", offset, leg) / length[None], 0.0, 1.0)
    distance = jnp.linalg.norm(offset - share[..., None] * leg[None], axis=-1)
    # Padding repeats the last point, and the first of equally near legs is taken.
    return jnp.argmin(distance, axis=-1).astype(jnp.int32)
