"""Random models with real tokenisers, small enough to be generated with in milliseconds."""

import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
from tokenizers import Tokenizer, decoders, normalizers, pre_tokenizers, trainers
from tokenizers import models as tokenizer_models
from transformers import PreTrainedTokenizerFast

from jaxagent.models.llm.config import LlamaConfig
from jaxagent.models.llm.llama import Llama, init_params
from jaxagent.models.llm.load import LanguageModel
from jaxagent.models.llm.tokenizer import train_tokenizer

COMMANDS = (
    ["look", "go to", "inventory"]
    + [f"go to {place} {n}" for place in ("desk", "table", "fridge") for n in (1, 2, 12)]
    + [f"take {thing} 1 from desk {n}" for thing in ("apple", "egg", "mug") for n in (1, 2)]
)


@functools.cache
def byte_tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level BPE, as SmolLM2, Llama 3 and Qwen have."""
    return train_tokenizer(COMMANDS * 3 + ['{"x": 1.5, "name": "déjà"}, true'] * 3, 320)


@functools.cache
def piece_tokenizer(words: bool = True) -> PreTrainedTokenizerFast:
    """BPE with byte fallback and "▁" for the space, as Llama 2 has.

    Args:
        words: without it, merges go across spaces, as no common model's do.
    """
    learnt = Tokenizer(tokenizer_models.BPE())
    if words:
        learnt.pre_tokenizer = pre_tokenizers.Metaspace()
    else:
        learnt.normalizer = normalizers.Replace(" ", "▁")
    learnt.train_from_iterator(COMMANDS * 3, trainers.BpeTrainer(vocab_size=100))
    model = json.loads(learnt.to_str())["model"]
    names = ["<unk>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)] + [*model["vocab"]]
    tokenizer = Tokenizer(
        tokenizer_models.BPE(
            vocab={name: token for token, name in enumerate(names)},
            merges=[tuple(merge) for merge in model["merges"]],
            byte_fallback=True,
            unk_token="<unk>",
        )
    )
    tokenizer.add_special_tokens(["<unk>", "</s>"])
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(content=" ", left=1, right=0),
        ]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="</s>",
        unk_token="<unk>",
        clean_up_tokenization_spaces=False,
    )


@functools.cache
def random_model(seed: int = 0, dtype: str = "float32", max_positions: int = 1024) -> LanguageModel:
    """Two layers of random weights, wide enough apart that no two tokens tie."""
    tokenizer = byte_tokenizer()
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=48,
        num_layers=2,
        num_heads=4,
        num_kv_heads=2,
        head_dim=8,
        max_positions=max_positions,
        initializer_range=0.3,
        tie_embeddings=True,
        dtype=dtype,
    )
    return LanguageModel(config, init_params(config, jax.random.key(seed)), tokenizer, "random")


def log_probs_after(model: LanguageModel, tokens: list[int]) -> np.ndarray:
    """[L, V]: what the model says of the token after each, read in one go without a cache.

    Padded to one length, so that many short texts do not compile many programs.
    """
    length = max(64, -(-len(tokens) // 64) * 64)
    padded = np.zeros((1, length), np.int32)
    padded[0, : len(tokens)] = tokens
    return np.asarray(_read_whole(model.config, model.params, padded))[0, : len(tokens)]


@functools.partial(jax.jit, static_argnums=0)
def _read_whole(config, params, tokens):
    hidden = Llama(config).apply({"params": params}, tokens).hidden
    logits = Llama(config).apply({"params": params}, hidden, method="logits")
    return jax.nn.log_softmax(logits.astype(jnp.float32), axis=-1)
