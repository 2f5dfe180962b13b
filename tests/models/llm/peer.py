"""The reference: PyTorch transformers with the same weights."""

import warnings
from typing import Any

import numpy as np

from tests.models.llm.families import FAMILIES, tensors


def torch_model(name: str) -> Any:
    """The family's model in PyTorch, with the hashed weights."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    fields = {k: v for k, v in FAMILIES[name].items() if k != "model_type"}
    config = AutoConfig.for_model(FAMILIES[name]["model_type"], **fields)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    state = {n: torch.from_numpy(t.copy()) for n, t in tensors(name).items()}
    missing, surplus = model.load_state_dict(state, strict=False)
    tied = {"lm_head.weight"} if config.tie_word_embeddings else set()
    if set(missing) - tied or surplus:
        raise ValueError(f"{name}: missing {missing}, surplus {surplus}")
    model.tie_weights()
    return model


def torch_logits(model: Any, prompt: np.ndarray) -> np.ndarray:
    """Logits of every token of one prompt, without padding."""
    import torch

    with torch.inference_mode():
        return model(torch.from_numpy(prompt.astype(np.int64))[None]).logits[0].numpy()


def torch_greedy(model: Any, prompt: np.ndarray, count: int) -> list[int]:
    """Greedy tokens behind one prompt, through transformers' own generate."""
    import torch

    tokens = torch.from_numpy(prompt.astype(np.int64))[None]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        out = model.generate(
            tokens,
            attention_mask=torch.ones_like(tokens),
            max_new_tokens=count,
            min_new_tokens=count,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
    return out[0, len(prompt) :].tolist()
