"""Hindsight experience replay: which achieved goal to pretend was meant, and what it earns."""

from collections.abc import Callable
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from jaxagent.losses.contract import (
    Scalar,
    accumulate,
    as_array,
    checked,
    require_array,
    require_unit_interval,
)

Strategy = Literal["future", "final", "episode"]


class GoalSteps(NamedTuple):
    """For each step the step whose *next* achieved goal replaces its goal, if there is one."""

    step: Int[Array, "T *B"]
    valid: Bool[Array, "T *B"]


class Relabelled(NamedTuple):
    """Goals and rewards after relabelling; `is_relabelled` marks where they are new."""

    goal: Float[Array, "T *B G"]
    reward: Float[Array, "T *B"]
    is_relabelled: Bool[Array, "T *B"]


class EpisodeBounds(NamedTuple):
    """For each step the first and the last step of the same episode."""

    first: Int[Array, "T *B"]
    last: Int[Array, "T *B"]


def episode_bounds(episode_end: Bool[Array, "T *B"], mask: Bool[Array, "T *B"]) -> EpisodeBounds:
    """Where each step's episode begins and ends among the real steps of its column.

    Args:
        episode_end: terminated | truncated.
        mask: True on real steps; padding follows the steps of its column.

    Returns:
        Time indices; an episode that has not ended reaches to the last real step.
    """
    time = _time_like(episode_end)
    nothing_follows = jnp.concatenate([~mask[1:], jnp.ones_like(mask[:1])])
    is_last = episode_end | nothing_follows
    is_first = jnp.concatenate([jnp.ones_like(is_last[:1]), is_last[:-1]])
    last = jax.lax.cummin(jnp.where(is_last, time, time.shape[0]), reverse=True)
    return EpisodeBounds(jax.lax.cummax(jnp.where(is_first, time, 0)), last)


def draw_goal_steps(
    key: PRNGKeyArray,
    time: Int[Array, "*S"],
    bounds: EpisodeBounds,
    strategy: Strategy,
) -> Int[Array, "*S"]:
    """The step whose outcome becomes the goal of each step, by the rule of `choose_goal_steps`.

    Args:
        key: consumed.
        time: t of each step.
        bounds: first and last step of the episode of each, inclusive.
        strategy: future, final or episode.
    """
    if strategy == "final":
        return bounds.last
    lowest = time if strategy == "future" else bounds.first
    return jax.random.randint(key, time.shape, lowest, bounds.last + 1)


def _time_like(array: jax.Array) -> jax.Array:
    """The time index t of every entry."""
    return jax.lax.broadcasted_iota(jnp.int32, array.shape, 0)


@checked
def choose_goal_steps(
    key: PRNGKeyArray,
    episode_end: Bool[Array, "T *B"],
    mask: Bool[Array, "T *B"],
    *,
    strategy: Strategy,
) -> GoalSteps:
    """The steps whose outcomes become goals (Andrychowicz et al. 2017, sec. 3.3 and 4.5).

        future   uniform over t, ..., last step of the same episode
        final    last step of the same episode
        episode  uniform over all steps of the same episode

    Args:
        key: consumed.
        episode_end: terminated | truncated; both kinds of episode are relabelled.
        mask: True on real steps; padding follows the steps of its column.
        strategy: future, final or episode.

    Returns:
        step: the time index h; the new goal is what was achieved *after* step h, so that
        `future` includes the outcome of step t itself. valid: False on padding, and for
        `final` also where the episode's end is not in the window; there step is t. An
        episode cut by the window still has its seen steps for `future` and `episode`.

    Raises:
        TypeError: episode_end or mask is not boolean, or their axes differ.

    Example:
        >>> end, live = jnp.array([False, True, False, True]), jnp.ones(4, bool)
        >>> print(choose_goal_steps(jax.random.key(0), end, live, strategy="final").step)
        [1 1 3 3]
    """
    time, bounds = _time_like(episode_end), episode_bounds(episode_end, mask)
    step, valid = draw_goal_steps(key, time, bounds, strategy), mask
    if strategy == "final":
        valid = valid & jnp.take_along_axis(episode_end, bounds.last, axis=0)
    return GoalSteps(jnp.where(valid, step, time), valid)


