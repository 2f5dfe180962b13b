"""Windows of experience in hindsight, against a slow loop over single steps."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagent.agents.hindsight import in_hindsight
from jaxagent.agents.sac_config import SACConfig
from jaxagent.replay import Transition
from jaxagent.types import GoalSpec

LENGTH = 24
SPEC = GoalSpec(
    state_indices=(1,),
    see=lambda features, goal: jnp.concatenate([features, goal], -1),  # the goal can be read back
    goal_features=1,
    sample=lambda key, features, reach: features[1:2],
    workspace=(0.0, 1.0),
    reach=(0.0, 1.0),
    threshold=0.3,
    on_success="hold",
)


def window(seed: int) -> Transition:
    """Several episodes, ended by a fall or by time; no two achieved goals are alike."""
    random = np.random.default_rng(seed)
    place = np.cumsum(random.normal(size=(LENGTH + 1, 1)), 0) * 0.4
    features = np.concatenate([random.normal(size=(LENGTH, 1)), place[:-1]], 1)
    following = np.concatenate([random.normal(size=(LENGTH, 1)), place[1:]], 1)
    end = random.random(LENGTH) < 0.2
    fell = end & (random.random(LENGTH) < 0.5)
    return Transition(
        features=jnp.asarray(features, jnp.float32),
        next_features=jnp.asarray(following, jnp.float32),
        goal=jnp.asarray(random.normal(size=(LENGTH, 1)) + 100, jnp.float32),
        action=jnp.asarray(random.normal(size=(LENGTH, 2)), jnp.float32),
        fell=jnp.asarray(fell),
        episode_end=jnp.asarray(end),
    )


def slow(window: Transition, goal, spec: GoalSpec, config: SACConfig, t: int):
    """(reward, discount, index of the last step) of one start, step by step."""
    total, discount, k = 0.0, 1.0, 0
    achieved = np.asarray(window.features)[:, 1]
    after = np.asarray(window.next_features)[:, 1]
    while True:
        at = t + k
        near = abs(after[at] - goal) < spec.threshold and not window.fell[at]
        distance = abs(after[at] - goal), abs(achieved[at] - goal)
        reward = {
            "sparse": float(near) - 1.0,
            "dense": 10.0 * near - 0.1 * distance[0],
            "difference": 10.0 * near + distance[1] - distance[0],
        }[spec.reward]
        total += discount * config.reward_scale * reward
        discount *= config.discount_factor
        if window.fell[at] or (near and spec.on_success == "end"):
            return total, 0.0, at
        k += 1
        if window.episode_end[at] or k == config.num_steps or t + k == LENGTH:
            return total, discount, at


@pytest.mark.parametrize("reward", ["sparse", "dense", "difference"])
@pytest.mark.parametrize("num_steps", [1, 3])
@pytest.mark.parametrize("on_success", ["end", "hold"])
def test_what_is_learnt_from_is_what_a_slow_loop_says(reward, num_steps, on_success, transform):
    spec = dataclasses.replace(SPEC, reward=reward, on_success=on_success)
    config = SACConfig(num_steps=num_steps, discount_factor=0.9, reward_scale=0.5)
    relabelling = transform(lambda key, part: in_hindsight(key, part, spec, config))
    experience = window(3)
    batch = jax.tree.map(np.asarray, relabelling(jax.random.key(1), experience))
    assert 0 < batch.is_relabelled.sum() < LENGTH
    goal = batch.observation[:, 2]
    for t in range(LENGTH):
        total, discount, last = slow(experience, goal[t], spec, config, t)
        np.testing.assert_allclose(batch.reward[t], total, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(batch.discount[t], discount, rtol=1e-5)
        np.testing.assert_allclose(batch.next_observation[t, :2], experience.next_features[last])
        np.testing.assert_array_equal(batch.next_observation[t, 2], goal[t])
        np.testing.assert_array_equal(batch.observation[t, :2], experience.features[t])


@pytest.mark.parametrize("strategy", ["future", "final", "episode"])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_new_goal_was_achieved_in_the_same_episode(strategy, seed):
    experience = window(seed)
    config = SACConfig(strategy=strategy, relabel_share=1.0)
    batch = in_hindsight(jax.random.key(seed), experience, SPEC, config)
    goal, new = np.asarray(batch.observation)[:, 2], np.asarray(batch.is_relabelled)
    np.testing.assert_array_equal(goal[~new], np.asarray(experience.goal)[~new, 0])
    end = np.asarray(experience.episode_end)
    number = np.cumsum(np.concatenate([[0], end[:-1]]))  # of the episode
    cut = number == number[-1] if not end[-1] else np.zeros(LENGTH, bool)
    # Only an episode whose end is not in the window has no final goal.
    np.testing.assert_array_equal(new, ~cut if strategy == "final" else np.ones(LENGTH, bool))
    achieved = np.asarray(experience.next_features)[:, 1]
    for t in np.flatnonzero(new):
        (step,) = np.flatnonzero(achieved == goal[t])
        assert number[step] == number[t]
        assert strategy == "episode" or step >= t
        assert strategy != "final" or end[step]
    assert new[np.asarray(experience.fell)].all()  # an episode that ended by a fall, too


def test_the_share_of_new_goals_is_k():
    experience = jax.tree.map(lambda x: jnp.tile(x, (40,) + (1,) * (x.ndim - 1)), window(0))
    for share in (0.0, 0.5, 0.8, 1.0):
        batch = in_hindsight(jax.random.key(0), experience, SPEC, SACConfig(relabel_share=share))
        assert float(batch.is_relabelled.mean()) == pytest.approx(share, abs=0.05)
        assert share not in (0.0, 1.0) or float(batch.is_relabelled.mean()) == share


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"relabel_share": 1.5}, r"relabel_share \(1.5\) must lie in \[0, 1\]"),
        ({"relabel_share": -0.1}, r"relabel_share \(-0.1\) must lie in \[0, 1\]"),
        ({"buffer_size": 255}, r"buffer_size \(255\) must be at least batch_size \(256\)"),
        ({"strategy": "past"}, r"strategy \(past\) must be one of future, final, episode"),
        ({"num_critics": 0}, r"num_critics \(0\) must be at least 1"),
        ({"window": 2, "num_steps": 3}, r"window \(2\) must be at least num_steps \(3\)"),
        ({"batch_size": 10}, r"batch_size \(10\) must be divisible by sample_groups \(8\)"),
        ({"initial_temperature": 0.0}, r"initial_temperature \(0.0\) must be a positive"),
    ],
)
def test_hyper_parameters_that_cannot_be_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        SACConfig(**options)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((12, 8, 50), r"num_envs \(12\) must be divisible by sample_groups \(8\)"),
        ((64, 8, 5000), r"buffer_size \(200000\) must be at least num_envs \* the longer"),
    ],
)
def test_a_buffer_that_does_not_fit_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        SACConfig().sizes(*arguments)
