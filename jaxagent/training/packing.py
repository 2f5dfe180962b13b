"""Episodes packed into rows of equal length, so that little of a batch is padding."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxagent.agents.planner import TokenBatch


class TokenEpisode(NamedTuple):
    """One episode as ids. ``target[i]`` is what should follow token i, −1 where that is unasked.

    A target need not be the token that does follow: a demonstration with mistakes shows one
    command and teaches another.
    """

    tokens: np.ndarray
    target: np.ndarray


class Shape(NamedTuple):
    """Of a batch: rows, tokens a row, and targets a row."""

    rows: int
    length: int
    targets: int


def pack(episodes: Sequence[TokenEpisode], shapes: Sequence[Shape]) -> list[TokenBatch]:
    """Batches that hold every episode once.

    Args:
        episodes: of one that is longer than the last shape's rows, the beginning is kept.
        shapes: ascending in length and in targets.

    Returns:
        Batches of these shapes, in no order that the episodes had. The longest episode goes
        first, each into the fullest row that holds it, else into a new row of the smallest shape
        that does; the last batch of a shape may have empty rows.

    Raises:
        ValueError: there are no shapes.
    """
    if not shapes:
        raise ValueError("packing needs at least one shape")
    fitted = [_shortened(episode, shapes[-1]) for episode in episodes]
    rows = _fill_rows(fitted, shapes)
    batches: list[TokenBatch] = []
    for shape in shapes:
        own = [row.episodes for row in rows if row.shape == shape]
        starts = range(0, len(own), shape.rows)
        batches += [_batch(own[start : start + shape.rows], shape) for start in starts]
    return batches


class _Row:
    def __init__(self, shape: Shape) -> None:
        self.shape, self.episodes = shape, []
        self.tokens, self.targets = shape.length, shape.targets  # left

    def holds(self, tokens: int, targets: int) -> bool:
        return self.tokens >= tokens and self.targets >= targets


def _shortened(episode: TokenEpisode, shape: Shape) -> TokenEpisode:
    """As much of the beginning as a row of the shape can hold."""
    target = episode.target[: shape.length]
    asked = np.flatnonzero(target >= 0)
    if len(asked) > shape.targets:
        target = target.copy()
        target[asked[shape.targets :]] = -1
    return TokenEpisode(episode.tokens[: shape.length], target)


def _fill_rows(episodes: Sequence[TokenEpisode], shapes: Sequence[Shape]) -> list[_Row]:
    rows: list[_Row] = []
    for episode in sorted(episodes, key=lambda e: -len(e.tokens)):
        size = len(episode.tokens), int((episode.target >= 0).sum())
        fitting = [row for row in rows if row.holds(*size)]
        if fitting:
            row = min(fitting, key=lambda r: r.tokens)
        else:
            shape = next(s for s in shapes if s.length >= size[0] and s.targets >= size[1])
            row = _Row(shape)
            rows.append(row)
        row.episodes.append(episode)
        row.tokens -= size[0]
        row.targets -= size[1]
    return rows


def _batch(rows: Sequence[Sequence[TokenEpisode]], shape: Shape) -> TokenBatch:
    tokens = np.zeros((shape.rows, shape.length), np.int32)
    positions, segment_ids = np.zeros_like(tokens), np.zeros_like(tokens)
    target = np.zeros((shape.rows, shape.targets), np.int32)
    target_position, target_mask = np.zeros_like(target), np.zeros(target.shape, bool)
    for row, episodes in enumerate(rows):
        place = asked = 0
        for number, episode in enumerate(episodes, 1):
            end = place + len(episode.tokens)
            tokens[row, place:end] = episode.tokens
            positions[row, place:end] = np.arange(end - place)
            segment_ids[row, place:end] = number
            at = np.flatnonzero(episode.target >= 0)
            last = asked + len(at)
            target[row, asked:last] = episode.target[at]
            target_position[row, asked:last] = at + place
            target_mask[row, asked:last] = True
            place, asked = end, last
    fields: Any = (tokens, positions, segment_ids, target_position, target, target_mask)
    return TokenBatch(*fields)  # host arrays: the step takes them as they are
