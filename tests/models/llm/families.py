"""One small random model of each family, the same wherever it is made.

The weights come from integer arithmetic, so that golden values made with PyTorch on one machine
hold on every other.
"""

import json
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxagent.models.llm.cache import KVCache
from jaxagent.models.llm.config import LlamaConfig
from jaxagent.models.llm.llama import Llama
from jaxagent.models.llm.tensor_files import StoredTensor
from jaxagent.models.llm.weights import places, read_params

GOLDEN = Path(__file__).parents[2] / "golden" / "llm_families.json"

_SIZES = {
    "vocab_size": 131,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
}
_LLAMA = {"model_type": "llama", **_SIZES}
_QWEN2 = {"model_type": "qwen2", **_SIZES, "rope_theta": 1000000.0, "rms_norm_eps": 1e-6}

FAMILIES: dict[str, dict[str, Any]] = {
    "llama2": {**_LLAMA, "num_key_value_heads": 8},
    "llama2-linear": {**_LLAMA, "rope_scaling": {"rope_type": "linear", "factor": 2.0}},
    "llama2-dynamic": {
        **_LLAMA,
        "max_position_embeddings": 48,
        "rope_scaling": {"rope_type": "dynamic", "factor": 2.0},
    },
    "llama3": {
        **_LLAMA,
        "rope_theta": 500000.0,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32,
        },
    },
    "llama-biased": {**_LLAMA, "attention_bias": True, "mlp_bias": True},
    "smollm2": {
        **_LLAMA,
        "hidden_size": 96,
        "num_attention_heads": 3,
        "num_key_value_heads": 1,
        "tie_word_embeddings": True,
        "rope_theta": 100000.0,
    },
    "qwen2": _QWEN2,
    "qwen2-yarn": {
        **_QWEN2,
        "tie_word_embeddings": True,
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    },
    "qwen3": {
        "model_type": "qwen3",
        **_SIZES,
        "head_dim": 24,
        "tie_word_embeddings": True,
        "rope_theta": 1000000.0,
        "rms_norm_eps": 1e-6,
    },
}

LENGTHS = (70, 33, 1)
"""Of the three prompts: past a block of attention, inside one, and a single token."""
NEW_TOKENS = 64


def hashed(count: int, seed: int) -> np.ndarray:
    """Numbers in [-0.5, 0.5) from an integer hash: no library's generator, no rounding."""
    x = np.arange(count, dtype=np.uint64) + np.uint64(seed) * np.uint64(2654435761)
    for shift, factor in ((33, 0xFF51AFD7ED558CCD), (29, 0xC4CEB9FE1A85EC53)):
        x = (x ^ (x >> np.uint64(shift))) * np.uint64(factor)
    x ^= x >> np.uint64(32)
    return ((x >> np.uint64(40)).astype(np.float64) / 2**24 - 0.5).astype(np.float32)


def tensors(name: str) -> dict[str, np.ndarray]:
    """A checkpoint of the family, of sizes at which greedy text wanders."""
    sizes = {"kernel": 0.7, "embedding": 0.25, "bias": 0.2, "scale": 1.0}
    made = {}
    for tensor, place in places(LlamaConfig.from_hf(FAMILIES[name])).items():
        values = hashed(int(np.prod(place.shape)), zlib.crc32(tensor.encode())).reshape(place.shape)
        kind = place.path[-1]
        made[tensor] = values * np.float32(sizes[kind]) + np.float32(kind == "scale")
    return made


def model(name: str, **changes: Any) -> tuple[LlamaConfig, dict]:
    """(configuration, parameters)."""
    config = LlamaConfig.from_hf({**FAMILIES[name], **changes})
    stored = {n: StoredTensor(t.shape, lambda t=t: t) for n, t in tensors(name).items()}
    return config, read_params(config, stored, config.dtype)


def prompts() -> list[np.ndarray]:
    """Token ids of the three prompts."""
    drawn = [hashed(length, 7 + length) for length in LENGTHS]
    return [((x + 0.5) * _SIZES["vocab_size"]).astype(np.int32) for x in drawn]


def padded() -> tuple[jax.Array, jax.Array]:
    """(tokens, segment_ids) of the prompts in one batch, padded on the right."""
    rows = [np.pad(prompt, (0, max(LENGTHS) - len(prompt))) for prompt in prompts()]
    live = np.arange(max(LENGTHS))[None] < np.array(LENGTHS)[:, None]
    return jnp.asarray(np.stack(rows)), jnp.asarray(live.astype(np.int32))


def prompt_logits(config: LlamaConfig, params: dict) -> list[np.ndarray]:
    """Logits of every token of each prompt, all three in one padded batch."""
    tokens, live = padded()

    @jax.jit
    def run(params):
        model = Llama(config)
        hidden = model.apply({"params": params}, tokens, segment_ids=live).hidden
        return model.apply({"params": params}, hidden, method="logits")

    return [row[:length] for row, length in zip(np.asarray(run(params)), LENGTHS)]


def greedy(config: LlamaConfig, params: dict) -> np.ndarray:
    """NEW_TOKENS greedy tokens behind each prompt, through the cache."""
    tokens, live = padded()
    decoder = Llama(config)

    def choose(hidden):
        logits = decoder.apply({"params": params}, hidden, method="logits")
        return jnp.argmax(logits, axis=-1).astype(jnp.int32)

    def step(carry, _):
        token, cache = carry
        out = decoder.apply({"params": params}, token[:, None], cache=cache)
        return (choose(out.hidden[:, 0]), out.cache), token

    @jax.jit
    def run(params):
        cache = KVCache.create(config, len(LENGTHS), max(LENGTHS) + NEW_TOKENS)
        out = decoder.apply({"params": params}, tokens, segment_ids=live, cache=cache)
        last = out.hidden[jnp.arange(len(LENGTHS)), jnp.array(LENGTHS) - 1]
        _, chosen = jax.lax.scan(step, (choose(last), out.cache), length=NEW_TOKENS)
        return chosen.T

    return np.asarray(run(params))


class Golden(NamedTuple):
    """What PyTorch computed."""

    last_logits: np.ndarray  # [prompt, first few of the vocabulary], behind each prompt
    greedy: np.ndarray  # [prompt, NEW_TOKENS]


def golden(name: str) -> Golden:
    """The frozen values of one family."""
    found = json.loads(GOLDEN.read_text())[name]
    tokens = [[int(token) for token in row.split()] for row in found["greedy"]]
    return Golden(np.array(found["last_logits"], np.float32), np.array(tokens))
