"""Files that are not what they should be: one line that names the file and what is wrong there."""

import json
import struct

import pytest

from jaxagent.models.llm.gguf import config_from_gguf, open_gguf
from jaxagent.models.llm.load import load_model, models_cache
from tests.models.llm.files import write_folder, write_gguf


def header(value):
    text = json.dumps(value).encode()
    return struct.pack("<Q", len(text)) + text


INDEX = "model.safetensors.index.json"


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("config.json", b"[]", "must hold a JSON object, found a list"),
        ("config.json", b"{", "is not JSON"),
        (INDEX, b"{}", r"weight_map \(None\) must be an object"),
        (INDEX, b'{"weight_map": {"a": 1}}', r"weight_map of 'a' \(1\) must be a file's name"),
        (INDEX, b"[]", "must hold a JSON object"),
        ("model.safetensors", header([]), "header must be a JSON object"),
        ("model.safetensors", header({"a": 1}), "entry of 'a' must have dtype, shape and data_off"),
        ("model.safetensors", header({"a": {"dtype": "F32"}}), "entry of 'a' must have dtype"),
        ("tokenizer_config.json", b"{", "is not JSON"),
        ("tokenizer_config.json", b"[]", "must hold a JSON object"),
    ],
)
def test_a_broken_file_is_named(tmp_path, file, content, message):
    write_folder(tmp_path, "smollm2")
    if file == INDEX:
        (tmp_path / "model.safetensors").unlink()
    (tmp_path / file).write_bytes(content)
    with pytest.raises(ValueError, match=message) as raised:
        load_model(tmp_path)
    assert str(tmp_path / file) in str(raised.value)


def test_rope_scaling_that_is_no_object_is_named(tmp_path):
    write_folder(tmp_path, "smollm2")
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "rope_scaling": "linear"}))
    with pytest.raises(ValueError, match=r"config\.json: rope_scaling \('linear'\) must be an obj"):
        load_model(tmp_path)


def test_a_gguf_file_is_named_and_nothing_of_it_kept(tmp_path, monkeypatch):
    pytest.importorskip("gguf")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    file = tmp_path / "small.gguf"
    write_gguf(file, "llama2")
    opened = open_gguf(file)
    shape = opened.tensors["blk.0.attn_q.weight"][0]
    whole = file.read_bytes()
    stored = struct.pack("<QQ", shape[1], shape[0])
    begin = whole.index(b"blk.0.attn_q.weight")
    place = whole.index(stored, begin)
    for rows, message in ((shape[0] - 3, r"attn_q\.weight' has \d+ rows"), (16, "has shape")):
        changed = struct.pack("<QQ", shape[1], rows)
        file.write_bytes(whole[:place] + changed + whole[place + 16 :])
        with pytest.raises(ValueError, match=message) as raised:
            load_model(file)
        assert str(raised.value).startswith(str(file))
        assert not list(models_cache().iterdir())


@pytest.mark.parametrize("factor", [None, "2", 0])
def test_a_gguf_scaling_without_factor_is_named(tmp_path, factor):
    pytest.importorskip("gguf")
    write_gguf(tmp_path / "small.gguf", "llama2")
    file = open_gguf(tmp_path / "small.gguf")
    file.metadata["llama.rope.scaling.type"] = "yarn"
    file.metadata["llama.rope.scaling.factor"] = factor
    with pytest.raises(
        ValueError, match=r"small\.gguf: rope\.scaling\.factor \(.*\) must be a pos"
    ):
        config_from_gguf(file)
