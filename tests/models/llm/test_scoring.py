"""Scores of candidates are those of reading each by itself."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagent.losses import sequence_log_prob
from jaxagent.models.llm.generate import Generator
from jaxagent.models.llm.generate_rows import RowBatch
from jaxagent.models.llm.scoring import candidate_tree, token_log_probs, visible_slots
from tests.models.llm.random_models import COMMANDS, log_probs_after, random_model


@pytest.fixture(scope="module")
def generator():
    return Generator(random_model())


def alone(model, prompt: list[int], candidate: list[int]) -> np.ndarray:
    """Log-probabilities of a candidate's tokens, without a cache."""
    after = log_probs_after(model, prompt + candidate)[len(prompt) - 1 : -1]
    return after[np.arange(len(candidate)), candidate]


def test_candidates_score_as_each_does_alone(generator):
    prompt = np.random.default_rng(0).integers(3, 300, size=40).tolist()
    scores = generator.score(prompt, COMMANDS)
    for number, command in enumerate(COMMANDS):
        expected = alone(generator.model, prompt, generator.encode(command))
        np.testing.assert_allclose(scores.token_log_probs[number], expected, atol=1e-4)
        assert scores.log_prob[number] == pytest.approx(expected.sum(), abs=1e-3)


def test_permitted_probabilities_by_hand(generator):
    """Two candidates, one the beginning of the other: three choices in all."""
    prompt = [5, 6, 7]
    short, long = generator.encode("go to"), generator.encode("go to desk 1")
    other = generator.encode("look")
    assert long[: len(short)] == short
    assert other[0] != short[0]
    scores = generator.score(prompt, ["go to", "look", "go to desk 1"])
    first = log_probs_after(generator.model, prompt)[-1]
    after_short = log_probs_after(generator.model, prompt + short)[-1]
    begin = first[short[0]] - np.logaddexp(first[short[0]], first[other[0]])
    end, on = after_short[generator.end_token], after_short[long[len(short)]]
    expected = [
        begin + end - np.logaddexp(end, on),
        first[other[0]] - np.logaddexp(first[short[0]], first[other[0]]),
        begin + on - np.logaddexp(end, on),
    ]
    np.testing.assert_allclose(scores.permitted_log_prob, expected, atol=1e-4)


def test_a_candidate_that_is_there_twice_scores_the_same_in_both_places(generator):
    once = generator.score([5, 6], ["look", "go to"])
    twice = generator.score([5, 6], ["look", "go to", "look"])
    np.testing.assert_allclose(twice.permitted_log_prob[[0, 1]], once.permitted_log_prob, atol=1e-5)
    assert twice.permitted_log_prob[2] == twice.permitted_log_prob[0]
    assert np.exp(twice.permitted_log_prob[:2]).sum() == pytest.approx(1.0, abs=1e-4)


def test_a_tree_wider_than_one_piece(generator):
    rng = np.random.default_rng(1)
    prompt = rng.integers(3, 300, size=20).tolist()
    candidates = [rng.integers(3, 300, size=rng.integers(1, 6)).tolist() for _ in range(150)]
    candidates += [candidates[0], candidates[1] + [7]]
    assert len(candidate_tree(candidates).tokens) > 300
    scores = generator.score(prompt, candidates)
    for number in rng.choice(len(candidates), size=30, replace=False):
        expected = alone(generator.model, prompt, candidates[number])
        np.testing.assert_allclose(scores.token_log_probs[number], expected, atol=1e-4)
    assert scores.log_prob[-2] == scores.log_prob[0]
    chances = dict(zip(map(tuple, candidates), np.exp(scores.permitted_log_prob), strict=True))
    assert len(chances) < len(candidates)  # some are there twice
    assert sum(chances.values()) == pytest.approx(1.0, abs=1e-4)


