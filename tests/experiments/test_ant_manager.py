"""The learned manager as a user runs it; the body is a point, for the time that compiling takes."""

import contextlib
import dataclasses
import io
import json
import re
import shutil

import jax.numpy as jnp
import numpy as np
import pytest
import yaml
from PIL import Image
from rich.console import Console

from envs.course import Course
from experiments import ant_manager, evaluate
from experiments.manager_config import (
    SACManagerConfig,
    preset,
    read_command_line,
    read_config,
)
from jaxagent.agents.manager import ManagedSimulator
from jaxagent.training.checkpoint import Checkpoints
from jaxagent.training.devices import choose_layout
from jaxagent.training.metrics import read_metrics
from jaxagent.training.progress import Reporter
from tests.agents.plane import point_task, straight
from tests.training.test_loop import same

SMALL = (
    "--num-envs 16 --unroll-length 4 --total-steps 128 --num-evaluations 1 --episode-length 6 "
    "--evaluation-episodes 4 --num-minibatches 2 --policy-hidden-sizes 8 --critic-hidden-sizes 8"
).split()


SMALL_SAC = (
    "--algorithm sac --num-envs 16 --unroll-length 4 --total-steps 256 --num-evaluations 1 "
    "--episode-length 6 --evaluation-episodes 4 --policy-hidden-sizes 8 --critic-hidden-sizes 8 "
    "--batch-size 16 --updates-per-iteration 2 --buffer-size 160 --learning-starts 64 "
    "--interval 6 --num-devices 1"
).split()


def walker(features, goal):
    action = 0.9 * straight(jnp.concatenate([features, goal - features], axis=-1), None)
    return jnp.arctanh(action), 0.1 * jnp.ones(action.shape)


def turned(features, goal):
    """The other skill: of a goal to the east it makes one to the north."""
    way = goal - features
    return walker(features, features + jnp.stack([-way[..., 1], way[..., 0]], axis=-1))


def on_a_point(config):
    """`--skill` chooses between two that cost nothing."""
    course = Course(point_task(), walls=((1.5, -9.0, 1.5, 1.0),), target=(3.0, 0.0))
    skill = turned if config.skill == "turned" else walker
    target = course.target if isinstance(config, SACManagerConfig) else None
    return ManagedSimulator(course, skill, config.interval, config.subgoal_reach, target=target)


def test_a_run_is_trained_and_taken_up(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(ant_manager, "make_simulator", on_a_point)
    options = [*SMALL, "--runs-dir", str(tmp_path), "--name", "one"]
    assert ant_manager.main(options) == 0
    assert "3,200 environment steps (128 decisions of 25 steps)" in capsys.readouterr().out
    names = {path.name for path in (tmp_path / "one").iterdir()}
    assert names >= {"config.yaml", "metrics.jsonl", "checkpoints", "curves.png", "paths.png"}
    assert yaml.safe_load((tmp_path / "one" / "config.yaml").read_text())["interval"] == 25
    kinds = [r["kind"] for r in read_metrics(tmp_path / "one" / "metrics.jsonl")]
    assert (kinds.count("train"), kinds.count("evaluation")) == (2, 2)
    with Image.open(tmp_path / "one" / "paths.png") as image:
        assert image.size[0] > 300
    with pytest.raises(SystemExit) as left:
        ant_manager.main([*options, "--resume", "--interval", "5"])
    assert left.value.code == 2
    assert "was begun with interval 25, not 5" in capsys.readouterr().err


@pytest.fixture(scope="module")
def off_policy(tmp_path_factory):
    """A finished run off-policy of the skill that walks straight."""
    folder = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ant_manager, "make_simulator", on_a_point)
        assert ant_manager.main([*SMALL_SAC, "--runs-dir", str(folder), "--name", "first"]) == 0
    return folder


def state_of(folder, iteration):
    """A checkpoint, and what it is of."""
    config = dataclasses.replace(read_config(folder), resume=False)
    trainer = ant_manager.build(config, choose_layout(config.run.num_envs, config.groups, 1))
    like = trainer.abstract_state(1)
    checkpoints = Checkpoints(folder / "checkpoints", 3)
    state, _ = checkpoints.restore(like, trainer.shardings(like), iteration)
    checkpoints.close()
    return trainer, state


