"""What guidance carries from batch to batch, on one and on two devices."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec

from jaxagent.planning.device_plan import plan_arrays
from jaxagent.planning.guidance import Guidance, GuidanceConfig
from jaxagent.types import Plan, SubGoal
from tests.planning.test_guidance import walk

PLAN = Plan((SubGoal((9.0, 0.0), 0.5), SubGoal((9.0, 4.0), 0.5)), "test")
OTHER = Plan((SubGoal((5.0, -9.0), 0.5),), "other")
LENGTH, ENVS, BATCHES = 4, 6, 3


def experience():
    """BATCHES trajectories [LENGTH, ENVS] of one random play, episodes of three to five steps."""
    generator = np.random.default_rng(0)
    total = LENGTH * BATCHES
    speed = generator.normal(1.0, 2.0, (total, ENVS))
    # Better rewarded episodes where guidance is low, but single steps the other way round.
    steps = 0.4 * speed + generator.normal(0, 0.1, speed.shape)
    end = np.stack([(np.arange(total) + e) % (3 + e % 3) == 2 for e in range(ENVS)], axis=1)
    offset = np.cumsum(end, axis=0) - end  # number of the episode
    reward = steps - 3.0 * np.take_along_axis(_means(speed, offset), offset, axis=0)
    batches = []
    for k in range(BATCHES):
        rows = slice(k * LENGTH, (k + 1) * LENGTH)
        one = jax.tree.map(lambda x: jnp.repeat(x, ENVS, axis=1), walk(np.zeros((LENGTH + 1, 2))))
        velocity = one.next_body.velocity.at[..., 0].set(jnp.asarray(speed[rows], jnp.float32))
        batches.append(
            one._replace(
                next_body=one.next_body._replace(velocity=velocity),
                reward=jnp.asarray(reward[rows], jnp.float32),
                terminated=jnp.asarray(end[rows]),
            )
        )
    return batches, speed, reward, end


def _means(speed, offset):
    means = np.zeros_like(speed)
    for e in range(speed.shape[1]):
        for number in range(offset[-1, e] + 1):
            means[number, e] = speed[offset[:, e] == number, e].mean()
    return means


def correlations(num_devices):
    """guidance_correlation of every batch."""
    config = GuidanceConfig(guidance_terms=("velocity_linear",))
    guidance = Guidance(config, None, discount_factor=0.9, axis_name="devices")
    mesh = Mesh(np.array(jax.devices()[:num_devices]), ("devices",))
    state = guidance.init(ENVS)
    along, one = PartitionSpec("devices"), PartitionSpec()
    specs = jax.tree.map(lambda x: along if x.shape[:1] == (ENVS,) else one, state)

    @jax.jit
    @functools.partial(
        jax.shard_map,
        mesh=mesh,
        in_specs=(specs, PartitionSpec(None, "devices")),
        out_specs=(specs, one),
        check_vma=False,
    )
    def reward(state, trajectory):
        state, _, metrics = guidance.reward(state, trajectory, jnp.float32(0.0))
        return state, metrics

    found = []
    for trajectory in experience()[0]:
        state, metrics = reward(state, trajectory)
        found.append({name: float(value) for name, value in metrics.items()})
    return found


def test_the_correlation_is_over_the_sums_of_episodes_that_ended():
    """NumPy over episodes that may have begun in the batch before; steps alone say the opposite."""
    _, speed, reward, end = experience()
    for k, metrics in enumerate(correlations(1)):
        sums = []
        for e in range(ENVS):
            ends = np.flatnonzero(end[:, e])
            starts = [0, *(ends[:-1] + 1)]
            for first, last in zip(starts, ends):
                if k * LENGTH <= last < (k + 1) * LENGTH:
                    rows = slice(first, last + 1)
                    sums.append((reward[rows, e].sum(), speed[rows, e].sum()))
        expected = np.corrcoef(np.array(sums).T)[0, 1]
        assert metrics["guidance_correlation"] == pytest.approx(expected, abs=1e-4)


@pytest.mark.skipif(jax.device_count() < 2, reason="needs two devices")
def test_no_metric_depends_on_the_number_of_devices():
    for one, two in zip(correlations(1), correlations(2), strict=True):
        assert one == pytest.approx(two, rel=1e-5, abs=1e-6)


def test_without_an_ended_episode_there_is_no_correlation():
    guidance = Guidance(GuidanceConfig(), None, discount_factor=0.9)
    trajectory = walk([(0, 0), (1, 0), (2, 0)], velocity=0.5, reward=[3.0, 5.0])
    _, _, metrics = guidance.reward(guidance.init(1), trajectory, jnp.float32(0.0))
    assert metrics["guidance_correlation"] == 0.0


PATH = np.array([(0, 0), (1, 1), (3, 0), (4, -2), (6, 1), (7, 0), (7, 2)], np.float32)
GAMMA = 0.9


def shaped(guidance, fractions, change=None, truncated=()):
    """Σ γᵗ F over PATH, in batches of two steps, each at another fraction of the training."""
    state, rewards = guidance.init(1), []
    for k, fraction in enumerate(fractions):
        if k == 1 and change is not None:
            place = jnp.asarray(PATH[None, 2 * k])
            state = guidance.change_plan(state, change, place)
        end = tuple(t - 2 * k for t in truncated if 0 <= t - 2 * k < 2)
        trajectory = walk(PATH[2 * k : 2 * k + 3], truncated=end)
        state, total, metrics = guidance.reward(state, trajectory, jnp.float32(fraction))
        rewards += np.asarray(total)[:, 0].tolist()
        np.testing.assert_allclose(metrics["reward_total"], np.mean(rewards[-2:]), rtol=1e-5)
    return rewards


def potential(plan, place):
    """Before any arrival."""
    target = np.array([goal.target for goal in plan.sub_goals])
    return -np.linalg.norm(target[0] - place) - np.linalg.norm(np.diff(target, axis=0))


@pytest.mark.parametrize("schedule", ["constant", "linear", "staged"])
def test_lambda_times_a_potential_telescopes_while_lambda_moves(schedule):
    """Σ γᵗ F = γᵀ λ_T Φ(s_T) − λ_0 Φ(s_0), whatever lambda was between."""
    config = GuidanceConfig(
        guidance_terms=("plan_potential",),
        guidance_weights=(2.0,),
        lambda_schedule=schedule,
        guidance_lambda=1.5,
        final_lambda=0.3,
    )
    guidance = Guidance(config, PLAN, discount_factor=GAMMA)
    fractions = (0.0, 0.5, 0.7)
    found = np.dot(shaped(guidance, fractions), GAMMA ** np.arange(6))
    last = {"constant": 1.5, "linear": 1.5 - 0.7 * 1.2, "staged": 0.35}[schedule]
    expected = 2.0 * (GAMMA**6 * last * potential(PLAN, PATH[6]) - 1.5 * potential(PLAN, PATH[0]))
    assert found == pytest.approx(expected, rel=1e-5)


def test_a_potential_telescopes_while_the_plan_changes():
    config = GuidanceConfig(guidance_terms=("plan_potential",))
    guidance = Guidance(config, PLAN, discount_factor=GAMMA, plan_capacity=2)
    rewards = shaped(guidance, (0.0, 0.5, 0.7), change=plan_arrays(OTHER, 2))
    expected = GAMMA**6 * potential(OTHER, PATH[6]) - potential(PLAN, PATH[0])
    assert np.dot(rewards, GAMMA ** np.arange(6)) == pytest.approx(expected, rel=1e-5)


def test_a_new_episode_takes_nothing_back_of_the_one_before():
    """Cut at the end of the first batch: each episode telescopes by itself."""
    config = GuidanceConfig(
        guidance_terms=("plan_potential",), lambda_schedule="linear", final_lambda=0.0
    )
    guidance = Guidance(config, PLAN, discount_factor=GAMMA)
    rewards = shaped(guidance, (0.0, 0.5, 0.7), truncated=(1,))
    first = GAMMA**2 * potential(PLAN, PATH[2]) - potential(PLAN, PATH[0])
    assert np.dot(rewards[:2], GAMMA ** np.arange(2)) == pytest.approx(first, rel=1e-5)
    second = GAMMA**4 * 0.3 * potential(PLAN, PATH[6]) - 0.5 * potential(PLAN, PATH[2])
    assert np.dot(rewards[2:], GAMMA ** np.arange(4)) == pytest.approx(second, rel=1e-5)


def test_switched_off_a_potential_gives_nothing_back():
    guidance = Guidance(
        GuidanceConfig(guidance_terms=("plan_potential",)), PLAN, discount_factor=GAMMA
    )
    state, _, _ = guidance.reward(guidance.init(1), walk(PATH[:3]), jnp.float32(0.0))
    state = state.replace(switch=jnp.zeros(()))
    for rows in (PATH[2:5], PATH[4:7]):
        state, total, _ = guidance.reward(state, walk(rows), jnp.float32(0.0))
        np.testing.assert_array_equal(total, 0.0)
