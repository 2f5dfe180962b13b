"""Two simulated devices compute what one does, and hold what the rules say."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxagent.models.llm.cache import KVCache
from jaxagent.models.llm.llama import Llama
from jaxagent.models.llm.sharding import (
    batch_sharding,
    cache_sharding,
    param_shardings,
    shard_params,
)
from tests.models.llm.families import model, padded


def mesh(data, model_parallel):
    return Mesh(np.array(jax.devices()[:2]).reshape(data, model_parallel), ("data", "model"))


CONFIG, PARAMS = model("llama2")


def loss(params, tokens, live):
    decoder = Llama(CONFIG)
    hidden = decoder.apply({"params": params}, tokens, segment_ids=live).hidden
    logits = decoder.apply({"params": params}, hidden[:, :-1], method="logits")
    errors = optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:])
    return jnp.sum(errors * live[:, 1:]) / jnp.sum(live), logits


def batch():
    tokens, live = padded()
    return tokens[:2, :40], live[:2, :40]


@pytest.mark.parametrize("shape", [(1, 2), (2, 1)])
@pytest.mark.parametrize("fully_sharded", [False, True])
def test_two_devices_give_the_logits_and_gradients_of_one(shape, fully_sharded):
    tokens, live = batch()
    step = jax.jit(jax.grad(loss, has_aux=True))
    gradient, logits = step(PARAMS, tokens, live)
    devices = mesh(*shape)
    sharded = shard_params(CONFIG, PARAMS, devices, fully_sharded=fully_sharded)
    placed = jax.device_put((tokens, live), batch_sharding(devices))
    with_gradient, with_logits = step(sharded, *placed)
    np.testing.assert_allclose(with_logits, logits, atol=2e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-5), with_gradient, gradient)


def test_the_rules():
    tensor = param_shardings(CONFIG, mesh(1, 2))
    attention = tensor["layers"]["attention"]
    assert attention["query"]["kernel"].spec == PartitionSpec(None, None, "model")
    assert attention["output"]["kernel"].spec == PartitionSpec(None, "model", None)
    assert tensor["layers"]["mlp"]["down"]["kernel"].spec == PartitionSpec(None, "model", None)
    assert tensor["layers"]["mlp_norm"]["scale"].spec == PartitionSpec(None, None)
    assert tensor["embedding"].spec == PartitionSpec(None, None)  # 131 is odd
    held = shard_params(CONFIG, PARAMS, mesh(1, 2))["layers"]["mlp"]["up"]["kernel"]
    assert held.addressable_shards[0].data.shape == (3, 64, 48)
    fully = param_shardings(CONFIG, mesh(2, 1), fully_sharded=True)
    assert fully["layers"]["mlp"]["up"]["kernel"].spec == PartitionSpec(None, "data", "model")
    assert fully["layers"]["mlp_norm"]["scale"].spec == PartitionSpec(None, "data")


def test_a_key_head_is_never_cut():
    config, _ = model("smollm2")  # three query heads, one key head
    shardings = param_shardings(config, mesh(1, 2))["layers"]["attention"]
    for name in ("query", "key", "value", "output"):
        assert shardings[name]["kernel"].is_fully_replicated
    assert cache_sharding(config, mesh(1, 2)).spec == PartitionSpec(None, "data", None, None)


def test_a_sharded_cache_decodes_as_one_device_does():
    tokens, live = batch()
    decoder = Llama(CONFIG)

    @jax.jit
    def read(params, cache):
        out = decoder.apply({"params": params}, tokens, segment_ids=live, cache=cache)
        return decoder.apply({"params": params}, tokens[:, :1], cache=out.cache).hidden

    cache = KVCache.create(CONFIG, 2, 48)
    alone = read(PARAMS, cache)
    for shape in ((1, 2), (2, 1)):
        devices = mesh(*shape)
        where = cache_sharding(CONFIG, devices)
        placed = KVCache(
            keys=jax.device_put(cache.keys, where),
            values=jax.device_put(cache.values, where),
            length=jax.device_put(cache.length, NamedSharding(devices, PartitionSpec("data"))),
        )
        together = read(shard_params(CONFIG, PARAMS, devices), placed)
        np.testing.assert_allclose(together, alone, atol=2e-5)


def test_a_mesh_with_other_axes_is_refused():
    with pytest.raises(ValueError, match="the mesh must have axes data and model"):
        param_shardings(CONFIG, Mesh(np.array(jax.devices()[:2]), ("batch",)))
