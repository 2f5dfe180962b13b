"""Running statistics of observations."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagent.models.normaliser import (
    init_normaliser,
    known_normaliser,
    normalise,
    update_normaliser,
)


def feed(batches):
    normaliser = init_normaliser(batches[0].shape[-1])
    for batch in batches:
        normaliser = update_normaliser(normaliser, jnp.asarray(batch, jnp.float32))
    return normaliser


@pytest.mark.parametrize("offset", [0.0, 1.0, 1e6])
def test_batches_merge_to_the_statistics_of_all(offset):
    """Around 1e6 a naive sum of squares has no digit of the variance left in float32."""
    generator = np.random.default_rng(0)
    batches = [
        (offset + generator.normal(size=(7 + i, 5, 3)) * (1, 2, 3)).astype(np.float32)
        for i in range(6)
    ]
    everything = np.concatenate([b.reshape(-1, 3) for b in batches]).astype(np.float64)
    normaliser = feed(batches)
    variance = normaliser.squared_deviation / normaliser.count
    np.testing.assert_allclose(normaliser.mean, everything.mean(0), rtol=1e-6, atol=1e-5)
    np.testing.assert_allclose(variance, everything.var(0), rtol=2e-2 if offset > 1 else 1e-5)
    assert float(normaliser.count) == len(everything)


def test_normalised_data_has_unit_scale_and_is_clipped():
    batch = np.random.default_rng(1).normal(5.0, 3.0, (4000, 2)).astype(np.float32)
    normaliser = feed([batch])
    seen = np.asarray(normalise(normaliser, jnp.asarray(batch)))
    np.testing.assert_allclose(seen.mean(0), 0.0, atol=1e-4)
    np.testing.assert_allclose(seen.std(0), 1.0, atol=1e-4)
    far = normalise(normaliser, jnp.array([1e9, -1e9]), limit=4.0)
    np.testing.assert_array_equal(far, [4.0, -4.0])


def test_before_any_data_and_for_constants_nothing_blows_up():
    x = jnp.array([[3.0, -2.0]])
    np.testing.assert_array_equal(normalise(init_normaliser(2), x), x)
    constant = feed([np.full((10, 2), 1e6, np.float32)])
    np.testing.assert_array_equal(normalise(constant, jnp.full((1, 2), 1e6)), jnp.zeros((1, 2)))


@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_a_non_finite_batch_is_left_out(poison):
    good = feed([np.ones((4, 2), np.float32)])
    bad = np.ones((4, 2), np.float32)
    bad[1, 0] = poison
    after = update_normaliser(good, jnp.asarray(bad))
    jax.tree.map(np.testing.assert_array_equal, after, good)


def test_devices_merge_to_what_one_would_see():
    batch = jnp.asarray(np.random.default_rng(2).normal(3, 2, (2, 50, 3)), jnp.float32)
    one = update_normaliser(init_normaliser(3), batch)
    two = jax.vmap(lambda x: update_normaliser(init_normaliser(3), x, "d"), axis_name="d")(batch)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b[0], rtol=1e-5), one, two)


def after(count, mean=0.0, variance=1.0):
    """Statistics as a long run leaves them."""
    full = functools.partial(jnp.full, dtype=jnp.float32)
    return known_normaliser(full((), count), full((1,), mean), full((1,), count * variance))


def exact(normaliser):
    """The three statistics in float64, pairs added up."""
    first = normaliser.count, normaliser.mean, normaliser.squared_deviation
    return [np.asarray(a, np.float64) + np.asarray(b) for a, b in zip(first, normaliser.lost)]


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("count", [2**24, 10**8, 2**31])
def test_a_long_run_counts_every_small_batch(count, size):
    """The float32 count stood still, and the variance grew; or it counted 4 for every 3."""
    batches = np.random.default_rng(3).normal(2.0, 3.0, (20_000, size, 1)).astype(np.float32)

    @jax.jit
    def feed_all(start):
        def step(statistics, batch):
            return update_normaliser(statistics, batch), None

        return jax.lax.scan(step, start, jnp.asarray(batches))[0]

    begin = after(count, 1.0, 4.0)
    found_count, found_mean, found_deviation = exact(feed_all(begin))
    old_count, old_mean, old_deviation = exact(begin)
    new = batches.astype(np.float64).reshape(-1, 1)
    total = old_count + len(new)
    delta = new.mean(0) - old_mean
    assert found_count == total
    np.testing.assert_allclose(found_mean - old_mean, delta * len(new) / total, rtol=1e-4)
    added = new.var(0) * len(new) + delta**2 * old_count * len(new) / total
    np.testing.assert_allclose(found_deviation - old_deviation, added, rtol=1e-4)


def test_devices_keep_what_float32_loses_alike():
    batch = jnp.asarray(np.random.default_rng(4).normal(3, 2, (2, 1, 1)), jnp.float32)
    start = after(10**8)
    one = update_normaliser(start, batch)
    two = jax.vmap(lambda x: update_normaliser(start, x, "d"), axis_name="d")(batch)
    assert exact(one)[0] == 10**8 + 2
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b[0], rtol=1e-5), one, two)
    assert (two.lost[0][0] == two.lost[0][1]).all()
