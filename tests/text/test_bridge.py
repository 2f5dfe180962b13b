"""Batches: rewards, horizons, snapshots, and the same results over any number of processes."""

import os
import random
import signal
import time

import numpy as np
import pytest

from envs.household.generator import write_games
from envs.household.pddl import GameFileError
from envs.text.batch import BatchEnv, Rewards
from envs.text.workers import WorkerEnv
from tests.text.small import small_game

WIN = ["go to countertop 1", "take apple 2 from countertop 1", "go to sinkbasin 1",
       "move apple 2 to sinkbasin 1"]  # fmt: skip


def test_rewards_and_ends():
    env = BatchEnv(2, horizon=5, rewards=Rewards(won=10.0, inadmissible=-0.1, subgoal=1.0))
    env.reset([small_game(), small_game()])
    steps = [env.step([command, "dance"]) for command in WIN]
    # Holding the apple and placing it are the sub-goals; placing it also wins.
    assert [float(step.rewards[0]) for step in steps] == [0.0, 1.0, 0.0, 11.0]
    assert [bool(step.terminated[0]) for step in steps] == [False, False, False, True]
    np.testing.assert_allclose([step.rewards[1] for step in steps], -0.1, rtol=1e-6)
    last = env.step(["look", "dance"])
    assert last.truncated.tolist() == [False, True]
    assert last.terminated.tolist() == [True, False]
    assert last.info.won.tolist() == [True, False]
    assert last.info.admissible == [(), ()]


def test_an_ended_environment_keeps_its_last_observation_and_earns_nothing():
    env = BatchEnv(1)
    env.reset([small_game()])
    for command in WIN:
        end = env.step([command])
    after = env.step(["take apple 2 from sinkbasin 1"])
    assert after.observations == end.observations
    assert after.rewards.tolist() == [0.0]
    assert after.info.steps.tolist() == [4]
    observations, info = env.reset([small_game()])
    assert observations[0].startswith("-= Welcome")
    assert info.steps.tolist() == [0]


def test_the_score_is_a_point_for_winning():
    env = BatchEnv(2)
    _, info = env.reset([small_game(), small_game()])
    scores = [info.score, *[env.step([command, "look"]).info.score for command in WIN]]
    assert [score.tolist() for score in scores] == [[0, 0]] * 4 + [[1, 0]]
    assert scores[0].dtype == np.int32


def test_subgoals_are_paid_once():
    env = BatchEnv(1, rewards=Rewards(subgoal=1.0))
    env.reset([small_game()])
    commands = [*WIN[:2], "move apple 2 to countertop 1", "take apple 2 from countertop 1"]
    assert [float(env.step([c]).rewards[0]) for c in commands] == [0.0, 1.0, 0.0, 0.0]


def test_some_environments_are_reset_while_the_others_go_on():
    env = BatchEnv(2)
    env.reset([small_game(), small_game()])
    env.step([WIN[0], WIN[0]])
    observations, info = env.reset([small_game("lamp")], slots=[1])
    assert observations[0].startswith("You arrive at countertop 1.")
    assert observations[1].startswith("-= Welcome")
    assert info.steps.tolist() == [1, 0]


def test_snapshots_replay_what_might_have_been():
    env = BatchEnv(2)
    env.reset([small_game(), small_game()])
    env.step([WIN[0], "look"])
    before = env.snapshot(0)
    first = [env.step([command, "look"]) for command in WIN[1:]]
    env.restore(0, before)
    env.restore(1, before)
    second = [env.step([command, "inventory"]) for command in WIN[1:]]
    for a, b in zip(first, second):
        assert a.observations[0] == b.observations[0]
        assert a.rewards[0] == b.rewards[0]
    assert second[-1].observations[1] == "You are not carrying anything."


@pytest.mark.parametrize("make", [BatchEnv, lambda n, **k: WorkerEnv(n, 1, **k)])
def test_misuse_is_explained(make):
    env = make(2)
    try:
        with pytest.raises(ValueError, match="1 games given for 2"):
            env.reset([small_game()])
        with pytest.raises(ValueError, match="distinct"):
            env.reset([small_game(), small_game()], slots=[0, 0])
        with pytest.raises(ValueError, match="1 commands given for 2"):
            env.step(["look"])
        with pytest.raises(ValueError, match="command 1 is a int"):
            env.step(["look", 3])
        assert env.step(["look", "look"]).observations == ["", ""]
    finally:
        env.close()
    with pytest.raises(ValueError, match="horizon"):
        BatchEnv(1, horizon=0)
    with pytest.raises(ValueError, match="num_workers"):
        WorkerEnv(1, 2)


