"""Imitation of token sequences: the loss, the optimiser's step, and what must not matter."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxagent.agents.planner import Imitation, ImitationConfig, TokenBatch
from jaxagent.models.llm.llama import Llama
from jaxagent.models.llm.lora import LoRA
from jaxagent.models.llm.words import WordTokenizer, with_embedding
from jaxagent.training.packing import Shape, TokenEpisode, pack
from tests.planning.small_planner import small_config

TOKENIZER = WordTokenizer(["go", "take", "sees", ">"], {"drawer": 5, "apple": 4})
MODEL = small_config(TOKENIZER.vocab_size, 64)
CONFIG = ImitationConfig(warmup_updates=2, learning_rate=1e-2)
SHAPE = (Shape(4, 24, 8),)


def made(**changes) -> Imitation:
    config = dataclasses.replace(CONFIG, **changes)
    return Imitation(MODEL, config, 100, factors=TOKENIZER.factors)


def episodes(count: int = 10, seed: int = 0) -> list[TokenEpisode]:
    rng = np.random.default_rng(seed)
    some = []
    for _ in range(count):
        length = int(rng.integers(4, 14))
        tokens = rng.integers(2, TOKENIZER.vocab_size, length).astype(np.int32)
        target = np.where(rng.random(length) < 0.3, np.roll(tokens, -1), -1).astype(np.int32)
        some.append(TokenEpisode(tokens, target))
    return some


def lifted(*batches: TokenBatch) -> TokenBatch:
    return jax.tree.map(lambda *xs: np.stack(xs), *batches)


def ones() -> TokenBatch:
    return pack(episodes(), SHAPE)[0]


def _logits(variables, tokens):
    hidden = Llama(MODEL).apply(variables, tokens).hidden
    return Llama(MODEL).apply(variables, hidden, method="logits")


def test_packed_episodes_cost_what_they_cost_alone():
    agent = made()
    params = agent.init(jax.random.key(0)).params
    some = episodes(6)
    total = jnp.float32(sum(int((e.target >= 0).sum()) for e in some))
    packed = pack(some, SHAPE)
    loss = jax.jit(agent.loss)
    together = sum(loss(params, None, batch, total)[0] for batch in packed)
    forward = jax.jit(_logits)
    variables = {"params": with_embedding(params, TOKENIZER.factors)}
    alone = 0.0
    for episode in some:
        padded = np.zeros((1, 24), np.int32)
        padded[0, : len(episode.tokens)] = episode.tokens
        log_prob = np.asarray(jax.nn.log_softmax(forward(variables, padded)[0]))
        asked = np.flatnonzero(episode.target >= 0)
        alone -= log_prob[asked, episode.target[asked]].sum()
    assert together == pytest.approx(alone / float(total), rel=1e-5)


def test_the_model_learns_a_batch_by_heart():
    agent = made()
    state = agent.init(jax.random.key(0))
    update = jax.jit(agent.update, donate_argnums=0)
    batch = lifted(ones())
    losses, metrics = [], {}
    for _ in range(90):
        state, metrics = update(state, None, batch)
        losses.append(float(metrics["loss"]))
    assert losses[-1] < 0.35 * losses[0]
    assert float(metrics["accuracy"]) > 0.8
    assert update._cache_size() == 1
    assert losses[0] == pytest.approx(np.log(TOKENIZER.vocab_size), rel=0.5)


def test_two_halves_accumulated_are_the_whole():
    whole, halves = made(), made(accumulation=2)
    batch = ones()
    split = [jax.tree.map(lambda x, part=part: x[part], batch) for part in (slice(2), slice(2, 4))]
    state = whole.init(jax.random.key(1))
    one, first = jax.jit(whole.update)(state, None, lifted(batch))
    two, second = jax.jit(halves.update)(state, None, lifted(*split))
    assert float(first["loss"]) == pytest.approx(float(second["loss"]), rel=1e-5)
    assert float(first["gradient_norm"]) == pytest.approx(float(second["gradient_norm"]), rel=1e-4)
    for a, b in zip(jax.tree.leaves(one.params), jax.tree.leaves(two.params)):
        np.testing.assert_allclose(a, b, atol=1e-6)


def test_two_devices_give_what_one_gives():
    agent = made()
    state = agent.init(jax.random.key(1))
    batch = lifted(ones())
    results = []
    for count in (1, 2):
        mesh = Mesh(np.array(jax.devices()[:count]), ("data",))
        rows = NamedSharding(mesh, PartitionSpec(None, "data"))
        placed = jax.device_put(state, NamedSharding(mesh, PartitionSpec()))
        update = jax.jit(agent.update)
        results.append(update(placed, None, jax.device_put(batch, rows)))
    (one, first), (two, second) = results
    assert float(first["loss"]) == pytest.approx(float(second["loss"]), rel=1e-6)
    for a, b in zip(jax.tree.leaves(one.params), jax.tree.leaves(two.params)):
        np.testing.assert_allclose(a, b, atol=1e-6)


def test_an_update_that_is_not_finite_changes_nothing_and_is_counted():
    agent = made()
    state = agent.init(jax.random.key(1))
    broken = {**state.params, "stem": state.params["stem"].at[5].set(jnp.inf)}
    spoilt, metrics = jax.jit(agent.update)(state.replace(params=broken), None, lifted(ones()))
    assert float(metrics["nonfinite_in_a_row"]) == 1
    for before, after in zip(jax.tree.leaves(broken), jax.tree.leaves(spoilt.params)):
        np.testing.assert_array_equal(before, after)
    clean, metrics = jax.jit(agent.update)(
        spoilt.replace(params=state.params), None, lifted(ones())
    )
    assert float(metrics["nonfinite_in_a_row"]) == 0
    assert int(clean.update) == 2


def test_low_rank_terms_learn_alone():
    lora = LoRA(rank=2, alpha=4.0)
    agent = Imitation(MODEL, CONFIG, 100, lora=lora)
    frozen = Imitation(MODEL, CONFIG, 100).init(jax.random.key(0)).params
    state = agent.init(jax.random.key(1))
    update = jax.jit(agent.update)
    first = None
    for _ in range(20):
        state, metrics = update(state, frozen, lifted(ones()))
        first = first if first is not None else float(metrics["loss"])
    assert float(metrics["loss"]) < first
    trained = sum(x.size for x in jax.tree.leaves(state.params))
    assert trained < 0.2 * sum(x.size for x in jax.tree.leaves(frozen))


def test_scales_of_norms_do_not_decay():
    agent = made(weight_decay=10.0, learning_rate=1e-3)
    state = agent.init(jax.random.key(1))
    silent = ones()._replace(target_mask=np.zeros((4, 8), bool))
    update = jax.jit(agent.update)
    for _ in range(4):
        state, metrics = update(state, None, lifted(silent))
    assert float(metrics["loss"]) == 0.0
    before = agent.init(jax.random.key(1)).params
    np.testing.assert_array_equal(
        state.params["final_norm"]["scale"], before["final_norm"]["scale"]
    )
    assert np.linalg.norm(state.params["stem"]) < 0.99 * np.linalg.norm(before["stem"])


def test_muon_decays_the_matrices_of_the_layers_alone():
    agent = made(weight_decay=10.0, learning_rate=1e-3, optimizer="muon")
    before = agent.init(jax.random.key(1))
    silent = ones()._replace(target_mask=np.zeros((4, 8), bool))
    state, update = before, jax.jit(agent.update)
    for _ in range(4):
        state, _ = update(state, None, lifted(silent))
    np.testing.assert_array_equal(state.params["stem"], before.params["stem"])
    for name in ("query", "output"):
        kernel, at_first = (
            p.params["layers"]["attention"][name]["kernel"] for p in (state, before)
        )
        assert np.linalg.norm(kernel) < 0.99 * np.linalg.norm(at_first)


def test_muon_steps_matrices_along_orthogonal_directions():
    agent = made(optimizer="muon", warmup_updates=0, weight_decay=0.0)
    before = agent.init(jax.random.key(0))
    after, _ = jax.jit(agent.update)(before, None, lifted(ones()))
    for name in ("query", "value"):
        kernels = (p.params["layers"]["attention"][name]["kernel"] for p in (after, before))
        for step in np.subtract(*kernels):
            # Muon's five Newton-Schulz iterations leave singular values between 0.7 and 1.2 of
            # one; unscaled, they are those of an orthogonal matrix times lr √max(in, out).
            values = np.linalg.svd(step, compute_uv=False) / (1e-2 * np.sqrt(max(step.shape)))
            assert values.max() < 1.3
            assert np.median(values) > 0.6


def test_muon_is_not_for_low_rank_terms():
    config = dataclasses.replace(CONFIG, optimizer="muon")
    with pytest.raises(ValueError, match=r"optimizer \(muon\) must be adamw"):
        Imitation(MODEL, config, 100, lora=LoRA(rank=2, alpha=4.0))


def test_an_unknown_optimizer_is_refused():
    with pytest.raises(ValueError, match=r"optimizer \(sgd\) must be one of adamw, muon"):
        ImitationConfig(optimizer="sgd")


def test_the_schedule_ends_at_zero():
    agent = made()
    assert float(agent.schedule(2)) == pytest.approx(1e-2)
    assert float(agent.schedule(100)) == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"learning_rate": 0.0}, r"learning_rate \(0.0\) must be greater than 0"),
        ({"weight_decay": -1.0}, r"weight_decay \(-1.0\)"),
        ({"accumulation": 0}, r"accumulation \(0\) must be at least 1"),
        ({"warmup_updates": 100}, r"warmup_updates \(100\) must be less than .* \(100\)"),
    ],
)
def test_bad_settings_are_named(changes, message):
    with pytest.raises(ValueError, match=message):
        made(**changes)


def test_a_tokeniser_of_another_size_is_refused():
    with pytest.raises(ValueError, match=r"vocab_size \(9\) must be that of the tokeniser"):
        Imitation(small_config(9), CONFIG, 100, factors=TOKENIZER.factors)
