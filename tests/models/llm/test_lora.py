"""Adapters: they start as nothing, equal their merged weights, and PEFT's files hold them."""

import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagent.models.llm.llama import Llama
from jaxagent.models.llm.lora import LoRA, load_lora, save_lora
from tests.models.llm.families import model, prompts

EVERYWHERE = ("query", "key", "value", "output", "gate", "up", "down")


@functools.partial(jax.jit, static_argnums=0)
def hidden_logits(config, variables):
    tokens = jnp.asarray(prompts()[1])[None]
    decoder = Llama(config)
    hidden = decoder.apply(variables, tokens).hidden
    return decoder.apply(variables, hidden, method="logits")


@functools.partial(jax.jit, static_argnums=(0, 1))
def learnt(lora, config):
    """Adapters as after training: no zeros left."""
    fresh = lora.init(config, jax.random.key(3))
    return jax.tree.map(lambda x: x + 0.02 * jnp.cos(jnp.arange(x.size)).reshape(x.shape), fresh)


def test_fresh_adapters_change_nothing_and_gradients_reach_them_alone():
    config, params = model("qwen2")
    lora = LoRA(rank=4, targets=EVERYWHERE)
    adapters = lora.init(config, jax.random.key(0))
    plain = hidden_logits(config, {"params": params})
    apart = hidden_logits(config, {"params": params, **lora.variables(adapters)})
    np.testing.assert_array_equal(apart, plain)

    def loss(adapters):
        return hidden_logits(config, {"params": params, **lora.variables(adapters)}).std()

    gradient = jax.jit(jax.grad(loss))(adapters)
    assert jax.tree.structure(gradient) == jax.tree.structure(adapters)
    assert all(jnp.any(g["b"] != 0) for g in gradient["layers"]["mlp"].values())
    assert all(jnp.all(g["a"] == 0) for g in gradient["layers"]["mlp"].values())  # B is zero


@pytest.mark.parametrize(
    ("name", "targets"), [("llama2", (*EVERYWHERE, "unembedding")), ("qwen3", ("query", "down"))]
)
def test_merged_is_apart(name, targets):
    config, params = model(name)
    lora = LoRA(rank=3, alpha=5.0, targets=targets)
    adapters = learnt(lora, config)
    apart = hidden_logits(config, {"params": params, **lora.variables(adapters)})
    merged = hidden_logits(config, {"params": lora.merge(params, adapters)})
    assert np.abs(apart - hidden_logits(config, {"params": params})).max() > 0.01
    np.testing.assert_allclose(merged, apart, atol=2e-5)


def test_scale_is_alpha_over_rank():
    config, params = model("qwen3")
    lora = LoRA(rank=2, alpha=6.0, targets=("up",))
    adapters = learnt(lora, config)
    up, low = params["layers"]["mlp"]["up"]["kernel"], adapters["layers"]["mlp"]["up"]
    merged = lora.merge(params, adapters)["layers"]["mlp"]["up"]["kernel"]
    np.testing.assert_allclose(merged[1] - up[1], 3.0 * low["a"][1] @ low["b"][1], atol=1e-6)


def test_peft_format_both_ways(tmp_path):
    from safetensors.numpy import load_file

    config, _ = model("llama2")
    lora = LoRA(rank=4, alpha=8.0, targets=("query", "down", "unembedding"))
    adapters = learnt(lora, config)
    save_lora(tmp_path, config, lora, adapters)
    described = json.loads((tmp_path / "adapter_config.json").read_text())
    assert described["target_modules"] == ["down_proj", "lm_head", "q_proj"]
    stored = load_file(tmp_path / "adapter_model.safetensors")
    prefix = "base_model.model."
    assert len(stored) == 2 * (3 + 3 + 1)
    assert stored[f"{prefix}model.layers.2.mlp.down_proj.lora_A.weight"].shape == (4, 96)
    assert stored[f"{prefix}model.layers.2.mlp.down_proj.lora_B.weight"].shape == (64, 4)
    assert stored[f"{prefix}lm_head.lora_B.weight"].shape == (131, 4)
    again, back = load_lora(tmp_path, config)
    assert again == lora
    jax.tree.map(np.testing.assert_array_equal, back, adapters)