def test_a_manager_learns_off_policy_and_is_taken_up(off_policy, monkeypatch, capsys):
    monkeypatch.setattr(ant_manager, "make_simulator", on_a_point)
    records = read_metrics(off_policy / "first" / "metrics.jsonl")
    trained = [r for r in records if r["kind"] == "train"]
    assert [r["critic_loss"] > 0 for r in trained] == [False, True, True, True]
    assert trained[-1]["relabelled_share"] == 0.0
    _, state = state_of(off_policy / "first", 4)
    # Full: 10 decisions of each of 16 environments, each once with its record of six steps.
    assert state.replay.is_full.all()
    assert state.replay.experience.next_features.shape[-3:] == (2, 10, 2 + 6 * 4 + 1)
    options = [*SMALL_SAC, "--runs-dir", str(off_policy), "--name", "first", "--resume"]
    with pytest.raises(SystemExit):
        ant_manager.main([*options, "--skill", "turned"])
    said = capsys.readouterr().err
    assert "was begun with skill ant_goal, not turned" in said


@pytest.fixture(scope="module")
def second(off_policy):
    """One that starts from the first over another skill, its sub-goals corrected."""
    options = [*SMALL_SAC, "--runs-dir", str(off_policy), "--name", "second", "--skill", "turned"]
    options += ["--start-from", str(off_policy / "first"), "--correct-sub-goals"]
    said = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(said):
        patch.setattr(ant_manager, "make_simulator", on_a_point)
        assert ant_manager.main(options) == 0
    return off_policy / "second", " ".join(said.getvalue().split())


def test_a_run_starts_from_another_over_another_skill(off_policy, second, monkeypatch):
    monkeypatch.setattr(ant_manager, "make_simulator", on_a_point)
    folder, said = second
    before, after = state_of(off_policy / "first", 4)[1], state_of(folder, 0)[1]
    assert re.search(r"started from \S+first, iteration 4", said)
    same(before.agent, after.agent)
    old, new = before.replay.experience, after.replay.experience
    same(old._replace(action=new.action), new)
    found = re.search(r"corrected (\d+) of 160 sub-goals; .* did (-\S+) -> (-\S+)", said)
    assert found
    assert int(found[1]) == (old.action != new.action).any(-1).sum() > 100
    assert float(found[3]) > 0.5 * float(found[2])
    # This skill turns left by 90 degrees: it has to be asked for what lies right of where the
    # first one went.
    way = np.asarray(old.next_features[..., :2] - old.features[..., :2])
    asked = np.asarray(new.action)
    size = np.linalg.norm(way, axis=-1)
    cosine = (asked[..., 0] * way[..., 1] - asked[..., 1] * way[..., 0]) / (
        size * np.linalg.norm(asked, axis=-1)
    )
    assert np.median(cosine[size > 1.0]) > 0.8


def test_taken_up_before_its_first_checkpoint_it_still_starts_from_the_other(
    off_policy, second, tmp_path, monkeypatch
):
    """The other run may be gone by then: what it had last was kept."""
    monkeypatch.setattr(ant_manager, "make_simulator", on_a_point)
    folder = tmp_path / "second"
    shutil.copytree(second[0], folder)
    shutil.rmtree(folder / "checkpoints")
    first = off_policy / "first"
    first.rename(off_policy / "moved")
    try:
        options = ["--resume", "--name", "second", "--runs-dir", str(tmp_path)]
        assert ant_manager.main(options) == 0
    finally:
        (off_policy / "moved").rename(first)
    same(state_of(second[0], 0)[1], state_of(folder, 0)[1])
    # From here on there is nothing left that it needs of the other.
    shutil.rmtree(folder / "inputs")
    assert ant_manager.main(options) == 0


def test_a_run_is_evaluated_from_its_folder(off_policy, monkeypatch, capsys):
    monkeypatch.setattr(ant_manager, "make_simulator", on_a_point)
    assert evaluate.main([str(off_policy / "first"), "--episodes", "6", "--seed", "5"]) == 0
    assert evaluate.main([str(off_policy / "first"), "--checkpoint", "0"]) == 0
    out = off_policy / "first" / "evaluation"
    results = {path.name: json.loads(path.read_text()) for path in out.glob("*.json")}
    names = {
        f"evaluation-iteration-{n}.json"
        for n in ("4-seed-5-episodes-6", "0-seed-1000000-episodes-4")
    }
    assert results.keys() == {*names, "evaluation.json"}
    found = results["evaluation-iteration-4-seed-5-episodes-6.json"]
    assert (found["iteration"], found["seed"], found["episodes"]) == (4, 5, 6)
    assert len(found["returns"][0]) == 6
    assert results["evaluation.json"]["iteration"] == 0
    assert (out / "paths.png").exists()


