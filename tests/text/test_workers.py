"""What a batch over processes says when something goes wrong: errors, lost episodes, closing."""

import os
import pickle
import signal
from random import Random
from threading import Thread

import numpy as np
import pytest

from envs.household.pddl import GameFileError
from envs.text import worker_messages as blocks
from envs.text import workers
from envs.text.batch import BatchEnv, SlotStep, stack_steps
from envs.text.worker_messages import Block, Packer, Unpacker
from envs.text.workers import WorkerEnv, _sendable
from tests.text.small import small_game

WIN = ["go to countertop 1", "take apple 2 from countertop 1", "go to sinkbasin 1",
       "move apple 2 to sinkbasin 1"]  # fmt: skip


@pytest.fixture(scope="module")
def two_workers():
    env = WorkerEnv(4, 2, call_timeout=60.0)
    yield env
    env.close()


def error_of(call):
    with pytest.raises(Exception) as caught:  # noqa: PT011
        call()
    return type(caught.value), str(caught.value)


def unplayable():
    """A game that no reader makes, to be refused by an error nobody foresaw."""
    return small_game()._replace(initial=None)


@pytest.mark.parametrize("wrong", [lambda: None, lambda: 5, unplayable, lambda: "no/such/file"])
@pytest.mark.parametrize("slot", [0, 3])
def test_errors_are_those_of_the_batch_in_process(two_workers, wrong, slot):
    games = [small_game() for _ in range(4)]
    games[slot] = wrong()
    before = two_workers.worker_ids
    expected = error_of(lambda: BatchEnv(4).reset(games))
    assert error_of(lambda: two_workers.reset(games)) == expected
    assert two_workers.worker_ids == before
    # No answer to the refused request is left over for the next.
    texts, info = two_workers.reset([small_game() for _ in range(4)])
    assert all(text.startswith("-= Welcome") for text in texts)
    assert not info.lost.any()


def test_an_error_that_cannot_cross_the_pipe_comes_as_its_text():
    class Local(Exception):
        pass

    assert repr(_sendable(Local("why"))) == "RuntimeError('Local: why')"
    assert repr(_sendable(GameFileError("why"))) == "GameFileError('why')"


def test_only_what_was_cut_off_is_lost_and_stays_so(two_workers, tmp_path):
    games = [small_game() for _ in range(4)]
    two_workers.reset(games)
    for command in WIN:
        won = two_workers.step([command, "look", "look", "look"])
    os.kill(two_workers.worker_ids[0], signal.SIGKILL)
    for _ in range(2):
        step = two_workers.step(["look"] * 4)
        assert step.info.lost.tolist() == [False, True, False, False]
        assert step.truncated.tolist() == [False, True, False, False]
        assert step.terminated.tolist() == [True, False, False, False]
        assert step.info.won.tolist() == [True, False, False, False]
        assert step.observations[:2] == [won.observations[0], ""]
        assert step.info.steps.tolist()[0] == 4
    with pytest.raises(GameFileError):
        two_workers.reset([tmp_path / "none"], slots=[1])
    step = two_workers.step(["look"] * 4)
    assert (step.info.lost.tolist(), step.truncated.tolist()) == ([False, True, False, False],) * 2
    _, info = two_workers.reset(games[:1], slots=[1])
    assert not info.lost.any()
    assert info.won.tolist() == [True, False, False, False]


def test_an_ended_environment_whose_reset_is_cut_off_is_lost():
    over = SlotStep("You won.", 10.0, True, False, (), True, None, True, 4)
    block = Block(2)
    block.show(stack_steps([over, over]), begun=[0, 1])
    block.cut_off(begun=[1])
    assert block.last.observations == ["You won.", ""]
    assert block.last.info.lost.tolist() == block.last.truncated.tolist() == [False, True]
    assert block.last.info.won.tolist() == block.last.terminated.tolist() == [True, False]
    assert block.last.info.steps.tolist() == [4, 0]
    # The worker now there has no episodes; what it answers concerns those begun in it alone.
    none = SlotStep("", 0.0, False, False, (), False, None, False, 0)
    begun = SlotStep("Welcome", 0.0, False, False, ("look",), False, None, False, 0)
    block.show(stack_steps([none, begun]), begun=[1])
    assert block.last.observations == ["You won.", "Welcome"]
    assert not block.last.info.lost.any()
    np.testing.assert_array_equal(block.last.truncated, [False, False])


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="on Linux only")
def test_pinned_workers_keep_a_core_each_and_so_do_those_that_replace_them():
    cores = sorted(os.sched_getaffinity(0))
    count = min(2, len(cores))
    env = WorkerEnv(2, count, pinned=True, call_timeout=60.0)
    try:
        for _ in range(2):
            env.reset([small_game()] * 2)
            assert [os.sched_getaffinity(p) for p in env.worker_ids] == [
                {c} for c in cores[-count:]
            ]
            os.kill(env.worker_ids[0], signal.SIGKILL)
            env.step(["look"] * 2)
        assert sorted(os.sched_getaffinity(0)) == cores
    finally:
        env.close()
    too_many = len(cores) + 1
    with pytest.raises(ValueError, match=rf"pinned: num_workers \({too_many}\) exceeds the cores"):
        WorkerEnv(too_many, too_many, pinned=True)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="on Linux only")
