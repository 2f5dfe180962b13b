"""config.json in, config.json out, and what is refused by name."""

import dataclasses

import pytest

from jaxagent.models.llm.config import LlamaConfig
from tests.models.llm.families import FAMILIES

LLAMA = FAMILIES["llama3"]


@pytest.mark.parametrize("name", FAMILIES)
def test_what_is_written_is_read_back(name):
    config = LlamaConfig.from_hf(FAMILIES[name])
    assert LlamaConfig.from_hf(config.to_hf()) == config


def test_transformers_5_spells_rope_in_one_field():
    old = {k: v for k, v in LLAMA.items() if k not in ("rope_theta", "rope_scaling")}
    new = {**old, "rope_parameters": {"rope_theta": 500000.0, **LLAMA["rope_scaling"]}}
    assert LlamaConfig.from_hf(new) == LlamaConfig.from_hf(LLAMA)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "gpt2"}, "model_type 'gpt2' is not supported; supported: llama, qwen2"),
        ({"model_type": None}, "model_type None is not supported"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu' is not supported; supported: silu"),
        ({"rope_scaling": {"rope_type": "longrope", "factor": 2}}, "rope_type 'longrope'"),
        ({"rope_scaling": {"rope_type": "linear"}}, "lacks 'factor'"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2, "mscale": 1}}, "yarn with mscale"),
        ({"use_sliding_window": True}, "sliding-window attention"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "sliding-window attention"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5"),
        ({"quantization_config": {"quant_method": "awq"}}, r"quantization_config \(awq\)"),
        ({"num_hidden_layers": None}, "lacks 'num_hidden_layers'"),
        ({"num_attention_heads": 5}, r"hidden_size \(64\) must be divisible by .* \(5\)"),
        ({"num_key_value_heads": 3}, r"num_heads \(8\) must be divisible by num_kv_heads \(3\)"),
        ({"head_dim": 7}, r"head_dim \(7\) must be even"),
        ({"vocab_size": -1}, "vocab_size must be a positive integer, found -1"),
    ],
)
def test_what_is_not_supported_is_named(change, message):
    with pytest.raises(ValueError, match=message):
        LlamaConfig.from_hf({**LLAMA, **change})


def test_a_dtype_that_is_not_computed_is_named():
    with pytest.raises(ValueError, match="dtype must be one of float32, bfloat16, found 'int8'"):
        dataclasses.replace(LlamaConfig.tiny(), dtype="int8")
