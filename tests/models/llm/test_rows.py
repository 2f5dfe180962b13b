"""Room in the cache, and how it grows."""

import jax
import numpy as np
import pytest

from jaxagent.models.llm.cache import KVCache
from jaxagent.models.llm.generate import Generator
from jaxagent.models.llm.generate_steps import with_slots
from tests.models.llm.random_models import random_model


@pytest.mark.parametrize(
    ("length", "slots"),
    [(1, 256), (256, 256), (257, 512), (600, 1024), (1025, 1536), (1536, 1536), (1537, 2048),
     (2049, 3000), (3000, 3000)],
)  # fmt: skip
def test_room_doubles_and_then_grows_by_half_steps_up_to_the_context(length, slots):
    rows = Generator(random_model(max_positions=3000)).rows(1)
    assert rows._slots_for(length) == slots


def test_a_cache_grows_around_what_it_holds():
    config = random_model().config
    small = KVCache.create(config, 2, 16)
    filled = jax.random.normal(jax.random.key(0), small.keys.shape)
    small = small.replace(keys=filled, values=2 * filled, length=np.array([3, 16], np.int32))
    expected = np.asarray(filled)
    assert with_slots(small, 16) is small
    grown = with_slots(small, 40)
    assert grown.slots == 40
    np.testing.assert_array_equal(grown.keys[:, :, :16], expected)
    np.testing.assert_array_equal(grown.values[:, :, :16], 2 * expected)
    assert not np.asarray(grown.keys[:, :, 16:]).any()
    assert grown.length.tolist() == [3, 16]
    # There is room for the old one no more.
    assert small.keys.is_deleted()
    assert small.values.is_deleted()
