"""The hierarchical agent with a planner of arrays."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from envs.vector import VectorEnv
from jaxagent.agents.hierarchy import (
    ArrayPlanner,
    Hierarchy,
    Outcome,
    PursuitConfig,
    Verdict,
    Waypoints,
)
from jaxagent.losses import duration_credit, segment_gae
from tests.agents.plane import STEP, point_task, straight

COURSE = jnp.array([[3.0, 0.0], [3.0, 3.0], [0.0, 3.0], [-3.0, 0.0], [0.0, 0.0]])
QUICK = PursuitConfig(timeout_steps=30, stall_steps=8, stall_distance=0.1, discount_factor=0.9)


def hierarchy(
    planner: ArrayPlanner | None = None,
    skill=straight,
    config: PursuitConfig = QUICK,
    max_segments: int = 8,
    episode_length: int = 1000,
    **task,
) -> Hierarchy:
    simulator = point_task(**task)
    env = VectorEnv(simulator, episode_length)
    return Hierarchy(env, simulator.aim, skill, planner or Waypoints(COURSE), config, max_segments)


def play(agent: Hierarchy, length: int = 100, count: int = 3):
    episodes = jax.jit(agent.play, static_argnums=1)(
        jax.random.split(jax.random.key(0), count), length
    )
    return jax.device_get(episodes)


@pytest.fixture(scope="module")
def completed():
    return play(hierarchy())


def outcomes(episodes, row: int = 0) -> list[str]:
    live = episodes.segments.mask[:, row]
    return [Outcome(code).name for code in episodes.segments.outcome[live, row]]


def test_a_course_is_completed_and_its_segments_recorded(completed):
    episodes = completed
    assert (episodes.verdict == Verdict.COMPLETE).all()
    assert outcomes(episodes) == ["SUCCESS"] * 5
    segments, steps = episodes.segments, episodes.steps
    np.testing.assert_array_equal(segments.goal[:5, 1], COURSE)
    np.testing.assert_array_equal(segments.goal[5:], 0.0)
    # Segments follow each other without a gap, and make up the episode.
    np.testing.assert_array_equal(segments.start[1:5], (segments.start + segments.duration)[:4])
    np.testing.assert_array_equal(segments.duration.sum(0), steps.mask.sum(0))
    # 3 metres at STEP a step, less the radius of 0.3 that counts as there.
    assert abs(segments.duration[1, 0] - 3.0 / STEP) <= 3
    ends = segments.start[:5, 0] + segments.duration[:5, 0] - 1
    there = steps.achieved_goal[ends, 0]
    assert (np.linalg.norm(there - COURSE, axis=-1) < 0.3).all()


def test_rewards_and_discounts_are_those_of_the_segments(completed):
    """The sparse reward is -1 a step and 0 on success; gamma is 0.9."""
    segments = completed.segments
    steps = segments.duration[:5].astype(float)
    np.testing.assert_allclose(
        segments.reward[:5], -(1 - 0.9 ** (steps - 1)) / (1 - 0.9), rtol=1e-5
    )
    np.testing.assert_allclose(segments.discount[:5], 0.9**steps, rtol=1e-5)


def test_segments_go_straight_into_the_credit_estimators(completed):
    segments = jax.tree.map(jnp.asarray, completed.segments)
    credit = duration_credit(jnp.ones(3), segments.duration, segments.mask)
    np.testing.assert_allclose(credit.sum(0), 1.0, rtol=1e-6)
    zero = jnp.zeros(segments.reward.shape)
    advantage = segment_gae(
        segments.reward, segments.discount, zero, zero, segments.mask, segment_lambda=1.0
    )
    last = segments.reward[4]
    np.testing.assert_allclose(advantage[4], last, rtol=1e-6)
    np.testing.assert_allclose(
        advantage[3], segments.reward[3] + segments.discount[3] * last, rtol=1e-6
    )


def test_no_progress_goes_back_to_the_planner_which_gives_up_after_its_attempts():
    """A wall at x = 1 stops it 2 metres before the first point."""
    episodes = play(hierarchy(Waypoints(COURSE, attempts=3), wall=1.0))
    assert outcomes(episodes) == ["NO_PROGRESS"] * 3
    assert (episodes.verdict == Verdict.GIVE_UP).all()
    duration = episodes.segments.duration[:3, 0]
    assert abs(duration[0] - (1.0 / STEP + QUICK.stall_steps)) <= 1
    np.testing.assert_array_equal(duration[1:], QUICK.stall_steps)


def test_a_timeout_goes_back_to_the_planner():
    slow = dataclasses.replace(QUICK, timeout_steps=6)
    episodes = play(hierarchy(Waypoints(COURSE, attempts=9), config=slow), count=1)
    # 12 steps to the first two points, and 16 to the others: two or three sub-goals each.
    assert set(outcomes(episodes)) == {"TIMEOUT", "SUCCESS"}
    assert outcomes(episodes)[:2] == ["TIMEOUT", "SUCCESS"]
    assert max(episodes.segments.duration[:, 0]) == 6


def test_a_fall_ends_the_episode_and_its_discount():
    episodes = play(hierarchy(edge=2.0))
    assert outcomes(episodes) == ["FELL"]
    assert (episodes.verdict == Verdict.GO_ON).all()
    np.testing.assert_array_equal(episodes.segments.discount[0], 0.0)
    assert episodes.steps.terminated.sum(0).tolist() == [1, 1, 1]


@pytest.mark.parametrize(("length", "limit"), [(15, 1000), (100, 15)])
def test_the_time_limit_cuts_but_does_not_terminate(length, limit):
    episodes = play(hierarchy(episode_length=limit), length)
    assert outcomes(episodes) == ["SUCCESS", "CUT"]
    assert (episodes.steps.mask.sum(0) == 15).all()
    assert (episodes.segments.discount[1] > 0).all()


def test_the_last_segment_ends_the_episode():
    episodes = play(hierarchy(max_segments=2))
    assert outcomes(episodes) == ["SUCCESS", "SUCCESS"]
    assert (episodes.verdict == Verdict.GO_ON).all()


def test_episodes_do_not_know_of_each_other(completed):
    """Each of three is the one that is played alone."""
    agent = hierarchy()
    alone = jax.jit(agent.play, static_argnums=1)
    for row, key in enumerate(jax.random.split(jax.random.key(0), 3)):
        np.testing.assert_allclose(
            alone(key[None], 100).steps.achieved_goal[:, 0],
            completed.steps.achieved_goal[:, row],
            atol=1e-5,
        )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"timeout_steps": 0}, r"timeout_steps \(0\) must be at least 1"),
        ({"stall_steps": -1}, r"stall_steps \(-1\) must be at least 1"),
        ({"stall_distance": float("nan")}, r"stall_distance \(nan\) must be finite"),
        ({"discount_factor": 1.5}, r"discount_factor \(1.5\) must lie in \[0, 1\]"),
    ],
)
def test_mistakes_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        PursuitConfig(**changes)
