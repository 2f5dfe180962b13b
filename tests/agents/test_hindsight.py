"""Hindsight over whole episodes in a ring, against a slow loop over single steps."""

import dataclasses

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings

from jaxagent.agents.hindsight import in_hindsight
from jaxagent.agents.sac_config import SACConfig
from jaxagent.replay import Replay, Transition
from jaxagent.types import GoalSpec

ROWS, LENGTH, COUNT = 2, 24, 192
REPLAY = Replay(ROWS, LENGTH)
SPEC = GoalSpec(
    state_indices=(1,),
    see=lambda features, goal: jnp.concatenate([features, goal], -1),  # the goal can be read back
    goal_features=1,
    sample=lambda key, features, reach: features[1:2],
    workspace=(0.0, 1.0),
    reach=(0.0, 1.0),
    threshold=0.3,
    on_success="hold",
).charged(0.9)


def experience(seed: int, written: int = LENGTH, share: float = 0.2) -> Transition:
    """Steps in the order of time, [T, rows]: episodes end by a fall or by time, at any step.

    No two achieved goals are alike, and features number the steps.
    """
    random = np.random.default_rng(seed)
    shape = (written, ROWS)
    place = np.cumsum(random.normal(size=(written + 1, ROWS)), 0) * 0.4
    number = np.arange(written * ROWS, dtype=float).reshape(shape)
    end = random.random(shape) < share
    return Transition(
        features=jnp.asarray(np.stack([number, place[:-1]], -1), jnp.float32),
        next_features=jnp.asarray(np.stack([number, place[1:]], -1), jnp.float32),
        goal=jnp.asarray(random.normal(size=(*shape, 1)) + 100, jnp.float32),
        action=jnp.asarray(random.normal(size=(*shape, 2)), jnp.float32),
        fell=jnp.asarray(end & (random.random(shape) < 0.5)),
        episode_end=jnp.asarray(end),
    )


@jax.jit
def remember(experience: Transition):
    """A buffer of one group that all of it was written into, step by step."""
    blank = REPLAY.init(jax.tree.map(lambda x: x[0, 0], experience), 1)

    def one(state, step):
        return REPLAY.add(state, jax.tree.map(lambda x: x[None], step)), None

    return jax.lax.scan(one, blank, experience)[0]


def relabelled(seed: int, experience: Transition, spec: GoalSpec, config: SACConfig):
    """(batch, time, row) of steps that were drawn; times count from the first that was written."""
    batch, drawn = _relabelled(spec, config)(jax.random.key(seed), remember(experience))
    batch, drawn = jax.tree.map(lambda x: np.asarray(x)[0], (batch, drawn))
    return batch, drawn.time + max(0, experience.fell.shape[0] - LENGTH), drawn.row


_COMPILED: dict = {}


def _relabelled(spec: GoalSpec, config: SACConfig):
    def function(key, buffer):
        draw_key, goal_key = jax.random.split(key)
        drawn = REPLAY.sample(buffer, draw_key[None], COUNT)
        return in_hindsight(goal_key[None], REPLAY, buffer, drawn, spec, config), drawn

    return _COMPILED.setdefault((spec, config), jax.jit(function))


def episode_of(experience: Transition, time: int, row: int) -> tuple[int, int, bool]:
    """First and last step of the same episode that the ring still holds; whether it has ended."""
    end = np.asarray(experience.episode_end)[:, row]
    oldest = max(0, len(end) - LENGTH)
    first, last = time, time
    while first > oldest and not end[first - 1]:
        first -= 1
    while last < len(end) - 1 and not end[last]:
        last += 1
    return first, last, bool(end[last])


def slow(steps: Transition, goal, spec: GoalSpec, config: SACConfig, t: int, row: int):
    """(reward, discount, time of the last step) of one start, step by step."""
    total, discount, k = 0.0, 1.0, 0
    achieved = np.asarray(steps.features)[:, row, 1]
    after = np.asarray(steps.next_features)[:, row, 1]
    fell, end = np.asarray(steps.fell)[:, row], np.asarray(steps.episode_end)[:, row]
    while True:
        at = t + k
        near = abs(after[at] - goal) < spec.threshold and not fell[at]
        distance = abs(after[at] - goal), abs(achieved[at] - goal)
        reward = {
            "sparse": float(near) - 1.0,
            "dense": 10.0 * near - 0.1 * distance[0],
            "difference": 10.0 * near + distance[1] - distance[0],
        }[spec.reward]
        if fell[at]:  # it lies there for ever: 9 more steps, discounted by 0.9
            lying = {"sparse": -1.0, "dense": -0.1 * distance[0], "difference": 0.0}[spec.reward]
            reward += 9.0 * lying - spec.fall_cost
        total += discount * config.reward_scale * reward
        discount *= config.discount_factor
        if fell[at] or (near and spec.on_success == "end"):
            return total, 0.0, at
        k += 1
        if end[at] or k == config.num_steps or t + k == len(end):
            return total, discount, at


