"""A manager over a frozen skill, and HIRO's correction of old sub-goals."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from envs.course import Course
from envs.vector import VectorEnv
from jaxagent.agents.hindsight import in_hindsight
from jaxagent.agents.manager import (
    ManagedSimulator,
    SkillRecord,
    arrival_spec,
    correct_sub_goals,
    correct_transitions,
    skill_record,
    sub_goal,
)
from jaxagent.agents.sac_config import SACConfig
from jaxagent.replay import Replay, Sampled
from jaxagent.rollout import collect
from jaxagent.types import PolicySample, Simulator
from tests.agents.plane import STEP, point_task, straight

WALLS = ((1.5, -9.0, 1.5, 1.0),)


def walker(features, goal):
    """Walks straight to the goal, with a little noise around it."""
    action = 0.95 * straight(jnp.concatenate([features, goal - features], axis=-1), None)
    return jnp.arctanh(action), 0.2 * jnp.ones(action.shape)


def backwards(features, goal):
    """The same skill after it has unlearnt everything: it walks away from the goal."""
    return walker(features, 2 * features - goal)


def managed(interval: int = 4, skill=walker, target=None, **body) -> ManagedSimulator:
    course = Course(point_task(**body), walls=WALLS, target=(3.0, 0.0), radius=0.5)
    return ManagedSimulator(course, skill, interval, reach=2.0, target=target)


def play(simulator: ManagedSimulator, actions):
    state = jax.jit(simulator.reset)(jax.random.key(0))
    step, states = jax.jit(simulator.step), []
    for action in actions:
        state = step(state, jnp.array(action, jnp.float32))
        states.append(state)
    return states


def test_one_step_is_one_sub_goal_held_for_the_interval():
    simulator = managed()
    assert isinstance(simulator, Simulator)
    (state,) = play(simulator, [(0.0, 1.0)])
    start = jax.jit(simulator.reset)(jax.random.key(0)).achieved_goal
    moved = state.achieved_goal - start
    np.testing.assert_allclose(moved, [0.0, 0.95 * 4 * STEP], atol=1e-3)
    assert state.observation.shape == (simulator.observation_size,) == (2,)
    np.testing.assert_allclose(state.physics.state.goal, start + jnp.array([0.0, 2.0]), rtol=1e-6)


def test_what_the_skill_saw_and_did_is_recorded():
    states = play(managed(), [(0.0, 1.0), (0.5, 0.0)])
    features, action, live = skill_record(states[1].features, 4, 2)
    assert features.shape == action.shape == (4, 2)
    assert live.all()
    np.testing.assert_allclose(features[0], states[0].achieved_goal, rtol=1e-6)
    np.testing.assert_allclose(jnp.diff(features, axis=0), STEP * action[:-1], atol=1e-5)


def test_rewards_are_summed_and_an_end_on_the_way_is_an_end():
    round_the_wall = [(0.0, 1.0)] * 2 + [(1.0, 0.0)] * 3 + [(0.0, -1.0)] * 2
    states = play(managed(), round_the_wall)
    rewards = [float(state.reward) for state in states]
    arrived = rewards.index(1.0)
    assert bool(states[arrived].terminated)
    assert bool(states[arrived].success)
    # It stopped where it arrived, within half a metre, and not where the interval ended.
    distance = np.linalg.norm(np.asarray(states[arrived].achieved_goal) - [3.0, 0.0])
    assert 0.25 - 1e-3 < distance < 0.5
    into_the_wall = play(managed(8), [(1.0, 0.0)])[0]
    np.testing.assert_array_equal(
        skill_record(into_the_wall.features, 8, 2).live, [True] * 7 + [False]
    )
    assert bool(into_the_wall.terminated)
    assert float(into_the_wall.reward) == 0.0
    assert into_the_wall.achieved_goal[0] < 1.5 + STEP


def test_it_is_vectorised_and_restarted_like_any_environment():
    simulator = managed(8)
    env = VectorEnv(simulator, episode_length=5)
    state = jax.jit(env.reset)(jax.random.split(jax.random.key(0), 3))
    action = jnp.array([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
    state, step = jax.jit(env.step)(state, action)
    assert step.terminated.tolist() == [True, False, False]
    assert state.elapsed.tolist() == [0, 1, 1]
    # The record of the step that ended is kept, though the episode has started afresh.
    record = skill_record(step.next_features, 8, 2)
    assert record.features[0, 3, 0] > 0.5
    assert np.abs(state.simulator.achieved_goal[0]).max() <= 0.11


@pytest.fixture(scope="module")
def walked():
    """Ten steps by the skill as it is towards (2, 0), which it was given."""
    simulator = managed(10, target=(3.0, 0.0))
    start = jax.jit(simulator.reset)(jax.random.key(0)).achieved_goal
    (state,) = play(simulator, [(1.0, 0.3)])
    return skill_record(state.features, 10, 2), jnp.array([1.0, 0.3]), start, state.achieved_goal


def test_correction_keeps_the_sub_goal_while_the_skill_is_the_same(walked):
    """Bit for bit: what its mode did has no likelier cause than the goal that it did it for."""
    for seed in range(5):
        found = correct_sub_goals(jax.random.key(seed), managed().log_prob, *walked, reach=2.0)
        np.testing.assert_array_equal(found.action, walked[1])
        assert found.given == found.likeliest
        assert abs(float(found.given)) < 1e-8


def test_correction_finds_the_likeliest_candidate(walked):
    """Beside a plain loop over the candidates; only a goal behind explains going ahead."""
    record, action, start, reached = walked
    for seed in range(5):
        key = jax.random.key(seed)
        log_prob = managed(skill=backwards).log_prob
        found = correct_sub_goals(key, log_prob, *walked, reach=2.0, num_candidates=32)
        way = np.asarray(reached - start) / 2.0
        drawn = way + 0.5 * np.asarray(jax.random.normal(key, (32, 2)))
        candidates = np.clip(np.stack([np.asarray(action), way, *drawn]), -1.0, 1.0)
        likelihoods = []
        for candidate in candidates:
            total = 0.0
            for j in range(10):
                if record.live[j]:
                    goal = start + 2.0 * candidate
                    does = np.tanh(backwards(record.features[j], goal)[0])
                    total -= 0.5 * float(((record.action[j] - does) ** 2).sum())
            likelihoods.append(total)
        best = int(np.argmax(likelihoods))
        assert best > 0
        np.testing.assert_allclose(found.action, candidates[best], rtol=1e-5)
        np.testing.assert_allclose(found.likeliest, likelihoods[best], rtol=1e-4)
        np.testing.assert_allclose(found.given, likelihoods[0], rtol=1e-4)


def test_what_follows_an_end_on_the_way_explains_nothing(walked):
    record, *rest = walked
    poisoned = SkillRecord(
        record.features.at[6:].set(jnp.nan),
        record.action.at[6:].set(jnp.nan),
        record.live.at[6:].set(False),
    )
    cut = SkillRecord(*(part[:6] for part in record))
    found = [
        correct_sub_goals(jax.random.key(1), managed(skill=backwards).log_prob, r, *rest, reach=2.0)
        for r in (poisoned, cut)
    ]
    np.testing.assert_allclose(found[0].action, found[1].action)
    np.testing.assert_allclose(found[0].likeliest, found[1].likeliest, rtol=1e-5)


@pytest.fixture(scope="module")
def remembered():
    """Decisions at random over a course in which some arrive and some meet the wall."""
    simulator = managed(8, target=(3.0, 0.0))
    env = VectorEnv(simulator, episode_length=6)

    def policy(observation, keys):
        action = jax.vmap(lambda key: jax.random.uniform(key, (2,), minval=-1.0))(keys)
        return PolicySample(action, action, jnp.zeros(len(action)))

    keys = jax.random.split(jax.random.key(0), 128)
    state = jax.jit(env.reset)(keys)
    _, trajectory = jax.jit(lambda s, k: collect(env, policy, s, k, 24))(state, keys)
    return simulator, trajectory, simulator.remember(trajectory)


def test_replay_keeps_each_record_once_and_judges_as_the_course_did(remembered):
    simulator, trajectory, kept = remembered
    assert kept.features.shape[-1] == simulator.num_features == 2
    assert kept.next_features.shape[-1] == 2 + 8 * (2 + 2) + 1
    spec = arrival_spec(simulator, (0, 1), 0.5)
    config = SACConfig(relabel_share=0.0, reward_scale=1.0, discount_factor=0.9)
    length, rows = kept.fell.shape
    replay = Replay(rows=rows, row_length=length)
    buffer = replay.add(replay.init(jax.tree.map(lambda x: x[0, 0], kept), 1), kept)
    time, row = (x.ravel()[None] for x in jnp.indices((length, rows)))
    drawn = Sampled(row, time, first=time, last=time, is_ended=jnp.ones_like(time, bool))
    flat = in_hindsight(jax.random.split(jax.random.key(0), 1), replay, buffer, drawn, spec, config)
    batch = jax.tree.map(lambda x: x.reshape((length, rows) + x.shape[2:]), flat)
    np.testing.assert_array_equal(batch.reward, trajectory.reward)
    assert 3 < trajectory.reward.sum() < trajectory.terminated.sum() - 3  # arrivals, and walls
    np.testing.assert_allclose(batch.discount, 0.9 * (1.0 - trajectory.terminated))
    np.testing.assert_array_equal(batch.observation, trajectory.observation)
    np.testing.assert_array_equal(batch.next_observation, trajectory.next_observation)
    assert batch.observation.shape[-1] == simulator.observation_size == 4


def test_corrected_decisions_lead_another_skill_where_the_first_went(remembered):
    """The other walks to a place 1.5 m north of its goal; without correction it goes astray."""
    simulator, _, kept = remembered

    def astray(features, goal):
        return walker(features, goal + jnp.broadcast_to(jnp.array([0.0, 1.5]), goal.shape))

    spec = arrival_spec(simulator, (0, 1), 0.5)
    other = managed(8, skill=astray, target=(3.0, 0.0))
    found = jax.jit(lambda kept: correct_transitions(jax.random.key(0), kept, other, spec))(kept)
    assert found.action.shape == kept.action.shape
    assert (found.likeliest >= found.given).all()

    def lands(start, action):
        """Where the other skill comes to in the open."""

        def advance(place, _):
            goal = sub_goal(start, action, 2.0)
            return place + STEP * jnp.tanh(astray(place, goal)[0]), None

        return jax.lax.scan(advance, start, None, 8)[0]

    whole = np.asarray(~kept.episode_end)
    start, reached = kept.features, kept.next_features[..., :2]
    miss = [
        np.linalg.norm(np.asarray(jax.vmap(jax.vmap(lands))(start, action) - reached), axis=-1)[
            whole
        ]
        for action in (kept.action, found.action)
    ]
    assert miss[0].mean() > 0.8
    assert miss[1].mean() < 0.75 * miss[0].mean()  # the best of ten candidates, no more


def test_a_goal_space_needs_a_target():
    with pytest.raises(ValueError, match=r"target \(None\) must be given"):
        arrival_spec(managed(), (0, 1), 0.5)


def test_a_sub_goal_lies_within_reach():
    achieved = jnp.array([1.0, 2.0])
    np.testing.assert_allclose(sub_goal(achieved, jnp.array([0.5, -7.0]), 2.0), [2.0, 0.0])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"interval": 0}, r"interval \(0\) must be at least 1"),
        ({"reach": 0.0}, r"reach \(0.0\) must be a positive, finite number"),
    ],
)
def test_mistakes_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        ManagedSimulator(Course(point_task()), walker, **{"interval": 4, "reach": 1.0} | changes)
