"""Difficulty that follows measured success."""

import dataclasses

import jax
import numpy as np
import pytest

from envs.difficulty import set_difficulty
from envs.vector import VectorEnv
from jaxagent.agents.ppo import PPO, PPOConfig
from jaxagent.training.curriculum import Curriculum, CurriculumConfig
from jaxagent.training.devices import AXIS, choose_layout
from jaxagent.training.episodes import episode_metrics
from jaxagent.training.interruption import Interrupted
from jaxagent.training.metrics import read_metrics
from jaxagent.training.trainer import Trainer
from tests.agents.plane import point_task
from tests.envs.test_goals import line, play
from tests.training.probe_run import make_arm, run_config
from tests.training.test_loop import StopAfter, bits

EASY = CurriculumConfig(
    curriculum="staircase", easy_reach=(0.5, 0.5), easy_threshold=0.5, curriculum_step=0.25,
    curriculum_episodes=16,
)  # fmt: skip


def make_trainer(run, num_devices: int = 2) -> Trainer:
    simulator = point_task("end", "difference")
    config = PPOConfig(policy_hidden_sizes=(16,), critic_hidden_sizes=(16,), num_minibatches=2)
    env = VectorEnv(simulator, run.episode_length)
    return Trainer(
        env=env,
        evaluation_env=env,
        pose=simulator.pose,
        agent=PPO(
            config, observation_size=4, action_size=2, num_updates=run.num_iterations,
            axis_name=AXIS,
        ),
        guidance=None,
        layout=choose_layout(run.num_envs, config.shuffle_groups, num_devices),
        num_envs=run.num_envs,
        unroll_length=run.unroll_length,
        num_iterations=run.num_iterations,
        evaluation_episodes=run.evaluation_episodes,
        evaluation_length=run.episode_length,
    )  # fmt: skip


def make_curriculum(config: CurriculumConfig, seeds: int = 2, envs: int = 16) -> Curriculum:
    spec = point_task().spec
    return Curriculum(config, spec, set_difficulty, num_seeds=seeds, num_envs=envs)


def told(curriculum: Curriculum, episodes, success) -> list[float]:
    """Levels after an iteration, without a state to move."""
    curriculum._place = lambda state: state
    metrics = {"episodes": np.array(episodes, float), "episode_success": np.array(success, float)}
    curriculum.advance(None, metrics, 0.0)
    return curriculum.level.tolist()


def test_a_staircase_goes_up_with_success_each_seed_for_itself():
    curriculum = make_curriculum(EASY)
    assert told(curriculum, [16, 16], [1.0, 1.0]) == [0.0, 0.0]  # begun before it: not counted
    assert told(curriculum, [15, 16], [1.0, 0.5]) == [0.0, 0.0]  # too few; too low
    assert told(curriculum, [1, 16], [1.0, 0.9]) == [0.25, 0.25]
    assert told(curriculum, [32, 31], [0.8, 0.0]) == [0.5, 0.25]
    for _ in range(9):
        told(curriculum, [32, 32], [1.0, 0.0])
    assert curriculum.level.tolist() == [1.0, 0.25]  # it never goes down


def test_what_it_follows_is_success_at_the_end():
    """Goals that are passed, and left before the end, were touched; they count for nothing."""
    _, trajectory = play(line(on_success="hold", reach=(1.0, 1.0)), 12, 12, action=0.25)
    assert trajectory.success.any()
    assert not trajectory.success[-1].any()
    metrics = jax.vmap(episode_metrics, axis_name=AXIS)(jax.tree.map(lambda x: x[None], trajectory))
    assert metrics["episodes"] == 6
    assert metrics["episode_success"] == 0.0
    assert metrics["episode_touched"] == pytest.approx(trajectory.success.any(0).mean())
    _, held = play(line(on_success="hold", reach=(1.0, 1.0)), 12, 12)
    metrics = jax.vmap(episode_metrics, axis_name=AXIS)(jax.tree.map(lambda x: x[None], held))
    assert metrics["episode_success"] == 1.0


def test_adaptive_also_goes_down_but_not_below_zero():
    curriculum = make_curriculum(dataclasses.replace(EASY, curriculum="adaptive"), seeds=1)
    told(curriculum, [16], [0.0])
    assert [told(curriculum, [32], [s])[0] for s in (1.0, 1.0, 0.6, 0.3)] == [0.25, 0.5, 0.5, 0.25]
    assert [told(curriculum, [32], [0.0])[0] for _ in range(3)] == [0.0, 0.0, 0.0]


def test_linear_follows_the_training_alone():
    curriculum = make_curriculum(
        dataclasses.replace(EASY, curriculum="linear", full_from=0.5), seeds=1
    )
    curriculum._place = lambda state: state
    levels = []
    for fraction in (0.1, 0.25, 0.5, 0.9):
        curriculum.advance(None, {}, fraction)
        levels.append(curriculum.level[0])
    np.testing.assert_allclose(levels, [0.2, 0.5, 1.0, 1.0])


