"""Drawing against a slow NumPy account of it, and the frequencies of what is drawn."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxagent.models.llm.sampling import (
    MAX_PERIOD,
    Origin,
    SamplingConfig,
    draw,
    gumbel_noise,
    gumbel_top_k,
    no_repetition,
    observe_repetition,
    stack_sampling,
    truncate,
)


def sampling(*configs: SamplingConfig):
    return stack_sampling(list(configs), [()] * len(configs))


def kept(log_weights: np.ndarray, top_k: int, top_p: float) -> set[int]:
    """By the definition: sort, cut, and take ties with the last along."""
    order = np.argsort(-log_weights, kind="stable")
    if top_k:
        last = log_weights[order[min(top_k, len(order)) - 1]]
        order = [i for i in order if log_weights[i] >= last]
    weights = np.exp(log_weights[order] - log_weights.max()).astype(np.float64)
    weights /= weights.sum()
    # The fewest whose mass reaches top_p.
    count = int(np.searchsorted(np.cumsum(weights), top_p - 1e-9)) + 1 if top_p < 1 else len(order)
    last = log_weights[order[min(count, len(order)) - 1]]
    return {int(i) for i in order if log_weights[i] >= last}


@pytest.mark.parametrize("top_k", [0, 1, 3, 50, 1000])
@pytest.mark.parametrize("top_p", [1.0, 0.9, 0.5, 0.01])
def test_truncation_keeps_what_the_definition_keeps(top_k, top_p):
    rng = np.random.default_rng(0)
    log_weights = rng.normal(size=(6, 97)).astype(np.float32) * np.array([[0.1], [1], [3]] * 2)
    log_weights = log_weights.astype(np.float32)
    log_weights[1, :20] = -np.inf  # what a constraint forbids
    log_weights[2, ::7] = 1.5  # ties
    rows = sampling(*[SamplingConfig(top_k=top_k, top_p=top_p)] * 6)
    found = np.asarray(jax.jit(truncate)(jnp.array(log_weights), rows))
    for row in range(6):
        usable = {i for i in kept(log_weights[row], top_k, top_p) if log_weights[row, i] > -np.inf}
        assert set(np.flatnonzero(np.isfinite(found[row]))) == usable
        assert np.array_equal(found[row, list(usable)], log_weights[row, list(usable)])


def test_every_row_is_truncated_by_its_own_settings():
    log_weights = jnp.array(np.random.default_rng(1).normal(size=(1, 50)).repeat(4, 0), jnp.float32)
    configs = [
        SamplingConfig(),
        SamplingConfig(top_k=2),
        SamplingConfig(top_p=0.3),
        SamplingConfig(top_k=7, top_p=0.3),
    ]
    found = np.isfinite(np.asarray(truncate(log_weights, sampling(*configs))))
    for row, config in enumerate(configs):
        expected = kept(np.asarray(log_weights[row]), config.top_k, config.top_p)
        assert set(np.flatnonzero(found[row])) == expected
    assert found[0].sum() == 50


def test_the_three_log_probabilities():
    rng = np.random.default_rng(2)
    logits = rng.normal(size=(3, 40)).astype(np.float32)
    permitted = rng.random((3, 40)) < 0.4
    configs = [
        SamplingConfig(),
        SamplingConfig(temperature=0.7, top_k=5, seed=3),
        SamplingConfig(temperature=2.0, seed=4),
    ]
    drawn = draw(
        jnp.array(logits), jnp.array(permitted), sampling(*configs), jnp.zeros(3, jnp.int32)
    )
    for row, config in enumerate(configs):
        token = int(drawn.token[row])
        raw = logits[row].astype(np.float64)
        inside = np.where(permitted[row], raw, -np.inf)
        assert drawn.log_prob[row] == pytest.approx(raw[token] - np.logaddexp.reduce(raw), abs=1e-5)
        assert drawn.permitted_log_prob[row] == pytest.approx(
            raw[token] - np.logaddexp.reduce(inside), abs=1e-5
        )
        if config.temperature == 0:
            assert token == int(np.argmax(inside))
            assert drawn.behaviour_log_prob[row] == 0.0
            continue
        scaled = inside / config.temperature
        usable = kept(scaled, config.top_k, config.top_p)
        assert token in usable
        assert drawn.behaviour_log_prob[row] == pytest.approx(
            scaled[token] - np.logaddexp.reduce(scaled[list(usable)]), abs=1e-5
        )


def test_one_token_worked_by_hand():
    # Logits log 1, log 3, log 4 with the last forbidden: 3/8 under the model, 3/4 permitted;
    # at temperature 1/2 the weights are 1 and 9: 9/10.
    logits = jnp.log(jnp.array([[1.0, 3.0, 4.0]]))
    permitted = jnp.array([[True, True, False]])
    for seed in range(20):
        config = SamplingConfig(temperature=0.5, seed=seed)
        drawn = draw(logits, permitted, sampling(config), jnp.array([0]))
        if int(drawn.token[0]) == 1:
            break
    logs = [drawn.log_prob[0], drawn.permitted_log_prob[0], drawn.behaviour_log_prob[0]]
    np.testing.assert_allclose(np.exp(logs), [3 / 8, 3 / 4, 9 / 10], rtol=1e-5)


def test_frequencies_are_those_that_it_reports():
    logits = jnp.array(np.random.default_rng(3).normal(size=8) * 1.5, jnp.float32)
    rows = 2000
    configs = [SamplingConfig(temperature=0.8, top_p=0.95, seed=seed) for seed in range(rows)]
    drawer = jax.jit(draw)
    counts, reported = np.zeros(8), np.full(8, np.nan)
    settings = sampling(*configs)
    for index in range(10):
        drawn = drawer(
            jnp.tile(logits, (rows, 1)), None, settings, jnp.full(rows, index, jnp.int32)
        )
        tokens = np.asarray(drawn.token)
        counts += np.bincount(tokens, minlength=8)
        reported[tokens] = np.exp(np.asarray(drawn.behaviour_log_prob))
    expected = np.nan_to_num(reported) * 10 * rows
    assert expected.sum() == pytest.approx(10 * rows, rel=1e-4)
    used = expected > 0
    assert np.array_equal(used, counts > 0)
    chi_squared = np.sum((counts[used] - expected[used]) ** 2 / expected[used])
    assert chi_squared < 24.3  # 99.9 % of seven degrees of freedom


def noise(seed, row=0, turn=0, position=0, place=0):
    of = sampling_of(SamplingConfig(seed=seed), Origin(row, turn, position))
    return np.asarray(_noise(of.seed[0], of.origin[0], jnp.int32(place), 16))


def sampling_of(config, origin):
    return stack_sampling([config], [()], [origin])


_noise = jax.jit(gumbel_noise, static_argnums=3)
ORIGINS = st.tuples(
    st.integers(0, 3) | st.integers(0, 2**64 - 1), st.integers(0, 9), st.integers(0, 9),
    st.integers(0, 9), st.integers(0, 9),
)  # fmt: skip


def place_of(origin):
    seed, row, turn, position, place = origin
    return seed, row, turn, position + place


@given(st.lists(ORIGINS, min_size=2, max_size=8, unique_by=place_of))
@settings(max_examples=60, deadline=None)
def test_no_two_seeds_rows_turns_or_places_share_noise(origins):
    drawn = np.concatenate([noise(*origin) for origin in origins])
    assert len(np.unique(drawn)) > 0.98 * len(drawn)  # floats collide by chance, if seldom


def test_high_words_of_seeds_and_keys_count():
    assert not np.array_equal(noise(0), noise(2**32))
    assert not np.array_equal(noise(7), noise(7 + 2**63))
    key = jax.random.fold_in(jax.random.key(3), 4)
    for seed in (key, jax.random.key_data(key), np.asarray(jax.random.key_data(key))):
        config = SamplingConfig(seed=seed)
        assert hash(config) == hash(SamplingConfig(seed=config.seed))
        assert np.array_equal(noise(seed), noise(config.seed))
    assert np.array_equal(noise(jax.random.key(3)), noise(3))
    assert not np.array_equal(noise(key), noise(3))
    folded = key
    for number in (2, 5, 11 + 6):
        folded = jax.random.fold_in(folded, number)
    assert np.array_equal(noise(key, 2, 5, 11, 6), jax.random.gumbel(folded, (16,)))


@pytest.mark.parametrize(
    "seed", [-1, 2**64, 1.0, True, "1", jnp.arange(2), jax.random.split(jax.random.key(0))]
)
def test_what_is_no_seed_is_named(seed):
    with pytest.raises(ValueError, match=r"seed \(.*\) must be a whole number in \[0, 2\^64\)"):
        SamplingConfig(seed=seed)


def test_noise_depends_on_seed_and_place_alone():
    assert np.array_equal(noise(5, place=2), noise(5, place=2))
    assert not np.array_equal(noise(5, place=2), noise(6, place=2))
    assert not np.array_equal(noise(5, place=2), noise(5, place=3))
    # A row draws the same alone and beside others that sample, truncate or do not.
    logits = jnp.array(np.random.default_rng(4).normal(size=(3, 64)), jnp.float32)
    mine = SamplingConfig(temperature=1.0, seed=9)
    others = [SamplingConfig(), SamplingConfig(temperature=2.0, top_k=3, top_p=0.5, seed=1)]
    alone = draw(logits[:1], None, sampling(mine), jnp.array([4]))
    beside = draw(logits, None, sampling(mine, *others), jnp.array([4, 0, 7]))
    assert int(alone.token[0]) == int(beside.token[0])
    assert alone.behaviour_log_prob[0] == pytest.approx(float(beside.behaviour_log_prob[0]))


@pytest.mark.parametrize("repeats", [2, 3, 5])
@pytest.mark.parametrize("period", [1, 2, 7, MAX_PERIOD, MAX_PERIOD + 1])
def test_a_block_said_often_enough_is_noticed_at_once(repeats, period):
    reply = [100, 101, 102] + list(range(period)) * (repeats + 1)
    state, noticed = no_repetition(1), []
    for token in reply:
        state, is_looping = observe_repetition(state, jnp.array([token]), jnp.array([repeats]))
        noticed.append(bool(is_looping[0]))
    expected = 3 + period * repeats - 1 if period <= MAX_PERIOD else None
    assert (noticed.index(True) if any(noticed) else None) == expected


def test_no_repetition_is_looked_for_unless_asked():
    state = no_repetition(1)
    for _ in range(50):
        state, is_looping = observe_repetition(state, jnp.array([3]), jnp.array([0]))
        assert not is_looping[0]


def test_choices_without_replacement():
    log_probs = jnp.log(jnp.array([0.5, 0.3, 0.15, 0.05]))
    keys = jax.random.split(jax.random.key(0), 20_000)
    index, perturbed = jax.vmap(lambda key: gumbel_top_k(log_probs, 2, key))(keys)
    index = np.asarray(index)
    assert (index[:, 0] != index[:, 1]).all()
    assert (perturbed[:, 0] >= perturbed[:, 1]).all()
    first = np.bincount(index[:, 0], minlength=4) / len(keys)
    np.testing.assert_allclose(first, [0.5, 0.3, 0.15, 0.05], atol=0.012)
    # P(second is b | first is a) = p_b / (1 - p_a)
    second = np.bincount(index[index[:, 0] == 0, 1], minlength=4)
    np.testing.assert_allclose(second / second.sum(), [0, 0.6, 0.3, 0.1], atol=0.02)
    with pytest.raises(ValueError, match=r"k \(5\)"):
        gumbel_top_k(log_probs, 5, jax.random.key(0))


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        ({"max_new_tokens": 0}, r"max_new_tokens \(0\)"),
        ({"temperature": -0.1}, r"temperature \(-0.1\)"),
        ({"temperature": float("nan")}, r"temperature \(nan\)"),
        ({"temperature": float("inf")}, r"temperature \(inf\)"),
        ({"top_k": -1}, r"top_k \(-1\)"),
        ({"top_k": 1.5}, r"top_k \(1.5\)"),
        ({"top_p": 0.0}, r"top_p \(0.0\)"),
        ({"top_p": 1.1}, r"top_p \(1.1\)"),
        ({"seed": -1}, r"seed \(-1\)"),
        ({"max_repeats": 1}, r"max_repeats \(1\)"),
        ({"stop_strings": ("",)}, "stop_strings"),
    ],
)
def test_settings_that_make_no_sense_are_named(wrong, complaint):
    with pytest.raises(ValueError, match=complaint):
        SamplingConfig(**wrong)


def test_a_greedy_row_is_the_same_beside_rows_that_draw():
    logits = jax.random.normal(jax.random.key(0), (3, 50))
    permitted = jnp.asarray(np.arange(50) % 3 != np.arange(3)[:, None])
    index = jnp.zeros(3, jnp.int32)
    alone = sampling(*[SamplingConfig()] * 3)
    mixed = sampling(SamplingConfig(), SamplingConfig(), SamplingConfig(temperature=1.0, top_k=5))
    assert (alone.is_greedy, mixed.is_greedy) == (True, False)
    ours, beside = (draw(logits, permitted, s, index) for s in (alone, mixed))
    for one, other in zip(ours, beside, strict=True):
        np.testing.assert_array_equal(one[:2], other[:2])
    assert not ours.behaviour_log_prob.any()
    assert beside.behaviour_log_prob[2] < 0.0
