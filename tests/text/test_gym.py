"""The Gymnasium interface, where gymnasium is installed, and its absence where it is not."""

import itertools
import random
import subprocess
import sys

import numpy as np
import pytest

from envs.text.bridge import BatchEnv
from tests.text.small import small_game


def test_absence_is_explained():
    code = "import sys; sys.modules['gymnasium'] = None; import envs.text.gym_vector"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode != 0
    assert "pip install 'gymnasium>=1.1'" in done.stderr


def test_episodes_follow_each_other(generated):
    pytest.importorskip("gymnasium")
    from envs.text.gym_vector import TextVectorEnv

    games = [made.game for made in generated]
    env = TextVectorEnv(BatchEnv(3, horizon=4), itertools.cycle(games))
    observations, info = env.reset()
    assert env.observation_space.contains(observations)
    rng, steps = random.Random(0), []
    for _ in range(11):
        actions = tuple(rng.choice(a) if a else "look" for a in info["admissible"])
        assert env.action_space.contains(actions)
        observations, rewards, terminated, truncated, info = env.step(actions)
        assert env.observation_space.contains(observations)
        assert rewards.shape == (3,)
        steps.append(info["steps"].tolist())
        fresh = [text.startswith("-= Welcome") for text in observations]
        np.testing.assert_array_equal(fresh, info["steps"] == 0)
        assert not (terminated & truncated).any()
    assert [row[0] for row in steps] == [1, 2, 3, 4, 0, 1, 2, 3, 4, 0, 1]
    with pytest.raises(ValueError, match="iterator of games decides"):
        env.reset(seed=1)
    env.close()


class LosesOnce(BatchEnv):
    """A batch whose first step loses environment 0, as a dying worker would."""

    lost = False

    def step(self, commands):
        step = super().step(commands)
        if self.lost:
            return step
        self.lost, gone = True, np.array([True, False])
        info = step.info._replace(lost=gone, admissible=[(), step.info.admissible[1]])
        return step._replace(observations=["", step.observations[1]], truncated=gone, info=info)


def test_a_lost_episode_is_followed_by_one_that_is_not():
    pytest.importorskip("gymnasium")
    from envs.text.gym_vector import TextVectorEnv

    env = TextVectorEnv(LosesOnce(2), itertools.repeat(small_game()))
    env.reset()
    observations, _, _, truncated, info = env.step(("look", "look"))
    assert observations[0] == ""
    assert env.observation_space.contains(observations)
    assert env.single_observation_space.contains("")
    assert truncated.tolist() == info["lost"].tolist() == [True, False]
    observations, _, _, truncated, info = env.step(("look", "look"))
    assert observations[0].startswith("-= Welcome")
    assert truncated.tolist() == info["lost"].tolist() == [False, False]
