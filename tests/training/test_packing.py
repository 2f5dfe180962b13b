"""Packing keeps every token and every target once, apart from one another."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxagent.training.packing import Shape, TokenEpisode, pack

SHAPES = (Shape(2, 16, 6), Shape(1, 32, 12))


def episode(number: int, length: int, asked: int) -> TokenEpisode:
    """Recognisable by its tokens: number * 100 + place."""
    tokens = np.arange(length, dtype=np.int32) + 100 * number
    target = np.full(length, -1, np.int32)
    target[:asked] = tokens[:asked] + 7
    return TokenEpisode(tokens, target)


def unpacked(batches):
    """Episodes in the order of their first token."""
    found = []
    for batch in batches:
        for row in range(len(batch.tokens)):
            for segment in range(1, batch.segment_ids[row].max(initial=0) + 1):
                at = np.flatnonzero(batch.segment_ids[row] == segment)
                assert (np.diff(at) == 1).all()
                np.testing.assert_array_equal(batch.positions[row, at], np.arange(len(at)))
                target = np.full(len(at), -1, np.int32)
                for place, wanted, live in zip(
                    batch.target_position[row], batch.target[row], batch.target_mask[row]
                ):
                    if live and at[0] <= place <= at[-1]:
                        assert target[place - at[0]] == -1
                        target[place - at[0]] = wanted
                found.append(TokenEpisode(batch.tokens[row, at], target))
    return sorted(found, key=lambda e: e.tokens[0])


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 32), st.integers(0, 12)), min_size=1, max_size=25))
def test_every_episode_comes_out_once(sizes):
    episodes = [episode(n, length, min(asked, length)) for n, (length, asked) in enumerate(sizes)]
    batches = pack(episodes, SHAPES)
    back = unpacked(batches)
    assert len(back) == len(episodes)
    for before, after in zip(episodes, back):
        np.testing.assert_array_equal(before.tokens, after.tokens)
        np.testing.assert_array_equal(before.target, after.target)
    for batch in batches:
        shape = next(s for s in SHAPES if batch.tokens.shape == (s.rows, s.length))
        assert batch.target.shape == (shape.rows, shape.targets)


def test_little_is_padding():
    rng = np.random.default_rng(0)
    episodes = [episode(n, int(length), 1) for n, length in enumerate(rng.integers(2, 8, 200))]
    batches = pack(episodes, SHAPES)
    filled = sum(int((batch.segment_ids != 0).sum()) for batch in batches)
    assert filled / sum(batch.tokens.size for batch in batches) > 0.9


def test_what_is_too_long_keeps_its_beginning():
    (back,) = unpacked(pack([episode(0, 50, 20)], SHAPES))
    np.testing.assert_array_equal(back.tokens, np.arange(32))
    np.testing.assert_array_equal(np.flatnonzero(back.target >= 0), np.arange(12))


def test_packing_needs_a_shape():
    with pytest.raises(ValueError, match="at least one shape"):
        pack([episode(0, 3, 1)], ())
