"""config.json in, config.json out, and what is refused by name."""

import dataclasses
import math

import numpy as np
import pytest

from jaxagent.models.llm.config import LlamaConfig
from jaxagent.models.llm.rope import attention_factor, inverse_frequencies
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
        ({"vocab_size": -1}, r"vocab_size \(-1\) must be a whole number"),
    ],
)
def test_what_is_not_supported_is_named(change, message):
    with pytest.raises(ValueError, match=message):
        LlamaConfig.from_hf({**LLAMA, **change})


def test_a_dtype_that_is_not_computed_is_named():
    with pytest.raises(ValueError, match="dtype must be one of float32, bfloat16, found 'int8'"):
        dataclasses.replace(LlamaConfig.tiny(), dtype="int8")


QWEN = {**FAMILIES["smollm2"], "model_type": "qwen2", "max_position_embeddings": 32768}
YARN = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}


@pytest.mark.parametrize(
    ("most", "scaling", "context"),
    [
        (32768, None, 32768),
        (32768, YARN, 131072),  # as Qwen2.5's card asks for it
        (131072, YARN, 131072),  # as others do: the context is that of the stretch already
        (131072, {**YARN, "factor": None}, 131072),  # transformers takes the ratio
        (4096, {"rope_type": "dynamic", "factor": 2.0}, 8192),
        (4096, {"type": "linear", "factor": 4}, 16384),
        (131072, {**LLAMA["rope_scaling"], "original_max_position_embeddings": 8192}, 131072),
        (4096, {"rope_type": "default"}, 4096),
    ],
)
def test_the_context_is_as_long_as_the_stretch(most, scaling, context):
    config = LlamaConfig.from_hf({**QWEN, "max_position_embeddings": most, "rope_scaling": scaling})
    assert config.max_positions == context
    written = config.to_hf()
    assert LlamaConfig.from_hf(written) == config
    if scaling and scaling.get("rope_type") == "dynamic":
        # It decides how positions are rotated, so it is written as it was.
        assert written["max_position_embeddings"] == most
    if scaling is YARN or scaling == {**YARN, "factor": None}:
        assert config.rope_scaling is not None
        assert config.rope_scaling.factor == 4.0


@pytest.mark.parametrize("factor", ["4", True, 0.5, float("nan"), float("inf"), [2]])
def test_a_factor_that_stretches_nothing_is_named(factor):
    with pytest.raises(ValueError, match=r"factor \(.*\) must be a number of at least 1"):
        LlamaConfig.from_hf({**QWEN, "rope_scaling": {**YARN, "factor": factor}})


def test_yarn_is_that_of_the_paper():
    """Peng et al. 2023, equations 17 to 25, in float64: theta 1e6, 128 dimensions, factor 4."""
    hf = {**QWEN, "head_dim": 128, "rope_theta": 1e6, "rope_scaling": YARN}
    config = LlamaConfig.from_hf(hf)
    plain = 1e6 ** (-np.arange(0, 128, 2) / 128)
    # The dimension that turns r times over 32,768 tokens; 32 and 1 bound the ramp.
    low, high = (
        128 * math.log(32768 / (turns * 2 * math.pi)) / (2 * math.log(1e6)) for turns in (32, 1)
    )
    ramp = np.clip((np.arange(64) - math.floor(low)) / (math.ceil(high) - math.floor(low)), 0, 1)
    expected = plain * (1 - ramp) + plain / 4 * ramp
    np.testing.assert_allclose(inverse_frequencies(config), expected, rtol=1e-5)
    assert attention_factor(config.rope_scaling) == pytest.approx(0.1 * math.log(4) + 1)
