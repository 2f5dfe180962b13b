import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxagent.losses import GoalSteps, choose_goal_steps, relabel
from tests.losses.strategies import SHAPE, booleans, few, permutations

STRATEGIES = ["future", "final", "episode"]
choose = jax.jit(choose_goal_steps, static_argnames="strategy")


def episodes(end, mask):
    """The episode of every step, and whether its end was seen, by a loop."""
    label, finished = np.full(end.shape, -1), np.zeros(end.shape, bool)
    for b in range(end.shape[1]):
        number, start = 0, 0
        for t in range(end.shape[0]):
            if mask[t, b]:
                label[t, b] = number
                if end[t, b]:
                    finished[start : t + 1, b] = True
                    number, start = number + 1, t + 1
    return label, finished


@few
@given(booleans(), st.lists(st.integers(0, SHAPE[0]), min_size=2, max_size=2), st.integers(0, 99))
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_goal_is_of_the_same_episode_and_in_its_future(strategy, end, lengths, seed):
    mask = jnp.asarray(np.arange(SHAPE[0])[:, None] < np.array(lengths))
    found = choose(jax.random.key(seed), end, mask, strategy=strategy)
    label, finished = episodes(np.asarray(end), np.asarray(mask))
    time = np.arange(SHAPE[0])[:, None]
    np.testing.assert_array_equal(found.valid, mask & finished if strategy == "final" else mask)
    valid = np.asarray(found.valid)
    chosen = np.take_along_axis(label, np.asarray(found.step), 0)
    np.testing.assert_array_equal(chosen[valid], label[valid])
    if strategy != "episode":
        assert (found.step >= time)[valid].all()
    if strategy == "final":
        last = np.take_along_axis(np.asarray(end), np.asarray(found.step), 0)
        assert last[valid].all()
    np.testing.assert_array_equal(
        np.asarray(found.step)[~valid], np.broadcast_to(time, SHAPE)[~valid]
    )


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        ("future", [{0, 1, 2}, {1, 2}, {2}, {3, 4}, {4}]),
        ("episode", [{0, 1, 2}, {0, 1, 2}, {0, 1, 2}, {3, 4}, {3, 4}]),
        ("final", [{2}, {2}, {2}, {3}, {4}]),
    ],
)
def test_every_allowed_step_is_chosen_and_equally_often(strategy, expected):
    # Steps 0..2 are an episode; 3 and 4 are one that the window cuts.
    end, mask = jnp.array([False, False, True, False, False]), jnp.ones(5, bool)
    keys = jax.random.split(jax.random.key(0), 3_000)
    steps = jax.vmap(lambda k: choose(k, end, mask, strategy=strategy).step)(keys)
    for t, allowed in enumerate(expected):
        values, counts = np.unique(steps[:, t], return_counts=True)
        assert set(values.tolist()) == allowed
        np.testing.assert_allclose(counts / 3_000, 1 / len(allowed), atol=0.04)


def reached(achieved, goal):
    return jnp.where(jnp.abs(achieved - goal).max(-1) < 0.5, 0.0, -1.0)


def test_relabelling_worked_by_hand():
    # Achieved 1, 2, 3; the goal 9 is never reached. With goals of step 1: 2, 2 and (invalid) 9.
    achieved = jnp.array([[1.0], [2.0], [3.0]])
    steps = GoalSteps(jnp.array([1, 1, 2]), jnp.array([True, True, False]))
    found = relabel(
        jax.random.key(0),
        jnp.full((3, 1), 9.0),
        achieved,
        jnp.array([-7.0, -7.0, -7.0]),
        steps,
        reached,
        relabel_ratio=1e9,
    )
    np.testing.assert_array_equal(found.goal[:, 0], [2.0, 2.0, 9.0])
    np.testing.assert_array_equal(found.reward, [-1.0, 0.0, -7.0])
    np.testing.assert_array_equal(found.is_relabelled, [True, True, False])


@pytest.mark.parametrize(("ratio", "share"), [(0, 0.0), (1.0, 0.5), (4.0, 0.8), (np.inf, 1.0)])
def test_share_of_relabelled_steps(ratio, share):
    shape = (1000, 10)
    steps = GoalSteps(jnp.zeros(shape, int), jnp.ones(shape, bool))
    goal = jnp.ones((*shape, 1))
    found = relabel(
        jax.random.key(0), goal, 2 * goal, jnp.zeros(shape), steps, reached, relabel_ratio=ratio
    )
    np.testing.assert_allclose(found.is_relabelled.mean(), share, atol=0.02)
    np.testing.assert_array_equal(found.goal[..., 0], jnp.where(found.is_relabelled, 2.0, 1.0))


@few
@given(booleans(), permutations(2), st.integers(0, 99))
def test_final_goals_do_not_depend_on_the_column(end, order, seed):
    mask = jnp.ones(SHAPE, bool)
    straight = choose(jax.random.key(seed), end, mask, strategy="final")
    swapped = choose(jax.random.key(seed), end[:, order], mask, strategy="final")
    np.testing.assert_array_equal(straight.step[:, order], swapped.step)
    np.testing.assert_array_equal(straight.valid[:, order], swapped.valid)


def test_a_step_with_its_own_outcome_as_goal_has_succeeded():
    achieved = jnp.arange(4.0)[:, None]
    steps = GoalSteps(jnp.arange(4), jnp.ones(4, bool))
    found = relabel(
        jax.random.key(0), 0 * achieved - 9, achieved, jnp.full(4, -1.0), steps, reached,
        relabel_ratio=1e9,
    )  # fmt: skip
    np.testing.assert_array_equal(found.reward, 0.0)


STEPS = GoalSteps(jnp.zeros(3, int), jnp.ones(3, bool))


@pytest.mark.parametrize(
    ("steps", "rewarding", "ratio", "message"),
    [
        (STEPS._replace(step=jnp.zeros(2, int)), reached, 4.0, r"goal_steps.step must be Int\[3\]"),
        (STEPS._replace(step=jnp.zeros(3)), reached, 4.0, r"must be Int\[3\], found float32"),
        (STEPS._replace(valid=jnp.ones(3)), reached, 4.0, r"goal_steps.valid must be Bool\[3\]"),
        (STEPS, lambda x, g: (x == g).astype(float), 4.0, r"must be Float\[3\], found .*\[3, 1\]"),
        (STEPS, lambda x, g: (x == g).all(-1), 4.0, r"result must be Float\[3\], found bool"),
        (STEPS, reached, -3.0, r"relabel_ratio must be at least 0, found -3.0"),
    ],
)
def test_what_does_not_fit_is_named(steps, rewarding, ratio, message):
    goal = jnp.ones((3, 1))
    with pytest.raises((TypeError, ValueError), match=message):
        relabel(jax.random.key(0), goal, goal, jnp.zeros(3), steps, rewarding, relabel_ratio=ratio)


def test_unknown_strategy_is_named():
    with pytest.raises(TypeError, match=r"'strategy' must be future \| final \| episode"):
        choose_goal_steps(
            jax.random.key(0), jnp.ones(2, bool), jnp.ones(2, bool), strategy="random"
        )
