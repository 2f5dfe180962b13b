"""Running statistics of observations."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagent.models.normaliser import init_normaliser, normalise, update_normaliser


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