def test_a_file_of_options_is_read(tmp_path, capsys):
    file = tmp_path / "options.yaml"
    file.write_text("algorithm: sac\ninterval: 7\nsac: {batch_size: 32}\n")
    config = read_command_line(["--config", str(file), "--interval", "9"])
    assert (config.algorithm, config.interval, config.sac.batch_size) == ("sac", 9, 32)
    file.write_text("flat: true\n")
    assert read_command_line(["--config", str(file)]).run == preset(flat=True).run


class Listener(Reporter):
    """Keeps what is said."""

    def __init__(self):
        super().__init__(Console(quiet=True))
        self.said = []

    def say(self, text):
        self.said.append(text)


def test_without_correction_and_over_the_same_skill_the_replay_stays(off_policy, monkeypatch):
    monkeypatch.setattr(ant_manager, "make_simulator", on_a_point)
    trainer, before = state_of(off_policy / "first", 4)
    config = dataclasses.replace(
        read_config(off_policy / "first"), start_from=str(off_policy / "first"), skill="turned"
    )
    reporter = Listener()
    prepare = ant_manager.starter(config, off_policy / "new", trainer, reporter)
    same(prepare(before.replace(agent=None, replay=None)), before)
    assert len(reporter.said) == 1
    same(ant_manager.correct(trainer, before, reporter), before)
    assert "corrected 0 of 160 sub-goals" in reporter.said[1]


def test_both_arms_have_the_same_number_of_environment_steps():
    managed, flat = preset(flat=False), preset(flat=True)
    assert managed.run.total_steps * managed.steps_a_decision == flat.run.total_steps
    length = managed.run.episode_length * managed.steps_a_decision
    assert length == flat.run.episode_length


def test_off_policy_has_as_many_decisions():
    assert preset("sac").run.total_steps == preset("ppo").run.total_steps
    assert preset("sac").sac.relabel_share == 0.0


def test_a_dry_run_of_the_flat_arm_builds_it_and_writes_nothing(tmp_path, capsys):
    options = ["--flat", "--dry-run", "--runs-dir", str(tmp_path)]
    assert ant_manager.main(options) == 0
    resolved, _, told = capsys.readouterr().out.partition("\n}\n")
    assert json.loads(resolved + "}")["flat"] is True
    assert "flat policy by ppo: " in told
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--skill juggle", "skill (juggle) must be one of"),
        ("--interval 0", "interval (0) must be finite and greater than 0"),
        ("--subgoal-reach 0", "subgoal_reach (0.0) must be finite and greater than 0"),
        ("--num-envs 12", "num_envs (12) must be divisible by shuffle_groups (8)"),
        ("--resume --name nowhere", "is not a run"),
        ("--process-id 1", "must be given together with"),
        ("--config nowhere.yaml", "config (nowhere.yaml) cannot be read"),
        ("--algorithm", "--algorithm"),
        ("--algorithm dqn", "algorithm (dqn) must be one of ppo, sac"),
        ("--algorithm sac --buffer-size 100", "buffer_size (100) must be at least batch_size"),
        ("--algorithm sac --flat", "flat"),
        ("--correct-sub-goals", "correct-sub-goals"),
        ("--algorithm sac --correct-sub-goals", "correct_sub_goals (True) needs start_from"),
        ("--algorithm sac --start-from nowhere", "start_from (nowhere) is not a run folder"),
    ],
)
def test_a_mistake_is_one_line_and_leaves_nothing(tmp_path, capsys, options, message):
    with pytest.raises(SystemExit) as left:
        ant_manager.main([*options.split(), "--runs-dir", str(tmp_path)])
    assert left.value.code == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--interval 5", "first) has interval 6, this run has 5"),
        ("--subgoal-reach 1", "first) has subgoal_reach 3.0, this run has 1.0"),
        ("--buffer-size 320", "belongs to another configuration: .replay"),
    ],
)
def test_decisions_that_mean_something_else_are_refused(
    off_policy, tmp_path, capsys, monkeypatch, options, message
):
    monkeypatch.setattr(ant_manager, "make_simulator", on_a_point)
    start = ["--start-from", str(off_policy / "first"), "--runs-dir", str(tmp_path)]
    with pytest.raises(SystemExit) as left:
        ant_manager.main([*SMALL_SAC, *start, *options.split()])
    assert left.value.code == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1
    assert list(tmp_path.iterdir()) == []
