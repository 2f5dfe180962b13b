"""Signals outside of a training loop: one line and the conventional status, and nothing hangs."""

import os
import pathlib
import signal

import pytest

from experiments import alfworld_planner, ant_guidance, ant_manager, train_skills
from jaxagent.training.ending import exit_status
from jaxagent.training.interruption import Interrupted
from tests.training.stopped_run import start

SIGNALS = [signal.SIGINT, signal.SIGTERM]
TRAINERS = [ant_guidance, train_skills, ant_manager, alfworld_planner]


class Left(BaseException):
    """In place of the end of the process."""


@pytest.fixture
def leaving(monkeypatch):
    def leave(status):
        raise Left(status)

    monkeypatch.setattr(os, "_exit", leave)


def ask(number):
    os.kill(os.getpid(), number)
    signal.sigtimedwait([], 1)  # the handler runs as soon as Python does


@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.parametrize("trainer", TRAINERS, ids=lambda module: module.__name__.split(".")[1])
def test_every_trainer_leaves_in_one_line(trainer, number, leaving, monkeypatch, capfd):
    before = signal.getsignal(number)
    monkeypatch.setattr(trainer, "read_command_line", lambda *options: ask(number))
    with pytest.raises(Left, match=str(128 + number)):
        trainer.main([])
    told = capfd.readouterr()
    line = f"interrupted by {number.name} before anything was trained; nothing to save\n"
    assert (told.out, told.err) == (line, "")
    assert signal.getsignal(number) is before


def test_a_run_whose_name_is_taken_says_how_it_begins(tmp_path, leaving, capfd):
    folder = tmp_path / "m 1" / "run"
    folder.mkdir(parents=True)
    (folder / "config.yaml").touch()
    with pytest.raises(Left, match="143"):
        exit_status(folder, lambda: ask(signal.SIGTERM))
    hint = f"--resume --name run --runs-dir '{folder.parent}'"
    assert capfd.readouterr().out == (
        f"interrupted by SIGTERM before anything was trained; nothing to save; begin with {hint}\n"
    )


@pytest.mark.parametrize("arm", ["", "guided"])
def test_after_training_what_was_saved_is_named(tmp_path, leaving, capfd, arm):
    (tmp_path / arm / "checkpoints" / "12").mkdir(parents=True)
    with pytest.raises(Left, match="130"):
        exit_status(tmp_path, lambda: ask(signal.SIGINT))
    said = capfd.readouterr().out
    assert said.startswith(f"interrupted by SIGINT; saved last in {tmp_path}; go on with --resume")


def test_a_second_ctrl_c_in_the_loop_is_a_line_as_well(tmp_path, capsys):
    def train():
        raise KeyboardInterrupt

    assert exit_status(tmp_path, train) == 130
    assert capsys.readouterr().out.count("\n") == 1


@pytest.mark.parametrize(("root", "where"), [("runs", ""), ("other", " --runs-dir other")])
def test_the_hint_names_a_folder_that_is_not_the_usual(capsys, root, where):
    def train():
        raise Interrupted(signal.SIGTERM)

    assert exit_status(pathlib.Path(root) / "m1", train) == 143
    assert capsys.readouterr().out.endswith(f"go on with --resume --name m1{where}\n")


def test_a_compiling_process_ends_at_once_and_without_a_traceback(tmp_path):
    process = start("-m", "experiments.ant_guidance", "--runs-dir", str(tmp_path), "--name", "m1")
    try:
        assert process.stdout is not None
        while not process.stdout.readline().startswith("run folder"):
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        rest = process.communicate(timeout=60)[0]
    finally:
        process.kill()
    assert process.returncode == 130, rest
    assert rest.startswith("interrupted by SIGINT before anything was trained")
    assert rest.count("\n") == 1
