"""What hypothesis draws for the properties: one shape, so that nothing compiles twice."""

import jax.numpy as jnp
import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

SHAPE = (6, 2)

few = settings(max_examples=25, deadline=None, derandomize=True)


def numbers(low=-5.0, high=5.0, shape=SHAPE):
    floats = st.floats(low, high, width=32, allow_subnormal=False)
    return arrays(np.float32, shape, elements=floats).map(jnp.asarray)


def booleans(shape=SHAPE):
    return arrays(np.bool_, shape).map(jnp.asarray)


def integers(low, high, shape=SHAPE):
    return arrays(np.int32, shape, elements=st.integers(low, high)).map(jnp.asarray)


def permutations(size):
    return st.permutations(range(size)).map(jnp.array)
