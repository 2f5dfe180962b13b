"""The replay buffer: order, bounds of episodes, groups, bytes, and nothing that was not written."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagent.replay import Replay, Transition, transitions
from tests.envs.test_goals import line, play

GROUPS, ROWS, LENGTH = 2, 3, 10
REPLAY = Replay(ROWS, LENGTH)
add = jax.jit(REPLAY.add)


def steps(first: int, count: int) -> Transition:
    """Steps first, first + 1, ... of every environment; features tell (time, environment)."""
    envs = GROUPS * ROWS
    time = jnp.broadcast_to(jnp.arange(first, first + count)[:, None], (count, envs))
    env = jnp.broadcast_to(jnp.arange(envs)[None], (count, envs))
    features = jnp.stack([time, env], -1).astype(jnp.float32)
    return Transition(
        features=features,
        next_features=features + 1,
        goal=features[..., :1],
        action=features,
        fell=time % 5 == 4,
        episode_end=time % 5 == 4,
    )


def empty(poison: bool = False):
    one = jax.tree.map(lambda x: x[0, 0], steps(0, 1))
    state = REPLAY.init(one, GROUPS)
    if not poison:
        return state

    def nan(x):
        return jnp.full_like(x, jnp.nan) if jnp.issubdtype(x.dtype, jnp.floating) else x

    return jax.tree.map(nan, state)


def drawn(state, seed=0, count=256):
    """Where steps were drawn, and the steps that lie there."""
    keys = jax.random.split(jax.random.key(seed), GROUPS)
    places = REPLAY.sample(state, keys, count)
    return jax.tree.map(np.asarray, (places, REPLAY.read(state, places.row, places.time)))


@pytest.mark.parametrize("written", [1, 4, 7, 10, 13, 26])
def test_every_step_that_is_kept_is_drawn_and_nothing_else(written):
    """Everything starts as NaN; episodes of five steps, across the seam of the ring too."""
    state = empty(poison=True)
    for first in range(written):
        state = add(state, steps(first, 1))
    places, got = drawn(state)
    for leaf in jax.tree.leaves(got):
        assert np.isfinite(leaf).all()
    time, env = got.features[..., 0], got.features[..., 1]
    oldest = max(0, written - LENGTH)
    for group in range(GROUPS):
        seen = set(zip(time[group].tolist(), env[group].tolist()))
        rows = range(group * ROWS, (group + 1) * ROWS)
        assert seen == {(t, e) for t in range(oldest, written) for e in rows}
    np.testing.assert_array_equal(places.time, time - oldest)
    begin = time // 5 * 5
    np.testing.assert_array_equal(places.first, np.maximum(begin, oldest) - oldest)
    np.testing.assert_array_equal(places.last, np.minimum(begin + 4, written - 1) - oldest)
    np.testing.assert_array_equal(places.is_ended, begin + 4 <= written - 1)


def test_draws_are_independent_and_uniform():
    """Steps beside each other are drawn together no more often than any other two."""
    state = add(empty(), steps(0, LENGTH))
    places, _ = drawn(state, count=20_000)
    cell = places.row * LENGTH + places.time
    shares = np.stack([np.bincount(c, minlength=ROWS * LENGTH) for c in cell]) / cell.shape[1]
    np.testing.assert_allclose(shares, 1 / (ROWS * LENGTH), atol=0.006)
    pairs = cell.reshape(GROUPS, -1, 2)
    near = (np.abs(pairs[..., 0] - pairs[..., 1]) <= 1).mean()
    chance = (3 * ROWS * LENGTH - 2) / (ROWS * LENGTH) ** 2
    assert near == pytest.approx(chance, abs=0.01)


def test_it_is_ready_once_it_holds_a_step():
    state = empty()
    assert not REPLAY.ready(state)
    assert REPLAY.ready(add(state, steps(0, 1)))


def test_several_steps_at_once_are_the_same_as_one_by_one():
    one, many = empty(), empty()
    for first in range(0, 15, 3):
        many = add(many, steps(first, 3))
    for first in range(15):
        one = add(one, steps(first, 1))
    jax.tree.map(np.testing.assert_array_equal, one, many)


def part(tree, group: int):
    return jax.tree.map(lambda x: x[group : group + 1], tree)


def test_a_group_draws_the_same_whatever_lies_beside_it():
    state = add(empty(), steps(0, 8))
    keys = jax.random.split(jax.random.key(3), GROUPS)
    together = REPLAY.sample(state, keys, 5)
    for group in range(GROUPS):
        alone = REPLAY.sample(part(state, group), keys[group : group + 1], 5)
        jax.tree.map(np.testing.assert_array_equal, alone, part(together, group))


def test_types_are_the_same_after_as_before():
    """Otherwise the second call of a jitted iteration compiles again."""

    def kind(x):
        return x.shape, x.dtype, x.weak_type

    state = empty()
    assert jax.tree.map(kind, jax.eval_shape(REPLAY.add, state, steps(0, 2))) == jax.tree.map(
        lambda x: (x.shape, x.dtype, x.weak_type), state
    )


def test_it_takes_hardly_more_than_the_bytes_of_the_fields():
    replay = Replay(rows=8, row_length=1000)
    one = jax.tree.map(lambda x: x[0, 0], steps(0, 1))
    state = jax.eval_shape(lambda: replay.init(one, 4))
    total = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(state))
    fields = steps(0, 3).num_bytes
    assert fields == 4 * (2 + 2 + 1 + 2) + 2
    assert total / (4 * 8 * 1000) <= 1.2 * fields


def test_a_trajectory_without_goals_is_refused():
    _, trajectory = play(line(), 5, 2)
    kept = transitions(trajectory)
    assert kept.features.shape == (2, 6, 1)
    with pytest.raises(ValueError, match="must come from a goal-conditioned task"):
        transitions(trajectory._replace(goal=None))


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ((0, 5), r"rows \(0\) must be at least 1"),
        ((1, 0), r"row_length \(0\) must be at least 1"),
    ],
)
def test_sizes_that_cannot_be_are_refused(sizes, message):
    with pytest.raises(ValueError, match=message):
        Replay(*sizes)
