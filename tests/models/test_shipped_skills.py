"""The skills that come with the package: small, told where they come from, and usable."""

import jax
import numpy as np
import pytest

from envs.goals import goal_simulator
from jaxagent.models.skills import SHIPPED, load_skill, shipped_skills


def test_two_are_shipped():
    assert shipped_skills() == ("ant_goal", "reacher_goal")


@pytest.mark.parametrize("name", ["ant_goal", "reacher_goal"])
def test_a_skill_is_small_and_says_who_made_it_and_how_good_it_is(name):
    assert (SHIPPED / f"{name}.npz").stat().st_size < 300_000
    meta = load_skill(name).meta
    assert meta["task"] == name
    assert f"python -m experiments.train_skills --task {name}" in meta["command"]
    assert meta["seed"] == 0
    assert meta["steps"] > 0
    result = meta["result"]
    assert result["episodes"] == 1000
    assert result["success_rate"] >= {"ant_goal": 0.9, "reacher_goal": 0.95}[name]
    assert result["fall_rate"] < 0.02


@pytest.mark.parametrize("name", ["ant_goal", "reacher_goal"])
def test_a_skill_acts_on_what_its_task_observes(name):
    skill, simulator = load_skill(name), goal_simulator(name)
    observation = jax.random.normal(jax.random.key(0), (5, simulator.observation_size))
    action = skill.act(observation)
    assert action.shape == (5, simulator.action_size)
    assert (np.abs(action) <= 1).all()
    other = skill.act(observation.at[:, -1].add(1.0))
    assert (action != other).any()  # it reads the goal
