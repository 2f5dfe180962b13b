"""Files that were cut or whose bits were turned: one line that names the file, or a model."""

import json
import random
import shutil
import warnings

import pytest

from jaxagent.models.llm import load
from jaxagent.models.llm.config import LlamaConfig
from jaxagent.models.llm.gguf import config_from_gguf, open_gguf, tensors_from_gguf
from jaxagent.models.llm.load import load_model, models_cache
from jaxagent.models.llm.lora import LoRA, load_lora, save_lora
from jaxagent.models.llm.tensor_files import open_safetensors_file
from jaxagent.models.llm.tokenizer import load_tokenizer
from tests.models.llm.families import FAMILIES
from tests.models.llm.files import write_folder, write_gguf


@pytest.fixture(autouse=True)
def _cache_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def damaged(whole: bytes, rng: random.Random, header: int) -> bytes:
    """Cut somewhere, or with some bits turned; mostly near the beginning, where the sense lies."""
    if rng.random() < 0.25:
        return whole[: rng.randrange(len(whole))]
    content = bytearray(whole)
    for _ in range(rng.choice([1, 1, 1, 4])):
        content[rng.randrange(min(header, len(whole)))] ^= 1 << rng.randrange(8)
    return bytes(content)


def is_one_line(error: BaseException, place) -> bool:
    return isinstance(error, ValueError) and "\n" not in str(error) and str(place) in str(error)


def tried(read, place) -> bool:
    """Whether something is read; else the complaint is one line that names the place."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            read()
    except BaseException as error:
        if not is_one_line(error, place):
            raise
        return False
    return True


def test_gguf_files(tmp_path):
    pytest.importorskip("gguf")
    file, rng = tmp_path / "small.gguf", random.Random(0)
    write_gguf(file, "llama2")
    whole = file.read_bytes()

    def read():
        opened = open_gguf(file)
        config = config_from_gguf(opened)
        for tensor in tensors_from_gguf(opened, config).values():
            tensor.read()
        load._tokenizer(opened)

    read()
    for _ in range(150):
        file.write_bytes(damaged(whole, rng, 6000))
        tried(read, file)


def test_safetensors(tmp_path):
    rng = random.Random(1)
    write_folder(tmp_path, "smollm2")
    file = tmp_path / "model.safetensors"
    whole = file.read_bytes()

    def read():
        for tensor in open_safetensors_file(file).values():
            tensor.read()

    results = []
    for _ in range(300):
        file.write_bytes(damaged(whole, rng, 2000))
        results.append(tried(read, file))
    assert not all(results)


def test_tokenizers(tmp_path):
    rng = random.Random(2)
    write_folder(tmp_path, "smollm2")
    file = tmp_path / "tokenizer.json"
    whole = file.read_bytes()
    for _ in range(60):
        file.write_bytes(damaged(whole, rng, len(whole)))
        tried(lambda: load_tokenizer(tmp_path), tmp_path)
    # A component of a later version of the library.
    described = json.loads(whole)
    for part in ("pre_tokenizer", "decoder", "model", "normalizer"):
        file.write_text(json.dumps({**described, part: {"type": "OfLater"}}))
        assert not tried(lambda: load_tokenizer(tmp_path), tmp_path)


def test_configurations():
    """Each field with what does not belong there."""
    complaints = []
    for name in ("llama2", "qwen2", "qwen3"):
        for field in [*FAMILIES[name], "rope_scaling", "quantization_config", "layer_types"]:
            for value in (None, "x", [], [1], {}, {"a": 1}, -1, 0, 1.5, 1e400, True, "8"):
                try:
                    LlamaConfig.from_hf({**FAMILIES[name], field: value})
                except ValueError as error:
                    complaints.append(str(error))
    assert len(complaints) > 100
    assert not any("\n" in each for each in complaints)


def test_adapters(tmp_path):
    config = LlamaConfig.from_hf(FAMILIES["llama2"])
    lora, rng = LoRA(rank=2), random.Random(3)
    import jax

    save_lora(tmp_path, config, lora, lora.init(config, jax.random.key(0)))
    for file in (tmp_path / "adapter_config.json", tmp_path / "adapter_model.safetensors"):
        whole = file.read_bytes()
        for _ in range(40):
            file.write_bytes(damaged(whole, rng, 1000))
            tried(lambda: load_lora(tmp_path, config), tmp_path)
        file.write_bytes(whole)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"general.alignment": 0}, r"general\.alignment \(0\) must be"),
        ({"llama.attention.head_count": 0}, r"llama\.attention\.head_count \(0\) must be"),
        ({"llama.attention.head_count_kv": [4, 4]}, r"head_count_kv \(\[4, 4\]\) must be"),
        ({"llama.context_length": None}, r"metadata lacks llama\.context_length"),
        ({"llama.rope.freq_base": -1.0}, r"llama\.rope\.freq_base \(-1\.0\) must be"),
        ({"llama.rope.dimension_count": 4}, r"rope\.dimension_count \(4\) must be the size"),
        ({"llama.logit_scale": 2.0}, r"llama\.logit_scale \(2\.0\) is not supported"),
        ({"llama.attention.sliding_window": 8}, r"sliding_window \(8\) below"),
    ],
)
def test_a_field_of_gguf_is_named(tmp_path, change, message):
    pytest.importorskip("gguf")
    file = tmp_path / "small.gguf"
    write_gguf(file, "llama2")
    opened = open_gguf(file)
    if "general.alignment" in change:
        import gguf

        writer = gguf.GGUFWriter(file, "llama")
        writer.add_uint32("general.alignment", 0)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.close()
        with pytest.raises(ValueError, match=message):
            open_gguf(file)
        return
    for name, value in change.items():
        opened.metadata[name] = value
        if value is None:
            del opened.metadata[name]
    with pytest.raises(ValueError, match=message) as raised:
        config_from_gguf(opened)
    assert str(raised.value).startswith(str(file))


@pytest.mark.parametrize("kind", ["Q8_1", "I8", "I32", "F64", "Q8_K"])
def test_a_type_of_tensor_that_is_not_dequantised_is_named(tmp_path, kind):
    gguf = pytest.importorskip("gguf")
    file = tmp_path / "small.gguf"
    write_gguf(file, "llama2")
    opened = open_gguf(file)
    name = "token_embd.weight"
    _, _, offset = opened.tensors[name]
    opened.tensors[name] = ((2, 256), int(gguf.GGMLQuantizationType[kind]), offset)
    config = LlamaConfig.from_hf(FAMILIES["llama2"])
    stored = tensors_from_gguf(opened, config)["model.embed_tokens.weight"]
    with pytest.raises(ValueError, match=rf"token_embd\.weight' has type {kind}, which cannot be"):
        stored.read()


def test_the_second_of_two_processes_takes_what_the_first_made(tmp_path, monkeypatch):
    """The folder appears while the second converts: to rename onto it is an error (39)."""
    pytest.importorskip("gguf")
    file = tmp_path / "small.gguf"
    write_gguf(file, "smollm2")
    renamed, original = [], type(tmp_path).rename

    def rename(path, target):
        shutil.copytree(path, target)
        renamed.append(target)
        return original(path, target)

    monkeypatch.setattr(type(tmp_path), "rename", rename)
    load_model(file)  # warnings are errors here
    assert len(renamed) == 1
    assert [p for p in models_cache().iterdir() if p.name.startswith(".converting")] == []