@checked
def relabel(
    key: PRNGKeyArray,
    goal: Float[Array, "T *B G"],
    next_achieved_goal: Float[Array, "T *B G"],
    reward: Float[Array, "T *B"],
    goal_steps: GoalSteps,
    reward_function: Callable[[jax.Array, jax.Array], jax.Array],
    *,
    relabel_ratio: Scalar,
) -> Relabelled:
    """Transitions with some goals replaced in hindsight (Andrychowicz et al. 2017, alg. 1).

        g′ₜ = achieved(s′_h),  r′ₜ = f(achieved(s′ₜ), g′ₜ)   with probability k/(1 + k)

    Args:
        key: consumed.
        goal: gₜ that was pursued.
        next_achieved_goal: achieved(s′ₜ), s′ₜ the successor seen before any auto-reset.
        reward: rₜ that was earned for gₜ; kept where nothing is relabelled.
        goal_steps: h for every step, from `choose_goal_steps`.
        reward_function: f(next achieved goal, goal) -> reward, on arrays of these shapes.
        relabel_ratio: k ≥ 0, relabelled transitions per original one; 4 in the paper.

    Returns:
        Goals, rewards and which are new; what is not finite stays so. Where success ends the
        task, work out `terminated` again from the new reward: neither it nor the discount is
        changed here.

    Raises:
        TypeError: an argument, or what reward_function returns, has another dtype or axes.
        ValueError: a static relabel_ratio is negative.

    Example:
        >>> achieved, live = jnp.array([[1.0], [2.0]]), jnp.ones(2, bool)
        >>> last = GoalSteps(jnp.array([1, 1]), live)
        >>> same = lambda x, g: (x == g).all(-1).astype(jnp.float32)
        >>> tried = (0 * achieved, achieved, jnp.zeros(2), last, same)
        >>> print(relabel(jax.random.key(0), *tried, relabel_ratio=1e9).reward)
        [0. 1.]
    """
    for name, kind in (("step", jnp.integer), ("valid", jnp.bool_)):
        field = getattr(goal_steps, name)
        require_array("relabel", f"goal_steps.{name}", field, kind, reward.shape)
    if isinstance(relabel_ratio, float | int) and relabel_ratio < 0:
        raise ValueError(f"relabel: relabel_ratio must be at least 0, found {relabel_ratio}")
    goal, next_achieved_goal, reward = accumulate(goal, next_achieved_goal, reward)
    share = 1.0 - 1.0 / (1.0 + relabel_ratio)
    is_relabelled = goal_steps.valid & jax.random.bernoulli(key, share, reward.shape)
    in_hindsight = jnp.take_along_axis(next_achieved_goal, goal_steps.step[..., None], axis=0)
    goal = jnp.where(is_relabelled[..., None], in_hindsight, goal)
    earned = as_array("relabel: the reward", reward_function(next_achieved_goal, goal))
    require_array("relabel", "the reward_function's result", earned, jnp.floating, reward.shape)
    return Relabelled(goal, jnp.where(is_relabelled, earned, reward), is_relabelled)


@checked
def hindsight_weights(
    goal_reached: Bool[Array, "T *B"],
    is_critical: Bool[Array, "T *B"],
    seen: Bool[Array, "T *B"],
    first_of_kind: Bool[Array, "T *B"],
    *,
    exploration_weight: Scalar,
) -> Float[Array, "T *B"]:
    """Which actions of an episode are imitated once it is relabelled by a goal that it reached.

        wₜ = 1[goal not reached before t] ·
             (criticalₜ · (seenₜ ∨ firstₜ) + ¬criticalₜ · firstₜ · w_x)

    Hindsight experience replay (Andrychowicz et al. 2017) for agents that search: an action is
    taught if the goal is lost without it, and if it followed from what had been read, or was a
    guess that any agent with the same history could have made. A look that failed is taught
    with the weight w_x: drawn alike from all that was not yet looked into, such looks tell
    nothing of where things are, but to look where one has not looked yet. The loss is the token
    cross-entropy, weighted by w of the action to which a token belongs.

    Args:
        goal_reached: the relabelled goal holds before action t.
        is_critical: replayed without action t, the episode does not reach the goal.
        seen: what speaks for action t had been observed before it.
        first_of_kind: action t looks into the first place of its kind not yet looked into, in
            the order in which the places were described.
        exploration_weight: w_x in [0, 1].

    Returns:
        wₜ in [0, 1].

    Raises:
        TypeError: an argument is not boolean, or the axes differ.
        ValueError: a static exploration_weight lies outside [0, 1].

    Example:
        >>> no, yes = jnp.zeros(3, bool), jnp.ones(3, bool)
        >>> seen = jnp.array([True, False, False])
        >>> first = jnp.array([False, True, False])
        >>> print(hindsight_weights(no, yes, seen, first, exploration_weight=0.25))
        [1. 1. 0.]
    """
    require_unit_interval("hindsight_weights", "exploration_weight", exploration_weight)
    guess = jnp.where(first_of_kind, exploration_weight, 0.0)
    weight = jnp.where(is_critical, (seen | first_of_kind).astype(guess.dtype), guess)
    return jnp.where(goal_reached, 0.0, weight)
