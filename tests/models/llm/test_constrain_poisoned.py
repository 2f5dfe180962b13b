"""A reply is inside the set whatever the model's logits are."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagent.models.llm.constrain import (
    DEAD,
    FREE,
    advance,
    automaton,
    is_done,
    pack,
    permitted,
)
from jaxagent.models.llm.constrain_text import string_set
from jaxagent.models.llm.generate import Generator
from jaxagent.models.llm.sampling import SamplingConfig, draw, stack_sampling
from tests.models.llm.random_models import COMMANDS, byte_tokenizer, random_model

VOCAB_SIZE = 200
MODES = [
    SamplingConfig(),
    SamplingConfig(temperature=1.0, seed=1),
    SamplingConfig(temperature=1e-6, seed=2),
    SamplingConfig(temperature=1e6, seed=3),
    SamplingConfig(temperature=0.7, top_k=1, seed=4),
    SamplingConfig(temperature=0.7, top_k=40, seed=5),
    SamplingConfig(temperature=0.7, top_p=0.05, seed=6),
    SamplingConfig(temperature=1.3, top_k=7, top_p=0.9, seed=7),
]


def poisoned(rng: np.random.Generator, kind: int, mask: np.ndarray) -> np.ndarray:
    """A row of logits that some fault made."""
    logits = rng.normal(size=VOCAB_SIZE).astype(np.float32)
    some = rng.random(VOCAB_SIZE) < rng.choice([0.02, 0.5, 0.98])
    bad = rng.choice(np.array([np.nan, np.inf, -np.inf, 3e38, -3e38], np.float32))
    if kind == 0:
        logits[:] = bad
    elif kind == 1:
        logits[some] = bad
    elif kind == 2:
        logits[mask] = bad
    elif kind == 3:
        logits[~mask] = bad
    elif kind == 4:
        logits[:] = 0.0
    else:
        logits[some], logits[~some & mask] = np.nan, -np.inf
    return logits


def masks(rng: np.random.Generator, count: int) -> np.ndarray:
    made = rng.random((count, VOCAB_SIZE)) < rng.choice([0.01, 0.3, 0.99], (count, 1))
    made[np.arange(count), rng.integers(VOCAB_SIZE, size=count)] = True
    return made


def test_a_permitted_token_is_drawn_from_any_logits():
    rng, draws = np.random.default_rng(0), jax.jit(draw)
    sampling = stack_sampling(MODES, [()] * len(MODES))
    greedy = stack_sampling([SamplingConfig()] * len(MODES), [()] * len(MODES))
    for attempt in range(300):
        mask = masks(rng, len(MODES))
        logits = np.stack([poisoned(rng, attempt % 6, row) for row in mask])
        index = jnp.full(len(MODES), attempt)
        for how in (sampling, greedy):
            drawn = draws(jnp.asarray(logits), jnp.asarray(mask), how, index)
            assert mask[np.arange(len(MODES)), drawn.token].all(), attempt
            assert not np.isnan(drawn.permitted_log_prob).any()
            assert (np.asarray(drawn.behaviour_log_prob) <= 1e-6).all()


def test_what_no_fault_touched_is_still_the_likeliest():
    logits = np.array([[np.nan, 1.0, 3.0, 2.0, -np.inf], [0.0, np.inf, 5.0, np.nan, 1.0]])
    mask = np.array([[True, True, False, True, True]] * 2)
    sampling = stack_sampling([SamplingConfig()] * 2, [()] * 2)
    drawn = draw(jnp.asarray(logits), jnp.asarray(mask), sampling, jnp.zeros(2, jnp.int32))
    assert drawn.token.tolist() == [3, 1]
    # 2 against 1 alone: −log(1 + e⁻¹) = −0.3133
    np.testing.assert_allclose(drawn.permitted_log_prob, [-0.3133, 0.0], atol=1e-4)
    assert np.isnan(drawn.log_prob).all()


def wide_and_narrow():
    """State 0 has 150 ways out, a row over the vocabulary; state 1 has two, a list."""
    edges = [
        (np.arange(150), np.ones(150, int)),
        (np.array([7, 9]), np.array([0, 2])),
        (np.zeros(0, int), np.zeros(0, int)),
    ]
    return automaton(edges, np.array([False, False, True]))


@pytest.mark.parametrize("state", [0, 1, 2])
def test_a_token_that_was_not_permitted_leads_nowhere(state):
    machine = wide_and_narrow()
    tables, starts = pack([machine], vocab_size=VOCAB_SIZE)
    assert starts[0] not in (FREE, DEAD)
    outside = np.setdiff1d(np.arange(VOCAB_SIZE), machine.permitted(state))
    at = jnp.full(len(outside), starts[0] + state)
    after = advance(tables, at, jnp.asarray(outside))
    for _ in range(3):
        assert (np.asarray(after) == DEAD).all()
        assert not is_done(tables, after).any()
        assert not permitted(tables, after, jnp.full(len(outside), 10**6), VOCAB_SIZE).any()
        after = advance(tables, after, jnp.asarray(outside))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_broken_model_says_one_of_the_strings(bad):
    model = random_model()
    params = jax.tree.map(lambda x: x, model.params)
    params["embedding"] = params["embedding"].at[:, 0].set(bad)
    generator = Generator(model._replace(params=params))
    constraint = string_set(byte_tokenizer(), COMMANDS, end_token=byte_tokenizer().eos_token_id)
    modes = [dataclasses.replace(mode, max_new_tokens=40) for mode in MODES]
    for reply in generator.generate(["look"] * len(modes), modes, constraint):
        assert (reply.text in COMMANDS, reply.finish_reason) == (True, "end")
