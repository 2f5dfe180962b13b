"""The skills that come with the package: small, made by the command they name, and usable."""

import hashlib
import json
import pathlib
import shlex

import jax
import numpy as np
import pytest

from envs.goals import goal_simulator
from experiments.evaluate_skill import describe
from experiments.skills_config import read_command_line
from jaxagent.models.skills import SHIPPED, load_skill, shipped_skills
from tests.training.test_recording import damaged

README = pathlib.Path(__file__).parent.parent.parent / "README.md"


def beside(name: str) -> dict:
    return json.loads((SHIPPED / f"{name}.json").read_text())


def test_two_are_shipped():
    assert shipped_skills() == ("ant_goal", "reacher_goal")


@pytest.mark.parametrize("name", shipped_skills())
def test_a_skill_is_what_its_command_makes(name):
    """The file is the one that was measured, from the last iteration of its command's run."""
    path, told = SHIPPED / f"{name}.npz", beside(name)
    assert hashlib.sha256(path.read_bytes()).hexdigest() == told["sha256"]
    meta = load_skill(name).meta
    config = read_command_line(shlex.split(told["command"])[3:])
    assert config.task == name
    assert told["iteration"] == config.run.num_iterations
    assert told["steps"] == told["iteration"] * config.run.num_envs * config.run.unroll_length
    assert json.loads(json.dumps(describe(config)["configuration"])) == meta["configuration"]
    assert {k: told[k] for k in ("command", "iteration", "steps")} == {
        k: meta[k] for k in ("command", "iteration", "steps")
    }
    assert told["command"] in README.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", shipped_skills())
def test_a_skill_is_small_and_as_good_as_is_said(name):
    assert (SHIPPED / f"{name}.npz").stat().st_size < 300_000
    result = beside(name)["result"]
    assert result == {k: v for k, v in load_skill(name).meta["result"].items() if k != "skill"}
    assert result["episodes"] >= 1000
    assert result["success_rate"] >= {"ant_goal": 0.95, "reacher_goal": 0.95}[name]
    assert result["fall_rate_interval_95"][1] < 0.02
    assert f"{result['success_rate']:.1%}".replace("%", " %") in README.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["ant_goal", "reacher_goal"])
def test_a_skill_acts_on_what_its_task_observes(name):
    skill, simulator = load_skill(name), goal_simulator(name)
    observation = jax.random.normal(jax.random.key(0), (5, simulator.observation_size))
    action = skill.act(observation)
    assert action.shape == (5, simulator.action_size)
    assert (np.abs(action) <= 1).all()
    other = skill.act(observation.at[:, -1].add(1.0))
    assert (action != other).any()  # it reads the goal


def test_a_skill_that_is_cut_or_has_a_wrong_bit_is_refused(tmp_path):
    path = tmp_path / "own.npz"
    for content in damaged((SHIPPED / "reacher_goal.npz").read_bytes()):
        path.write_bytes(content)
        with pytest.raises(ValueError, match="it is not a file of the format") as refusal:
            load_skill(path)
        assert str(refusal.value).startswith(f"skill ({path}) cannot be read")


def rewritten(path, change):
    """A copy of a shipped skill with something else in it."""
    with np.load(SHIPPED / "reacher_goal.npz") as file:
        arrays = dict(file)
    meta = json.loads(str(arrays.pop("meta")))
    change(meta, arrays)
    np.savez(path, meta=np.array(json.dumps(meta)), **arrays)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda meta, arrays: arrays["params/loc/bias"].fill(np.nan), "loc/bias holds numbers"),
        (lambda meta, arrays: arrays["normaliser/mean"].fill(np.inf), "mean holds numbers that"),
        (
            lambda meta, arrays: arrays.pop("params/loc/bias"),
            r"loc/bias has shape nothing, .*\[2\]",
        ),
        (
            lambda meta, arrays: arrays.update({"params/more": np.zeros(3)}),
            r"params/more has shape \[3\], its policy has nothing",
        ),
        (
            lambda meta, arrays: meta["policy"].update(hidden_sizes=[128, 64]),
            r"Dense_1/bias has shape \[128\], its policy has \[64\]",
        ),
        (lambda meta, arrays: meta["policy"].update(hidden_sizes="big"), "hidden_sizes .'big'. is"),
        (lambda meta, arrays: meta["policy"].update(depth=3), r"policy depth \(3\) is no size"),
        (lambda meta, arrays: meta["policy"].update(activation="gelu"), r"activation \(gelu\)"),
        (lambda meta, arrays: meta["policy"].pop("action_size"), "the policy lacks action_size"),
        (lambda meta, arrays: meta.pop("policy"), "lacks the sizes of the policy"),
        (lambda meta, arrays: meta.pop("task"), "lacks the task"),
        (lambda meta, arrays: meta.update(format="jaxagent.skill.9"), "but jaxagent.skill.9"),
    ],
)
def test_a_skill_whose_content_does_not_fit_is_refused(tmp_path, change, message):
    path = tmp_path / "own.npz"
    rewritten(path, change)
    with pytest.raises(ValueError, match=message) as refusal:
        load_skill(path)
    assert str(refusal.value).startswith(f"skill ({path})")
    assert "\n" not in str(refusal.value)
