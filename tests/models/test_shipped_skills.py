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
