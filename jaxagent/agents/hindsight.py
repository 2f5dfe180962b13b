"""From windows of replayed experience to what a critic learns from, goals chosen in hindsight."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from jaxagent.agents.sac_config import SACConfig
from jaxagent.losses import choose_goal_steps, relabel
from jaxagent.replay import Transition
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
    key: PRNGKeyArray, window: Transition, spec: GoalSpec, config: SACConfig
) -> SoftBatch:
    """One window of experience relabelled (Andrychowicz et al. 2017), for vmap over windows.

    A goal comes from an outcome inside the window and of the same episode; one that ended by a
    fall is relabelled like any other. Reward and termination are worked out again from the
    successor's achieved goal; a fall stays terminal and is never a success.

    Args:
        key: consumed.
        window: L consecutive steps of one environment, [L, ...].
        spec: the goal space; with its own threshold, whatever a curriculum used.
        config: strategy, relabel_share, num_steps, discount_factor, reward_scale.

    Returns:
        [L, ...]. A goal counts as held after success unless success ends the episode, also where
        the environment drew another: Q(s, a, g) is about g.
    """
    achieved, next_achieved = spec.achieved(window.features), spec.achieved(window.next_features)
    goal, is_relabelled = _choose_goals(key, window, achieved, next_achieved, spec, config)
    reward, discount, last = _several_steps(window, achieved, next_achieved, goal, spec, config)
    return SoftBatch(
        observation=spec.see(window.features, goal),
        action=window.action,
        reward=reward,
        discount=discount,
        next_observation=spec.see(window.next_features[last], goal),
        is_relabelled=is_relabelled,
    )


def _choose_goals(key, window: Transition, achieved, next_achieved, spec, config: SACConfig):
    """Each step's goal, and whether it is another than was pursued."""
    if config.relabel_share == 0.0:  # no hindsight must cost nothing
        return window.goal, jnp.zeros_like(window.fell)

    def earned(after, goal):
        return spec.judge(achieved, after, goal, window.fell)[0]

    step_key, share_key = jax.random.split(key)
    live = jnp.ones_like(window.fell)
    relabelled = relabel(
        share_key,
        window.goal,
        next_achieved,
        earned(next_achieved, window.goal),
        choose_goal_steps(step_key, window.episode_end, live, strategy=config.strategy),
        earned,
        relabel_ratio=_per_original(config.relabel_share),
    )
    return relabelled.goal, relabelled.is_relabelled


def _several_steps(window: Transition, achieved, next_achieved, goal, spec, config: SACConfig):
    """Return, bootstrap discount and index of the last step of n, for every start in the window.

    The n steps stop early where the task ends under the start's goal, where the episode ended
    for whatever reason, and where the window does.
    """
    length = window.fell.shape[0]
    start = jnp.arange(length)
    total, discount = jnp.zeros(length), jnp.ones(length)
    last, live = start, jnp.ones(length, bool)
    ended = jnp.zeros(length, bool)
    for ahead in range(config.num_steps):
        at = jnp.minimum(start + ahead, length - 1)
        live = live & (start + ahead < length)
        reward, success = spec.judge(achieved[at], next_achieved[at], goal, window.fell[at])
        terminal = window.fell[at] | (success & (spec.on_success == "end"))
        total = jnp.where(live, total + discount * config.reward_scale * reward, total)
        discount = jnp.where(live, discount * config.discount_factor, discount)
        last, ended = jnp.where(live, at, last), jnp.where(live, terminal, ended)
        live = live & ~terminal & ~window.episode_end[at]
    return total, discount * (1.0 - ended), last


def _per_original(share: float) -> float:
    """Relabelled transitions for each that is not, from the share of all that are."""
    return share / (1.0 - share) if share < 1.0 else 1e12
