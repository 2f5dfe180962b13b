"""The learned manager as a user runs it; the body is a point, for the time that compiling takes."""

import json

import jax.numpy as jnp
import pytest
import yaml
from PIL import Image

from envs.course import Course
from experiments import ant_manager
from experiments.ant_manager import preset
from jaxagent.agents.manager import ManagedSimulator
from jaxagent.training.metrics import read_metrics
from tests.agents.plane import point_task, straight

SMALL = (
    "--num-envs 16 --unroll-length 4 --total-steps 128 --num-evaluations 1 --episode-length 6 "
    "--evaluation-episodes 4 --num-minibatches 2 --policy-hidden-sizes 8 --critic-hidden-sizes 8"
).split()


def walker(features, goal):
    action = 0.9 * straight(jnp.concatenate([features, goal - features], axis=-1), None)
    return jnp.arctanh(action), 0.1 * jnp.ones(action.shape)


def on_a_point(config):
    course = Course(point_task(), walls=((1.5, -9.0, 1.5, 1.0),), target=(3.0, 0.0))
    return ManagedSimulator(course, walker, config.interval, config.subgoal_reach)


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


def test_both_arms_have_the_same_number_of_environment_steps():
    managed, flat = preset(flat=False), preset(flat=True)
    assert managed.run.total_steps * managed.steps_a_decision == flat.run.total_steps
    length = managed.run.episode_length * managed.steps_a_decision
    assert length == flat.run.episode_length


def test_a_dry_run_of_the_flat_arm_builds_it_and_writes_nothing(tmp_path, capsys):
    options = ["--flat", "--dry-run", "--runs-dir", str(tmp_path)]
    assert ant_manager.main(options) == 0
    resolved, _, told = capsys.readouterr().out.partition("\n}\n")
    assert json.loads(resolved + "}")["flat"] is True
    assert "flat policy: " in told
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--skill juggle", "skill (juggle) must be one of"),
        ("--interval 0", "interval (0) must be finite and greater than 0"),
        ("--subgoal-reach 0", "subgoal_reach (0.0) must be finite and greater than 0"),
        ("--num-envs 12", "num_envs (12) must be divisible by shuffle_groups (8)"),
        ("--resume --name nowhere", "is not a run"),
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
