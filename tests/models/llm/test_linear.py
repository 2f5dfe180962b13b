"""Linear layers: the first token's products in sections, and nothing else changed by that."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxagent.models.llm.linear import Linear, _sections

TERMS = 1536


def products(x, *, careful, dtype="float32", kernel=None):
    kernel = weights(x.shape[-1]) if kernel is None else kernel
    linear = Linear(24, False, dtype, 0.02)
    return linear.apply({"params": {"kernel": kernel}}, x, x[:, 0] if careful else None)


def weights(terms):
    return jax.random.normal(jax.random.key(1), (terms, 24)) * 0.02


def tokens(*shape):
    return jax.random.normal(jax.random.key(0), shape)


def test_what_a_massive_activation_swallows_is_kept():
    # 2^25 + 1 is 2^25 in float32. Summed one by one, all 1535 other terms are lost; in eight
    # sections the 191 of the first one are.
    x = jnp.ones((2, 3, TERMS)).at[:, :, 0].set(2.0**25)
    y = products(x, careful=True, kernel=jnp.ones((TERMS, 24)))
    exact = 2.0**25 + TERMS - 1
    np.testing.assert_allclose(np.float64(y[:, 0]), exact, rtol=0, atol=192)
    plain = products(x, careful=False, kernel=jnp.ones((TERMS, 24)))
    np.testing.assert_array_equal(y[:, 1:], plain[:, 1:])


def test_same_product_up_to_rounding():
    x = tokens(2, 5, TERMS)
    y = jax.jit(lambda x: products(x, careful=True))(x)
    exact = np.float64(x) @ np.float64(weights(TERMS))
    np.testing.assert_allclose(y, exact, rtol=0, atol=3e-6)
    assert np.any(y[:, 0] != products(x, careful=False)[:, 0])


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [((8, 1, TERMS), "float32"), ((2, 5, TERMS), "bfloat16"), ((2, 5, 704), "float32")],
    ids=["one token", "bfloat16", "few terms"],
)
def test_elsewhere_plain(shape, dtype):
    x = tokens(*shape).astype(dtype)
    found, plain = (products(x, careful=careful, dtype=dtype) for careful in (True, False))
    assert found.dtype == jnp.dtype(dtype)
    np.testing.assert_array_equal(found, plain)


def test_plain_gradient():
    x, kernel, weight = tokens(2, 5, TERMS), weights(TERMS), tokens(2, 5, 24)

    def gradient(careful):
        def loss(x, kernel):
            return jnp.sum(products(x, careful=careful, kernel=kernel) * weight)

        return jax.jit(jax.grad(loss, (0, 1)))(x, kernel)

    jax.tree.map(np.testing.assert_array_equal, gradient(True), gradient(False))


def test_forward_derivative_and_vmap():
    x, kernel = tokens(3, 2, 5, TERMS), weights(TERMS)

    def along(careful):
        def product(x):
            return products(x, careful=careful, kernel=kernel)

        return jax.jvp(product, (x[0],), (x[1],))[1]

    np.testing.assert_array_equal(along(True), along(False))
    together = jax.vmap(lambda x: products(x, careful=True))(x)
    for found, alone in zip(together, x):
        np.testing.assert_allclose(found, products(alone, careful=True), rtol=0, atol=3e-6)


@pytest.mark.parametrize("cut", [P("model", None), P(None, "model")], ids=["rows", "columns"])
def test_over_devices(cut):
    mesh = Mesh(np.array(jax.devices()[:2]), ("model",))
    x, kernel = tokens(2, 5, TERMS), weights(TERMS)
    spread = jax.device_put(kernel, NamedSharding(mesh, cut))
    found = jax.jit(lambda x, kernel: products(x, careful=True, kernel=kernel))(x, spread)
    np.testing.assert_allclose(found, products(x, careful=True), rtol=0, atol=3e-6)


@pytest.mark.parametrize(
    ("terms", "count"), [(704, 1), (1536, 8), (4864, 19), (8192, 32), (8191, 1)]
)
def test_sections(terms, count):
    assert _sections(terms) == count
