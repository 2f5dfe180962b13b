"""Room in the cache, and how it grows."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagent.models.llm import generate_rows, generate_steps
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


def test_memory_goes_back_when_a_cache_has_grown_and_before_a_new_batch(monkeypatch):
    given_back = []
    for module in (generate_rows, generate_steps):
        monkeypatch.setattr(module, "give_back_memory", lambda: given_back.append(True))
    cache = KVCache.create(random_model().config, 1, 16, is_apart=True)
    assert with_slots(with_slots(cache, 24), 20).slots == 24
    assert len(given_back) == 1
    Generator(random_model()).rows(1)
    assert len(given_back) == 2


def random_caches(config, batch, slots):
    """The same one, in one array and with the layers apart."""
    empty = KVCache.create(config, batch, slots)
    keys, values = jax.random.normal(jax.random.key(batch), (2, *empty.keys.shape))
    length = jnp.arange(batch)
    parts = [tuple(x[n : n + 1] for n in range(config.num_layers)) for x in (keys, values)]
    apart = KVCache.create(config, batch, slots, is_apart=True)
    assert jax.tree.map(np.shape, apart.keys) == jax.tree.map(np.shape, parts[0])
    return (
        KVCache(keys=keys, values=values, length=length),
        KVCache(keys=parts[0], values=parts[1], length=length),
    )


@pytest.mark.parametrize(
    "operation",
    [
        lambda cache, other: cache.select(np.array([1, 1, 0])),
        lambda cache, other: cache.select(np.array([1])).broadcast(3),
        lambda cache, other: cache.insert(np.array([1, 0]), other),
        lambda cache, other: cache.resize(30),
        lambda cache, other: cache.resize(5),
        lambda cache, other: with_slots(cache, 50),
    ],
)
def test_layers_that_stand_apart_are_the_same_cache(operation):
    config = random_model().config
    pairs = random_caches(config, 2, 16), random_caches(config, 2, 9)
    whole, apart = zip(*pairs, strict=True)
    expected, found = operation(*whole), operation(*apart)
    assert found.slots == expected.slots
    np.testing.assert_array_equal(np.concatenate(found.keys), expected.keys)
    np.testing.assert_array_equal(np.concatenate(found.values), expected.values)
    np.testing.assert_array_equal(found.length, expected.length)
