"""From steps drawn off a replay to what a critic learns from, goals chosen in hindsight."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from jaxagent.agents.sac_config import SACConfig
from jaxagent.losses.hindsight import EpisodeBounds, draw_goal_steps
from jaxagent.replay import Replay, Sampled, Transition
from jaxagent.types import GoalSpec


class SoftBatch(NamedTuple):
    """Transitions of n steps, under the goals they are judged by."""

    observation: Float[Array, "*S O"]
    action: Float[Array, "*S A"]
    reward: Float[Array, "*S"]  # sum of γʲ r over the steps, scaled
    discount: Float[Array, "*S"]  # γ^steps, 0 where the task truly ends under this goal
    next_observation: Float[Array, "*S O"]  # after the last of the steps, same goal
    is_relabelled: Bool[Array, "*S"]


def in_hindsight(
    keys: PRNGKeyArray,
    replay: Replay,
    buffer: Any,
    drawn: Sampled,
    spec: GoalSpec,
    config: SACConfig,
) -> SoftBatch:
    """Replayed steps relabelled (Andrychowicz et al. 2017).

    A goal comes from an outcome of the same episode, which may lie anywhere in the buffer; an
    episode that ended by a fall is relabelled like any other, and one that still runs by what was
    seen of it (`final` leaves its goals alone: its end is not known). Reward and termination are
    worked out again from the successor's achieved goal; a fall stays terminal, is charged
    (`GoalSpec.charged`) and is never a success.

    Args:
        keys: one for each group, consumed.
        replay: how the buffer is read.
        buffer: groups of environments.
        drawn: the steps to relabel, [groups, count].
        spec: the goal space; with its own threshold, whatever a curriculum used.
        config: strategy, relabel_share, num_steps, discount_factor, reward_scale.

    Returns:
        [groups, count, ...]. A goal counts as held after success unless success ends the episode,
        also where the environment drew another: Q(s, a, g) is about g.
    """
    row, number = (
        jnp.broadcast_to(x, (*drawn.row.shape, config.num_steps))
        for x in (drawn.row[..., None], jnp.arange(config.num_steps)[None, None])
    )
    ahead = jnp.minimum(drawn.time[..., None] + number, drawn.last[..., None])
    steps = replay.read(buffer, row, ahead)  # [groups, count, n]; past the episode, its last again
    begin = jax.tree.map(lambda x: x[:, :, 0], steps)
    goal, is_relabelled = _choose_goals(keys, replay, buffer, drawn, begin.goal, spec, config)
    reward, discount, last = _several_steps(steps, drawn.last - drawn.time, goal, spec, config)
    after = jnp.take_along_axis(steps.next_features, last[..., None, None], axis=2)[:, :, 0]
    return SoftBatch(
        observation=spec.see(begin.features, goal),
        action=begin.action,
        reward=reward,
        discount=discount,
        next_observation=spec.see(after, goal),
        is_relabelled=is_relabelled,
    )


def _choose_goals(keys, replay: Replay, buffer, drawn: Sampled, goal, spec, config: SACConfig):
    """Each step's goal, and whether it is another than was pursued."""
    if config.relabel_share == 0.0:  # no hindsight must cost nothing
        return goal, jnp.zeros_like(drawn.is_ended)
    split = jax.vmap(jax.random.split)(keys)
    bounds = EpisodeBounds(drawn.first, drawn.last)
    step = jax.vmap(draw_goal_steps, (0, 0, 0, None))(
        split[:, 0], drawn.time, bounds, config.strategy
    )
    count = drawn.time.shape[1:]
    chosen = jax.vmap(lambda key: jax.random.bernoulli(key, config.relabel_share, count))(
        split[:, 1]
    )
    if config.strategy == "final":
        chosen = chosen & drawn.is_ended
    achieved = spec.achieved(replay.read(buffer, drawn.row, step).next_features)
    return jnp.where(chosen[..., None], achieved, goal), chosen


def _several_steps(steps: Transition, left, goal, spec: GoalSpec, config: SACConfig):
    """Return, bootstrap discount and the number of the last step of n.

    The n steps stop early where the task ends under the goal, where the episode ended for whatever
    reason, and where nothing newer was written: `left` steps follow the first.
    """
    shape = left.shape
    total, discount = jnp.zeros(shape), jnp.ones(shape)
    last, live = jnp.zeros(shape, jnp.int32), jnp.ones(shape, bool)
    ended = jnp.zeros(shape, bool)
    for ahead in range(config.num_steps):
        step: Transition = jax.tree.map(lambda x: x[:, :, ahead], steps)  # noqa: B023
        live = live & (ahead <= left)
        reward, success = spec.judge(
            spec.achieved(step.features), spec.achieved(step.next_features), goal, step.fell
        )
        terminal = step.fell | (success & (spec.on_success == "end"))
        total = jnp.where(live, total + discount * config.reward_scale * reward, total)
        discount = jnp.where(live, discount * config.discount_factor, discount)
        last, ended = jnp.where(live, ahead, last), jnp.where(live, terminal, ended)
        live = live & ~terminal
    return total, discount * (1.0 - ended), last
