"""The decoder against frozen values of PyTorch, and against itself by another way."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagent.models.llm import attention
from jaxagent.models.llm.attention import BLOCK, attend, attend_causal
from jaxagent.models.llm.cache import KVCache
from jaxagent.models.llm.config import LlamaConfig
from jaxagent.models.llm.llama import Llama, init_params
from jaxagent.models.llm.llama_asked import features_at
from jaxagent.models.llm.lora import LoRA
from tests.models.llm.families import FAMILIES, golden, greedy, model, prompt_logits

SMALL = LlamaConfig(
    vocab_size=61,
    hidden_size=32,
    intermediate_size=48,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    max_positions=128,
)


@pytest.fixture(scope="module")
def small():
    return init_params(dataclasses.replace(SMALL, initializer_range=0.3), jax.random.key(0))


@functools.partial(jax.jit, static_argnames="config")
def hidden(params, tokens, config=SMALL, **kwargs):
    return Llama(config).apply({"params": params}, tokens, **kwargs)


def ids(*shape, seed=1):
    return jax.random.randint(jax.random.key(seed), shape, 0, SMALL.vocab_size)


@pytest.mark.parametrize("name", FAMILIES)
def test_logits_and_greedy_text_are_those_of_pytorch(name):
    config, params = model(name)
    expected = golden(name)
    for row, frozen in zip(prompt_logits(config, params), expected.last_logits):
        np.testing.assert_allclose(row[-1, : len(frozen)], frozen, atol=1e-4)
    np.testing.assert_array_equal(greedy(config, params), expected.greedy)


def test_the_cache_extends_over_unequal_turns_as_if_all_were_read_at_once(small):
    tokens = ids(3, 40)
    whole = hidden(small, tokens).hidden
    cache = KVCache.create(SMALL, 3, 40)
    read = np.zeros(3, int)
    for turn in ([5, 1, 9], [0, 7, 3], [1, 1, 1], [30, 2, 0]):
        width = max(turn)
        rows = [
            np.pad(tokens[b, s : s + n], (0, width - n)) for b, (s, n) in enumerate(zip(read, turn))
        ]
        live = jnp.arange(width)[None] < jnp.array(turn)[:, None]
        out = hidden(small, jnp.array(rows), segment_ids=live.astype(jnp.int32), cache=cache)
        cache = out.cache
        for b, n in enumerate(turn):
            span = slice(read[b], read[b] + n)
            np.testing.assert_allclose(out.hidden[b, :n], whole[b, span], atol=1e-5)
        read += turn
        np.testing.assert_array_equal(cache.length, read)


def test_a_long_prompt_read_into_an_empty_or_a_begun_cache(small):
    tokens = ids(2, 2 * BLOCK + 3)
    config = dataclasses.replace(SMALL, max_positions=256)
    whole = hidden(small, tokens, config).hidden
    at_once = hidden(small, tokens, config, cache=KVCache.create(config, 2, 200)).hidden
    np.testing.assert_allclose(at_once, whole, atol=1e-5)
    begun = hidden(small, tokens[:, :3], config, cache=KVCache.create(config, 2, 200)).cache
    behind = hidden(small, tokens[:, 3:], config, cache=begun).hidden
    np.testing.assert_allclose(behind, whole[:, 3:], atol=1e-5)


def test_padding_writes_nothing_and_tokens_past_the_last_slot_are_dropped(small):
    cache = hidden(small, ids(2, 6), cache=KVCache.create(SMALL, 2, 8)).cache
    live = jnp.array([[0, 0, 0, 0], [1, 1, 0, 0]])
    after = hidden(small, ids(2, 4, seed=5), segment_ids=live, cache=cache).cache
    np.testing.assert_array_equal(after.length, [6, 8])
    np.testing.assert_array_equal(after.keys[:, 0], cache.keys[:, 0])
    np.testing.assert_array_equal(after.keys[:, 1, :6], cache.keys[:, 1, :6])
    assert (np.asarray(after.keys[:, 1, 6:]) != 0).any(axis=(0, 2, 3)).all()
    with pytest.raises(ValueError, match="9 tokens cannot be appended to a cache of 8 slots"):
        hidden(small, ids(2, 9), cache=cache)


def test_operations_of_the_cache(small):
    tokens = ids(2, 6)
    cache = hidden(small, tokens, cache=KVCache.create(SMALL, 2, 12)).cache
    whole = hidden(small, tokens).hidden
    back = cache.rewind(jnp.array([3, 99]))
    np.testing.assert_array_equal(back.length, [3, 6])
    again = hidden(small, tokens[:, 3:4], cache=back).hidden
    np.testing.assert_allclose(again[0], whole[0, 3:4], atol=1e-5)
    swapped = hidden(
        small, tokens[::-1, 5:], cache=cache.select(jnp.array([1, 0])).rewind(jnp.array([5, 5]))
    )
    np.testing.assert_allclose(swapped.hidden[:, 0], whole[::-1, 5], atol=1e-5)
    many = cache.select(jnp.array([1])).broadcast(3)
    np.testing.assert_array_equal(many.keys[:, 2], cache.keys[:, 1])
    with pytest.raises(ValueError, match="broadcast needs a cache of one row, found 2"):
        cache.broadcast(3)
    put = KVCache.create(SMALL, 4, 20).insert(jnp.array([3, 1]), cache)
    np.testing.assert_array_equal(put.length, [0, 6, 0, 6])
    np.testing.assert_array_equal(put.keys[:, 3, :12], cache.keys[:, 0])
    assert put.resize(8).slots == 8
    assert put.resize(32).slots == 32
    np.testing.assert_array_equal(put.resize(32).keys[:, :, :20], put.keys)


def test_packed_episodes_never_meet(small):
    tokens = ids(1, 10)
    segments = jnp.array([[1, 1, 1, 2, 2, 2, 2, 0, 0, 0]])
    positions = jnp.array([[0, 1, 2, 0, 1, 2, 3, 0, 0, 0]])
    packed = hidden(small, tokens, segment_ids=segments, positions=positions).hidden
    np.testing.assert_allclose(packed[:, :3], hidden(small, tokens[:, :3]).hidden, atol=1e-5)
    np.testing.assert_allclose(packed[:, 3:7], hidden(small, tokens[:, 3:7]).hidden, atol=1e-5)


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("adapted", [False, True])
def test_features_that_are_asked_for_are_those_of_all(layers, adapted):
    config = dataclasses.replace(SMALL, num_layers=layers, initializer_range=0.3)
    params = init_params(config, jax.random.key(0))
    lora = LoRA(rank=2, targets=("query", "value", "gate"))
    adapters = jax.tree.map(lambda x: x + 0.1, lora.init(config, jax.random.key(1)))
    tokens, asked = ids(2, 12), jnp.array([[0, 5, 5, 11], [9, 2, 0, 7]])
    segments = jnp.array([[1] * 4 + [2] * 5 + [3] * 3, [1] * 10 + [0] * 2])
    weights = jax.random.normal(jax.random.key(2), (2, 4, config.hidden_size))

    def variables(params, adapters):
        return {"params": params} | (lora.variables(adapters) if adapted else {})

    @jax.jit
    @functools.partial(jax.value_and_grad, argnums=(0, 1), has_aux=True)
    def some(params, adapters):
        given = variables(params, adapters)
        found = features_at(config, given, tokens, asked, segment_ids=segments)
        return jnp.sum(weights * found), found

    @jax.jit
    @functools.partial(jax.value_and_grad, argnums=(0, 1), has_aux=True)
    def every(params, adapters):
        given = variables(params, adapters)
        found = Llama(config).apply(given, tokens, segment_ids=segments).hidden
        found = found[jnp.arange(2)[:, None], asked]
        return jnp.sum(weights * found), found

    (_, found), gradient = some(params, adapters)
    (_, expected), expected_gradient = every(params, adapters)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    for a, b in zip(*map(jax.tree.leaves, (gradient, expected_gradient)), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-4)
    assert np.abs(jax.tree.leaves(gradient[1])[0]).max() > 0 or not adapted


@pytest.mark.parametrize("what", ["features", "gradient"])
def test_layers_are_not_copied_for_features_that_are_asked_for(what):
    config = dataclasses.replace(SMALL, num_layers=16, intermediate_size=1024)
    variables = {"params": init_params(config, jax.random.key(0))}
    stacked = sum(x.nbytes for x in jax.tree.leaves(variables["params"]["layers"]))
    tokens, asked = ids(1, 8), jnp.array([[3]])
    function = {
        "features": lambda given: features_at(config, given, tokens, asked),
        "gradient": jax.grad(lambda given: jnp.sum(features_at(config, given, tokens, asked))),
    }[what]
    memory = jax.jit(function).lower(variables).compile().memory_analysis()
    # One layer at a time is held beside the parameters, never all of them.
    assert memory.temp_size_in_bytes < stacked / 2


@jax.jit
def naive_attention(query, key, value, visible):
    key, value = (jnp.repeat(x, query.shape[2] // x.shape[2], axis=2) for x in (key, value))
    scores = jnp.einsum("blnh,bsnh->bnls", query, key) / jnp.sqrt(1.0 * query.shape[-1])
    weights = jax.nn.softmax(jnp.where(visible[:, None], scores, -jnp.inf), axis=-1)
    return jnp.einsum("bnls,bsnh->blnh", weights, value)


@pytest.mark.parametrize(
    ("length", "max_blocks"), [(1, 16), (BLOCK, 16), (BLOCK + 1, 16), (3 * BLOCK + 5, 2)]
)
def test_attention_in_blocks_is_attention_at_once(monkeypatch, length, max_blocks):
    monkeypatch.setattr(attention, "MAX_BLOCKS", max_blocks)
    generator = np.random.default_rng(0)
    query = generator.normal(size=(2, length, 4, 8)).astype(np.float32)
    key, value = generator.normal(size=(2, 2, length, 2, 8)).astype(np.float32)
    segments = np.stack([np.ones(length, int), 1 + np.arange(length) // 50])
    visible = np.tril(np.ones((length, length), bool)) & (
        segments[:, :, None] == segments[:, None, :]
    )
    naive = naive_attention(query, key, value, visible)
    blocked = jax.jit(attend_causal)(query, key, value, segments)
    np.testing.assert_allclose(blocked, naive, atol=1e-5)
    np.testing.assert_allclose(jax.jit(attend)(query, key, value, visible), naive, atol=1e-5)


def test_a_token_that_sees_nothing_has_finite_features_and_gradients():
    ones = jnp.ones((1, 2, 2, 4))
    seen = jnp.zeros((1, 2, 2), bool)
    gradient = jax.grad(lambda q: attend(q, ones, ones, seen).sum())(ones)
    assert jnp.isfinite(attend(ones, ones, ones, seen)).all()
    assert jnp.isfinite(gradient).all()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"positions": jnp.zeros((1, 4), int)}, r"positions must .* \[2, 4\], found \[1, 4\]"),
        ({"segment_ids": jnp.ones((2, 3), int)}, r"segment_ids must .* found \[2, 3\]"),
        ({"cache": KVCache.create(SMALL, 3, 8)}, "the cache holds 3 rows, the tokens are 2"),
        ({"cache": KVCache.create(SMALL, 2, 8, is_apart=True)}, "must hold all layers in one"),
    ],
)
def test_arguments_of_another_batch_are_named(small, given, message):
    with pytest.raises(ValueError, match=message):
        hidden(small, ids(2, 4), **given)


def test_rematerialised_layers_have_the_same_gradient(small):
    tokens = ids(2, 9)

    def gradient(config):
        return jax.jit(jax.grad(lambda p: hidden(p, tokens, config).hidden.sum()))(small)

    plain, again = gradient(SMALL), gradient(dataclasses.replace(SMALL, remat=True))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4), plain, again)


def test_bfloat16_is_close_and_its_logits_are_float32():
    config, params = model("qwen3")
    half = dataclasses.replace(config, dtype="bfloat16")
    exact = prompt_logits(config, params)
    for row, reference in zip(prompt_logits(half, params), exact):
        assert row.dtype == np.float32
        assert np.sqrt(np.mean((row - reference) ** 2)) < 0.05 * np.std(reference)
    cache = KVCache.create(half, 1, 4)
    out = hidden(params, jnp.ones((1, 2), jnp.int32), half, cache=cache)
    assert out.hidden.dtype == out.cache.keys.dtype == jnp.bfloat16


def test_the_graph_does_not_grow_with_depth():
    def operations(layers):
        config = dataclasses.replace(SMALL, num_layers=layers)
        params = jax.eval_shape(lambda: init_params(config, jax.random.key(0)))
        apply = jax.jit(lambda p: hidden(p, jnp.ones((1, 4), jnp.int32), config).hidden)
        return apply.lower(params).as_text().count("stablehlo.dot_general")

    assert operations(2) == operations(12)


def test_tiny_has_about_four_million_parameters():
    shapes = jax.eval_shape(lambda: init_params(LlamaConfig.tiny(4096), jax.random.key(0)))
    assert 3.5e6 < sum(np.prod(leaf.shape) for leaf in jax.tree.leaves(shapes)) < 4.5e6