def test_games_are_read_from_files_once(tmp_path, generated):
    write_games(iter(generated[:1]), tmp_path, "train")
    (path,) = tmp_path.rglob("game.tw-pddl")
    env = BatchEnv(2)
    first, _ = env.reset([path, str(path)])
    path.unlink()
    assert env.reset([path, path])[0] == first


def random_play(env, games, steps, seed):
    """Everything that a batch returns on a random walk."""
    rng = random.Random(seed)
    observations, info = env.reset(games)
    record = [(observations, info.admissible)]
    for _ in range(steps):
        step = env.step([rng.choice(a) if a else "look" for a in info.admissible])
        info = step.info
        arrays = [step.rewards, step.terminated, step.truncated, info.won, info.valid, info.steps]
        record.append(
            (step.observations, info.admissible, info.event, *[a.tolist() for a in arrays])
        )
    return record


@pytest.fixture(scope="module")
def two_workers():
    env = WorkerEnv(5, 2, horizon=20, call_timeout=60.0)
    yield env
    env.close()


def test_results_do_not_depend_on_the_number_of_workers(two_workers, generated):
    games = [made.game for made in generated[:5]]
    expected = random_play(BatchEnv(5, horizon=20), games, 25, seed=3)
    assert random_play(two_workers, games, 25, seed=3) == expected


def test_the_caller_may_play_a_share_itself(generated, tmp_path):
    games = [made.game for made in generated[:5]]
    env = WorkerEnv(5, 2, with_caller=True, horizon=20, call_timeout=60.0)
    try:
        assert len(env.worker_ids) == 1
        expected = random_play(BatchEnv(5, horizon=20), games, 25, seed=3)
        assert random_play(env, games, 25, seed=3) == expected
        broken = tmp_path / "game.tw-pddl"
        broken.write_text("{")
        with pytest.raises(GameFileError, match="cannot be read"):
            env.reset([broken, *games[1:]])
        env.reset(games)
        os.kill(env.worker_ids[0], signal.SIGKILL)
        assert env.step(["look"] * 5).info.lost.tolist() == [False, False, True, True, True]
    finally:
        env.close()


@pytest.mark.parametrize("blow", [signal.SIGKILL, signal.SIGSTOP])
def test_a_dead_or_hung_worker_is_replaced_and_the_batch_goes_on(two_workers, generated, blow):
    games = [made.game for made in generated[:5]]
    two_workers.reset(games)
    two_workers.step(["look"] * 5)
    struck = two_workers.worker_ids[0]
    two_workers.call_timeout = 3.0
    os.kill(struck, blow)
    began = time.monotonic()
    step = two_workers.step(["look"] * 5)
    assert time.monotonic() - began < 40
    two_workers.call_timeout = 60.0
    assert step.truncated.tolist() == [True, True, False, False, False]
    assert step.info.lost.tolist() == [True, True, False, False, False]
    assert step.info.valid.tolist() == [False, False, True, True, True]
    assert two_workers.worker_ids[0] != struck
    # Lost episodes stay ended until they are reset; then all is as before.
    again = two_workers.step(["look"] * 5)
    assert again.truncated.tolist() == step.truncated.tolist()
    expected = random_play(BatchEnv(5, horizon=20), games, 10, seed=4)
    assert random_play(two_workers, games, 10, seed=4) == expected


def test_a_refused_game_is_an_error_and_not_a_dead_worker(two_workers, tmp_path, generated):
    broken = tmp_path / "game.tw-pddl"
    broken.write_text("{")
    games = [made.game for made in generated[:4]]
    before = two_workers.worker_ids
    with pytest.raises(GameFileError, match="cannot be read"):
        two_workers.reset([*games, broken])
    assert two_workers.worker_ids == before
    two_workers.reset([*games, games[0]])


def test_a_worker_that_hangs_in_the_middle_of_a_message_is_replaced(generated):
    """More data than a pipe holds: the sender would wait for ever for the rest to be read."""
    games = [made.game for made in generated] * 3
    env = WorkerEnv(len(games), 1, call_timeout=60.0)
    try:
        env.reset(games)
        env.call_timeout = 3.0
        os.kill(env.worker_ids[0], signal.SIGSTOP)
        began = time.monotonic()
        _, info = env.reset(games)
        assert time.monotonic() - began < 40
        assert info.lost.all()
        env.call_timeout = 60.0
        assert not env.reset(games)[1].lost.any()
    finally:
        env.close()