@pytest.mark.parametrize("reward", ["sparse", "dense", "difference"])
@pytest.mark.parametrize("num_steps", [1, 3])
@pytest.mark.parametrize("on_success", ["end", "hold"])
def test_what_is_learnt_from_is_what_a_slow_loop_says(reward, num_steps, on_success):
    spec = dataclasses.replace(SPEC, reward=reward, on_success=on_success)
    config = SACConfig(num_steps=num_steps, discount_factor=0.9, reward_scale=0.5)
    steps = experience(3, written=41)
    batch, times, rows = relabelled(1, steps, spec, config)
    assert 0 < batch.is_relabelled.sum() < COUNT
    for i, (t, row) in enumerate(zip(times, rows)):
        goal = batch.observation[i, 2]
        total, discount, last = slow(steps, goal, spec, config, t, row)
        np.testing.assert_allclose(batch.reward[i], total, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(batch.discount[i], discount, rtol=1e-5)
        np.testing.assert_allclose(
            batch.next_observation[i], [*steps.next_features[last, row], goal]
        )
        np.testing.assert_array_equal(batch.observation[i, :2], steps.features[t, row])
        np.testing.assert_array_equal(batch.action[i], steps.action[t, row])


@pytest.mark.parametrize("strategy", ["future", "final", "episode"])
@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    written=st.sampled_from([1, 5, 23, 24, 25, 40, 71]),
    share=st.sampled_from([0.0, 0.03, 0.2, 0.6]),
)
def test_new_goals_come_from_the_whole_of_the_same_episode(strategy, seed, written, share):
    """Episodes across the seam of the ring, cut by it, longer than it, still running."""
    config = SACConfig(strategy=strategy, relabel_share=1.0, discount_factor=0.9)
    steps = experience(seed, written, share)
    batch, times, rows = relabelled(seed, steps, SPEC, config)
    achieved = np.asarray(steps.next_features)[..., 1]
    for i, (t, row) in enumerate(zip(times, rows)):
        first, last, is_ended = episode_of(steps, t, row)
        goal = batch.observation[i, 2]
        assert batch.is_relabelled[i] == (is_ended or strategy != "final")
        if not batch.is_relabelled[i]:
            assert goal == steps.goal[t, row, 0]
            continue
        (step,) = np.flatnonzero(achieved[:, row] == goal)
        lowest, highest = {"future": (t, last), "final": (last, last), "episode": (first, last)}[
            strategy
        ]
        assert lowest <= step <= highest


def test_goals_of_the_future_lead_by_half_of_what_is_left():
    """Uniform over the rest of the episode, however long: no window ends before it does."""
    steps = experience(0, 60, share=0.0)
    end = jnp.zeros_like(steps.episode_end).at[58].set(True)  # 22 of the 24 kept, across the seam
    steps = steps._replace(episode_end=end, fell=jnp.zeros_like(end))
    config = SACConfig(relabel_share=1.0, discount_factor=0.9)
    achieved, leads = np.asarray(steps.next_features)[..., 1], {}
    for seed in range(40):
        batch, times, rows = relabelled(seed, steps, SPEC, config)
        for i, (t, row) in enumerate(zip(times, rows)):
            (step,) = np.flatnonzero(achieved[:, row] == batch.observation[i, 2])
            leads.setdefault(int(t), []).append(step - t)
    for t in (36, 44, 52):
        assert np.mean(leads[t]) == pytest.approx((58 - t) / 2, abs=1.5)
        assert set(leads[t]) == set(range(58 - t + 1))


def test_final_relabels_the_whole_share_of_episodes_that_ended():
    """Windows relabelled 41 % instead of 80 %: they had no end where the episode's lay behind."""
    steps = experience(0, 48, share=0.0)
    end = jnp.zeros_like(steps.episode_end).at[jnp.array([35, 47])].set(True)
    steps = steps._replace(episode_end=end)
    config = SACConfig(strategy="final", relabel_share=0.8, discount_factor=0.9)
    shares = [relabelled(s, steps, SPEC, config)[0].is_relabelled.mean() for s in range(20)]
    assert np.mean(shares) == pytest.approx(0.8, abs=0.02)


def test_the_share_of_new_goals_is_k():
    steps = experience(0)
    for share in (0.0, 0.5, 0.8, 1.0):
        config = SACConfig(relabel_share=share, discount_factor=0.9)
        found = np.mean([relabelled(s, steps, SPEC, config)[0].is_relabelled for s in range(10)])
        assert found == pytest.approx(share, abs=0.05)
        assert share not in (0.0, 1.0) or found == share


def test_a_fall_is_relabelled_and_never_a_success():
    steps = experience(5)
    config = SACConfig(relabel_share=1.0, discount_factor=0.9)
    batch, times, rows = relabelled(0, steps, SPEC, config)
    fell = np.asarray(steps.fell)[times, rows]
    assert fell.any()
    assert batch.is_relabelled[fell].all()
    assert (batch.discount[fell] == 0).all()
    np.testing.assert_allclose(batch.reward[fell], 0.1 * (-1.0 - 9.0 - 10.0), rtol=1e-5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"relabel_share": 1.5}, r"relabel_share \(1.5\) must lie in \[0, 1\]"),
        ({"relabel_share": -0.1}, r"relabel_share \(-0.1\) must lie in \[0, 1\]"),
        ({"buffer_size": 255}, r"buffer_size \(255\) must be at least batch_size \(256\)"),
        ({"strategy": "past"}, r"strategy \(past\) must be one of future, final, episode"),
        ({"num_critics": 0}, r"num_critics \(0\) must be at least 1"),
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
        ((12, 8), r"num_envs \(12\) must be divisible by sample_groups \(8\)"),
        ((64, 5000), r"buffer_size \(200000\) must be at least num_envs \* unroll_length"),
    ],
)
def test_a_buffer_that_does_not_fit_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        SACConfig().sizes(*arguments)