def test_a_tree_shares_beginnings():
    tree = candidate_tree([[1, 2, 3], [1, 2, 4], [1, 2], [5]])
    assert tree.tokens == [1, 2, 3, 4, 5]
    assert tree.parents == [-1, 0, 1, 1, -1]
    assert tree.depths == [0, 1, 2, 2, 0]
    assert tree.paths == [[0, 1, 2], [0, 1, 3], [0, 1], [4]]
    seen = visible_slots(tree, prompt_length=2, slots=8).astype(int)
    assert seen.tolist() == [
        [1, 1, 1, 0, 0, 0, 0, 0],
        [1, 1, 1, 1, 0, 0, 0, 0],
        [1, 1, 1, 1, 1, 0, 0, 0],
        [1, 1, 1, 1, 0, 1, 0, 0],
        [1, 1, 0, 0, 0, 0, 1, 0],
    ]


def test_a_session_scores_without_reading_its_history_again(generator, monkeypatch):
    read = []
    original = RowBatch._feed
    monkeypatch.setattr(
        RowBatch, "_feed", lambda *args: read.append(len(args[3][0])) or original(*args)
    )
    session = generator.session()
    history = np.random.default_rng(2).integers(3, 300, size=50).tolist()
    for turn in range(3):
        scores = session.score(history, COMMANDS)
        best = generator.encode(COMMANDS[int(np.argmax(scores.log_prob))])
        np.testing.assert_allclose(
            session.score(history, COMMANDS).log_prob, scores.log_prob, atol=1e-4
        )
        assert read[-1] == 1
        expected = alone(generator.model, history, generator.encode("look")).sum()
        assert scores.log_prob[COMMANDS.index("look")] == pytest.approx(expected, abs=1e-3)
        history += best + [9, 8, 7 + turn]
    assert read[0] == 50
    assert max(read[1:]) < 20


def test_token_log_probs_of_padded_and_packed_rows():
    model = random_model()
    variables = {"params": model.params}
    rng = np.random.default_rng(3)
    episodes = [rng.integers(3, 300, size=n).tolist() for n in (9, 14, 5)]

    def expected(episode):
        return np.concatenate([[0.0], alone(model, episode[:1], episode[1:])])

    padded = np.zeros((3, 16), np.int32)
    segment = np.zeros((3, 16), np.int32)
    for row, episode in enumerate(episodes):
        padded[row, : len(episode)], segment[row, : len(episode)] = episode, 1
    found = token_log_probs(model.config, variables, padded, segment_ids=segment)
    for row, episode in enumerate(episodes):
        np.testing.assert_allclose(found[row, : len(episode)], expected(episode), atol=1e-4)
        assert not np.any(found[row, len(episode) :])

    packed = np.zeros((1, 32), np.int32)
    packed[0, :28] = np.concatenate(episodes)
    segment = np.repeat([1, 2, 3, 0], [9, 14, 5, 4])[None].astype(np.int32)
    positions = np.concatenate([np.arange(n) for n in (9, 14, 5, 4)])[None].astype(np.int32)
    for block in (0, 8):
        found = token_log_probs(
            model.config, variables, packed, positions=positions, segment_ids=segment, block=block
        )
        together = np.concatenate([expected(e) for e in episodes] + [np.zeros(4)])
        np.testing.assert_allclose(found[0], together, atol=1e-4)
    mask = jnp.array(segment == 2)
    total = sequence_log_prob(found, mask)
    np.testing.assert_allclose(total, [expected(episodes[1]).sum()], atol=1e-3)


def test_blocks_change_memory_not_gradients():
    model = random_model()
    tokens = np.random.default_rng(4).integers(3, 300, size=(2, 16))

    def loss(params, block):
        return -token_log_probs(model.config, {"params": params}, tokens, block=block).mean()

    whole, blocked = (jax.grad(loss)(model.params, block) for block in (0, 8))
    leaves = zip(jax.tree.leaves(whole), jax.tree.leaves(blocked), strict=True)
    assert all(bool(jnp.allclose(a, b, atol=1e-6)) for a, b in leaves)
    assert max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(whole)) > 1e-3
