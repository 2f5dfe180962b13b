"""What was saved last is what is loaded, whatever lay in the folder before."""

import dataclasses
import json

import jax
import numpy as np
import pytest

from envs.household.world import HOUSEHOLD
from jaxagent.models.llm import load, saved_files
from jaxagent.models.llm.load import load_model, save_model
from jaxagent.models.llm.lora import LoRA, load_lora, save_lora
from jaxagent.models.llm.tensor_files import open_safetensors
from tests.models.llm.families import model
from tests.models.llm.files import split_in_shards, write_folder


def doubled(params):
    return jax.tree.map(lambda x: x * 2, params)


def same(a, b):
    jax.tree.map(np.testing.assert_array_equal, a, b)


def test_a_model_saved_over_shards_is_loaded(tmp_path):
    first = write_folder(tmp_path, "smollm2")
    split_in_shards(tmp_path)
    (tmp_path / "README.md").write_text("mine")
    second = first._replace(params=doubled(first.params))
    save_model(tmp_path, second)
    same(load_model(tmp_path).params, second.params)
    assert (tmp_path / "README.md").read_text() == "mine"
    assert sorted(p.name for p in tmp_path.glob("*model*")) == ["model.safetensors"]


def test_files_of_a_model_before_do_not_describe_the_next(tmp_path):
    """A chat template, end tokens and adapters; transformers reads each of them where it lies."""
    first = write_folder(tmp_path, "smollm2")
    save_lora(tmp_path, first.config, lora := LoRA(), lora.init(first.config, jax.random.key(0)))
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [0, 5]}')
    (tmp_path / "added_tokens.json").write_text('{"<|old|>": 299}')
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "tools.jinja").write_text("old")
    first.tokenizer.chat_template = None
    save_model(tmp_path, first)
    assert load_model(tmp_path).tokenizer.chat_template is None
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ]


@pytest.mark.parametrize("dies_at", ["writing", "exchange"])
def test_a_save_that_is_cut_off_leaves_no_mixture(tmp_path, monkeypatch, dies_at):
    first = write_folder(tmp_path, "smollm2")
    second = first._replace(params=doubled(first.params))
    if dies_at == "writing":
        monkeypatch.setattr(load, "_write_rest", _die)
    else:
        replaced = []

        def replace_one(path, target, original=saved_files.Path.replace):
            replaced.append(path.name)
            return _die() if len(replaced) == 2 else original(path, target)

        monkeypatch.setattr(type(tmp_path), "replace", replace_one)
    with pytest.raises(KeyboardInterrupt):
        save_model(tmp_path, second)
    monkeypatch.undo()
    if dies_at == "writing":
        same(load_model(tmp_path).params, first.params)
        assert not list(tmp_path.glob(".saving-*"))
    else:
        with pytest.raises(ValueError, match=r"no config\.json \(a save was cut off; .*\.saving-"):
            load_model(tmp_path)
        assert list(tmp_path.glob(".saving-*/config.json"))
        save_model(tmp_path, second)
        same(load_model(tmp_path).params, second.params)
        assert not list(tmp_path.glob(".saving-*"))


def _die(*_, **__):
    raise KeyboardInterrupt


def test_an_adapter_is_replaced_whole(tmp_path, monkeypatch):
    """New matrices beside an old alpha would be scaled wrongly."""
    config, _ = model("smollm2")
    first, second = LoRA(rank=2, alpha=2.0), LoRA(rank=2, alpha=64.0)
    adapters = first.init(config, jax.random.key(0))
    save_lora(tmp_path, config, first, adapters)
    monkeypatch.setattr(type(tmp_path), "write_text", _die)
    with pytest.raises(KeyboardInterrupt):
        save_lora(tmp_path, config, second, doubled(adapters))
    monkeypatch.undo()
    lora, loaded = load_lora(tmp_path, config)
    assert lora.alpha == first.alpha
    same(loaded, adapters)


def test_of_two_ways_to_hold_the_weights_the_one_of_transformers_counts(tmp_path):
    """Folders that an earlier version left."""
    first = write_folder(tmp_path, "smollm2")
    whole = (tmp_path / "model.safetensors").read_bytes()
    other = tmp_path / "other"
    save_model(other, first._replace(params=doubled(first.params)))
    split_in_shards(other)
    (other / "model.safetensors").write_bytes(whole)
    with pytest.warns(UserWarning, match="model.safetensors is read, as transformers does"):
        stored = open_safetensors(other)
    name = "model.embed_tokens.weight"
    assert np.array_equal(stored[name].read(), open_safetensors(tmp_path)[name].read())


def test_a_planner_is_replaced_whole(tmp_path):
    from jaxagent.planning.planner_files import load_planner, save_planner

    planner = load_planner("tiny", HOUSEHOLD)
    save_planner(tmp_path, planner)
    split_in_shards(tmp_path)
    save_planner(tmp_path, planner._replace(params=doubled(planner.params), made={"second": 1}))
    again = load_planner(tmp_path, HOUSEHOLD)
    same(again.params, doubled(planner.params))
    assert dict(again.made) == {"second": 1}
    assert dataclasses.asdict(again.config) == dataclasses.asdict(planner.config)
    assert json.loads((tmp_path / "planner.json").read_text())["made"] == {"second": 1}
