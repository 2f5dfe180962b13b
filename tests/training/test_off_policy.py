"""Soft actor-critic with hindsight from its first iteration to its last, its buffer included."""

import signal

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagent.agents.hindsight import SoftBatch
from jaxagent.agents.sac_her import SACHER
from jaxagent.training.checkpoint import CheckpointError, Checkpoints
from jaxagent.training.interruption import Interrupted
from jaxagent.training.metrics import read_metrics
from tests.envs.test_goals import line
from tests.training.skill_run import SMALL, make_arm, make_trainer, run_config
from tests.training.test_loop import StopAfter, again, same

ITERATIONS = 160


@pytest.fixture(scope="module")
def arm(tmp_path_factory):
    return make_arm(tmp_path_factory.mktemp("whole"), run_config(ITERATIONS))


@pytest.fixture(scope="module")
def finished(arm):
    return arm.train(resume=False)


def kinds(tree):
    return jax.tree.map(lambda x: (x.shape, x.dtype, getattr(x, "weak_type", False)), tree)


def test_a_sparse_goal_is_reached_and_the_evaluation_tells_how(arm, finished):
    _, report = finished
    assert report.success_rate[0] > 0.9
    assert report.touched_rate[0] >= report.success_rate[0]
    assert report.fall_rate == [0.0]
    assert 1.0 <= report.steps_to_success[0] <= 5.0
    assert report.final_distance[0] < 0.3
    records = read_metrics(arm.folder / "metrics.jsonl")
    before = next(r for r in records if r["kind"] == "evaluation")
    assert before["success_rate"][0] < 0.5
    trained = [r for r in records if r["kind"] == "train"]
    assert len(trained) == ITERATIONS
    assert trained[0]["critic_loss"] == 0.0  # the buffer does not hold a window yet
    assert trained[-1]["relabelled_share"] == pytest.approx(0.8, abs=0.1)
    ended = [r for r in trained if r["episodes"]]
    assert all(r["episode_length"] == 12 for r in ended)
    assert ended[-1]["final_distance"] < ended[0]["final_distance"]
    assert ended[-1]["episode_touched"] > 0.8  # while it explores it touches more than it holds


def test_interrupted_and_resumed_is_the_same_run_with_the_same_buffer(arm, finished, tmp_path):
    stop = StopAfter(arm.reporter, 47, signal.SIGTERM)
    with pytest.raises(Interrupted):
        again(arm, tmp_path / "run", reporter=stop).train(resume=False)
    state, report = again(arm, tmp_path / "run").train(resume=True)
    same(state, finished[0])
    assert report == finished[1]


def test_the_program_takes_back_what_it_gave(arm):
    """It is compiled ahead of time: other types or another placement would be refused."""
    state = arm.trainer.init([0])
    before = kinds(state)
    for _ in range(3):
        state, _ = arm.programs.iterate(state)
    assert kinds(state) == before


def test_two_devices_learn_what_one_learns(arm):
    """Up to the order of sums; the buffer is cut between them, the draws are the same."""
    both = make_trainer(run_config(ITERATIONS), num_devices=2)
    one, two = arm.trainer.init([0]), both.init([0])
    iterate = both._lower_iterate(two).compile()
    for _ in range(8):
        one, _ = arm.programs.iterate(one)
        two, _ = iterate(two)
    assert len(two.replay.experience.fell.sharding.device_set) == 2
    # What float32 cannot hold of the statistics is rounding: it depends on the order of sums.
    agents = [s.agent.replace(normaliser=s.agent.normaliser.replace(lost=())) for s in (one, two)]
    for a, b in (agents, (one.replay.experience, two.replay.experience)):
        jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=2e-5), a, b)


def test_several_updates_are_one_program_and_change_every_network(arm):
    state = arm.trainer.init([0])
    first = jax.tree.map(np.asarray, state.agent)
    for _ in range(4):
        state, _ = arm.programs.iterate(state)
    now = jax.tree.map(np.asarray, state.agent)
    for name in ("policy_params", "critic_params", "target_critic_params"):
        changed = jax.tree.map(
            lambda a, b: (a != b).any(), getattr(first, name), getattr(now, name)
        )
        assert all(jax.tree.leaves(changed)), name
    assert now.log_temperature != first.log_temperature
    # Targets follow slowly: they are nearer to where they began than the critics are.
    far = jax.tree.map(lambda a, b: np.abs(a - b).sum(), first.critic_params, now.critic_params)
    near = jax.tree.map(
        lambda a, b: np.abs(a - b).sum(), first.target_critic_params, now.target_critic_params
    )
    assert sum(jax.tree.leaves(near)) < 0.5 * sum(jax.tree.leaves(far))


def test_a_checkpoint_without_the_buffer_is_refused(arm, finished, tmp_path):
    state, _ = finished
    checkpoints = Checkpoints(tmp_path, 1)
    checkpoints.save(1, state.replace(replay=None), {})
    like = arm.trainer.abstract_state(1)
    with pytest.raises(CheckpointError, match="replay"):
        checkpoints.restore(like, arm.trainer.shardings(like))
    checkpoints.close()


def test_an_evaluation_tells_falls_from_successes_and_from_time():
    """An untrained policy that can fall on one side; goals close enough to be met by chance."""
    simulator = line(falls_at=1.5, reach=(0.5, 1.0))
    trainer = make_trainer(run_config(2), simulator=simulator)
    state = trainer.init([0])
    state = state.replace(agent=jax.tree.map(_shaken, state.agent))
    program = trainer.compile_evaluation(state)
    evaluation = jax.device_get(program(state.agent, trainer.replicate(np.zeros(1, np.int32))))
    goals, success = evaluation.goals, evaluation.success
    in_time = evaluation.episode_length < 12
    assert goals.fell.any()
    assert success.any()
    assert not (goals.fell & success).any()
    assert (goals.fell | success)[in_time].all()  # on the last step, any of the three
    np.testing.assert_array_equal(goals.touched, success)  # success ends the episode
    np.testing.assert_array_equal(goals.steps_to_success, evaluation.episode_length * success)
    np.testing.assert_array_equal(goals.final_distance[success] < 0.3, True)
    last = evaluation.path[np.arange(1)[:, None], np.arange(32)[None], -1, 0]
    np.testing.assert_allclose(np.abs(last - goals.goal[..., 0]), goals.final_distance, atol=1e-5)
    np.testing.assert_array_equal(np.abs(last) > 1.5, goals.fell)


def _shaken(x):
    """Parameters of a policy that acts; a fresh one's means are close to 0."""
    return 3.0 * x if jnp.issubdtype(x.dtype, jnp.floating) else x


def test_a_gradient_that_is_not_finite_is_dropped_and_counted(arm):
    learner = SACHER(
        SMALL, arm.trainer.agent.spec, observation_size=2, action_size=1, encoder_sizes=(8,)
    )
    state = learner.init(jax.random.key(0))
    rows = (2, 8, 8)
    batch = SoftBatch(
        observation=jnp.ones((*rows, 2)),
        action=jnp.zeros((*rows, 1)),
        reward=jnp.zeros(rows).at[0, 0, 0].set(jnp.nan),
        discount=jnp.ones(rows),
        next_observation=jnp.ones((*rows, 2)),
        is_relabelled=jnp.zeros(rows, bool),
    )
    keys = jax.random.split(jax.random.key(1), 8)
    after, metrics = jax.jit(learner.update)(state, batch, keys)
    assert int(after.nonfinite_updates) == 1
    assert int(after.nonfinite_in_a_row) == 1
    for leaf in jax.tree.leaves((after, metrics)):
        assert np.isfinite(leaf).all()
