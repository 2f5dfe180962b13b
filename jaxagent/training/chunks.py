"""Batches made while training goes on, chunk by chunk, each chunk depending on its number alone."""

import concurrent.futures
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import jax
import numpy as np

from jaxagent.agents.planner import TokenBatch


class Position(NamedTuple):
    """Where a stream stands: so many groups of a chunk are used up."""

    chunk: int = 0
    used: int = 0


def grouped(batches: Sequence[TokenBatch], size: int) -> list[TokenBatch]:
    """Batches of equal shape stacked on a leading axis, `size` at a time, in their order.

    What is left over of a shape is dropped: with size 1, nothing is.
    """
    waiting: dict[tuple[int, ...], list[TokenBatch]] = {}
    groups = []
    for batch in batches:
        some = waiting.setdefault(batch.tokens.shape, [])
        some.append(batch)
        if len(some) == size:
            groups.append(jax.tree.map(lambda *xs: np.stack(xs), *some))
            some.clear()
    return groups


def stream(
    make: Callable[[int], Sequence[TokenBatch]], size: int, start: Position
) -> Iterator[tuple[TokenBatch, Position]]:
    """Groups of batches without end, the next chunk made in a thread meanwhile.

    Args:
        make: the batches of a chunk; a function of its number.
        size: batches in a group.
        start: where to go on.

    Returns:
        Pairs of a group and the position behind it.

    Raises:
        ValueError: a chunk has too few batches for one group.
    """
    with concurrent.futures.ThreadPoolExecutor(1, "demonstrations") as pool:
        chunk, used = start
        coming = pool.submit(make, chunk)
        while True:
            batches = coming.result()
            coming = pool.submit(make, chunk + 1)
            groups = grouped(batches, size)
            if not groups:
                raise ValueError(
                    f"accumulation ({size}) must not exceed the batches of one shape in a chunk "
                    f"({len(batches)} batches in all)"
                )
            for number in range(used, len(groups)):
                yield groups[number], Position(chunk, number + 1)
            chunk, used = chunk + 1, 0