def test_batches_in_threads_of_their_own_play_what_one_batch_plays():
    cores = sorted(os.sched_getaffinity(0))
    games = [small_game(goal) for goal in ("clean", "lamp", "two", "heat")]
    envs = [WorkerEnv(2, 1, pinned=[core], call_timeout=60.0) for core in (cores[0], cores[-1])]
    found = [[], []]

    def play(number):
        env, own = envs[number], games[2 * number : 2 * number + 2]
        found[number].append(env.reset(own)[0])
        for command in WIN:
            found[number].append(env.step([command] * 2).observations)

    try:
        threads = [Thread(target=play, args=(number,)) for number in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        at = [os.sched_getaffinity(env.worker_ids[0]) for env in envs]
        assert at == [{cores[0]}, {cores[-1]}]
    finally:
        for env in envs:
            env.close()
    together = BatchEnv(4)
    expected = [together.reset(games)[0]]
    expected += [together.step([command] * 4).observations for command in WIN]
    assert [a + b for a, b in zip(*found, strict=True)] == expected
    for wrong, workers_ in (
        ([cores[-1] + 1], 1),
        ([cores[0]] * 2, 1),
        ([cores[0]] * 2, 2),
        ([], 1),
    ):
        with pytest.raises(ValueError, match=r"pinned \[.*\] must name another core for each of"):
            WorkerEnv(2, workers_, pinned=wrong)


def test_a_game_crosses_once_and_is_the_right_one_however_few_are_kept(two_workers, monkeypatch):
    games = [small_game(goal) for goal in ("clean", "lamp", "two", "heat")]
    expected = BatchEnv(4).reset(games)[0]
    assert two_workers.reset(games)[0] == expected
    first, second = two_workers._workers
    assert first.carry(games[:2]) == [first._numbers[id(game)] for game in games[:2]]
    assert not second._numbers.keys() & first._numbers.keys()
    monkeypatch.setattr(workers, "GAMES_KEPT", 1)
    for order in ([0, 1, 2, 3], [3, 0, 1, 2], [2, 2, 0, 0]):
        texts, _ = two_workers.reset([games[number] for number in order])
        assert texts == [expected[number] for number in order]
    assert all(len(worker._games) == 1 for worker in two_workers._workers)


@pytest.mark.parametrize("numbers_kept", [0, 6, 1000])
def test_steps_cross_a_pipe_unchanged_however_few_numbers_are_kept(monkeypatch, numbers_kept):
    monkeypatch.setattr(blocks, "_NUMBERS_KEPT", numbers_kept)
    env, packer, unpacker = BatchEnv(3, horizon=30), Packer(), Unpacker()
    parts, rng = env.reset_slots([small_game(goal) for goal in ("clean", "lamp", "two")]), Random(0)
    times_anew = 0
    for _ in range(40):
        packed = packer.pack(parts)
        times_anew += packed[0]
        ours, expected = unpacker.unpack(pickle.loads(pickle.dumps(packed))), stack_steps(parts)
        for a, b in zip((*ours[:4], *ours.info), (*expected[:4], *expected.info)):
            assert type(a) is type(b)
            assert getattr(a, "dtype", None) == getattr(b, "dtype", None)
            assert list(a) == list(b)
        parts = env.step_slots([rng.choice(part.admissible or ("",)) for part in parts])
    assert times_anew in {0: [39], 6: range(2, 38), 1000: [0]}[numbers_kept]


def test_a_list_of_commands_and_an_event_cross_once():
    env, packer = BatchEnv(2), Packer()
    games = [small_game()] * 2
    _, lists, chosen, *_ = packer.pack(env.reset_slots(games))
    assert (len(lists), chosen) == (1, [0, 0])
    _, lists, chosen, events, happened, *_ = packer.pack(env.step_slots([WIN[0]] * 2))
    assert (len(lists), chosen, events, happened) == (
        1,
        [1, 1],
        [("at", "", "countertop 1")],
        [1, 1],
    )
    assert packer.pack(env.step_slots(["look"] * 2))[1:5] == ([], [1, 1], [], [0, 0])


@pytest.mark.parametrize("make", [BatchEnv, lambda num: WorkerEnv(num, 1)])
def test_nothing_goes_on_after_closing(make):
    env = make(1)
    env.close()
    for use in (lambda: env.reset([small_game()]), lambda: env.step(["look"])):
        with pytest.raises(RuntimeError, match="are closed"):
            use()
    env.close()
    if isinstance(env, WorkerEnv):
        assert not any(worker.process.is_alive() for worker in env._workers)
