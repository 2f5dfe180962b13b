"""The Gymnasium interface, where gymnasium is installed, and its absence where it is not."""

import itertools
import random
import subprocess
import sys

import numpy as np
import pytest

from envs.household.describe import opening_text
from envs.text.batch import BatchEnv
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
    with pytest.raises(ValueError, match="iterator gives the games"):
        env.reset(seed=1)
    env.close()


def seedable(generated, num_envs=3):
    pytest.importorskip("gymnasium")
    from envs.text.gym_vector import TextVectorEnv

    return TextVectorEnv(BatchEnv(num_envs, horizon=3), [made.game for made in generated])


def episodes(env, num=30, **reset):
    """The openings that each environment shows from a reset on."""
    texts, _ = env.reset(**reset)
    shown = [[text] for text in texts]
    for _ in range(num):
        texts, _, _, _, info = env.step(("look",) * env.num_envs)
        for slot in np.flatnonzero(info["steps"] == 0):
            shown[slot].append(texts[slot])
    return shown


def test_a_seed_decides_the_games(generated):
    """As `gymnasium.vector.SyncVectorEnv`: environment i has the seed s + i."""
    env, other = seedable(generated), seedable(generated)
    first = episodes(env, seed=7)
    assert [len(shown) for shown in first] == [8, 8, 8]
    assert episodes(env, seed=7) == episodes(other, seed=7) == first
    assert episodes(env, seed=[7, 8, 9]) == first
    assert episodes(env, seed=np.int64(7)) == first
    later = episodes(env, seed=8)
    assert later[:2] == first[1:]
    assert len({tuple(shown) for shown in [*first, *later]}) == 4


def test_every_game_comes_before_one_comes_again(generated):
    env = seedable(generated[:6], num_envs=1)
    (shown,) = episodes(env, num=4 * 11, seed=1)
    assert len(shown) == 12
    openings = {opening_text(made.game, made.game.initial) for made in generated[:6]}
    assert set(shown[:6]) == set(shown[6:]) == openings
    assert shown[:6] != shown[6:]


def test_without_a_seed_the_order_goes_on(generated):
    env = seedable(generated)
    whole = episodes(env, seed=3)
    assert episodes(env, num=0, seed=3) == [shown[:1] for shown in whole]
    assert episodes(env, num=0) == [shown[1:2] for shown in whole]
    assert episodes(env, num=0, seed=[None, 4, None]) == [
        whole[0][2:3], whole[1][:1], whole[2][2:3]
    ]  # fmt: skip
    fresh = [episodes(seedable(generated)) for _ in range(2)]
    assert fresh[0] != fresh[1]


def test_a_mask_resets_a_part(generated):
    env = seedable(generated)
    whole = episodes(env, num=1, seed=3)
    texts, info = env.reset(options={"reset_mask": np.array([False, True, False])})
    assert info["steps"].tolist() == [1, 0, 1]
    assert texts[1] not in whole[1]
    for mask in ([False] * 3, [True] * 2, [1, 0, 0]):
        with pytest.raises(ValueError, match="reset_mask must be 3 Booleans"):
            env.reset(options={"reset_mask": np.array(mask)})
    with pytest.raises(ValueError, match=r"\['difficulty'\] are unknown"):
        env.reset(options={"difficulty": 3})
    with pytest.raises(ValueError, match="2 seeds given for 3"):
        env.reset(seed=[1, 2])


def test_the_checks_of_gymnasium_pass(generated):
    pytest.importorskip("gymnasium")
    from gymnasium.utils import env_checker

    for check in (
        env_checker.check_reset_seed_determinism,
        env_checker.check_reset_options,
        env_checker.check_reset_return_info_deprecation,
        env_checker.check_seed_deprecation,
        env_checker.check_reset_return_type,
        env_checker.check_returned_data_not_reused,
    ):
        check(seedable(generated, num_envs=1))  # they are written for single environments
    env, other = seedable(generated), seedable(generated)
    for each in (env, other):
        each.reset(seed=5)
        each.action_space.seed(5)
    for _ in range(6):
        left, right = (each.step(each.action_space.sample()) for each in (env, other))
        assert env_checker.data_equivalence(left, right, exact=True)


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