def edit(folder, **changes):
    file = folder / "adapter_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"peft_type": "IA3"}, "peft_type 'IA3' is not supported"),
        ({"use_dora": True}, "use_dora = True is not supported"),
        ({"bias": "all"}, "bias = 'all' is not supported"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights = 'pissa' is not supported"),
        ({"init_lora_weights": "pissa_niter_16"}, "init_lora_weights = 'pissa_niter_16'"),
        ({"init_lora_weights": "olora"}, "init_lora_weights = 'olora'"),
        ({"init_lora_weights": "loftq"}, "init_lora_weights = 'loftq'"),
        ({"target_parameters": ["experts"]}, "target_parameters"),
        ({"alora_invocation_tokens": [5]}, "alora_invocation_tokens"),
        ({"use_rslora": 1}, "use_rslora = 1 is not supported"),
        ({"a_field_of_later": 0.5}, "a_field_of_later = 0.5 is not supported"),
        ({"rank_pattern": {"q_proj": 2}}, "rank_pattern"),
        ({"modules_to_save": ["embed_tokens"]}, "modules_to_save"),
        ({"lora_bias": True}, "lora_bias = True is not supported"),
        ({"use_qalora": True}, "use_qalora = True is not supported"),
        ({"trainable_token_indices": [1]}, "trainable_token_indices"),
        ({"r": None}, r"adapter_config\.json: r \(None\) must be a whole number"),
        ({"r": True}, r"adapter_config\.json: r \(True\) must be a whole number"),
        ({"lora_alpha": None}, r"adapter_config\.json: lora_alpha \(None\) must be a number"),
        ({"r": 5}, r"has shape \[4, 64\], the model and rank 5 say \[5, 64\]"),
    ],
)
def test_variants_that_are_not_computed_are_refused(tmp_path, changes, message):
    config, _ = model("llama2")
    lora = LoRA(rank=4)
    save_lora(tmp_path, config, lora, lora.init(config, jax.random.key(0)))
    edit(tmp_path, **changes)
    with pytest.raises(ValueError, match=message):
        load_lora(tmp_path, config)


def test_fields_that_change_nothing_are_passed_over(tmp_path):
    """As PEFT 0.18 writes them."""
    config, _ = model("llama2")
    lora = LoRA(rank=4)
    save_lora(tmp_path, config, lora, lora.init(config, jax.random.key(0)))
    edit(
        tmp_path,
        init_lora_weights=True,
        loftq_config={},
        megatron_core="megatron.core",
        lora_dropout=0.1,
        peft_version="0.18.0",
        qalora_group_size=16,
        trainable_token_indices=None,
        a_field_of_later=None,
        another_of_later=False,
    )
    assert load_lora(tmp_path, config)[0] == lora
    edit(tmp_path, init_lora_weights="gaussian")
    assert load_lora(tmp_path, config)[0] == lora


def test_broken_adapters_are_named(tmp_path):
    config, _ = model("llama2")
    lora = LoRA(rank=4)
    save_lora(tmp_path, config, lora, lora.init(config, jax.random.key(0)))
    (tmp_path / "adapter_model.safetensors").unlink()
    with pytest.raises(ValueError, match=r"adapter_model\.safetensors is missing$"):
        load_lora(tmp_path, config)
    for content, message in (("[]", "must hold a JSON object"), ("{", "is not JSON")):
        (tmp_path / "adapter_config.json").write_text(content)
        with pytest.raises(ValueError, match=rf"adapter_config\.json {message}"):
            load_lora(tmp_path, config)


def test_adapters_of_another_model_are_refused(tmp_path):
    config, _ = model("llama2")
    lora = LoRA(targets=("unembedding",))
    save_lora(tmp_path, config, lora, lora.init(config, jax.random.key(0)))
    tied, _ = model("qwen3")
    with pytest.raises(ValueError, match=r"adapts \['lm_head'\], which this model does not have"):
        load_lora(tmp_path, tied)
    with pytest.raises(ValueError, match=r"it has no adapter_config\.json"):
        load_lora(tmp_path / "nowhere", config)
    with pytest.raises(ValueError, match=r"targets must be among .*, found unembedding"):
        lora.init(tied, jax.random.key(0))
    with pytest.raises(ValueError, match="rank must be at least 1, found 0"):
        LoRA(rank=0)
    with pytest.raises(ValueError, match="targets must name at least one"):
        LoRA(targets=())
