"""A plan that takes another's place while it is followed, without compiling again."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagent.planning.device_plan import plan_arrays
from jaxagent.planning.guidance import Guidance, GuidanceConfig
from jaxagent.types import Body, Plan, SubGoal, Trajectory

SHORT = Plan((SubGoal((2.0, 0.0), 0.6), SubGoal((2.0, 3.0), 0.6)), "short")
LONG = Plan(tuple(SubGoal((float(x), 0.0), 0.6) for x in range(1, 5)), "long")
CONFIG = GuidanceConfig(guidance_terms=("plan", "plan_potential"))


def walk(points):
    """A trajectory of one environment through points of the plane."""
    points = jnp.asarray(points, jnp.float32)[:, None]

    def body(at):
        position = jnp.concatenate([at, jnp.zeros((*at.shape[:-1], 1))], axis=-1)
        still, east = jnp.zeros_like(position), jnp.broadcast_to(jnp.array([1.0, 0.0]), at.shape)
        return Body(position, east, still, still)

    steps = points.shape[0] - 1
    none, never = jnp.zeros((steps, 1)), jnp.zeros((steps, 1), bool)
    return Trajectory(
        observation=none[..., None], action=none[..., None], pre_tanh=none[..., None],
        behaviour_log_prob=none, reward=none, terminated=never, truncated=never, success=never,
        next_observation=none[..., None], body=body(points[:-1]), next_body=body(points[1:]),
        episode_return=none, episode_length=jnp.zeros((steps, 1), jnp.int32),
    )  # fmt: skip


PATH = walk([(0.0, 0.0), (1.0, 0.0), (2.0, 0.0), (2.0, 1.0), (2.0, 2.8), (2.0, 2.9)])


def guide(plan, capacity=None):
    return Guidance(CONFIG, plan, discount_factor=0.9, plan_capacity=capacity)


def total(guidance, state):
    return guidance.reward(state, PATH, jnp.float32(0.0))


def test_room_for_more_changes_no_reward():
    fixed, roomy = guide(SHORT), guide(SHORT, capacity=7)
    _, expected, _ = total(fixed, fixed.init(1))
    state, found, _ = total(roomy, roomy.init(1))
    np.testing.assert_array_equal(found, expected)
    assert int(state.cursor[0]) == 2  # all reached: not 7


def test_another_plan_takes_its_place_in_the_same_program():
    guidance = guide(SHORT, capacity=5)
    step = jax.jit(guidance.reward)
    state = guidance.init(1)
    step(state, PATH, jnp.float32(0.0))
    change = jax.jit(guidance.change_plan)
    changed = change(state, plan_arrays(LONG, 5), jnp.zeros((1, 2)))
    _, found, _ = step(changed, PATH, jnp.float32(0.0))
    assert step._cache_size() == 1
    alone = guide(LONG)
    np.testing.assert_allclose(found, total(alone, alone.init(1))[1], rtol=1e-6)


def test_seeds_keep_their_leading_axis():
    guidance = guide(SHORT, capacity=4)
    state = jax.vmap(lambda _: guidance.init(3))(jnp.arange(2))
    position = jnp.zeros((2, 3, 2)).at[1, 2].set(jnp.array([3.4, 0.5]))
    change = jax.vmap(guidance.change_plan, in_axes=(0, None, 0))
    changed = change(state, plan_arrays(LONG, 4), position)
    assert jax.tree.map(jnp.shape, changed) == jax.tree.map(jnp.shape, state)
    np.testing.assert_array_equal(changed.cursor, [[0, 0, 0], [0, 0, 3]])


@pytest.mark.parametrize(
    ("position", "cursor"),
    [
        ((0.0, 0.0), 0),
        ((0.9, 0.1), 0),
        ((1.5, 0.2), 1),
        ((2.4, -3.0), 2),
        ((3.5, 0.0), 3),
        ((9.0, 9.0), 3),
    ],
)
def test_environments_go_on_from_where_they_are(position, cursor):
    guidance = guide(SHORT, capacity=6)
    changed = guidance.change_plan(
        guidance.init(1), plan_arrays(LONG, 6), jnp.array([position], jnp.float32)
    )
    assert int(changed.cursor[0]) == cursor


def test_a_plan_without_room_is_refused():
    with pytest.raises(ValueError, match=r"plan \(long, 4 sub-goals\) must have .* at most 3"):
        guide(LONG, capacity=3)
    with pytest.raises(ValueError, match=r"plan \(none, 0 sub-goals\) must have at least one"):
        plan_arrays(Plan((), "none"), 3)


def test_a_plan_that_is_compiled_in_cannot_be_changed():
    for guidance, capacity in ((guide(SHORT), 4), (guide(SHORT, 5), 4)):
        with pytest.raises(ValueError, match="a plan of capacity 4 cannot take the place"):
            guidance.change_plan(guidance.init(1), plan_arrays(LONG, capacity), jnp.zeros((1, 2)))
