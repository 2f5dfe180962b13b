"""Small models on disk: Hugging Face folders and GGUF files."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from jaxagent.models.llm.config import LlamaConfig
from jaxagent.models.llm.load import LanguageModel, save_model
from jaxagent.models.llm.tensor_files import TensorSpec, write_safetensors
from jaxagent.models.llm.tokenizer import train_tokenizer
from tests.models.llm.families import FAMILIES, model, tensors

_GGUF_NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "model.layers": "blk",
}


def small_tokenizer():
    """Bytes, three special tokens and no merges to speak of."""
    return train_tokenizer(["go to desk 1", "take mug 2 from desk 1"], 300)


def write_folder(folder: Path, name: str, **changes: Any) -> LanguageModel:
    """The family's random model, saved; and as it was before."""
    config, params = model(name, **changes)
    made = LanguageModel(config, params, small_tokenizer(), name)
    save_model(folder, made)
    return made


def rewrite(folder: Path, change) -> None:
    """Pass the folder's tensors, a dictionary of arrays, through `change`."""
    from safetensors.numpy import load_file

    arrays = load_file(folder / "model.safetensors")
    change(arrays)
    specs = [TensorSpec(name, a.shape, a.dtype) for name, a in arrays.items()]
    write_safetensors(folder / "model.safetensors", specs, lambda name: arrays[name])


def split_in_shards(folder: Path) -> None:
    """Turn one file into three and an index."""
    from safetensors.numpy import load_file

    arrays = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    weight_map = {}
    for i in range(3):
        names = list(arrays)[i::3]
        file = f"model-{i + 1:05}-of-00003.safetensors"
        specs = [TensorSpec(name, arrays[name].shape, arrays[name].dtype) for name in names]
        write_safetensors(folder / file, specs, lambda name: arrays[name])
        weight_map |= dict.fromkeys(names, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def write_gguf(path: Path, name: str, *, quantised: bool = False) -> None:
    """The family's random model in GGUF as llama.cpp's converter writes it.

    llama's query and key rows are interleaved; with `quantised`, matrices are Q8_0.
    """
    import gguf

    fields = FAMILIES[name]
    architecture = fields["model_type"]
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(fields["num_hidden_layers"])
    writer.add_context_length(fields["max_position_embeddings"])
    writer.add_embedding_length(fields["hidden_size"])
    writer.add_feed_forward_length(fields["intermediate_size"])
    writer.add_head_count(fields["num_attention_heads"])
    writer.add_head_count_kv(fields["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(fields["rms_norm_eps"])
    writer.add_rope_freq_base(fields["rope_theta"])
    if "head_dim" in fields:
        writer.add_key_length(fields["head_dim"])
        writer.add_value_length(fields["head_dim"])
    _add_vocabulary(writer, fields["vocab_size"])
    config = LlamaConfig.from_hf(fields)
    for tensor, values in tensors(name).items():
        stored = _interleaved(tensor, values, config) if architecture == "llama" else values
        short = tensor
        for ours, theirs in _GGUF_NAMES.items():
            short = short.replace(ours, theirs)
        if quantised and stored.ndim == 2 and stored.shape[1] % 32 == 0:
            kind = gguf.GGMLQuantizationType.Q8_0
            writer.add_tensor(short, gguf.quants.quantize(stored, kind), raw_dtype=kind)
        else:
            writer.add_tensor(short, np.ascontiguousarray(stored))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_vocabulary(writer: Any, size: int) -> None:
    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    tokens += [chr(c) for c in range(ord("!"), ord("~") + 1)]
    tokens += ["go", "to"]
    tokens += [f"filler{i}" for i in range(size - len(tokens))]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_merges(["g o", "t o"])
    writer.add_token_types([3, 3, 3] + [1] * (size - 3))
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_chat_template("{{ messages[0]['content'] }}")


def _interleaved(tensor: str, values: np.ndarray, config: LlamaConfig) -> np.ndarray:
    heads = {"q_proj": config.num_heads, "k_proj": config.num_kv_heads}.get(tensor.split(".")[-2])
    if heads is None:
        return values
    halves = values.reshape(heads, 2, values.shape[0] // heads // 2, -1)
    return halves.swapaxes(1, 2).reshape(values.shape)