def test_the_difficulty_lies_between_easy_and_the_task():
    curriculum = make_curriculum(EASY)
    curriculum.level[:] = 0.0, 0.5
    reach, threshold = curriculum._difficulty()
    np.testing.assert_allclose(reach, [[0.5, 0.5], [0.75, 1.75]])
    np.testing.assert_allclose(threshold, [0.5, 0.4])
    assert curriculum.metrics == pytest.approx(
        {"curriculum_level": 0.25, "curriculum_reach": 1.125, "curriculum_threshold": 0.45}
    )


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Two seeds, ten iterations on two devices, the levels rising on the way."""
    run = run_config(10, num_seeds=2, num_evaluations=2)
    arm = make_arm(tmp_path_factory.mktemp("curriculum"), run, make_trainer(run))
    arm.curriculum = make_curriculum(dataclasses.replace(EASY, raise_success=0.05, lower_success=0))
    state, _ = arm.train(resume=False)
    return arm, state


def test_it_is_in_the_environments_and_in_the_log(trained):
    arm, state = trained
    records = [r for r in read_metrics(arm.folder / "metrics.jsonl") if r["kind"] == "train"]
    levels = [r["curriculum_level"] for r in records]
    assert levels[0] == 0.0
    assert levels == sorted(levels)
    assert levels[-1] > 0.2
    assert records[0]["curriculum_reach"] == 0.5
    difficulty = jax.device_get(state.env.simulator.physics.difficulty)
    reach, threshold = arm.curriculum._difficulty()
    np.testing.assert_allclose(difficulty.reach, np.repeat(reach[:, None], 16, axis=1))
    np.testing.assert_allclose(difficulty.threshold, np.repeat(threshold[:, None], 16, axis=1))


def test_goals_are_drawn_from_it(trained):
    arm, _ = trained
    state = make_curriculum(EASY).begin(arm.trainer, arm.trainer.init([0, 1]))
    for _ in range(3):  # every episode ends within 12 of these 24 steps
        state, _ = arm.programs.iterate(state)
    simulator = jax.device_get(state.env.simulator)
    way = simulator.goal - simulator.achieved_goal
    elapsed = np.asarray(state.env.elapsed)
    assert (np.linalg.norm(way, axis=-1)[elapsed == 0] < 0.51).all()
    assert (np.linalg.norm(way, axis=-1) < 0.5 + 0.25 * np.sqrt(2) * 12).all()


def test_a_resumed_run_goes_on_at_its_level(trained, tmp_path):
    """Stopped after four of ten iterations, and the same as never stopped."""
    arm, whole = trained
    config = arm.curriculum.config
    stopped = dataclasses.replace(
        arm, folder=tmp_path, curriculum=make_curriculum(config),
        reporter=StopAfter(arm.reporter, 4, 15),
    )  # fmt: skip
    with pytest.raises(Interrupted):
        stopped.train(resume=False)
    resumed = dataclasses.replace(arm, folder=tmp_path, curriculum=make_curriculum(config))
    state, _ = resumed.train(resume=True)
    jax.tree.map(np.testing.assert_array_equal, bits(state), bits(whole))
    assert resumed.curriculum.snapshot() == arm.curriculum.snapshot()


def test_options_that_would_do_nothing_are_refused():
    spec, off = point_task().spec, CurriculumConfig()
    off.check(spec, randomised=True)
    EASY.check(spec, randomised=False)
    alone = CurriculumConfig(curriculum="adaptive")
    alone.check(spec, randomised=True)
    with pytest.raises(ValueError, match=r"curriculum \(adaptive\) needs something that grows"):
        alone.check(spec, randomised=False)
    for unused in ({"easy_threshold": 0.5}, {"easy_reach": (0.5, 1.0)}):
        with pytest.raises(ValueError, match=r"need a curriculum: linear, staircase, adaptive"):
            CurriculumConfig(**unused).check(spec, randomised=True)
    harder = dataclasses.replace(EASY, easy_threshold=spec.threshold / 2)
    with pytest.raises(ValueError, match=r"easy_threshold \(.*\) must be at least the task's"):
        harder.check(spec, randomised=False)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"curriculum": "steep"}, r"curriculum \(steep\) must be one of off, linear, stair"),
        ({"curriculum_step": 0.0}, r"curriculum_step \(0.0\) must lie in \(0, 1\]"),
        ({"raise_success": 0.3}, r"lower_success \(0.4\) and raise_success \(0.3\) must"),
        ({"curriculum_episodes": 0}, r"curriculum_episodes \(0\) must be at least 1"),
        ({"easy_reach": (3.0, 99.0)}, r"reach \(3.0, 99.0\) must lie in the workspace"),
        ({"easy_threshold": 0.0}, r"threshold \(0.0\) must be a positive"),
        ({"curriculum": "off"}, r"curriculum \(off\) must be a schedule"),
    ],
)
def test_mistakes_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        make_curriculum(dataclasses.replace(EASY, **changes))
