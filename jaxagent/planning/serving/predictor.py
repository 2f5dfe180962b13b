"""The stand-in: what the answer will probably be, until it is there."""

import threading
from collections import deque
from typing import Generic, NamedTuple, TypeVar

import numpy as np

from jaxagent.planning.serving.queries import QueryKind

Query = TypeVar("Query")
Answer = TypeVar("Answer")


class _Group(NamedTuple):
    features: deque[np.ndarray]
    answers: deque


class NearestAnswer(Generic[Query, Answer]):
    """Nearest neighbour over the answers so far, learnt online (Fix & Hodges 1951).

    It copies an answer, it does not blend two: half way between two plans around an obstacle lies
    the obstacle. Before it learns an answer it is asked for it, so that its mean error is that on
    questions it has not seen.
    """

    def __init__(
        self, kind: QueryKind[Query, Answer], *, farthest: float = 3.0, capacity: int = 512
    ):
        """Know nothing yet.

        Args:
            kind: of questions.
            farthest: distance between features beyond which it does not answer.
            capacity: answers remembered in each group, the oldest forgotten first.

        Raises:
            ValueError: a bound that makes no sense.
        """
        if not farthest >= 0 or capacity < 1:
            raise ValueError(
                f"farthest ({farthest}) must be at least 0 and capacity ({capacity}) at least 1"
            )
        self._kind, self._farthest, self._capacity = kind, farthest, capacity
        self._groups: dict[str, _Group] = {}
        self._error_sum, self._error_count = 0.0, 0
        self._lock = threading.Lock()

    @property
    def mean_error(self) -> float | None:
        """Mean difference between what it predicted and what came; None before the first."""
        with self._lock:
            return self._error_sum / self._error_count if self._error_count else None

    def predict(self, query: Query) -> Answer | None:
        """The answer to the nearest question of the same group; None if none is near."""
        with self._lock:
            return self._nearest(query)

    def learn(self, query: Query, answer: Answer) -> None:
        """Compare with what was predicted, then remember."""
        with self._lock:
            guess = self._nearest(query)
            if guess is not None:
                self._error_sum += self._kind.difference(guess, answer)
                self._error_count += 1
            group = self._groups.setdefault(
                self._kind.group(query),
                _Group(deque(maxlen=self._capacity), deque(maxlen=self._capacity)),
            )
            group.features.append(np.asarray(self._kind.features(query), np.float64))
            group.answers.append(answer)

    def _nearest(self, query: Query) -> Answer | None:
        group = self._groups.get(self._kind.group(query))
        if group is None:
            return None
        here = np.asarray(self._kind.features(query), np.float64)
        distance = np.linalg.norm(np.stack(tuple(group.features)) - here, axis=-1)
        # Of equally near answers the newest: the same question may be answered better today.
        best = len(distance) - 1 - int(np.argmin(distance[::-1]))
        return group.answers[best] if distance[best] <= self._farthest else None
