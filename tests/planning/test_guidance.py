"""R_total = R_env + λ·R_guidance on trajectories written by hand."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagent.planning.guidance import SCHEDULES, TERMS, Guidance, GuidanceConfig
from jaxagent.types import Body, Plan, SubGoal, Trajectory

PLAN = Plan((SubGoal((2.0, 0.0), 0.6), SubGoal((2.0, 3.0), 0.6)), "test")


def walk(points, terminated=(), truncated=(), velocity=0.0, reward=None) -> Trajectory:
    """One environment that moves along `points` [T + 1, 2], facing along x."""
    points = np.asarray(points, np.float32)
    length = len(points) - 1

    def body(xy):
        position = np.concatenate([xy, np.ones((length, 1), np.float32)], 1)[:, None]
        full = np.zeros((length, 1, 3), np.float32)
        return Body(
            position=jnp.asarray(position),
            heading=jnp.tile(jnp.array([1.0, 0.0]), (length, 1, 1)),
            velocity=jnp.asarray(full).at[..., 0].set(velocity),
            angular_velocity=jnp.asarray(full).at[..., 2].set(2.0),
        )

    def at(steps):
        return jnp.zeros((length, 1), bool).at[jnp.array(steps, int), 0].set(True)

    flat = jnp.zeros((length, 1))
    return Trajectory(
        observation=flat[..., None],
        action=jnp.full((length, 1, 2), 0.5),
        pre_tanh=jnp.zeros((length, 1, 2)),
        behaviour_log_prob=flat,
        reward=flat if reward is None else jnp.asarray(reward, jnp.float32)[:, None],
        terminated=at(terminated) if terminated else jnp.zeros((length, 1), bool),
        truncated=at(truncated) if truncated else jnp.zeros((length, 1), bool),
        success=jnp.zeros((length, 1), bool),
        next_observation=flat[..., None],
        body=body(points[:-1]),
        next_body=body(points[1:]),
        episode_return=flat,
        episode_length=jnp.zeros((length, 1), jnp.int32),
    )


def guidance(**options) -> Guidance:
    return Guidance(GuidanceConfig(**options), PLAN, discount_factor=0.9)


def rewards(guide: Guidance, trajectory: Trajectory, fraction: float = 0.0, state=None):
    state = guide.init(1) if state is None else state
    state, total, metrics = guide.reward(state, trajectory, jnp.float32(fraction))
    return state, np.asarray(total)[:, 0], {k: float(v) for k, v in metrics.items()}


def test_the_three_rewards_are_told_apart():
    trajectory = walk([(0, 0), (1, 0), (2, 0)], velocity=0.5, reward=[3.0, 5.0])
    guide = guidance(guidance_terms=("velocity_linear",), guidance_lambda=2.0)
    _, total, metrics = rewards(guide, trajectory)
    np.testing.assert_allclose(total, [4.0, 6.0])  # + 2 * 0.5
    assert metrics["reward_env"] == pytest.approx(4.0)
    assert metrics["reward_guidance"] == pytest.approx(0.5)
    assert metrics["reward_total"] == pytest.approx(5.0)
    assert metrics["guidance_lambda"] == 2.0


PLAN_ONLY = {
    "guidance_terms": ("plan",),
    "heading_weight": 0.0,
    "progress_weight": 1.0,
    "arrival_weight": 10.0,
}


def test_a_plan_pays_progress_and_each_arrival_once():
    """0 -> 1 -> 1.5 (inside 0.6 of the first goal) -> aim at (2, 3) -> back."""
    trajectory = walk([(0, 0), (1, 0), (1.5, 0), (1.5, 1), (1.5, 0)])
    state, total, _ = rewards(guidance(**PLAN_ONLY), trajectory)
    nearer = np.hypot(0.5, 3.0) - np.hypot(0.5, 2.0)
    np.testing.assert_allclose(total, [1.0, 0.5 + 10.0, nearer, -nearer], rtol=1e-5)
    assert int(state.cursor[0]) == 1


def test_running_past_a_sub_goal_does_not_pay():
    trajectory = walk([(1.0, 2.0), (3.0, 2.0), (5.0, 2.0)])  # beside the first goal, then away
    _, total, _ = rewards(guidance(**PLAN_ONLY), trajectory)
    assert total[1] < 0


def test_after_the_last_sub_goal_a_plan_is_silent():
    trajectory = walk([(0, 0), (2, 0), (2, 3), (2, 2), (2, 3)])
    state, total, _ = rewards(guidance(**PLAN_ONLY), trajectory)
    np.testing.assert_allclose(total, [12.0, 13.0, 0.0, 0.0], rtol=1e-5)
    assert int(state.cursor[0]) == 2


@pytest.mark.parametrize("end", ["terminated", "truncated"])
def test_a_new_episode_begins_at_the_first_sub_goal(end):
    trajectory = walk([(0, 0), (2, 0), (2, 1)], **{end: (1,)})
    state, _, _ = rewards(guidance(**PLAN_ONLY), trajectory)
    assert int(state.cursor[0]) == 0


def test_the_cursor_lives_on_between_batches():
    guide = guidance(**PLAN_ONLY)
    state, _, _ = rewards(guide, walk([(0, 0), (2, 0)]))
    state, total, _ = rewards(guide, walk([(2, 0), (2, 1)]), state=state)
    assert int(state.cursor[0]) == 1
    np.testing.assert_allclose(total, [1.0], rtol=1e-6)


def test_heading_rewards_facing_the_sub_goal_or_its_own_direction():
    options = PLAN_ONLY | {"heading_weight": 1.0, "progress_weight": 0.0, "arrival_weight": 0.0}
    still = walk([(0, 0), (0, 0)])
    _, facing, _ = rewards(guidance(**options), still)
    np.testing.assert_allclose(facing, [1.0 - 0.5], rtol=1e-5)  # cos 0 - cos 60°
    turned = Plan((SubGoal((2.0, 0.0), 0.6, heading=90.0),), "test")
    guide = Guidance(GuidanceConfig(**options), turned, discount_factor=0.9)
    _, across, _ = rewards(guide, still)
    np.testing.assert_allclose(across, [0.0 - 0.5], atol=1e-5)


def test_potential_shaping_telescopes_to_the_potentials_at_the_ends():
    """Σ γᵗ F = γᵀ Φ(s_T) − Φ(s_0), whatever happens between, arrivals included."""
    points = [(0, 0), (1, 1), (2, 0), (1, 2), (2.5, 1)]
    _, total, _ = rewards(guidance(guidance_terms=("plan_potential",)), walk(points))
    start = -(2.0 + 3.0)  # to the first goal, and the leg after it
    end = -np.hypot(0.5, 2.0)  # the first goal was reached on the way
    discounted = (total * 0.9 ** np.arange(4)).sum()
    assert discounted == pytest.approx(0.9**4 * end - start, rel=1e-5)


def test_potential_of_a_terminal_state_is_zero():
    _, total, _ = rewards(
        guidance(guidance_terms=("plan_potential",)), walk([(0, 0), (1, 0)], terminated=(0,))
    )
    np.testing.assert_allclose(total, [5.0], rtol=1e-6)


def test_penalties_weigh_torques_and_spin():
    options = {"guidance_terms": (), "energy_cost": 2.0, "spin_cost": 0.1}
    _, total, _ = rewards(guidance(**options), walk([(0, 0), (1, 0)]))
    np.testing.assert_allclose(total, [-2.0 * 0.5 - 0.1 * 4.0], rtol=1e-6)


def test_weights_multiply_their_terms():
    options = {
        "guidance_terms": ("velocity_linear", "velocity_threshold"),
        "guidance_weights": (2.0, 5.0),
        "wanted_velocity": 1.0,
    }
    _, total, _ = rewards(guidance(**options), walk([(0, 0), (1, 0)], velocity=1.5))
    np.testing.assert_allclose(total, [2 * 1.5 + 5.0])


@pytest.mark.parametrize("term", TERMS)
def test_every_term_is_finite_and_not_constant(term):
    slow = walk([(0, 0), (0.1, 0)], velocity=0.1)
    fast = walk([(0, 0), (1.0, 0)], velocity=4.0)
    guide = guidance(guidance_terms=(term,))
    values = [rewards(guide, trajectory)[1][0] for trajectory in (slow, fast)]
    assert np.isfinite(values).all()
    assert values[0] != values[1]


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("constant", [2.0, 2.0, 2.0]),
        ("linear", [2.0, 1.25, 0.5]),
        ("cosine", [2.0, 1.25, 0.5]),
        ("staged", [2.0, 0.35, 0.0]),
        ("adaptive", [2.0, 2.0, 2.0]),
    ],
)
def test_schedules_are_chosen_by_name(schedule, expected):
    assert schedule in SCHEDULES
    guide = guidance(lambda_schedule=schedule, guidance_lambda=2.0, final_lambda=0.5)
    trajectory = walk([(0, 0), (1, 0)])
    found = [rewards(guide, trajectory, f)[2]["guidance_lambda"] for f in (0.0, 0.5, 1.0)]
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_the_adaptive_schedule_reacts_to_evaluations():
    guide = guidance(
        lambda_schedule="adaptive", adaptive_window=1, adaptive_growth=1.5, adaptive_cap=1.2
    )
    state, found = guide.init(1), []
    for evaluation in (10.0, 20.0, 30.0, 5.0, 5.0):
        state = guide.observe_evaluation(state, jnp.float32(evaluation))
        found.append(rewards(guide, walk([(0, 0), (1, 0)]), state=state)[2]["guidance_lambda"])
    np.testing.assert_allclose(found, [1.0, 0.99, 0.99**2, 1.2, 1.2], rtol=1e-5)


def test_scale_matching_bounds_lambda_by_the_spread_of_rewards():
    trajectory = walk([(0, 0)] * 5, reward=[0.0, 2.0, 0.0, 2.0])
    fast = trajectory.next_body.velocity.at[:, 0, 0].set(jnp.array([0.0, 10.0, 0.0, 10.0]))
    trajectory = trajectory._replace(next_body=trajectory.next_body._replace(velocity=fast))
    guide = guidance(guidance_terms=("velocity_linear",), scale_match=0.5, guidance_lambda=3.0)
    _, _, metrics = rewards(guide, trajectory)
    assert metrics["guidance_lambda"] == pytest.approx(0.5 * 1.0 / 5.0, rel=1e-5)


def test_the_switch_takes_all_guidance_away():
    guide = guidance(guidance_terms=("velocity_linear",))
    state = guide.init(1)
    state = state.replace(switch=jnp.zeros(()))
    trajectory = walk([(0, 0), (1, 0)], velocity=9.0, reward=[1.5])
    _, total, metrics = rewards(guide, trajectory, state=state)
    np.testing.assert_allclose(total, [1.5])
    assert metrics["guidance_lambda"] == 0.0
    assert metrics["reward_guidance"] == pytest.approx(9.0)  # still told


def test_the_state_keeps_its_types():
    guide = guidance(guidance_terms=("plan",), lambda_schedule="adaptive", scale_match=0.5)
    before = guide.init(1)
    after, _, _ = guide.reward(before, walk([(0, 0), (1, 0)]), jnp.float32(0.0))
    after = guide.observe_evaluation(after, jnp.float32(1.0))

    def kind(x):
        return x.shape, x.dtype, x.weak_type

    assert jax.tree.map(kind, jax.tree.map(jnp.asarray, after)) == jax.tree.map(kind, before)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"guidance_terms": ("warp",)}, r"guidance_terms \(warp\) must be among velocity_linear"),
        ({"guidance_weights": (1.0, 2.0)}, r"guidance_weights \(2 of them\) must be as many"),
        ({"lambda_schedule": "step"}, r"lambda_schedule \(step\) must be one of constant"),
        ({"guidance_lambda": -1.0}, r"guidance_lambda \(-1.0\) must be at least 0"),
        ({"guidance_lambda": float("nan")}, r"guidance_lambda \(nan\) must be finite"),
        ({"refine_from": 0.9}, r"refine_from \(0.9\) and zero_from \(0.8\) must satisfy"),
        ({"scale_match": 1.5}, r"scale_match \(1.5\) must lie between 0 and 1"),
        ({"adaptive_window": 0}, r"adaptive_window \(0\) must be at least 1"),
        ({"adaptive_growth": 0.5}, r"adaptive_growth \(0.5\) must be at least 1"),
        ({"velocity_scale": 0.0}, r"velocity_scale \(0.0\) must be greater than 0"),
        ({"heading_threshold": 0.0}, r"heading_threshold \(0.0\) must lie in"),
    ],
)
def test_wrong_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        GuidanceConfig(**options)


def test_a_term_without_its_plan_is_refused():
    config = dataclasses.replace(GuidanceConfig(), guidance_terms=("plan",))
    with pytest.raises(ValueError, match="need a plan and there is none"):
        Guidance(config, None, discount_factor=0.9)
    with pytest.raises(ValueError, match="must have at least one sub-goal"):
        Guidance(config, Plan((), "empty"), discount_factor=0.9)
