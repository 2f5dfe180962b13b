"""No preset pays for an early end: returns of falling, standing and reaching, task by task."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from envs.goals import GOAL_TASKS
from envs.probe import cliff
from envs.vector import VectorEnv
from experiments.manager_config import preset as manager_preset
from experiments.skills_config import GoalConfig, PPOSkillsConfig, SACSkillsConfig, preset
from experiments.train_skills import simulators
from jaxagent.agents.sac_her import SACHER
from jaxagent.rollout import collect
from jaxagent.types import GOAL_REWARDS, GoalSpec, PolicySample
from tests.training.skill_run import make_trainer, run_config

LONG = 2_000  # steps that stand for ever


def learnt_spec(config) -> tuple[GoalSpec, float, float]:
    """The goal space that the agent is paid by, gamma, and the scale of the reward."""
    if isinstance(config, PPOSkillsConfig):
        return simulators(config)[0].spec, config.ppo.discount_factor, config.ppo.reward_scale
    agent = SACHER(config.sac, config.spec(), observation_size=2, action_size=1)
    return agent.spec, config.sac.discount_factor, config.sac.reward_scale


def discounted(spec: GoalSpec, distances, falls: bool, discount: float, scale: float) -> float:
    """Return of a path by these distances from the goal; what does not fall at its end stays."""
    count = len(distances) - 1
    distances = np.concatenate([distances, np.full(LONG - count, distances[-1])])
    place = np.zeros((LONG + 1, spec.goal_size), np.float32)
    place[:, 0] = distances
    fell = np.zeros(LONG, bool)
    fell[count - 1] = falls
    reward, success = spec.judge(
        jnp.asarray(place[:-1]), jnp.asarray(place[1:]), jnp.zeros((LONG, spec.goal_size)), fell
    )
    reward, success = np.asarray(reward, float), np.asarray(success)
    if falls:
        reward, success = reward[:count], success[:count]
    if spec.on_success != "hold" and success.any():  # the end, or another goal, which can only pay
        reward = reward[: success.argmax() + 1]
    return scale * float(np.sum(reward * discount ** np.arange(len(reward))))


def check(spec: GoalSpec, discount: float, scale: float, steps: int) -> None:
    """A fall in place, on the way and away from the goal, against standing and reaching."""
    far = spec.reach[1]
    way = np.linspace(far, 0.5 * spec.threshold, steps + 1)
    outside = way[way > 1.01 * spec.threshold]
    reaching = discounted(spec, way, False, discount, scale)
    standing = discounted(spec, [far, far], False, discount, scale)
    for at in (1, 5, 10, 50, steps):
        still = discounted(spec, [far] * (at + 1), True, discount, scale)
        assert still < standing < reaching
        ahead, away = outside[: at + 1], [far, *[1.1 * far] * at]
        for path in (ahead, away):
            falling = discounted(spec, path, True, discount, scale)
            assert falling < reaching
            assert falling < discounted(spec, path, False, discount, scale)  # it stands there
            # "dense" and "difference" pay for having come nearer, which a later fall leaves paid.
            assert falling < standing or (at > 10 or spec.reward == "dense")


@pytest.mark.parametrize("reward", [None, *GOAL_REWARDS])
@pytest.mark.parametrize("algorithm", ["ppo", "sac_her"])
@pytest.mark.parametrize("task", GOAL_TASKS)
def test_an_early_end_is_worth_less_than_standing_and_than_reaching(task, algorithm, reward):
    config = preset(task, algorithm)
    if reward is not None:
        goals = dataclasses.replace(config.goals, reward=reward)
        config = dataclasses.replace(config, goals=goals)
    for steps in (60, config.run.episode_length):
        check(*learnt_spec(config), steps)


@pytest.mark.parametrize("discount", [0.0, 0.9, 0.97, 0.995])
@pytest.mark.parametrize("on_success", ["end", "hold"])
@pytest.mark.parametrize("algorithm", ["ppo", "sac_her"])
def test_the_same_for_other_discount_factors(algorithm, on_success, discount):
    config = preset("ant_goal", algorithm)
    part = "ppo" if algorithm == "ppo" else "sac"
    for reward in GOAL_REWARDS:
        changed = dataclasses.replace(getattr(config, part), discount_factor=discount)
        goals = GoalConfig(reward=reward, on_success=on_success)
        spec, gamma, scale = learnt_spec(
            dataclasses.replace(config, goals=goals, **{part: changed})
        )
        assert gamma == discount
        fall = discounted(spec, [6.0] * 4, True, gamma, scale)
        stand = discounted(spec, [6.0, 6.0], False, gamma, scale)
        reach = discounted(spec, np.linspace(6.0, 0.2, 40), False, gamma, scale)
        assert fall < stand or (gamma == 0.0 and fall == pytest.approx(stand))
        assert stand <= reach


def test_a_manager_is_paid_for_arrival_alone():
    """Nothing costs, so an end is worth 0, as standing is, and arrival more."""
    simulator = cliff()
    for algorithm in ("ppo", "sac"):
        assert manager_preset(algorithm).run.num_envs  # both presets exist
    from jaxagent.agents.manager import ArrivalSpec

    fields = {f.name: getattr(simulator.spec, f.name) for f in dataclasses.fields(GoalSpec)}
    spec = ArrivalSpec(**fields).charged(0.95)
    places = jnp.array([[5.0], [5.0], [0.0]])
    for end, reward in ((1, 0.0), (2, 1.0)):
        paid, _ = spec.judge(places[0], places[end], jnp.zeros(1), jnp.array(False))
        fallen, _ = spec.judge(places[0], places[end], jnp.zeros(1), jnp.array(True))
        assert (float(paid), float(fallen)) == (reward, 0.0)


def test_a_discount_factor_of_one_is_refused():
    with pytest.raises(ValueError, match=r"discount_factor \(1\.0\) must lie in \[0, 1\)"):
        cliff().spec.charged(1.0)


@pytest.mark.parametrize("reward", ["sparse", "dense"])
def test_the_shipped_settings_do_not_jump_off_a_cliff(reward):
    """All hyper-parameters of the preset but the sizes of networks and buffer."""
    config = preset("reacher_goal", "sac_her")
    assert isinstance(config, SACSkillsConfig)
    sac = dataclasses.replace(
        config.sac, policy_hidden_sizes=(32,), critic_hidden_sizes=(32,), buffer_size=16 * 1024,
        learning_starts=1_000,
    )  # fmt: skip
    run = dataclasses.replace(run_config(300), episode_length=100)
    trainer = make_trainer(run, sac, num_devices=1, simulator=cliff(reward))
    state = trainer.init([0])
    programs = trainer.compile(state)
    for _ in range(run.num_iterations):
        state, _ = programs.iterate(state)
    evaluation = jax.device_get(programs.evaluate(state.agent, np.zeros(1, np.int32)))
    assert not evaluation.goals.fell.any()
    assert evaluation.success.all()


def test_an_explosion_is_charged_like_a_fall():
    """It must not be the way out of a costly episode."""
    simulator = cliff("dense")
    body = dataclasses.replace(
        simulator.simulator, advance=lambda place, action: (place * jnp.nan, jnp.zeros(()), False)
    )
    simulator = dataclasses.replace(simulator, simulator=body, spec=simulator.spec.charged(0.97))
    env, keys = VectorEnv(simulator, 50), jax.random.split(jax.random.key(0), 3)

    def still(observation, keys):
        action = jnp.zeros((3, 1))
        return PolicySample(action, action, action[:, 0])

    _, trajectory = collect(env, still, env.reset(keys), keys, 1)
    assert trajectory.terminated.all()
    away = np.abs(trajectory.goal - trajectory.achieved_goal)[..., 0]
    np.testing.assert_allclose(trajectory.reward, -10 - 0.1 * away / 0.03, rtol=1e-4)
    for leaf in jax.tree.leaves(trajectory):
        assert np.isfinite(leaf).all()
