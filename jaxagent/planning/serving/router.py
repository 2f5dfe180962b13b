"""Which source to ask: by quality, predicted latency, cost and queue."""

import dataclasses
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Generic, TypeVar

Query = TypeVar("Query")
Answer = TypeVar("Answer")


@dataclasses.dataclass(frozen=True)
class Source(Generic[Query, Answer]):
    """Somebody who answers.

    Attributes:
        name: unique among the sources.
        ask: the answer; None or an exception when there is none. Called on the source's own
            thread, one query at a time.
        version: changes whenever the same question may get another answer (model, prompt).
        quality: how much its answer is worth, in the unit in which the router counts.
        cost: of one query, in a currency of one's own.
        latency: seconds, the guess until a query was measured.
        stop: makes an `ask` under way end soon. Needed where it runs device code: a thread that
            is in the middle of it when the interpreter ends takes the process down with it.
    """

    name: str
    ask: Callable[[Query], Answer | None]
    version: str = ""
    quality: float = 1.0
    cost: float = 0.0
    latency: float = 1.0
    stop: Callable[[], None] | None = None

    def __post_init__(self):
        if not math.isfinite(self.quality):
            raise ValueError(f"{self.name}: quality ({self.quality}) must be finite")
        for field in ("cost", "latency"):
            value = getattr(self, field)
            if not 0 <= value < math.inf:
                raise ValueError(f"{self.name}: {field} ({value}) must be finite, at least 0")


class Router(Generic[Query, Answer]):
    """Ranks sources by a score, and learns how long each takes.

        score = quality − latency_price · (waiting + 1) · latency − cost_price · cost
        latency ← latency + smoothing · (seconds − latency)

    `waiting` is the number of queries in the source's queue: the new one comes after them.
    """

    def __init__(
        self,
        sources: Sequence[Source[Query, Answer]],
        *,
        latency_price: float = 0.02,
        cost_price: float = 1.0,
        smoothing: float = 0.3,
    ):
        """Bind the sources.

        Args:
            sources: with names of their own.
            latency_price: quality that a second of waiting is worth.
            cost_price: quality that a unit of cost is worth.
            smoothing: of the moving average, in (0, 1].

        Raises:
            ValueError: no source, a name that stands twice, or a weight out of range.
        """
        names = [source.name for source in sources]
        if not names or len(set(names)) < len(names):
            raise ValueError(f"sources ({', '.join(names)}) must be at least one, each name once")
        if latency_price < 0 or cost_price < 0 or not 0 < smoothing <= 1:
            raise ValueError(
                f"latency_price ({latency_price}) and cost_price ({cost_price}) must be at least "
                f"0, smoothing ({smoothing}) in (0, 1]"
            )
        self.sources = tuple(sources)
        self._prices, self._smoothing = (latency_price, cost_price), smoothing
        self._latency = {source.name: source.latency for source in sources}
        self._lock = threading.Lock()

    def observe(self, name: str, seconds: float) -> None:
        """Learn from a query that took so long, to its answer or until it was given up."""
        with self._lock:
            self._latency[name] += self._smoothing * (seconds - self._latency[name])

    def latency(self, name: str) -> float:
        """Predicted seconds of one query."""
        with self._lock:
            return self._latency[name]

    def score(self, source: Source[Query, Answer], waiting: int) -> float:
        """What asking the source now is worth.

        Args:
            source: one of the router's.
            waiting: queries in its queue, the one it works on included.
        """
        latency_price, cost_price = self._prices
        return (
            source.quality
            - latency_price * (waiting + 1) * self.latency(source.name)
            - cost_price * source.cost
        )

    def rank(self, waiting: Mapping[str, int]) -> list[Source[Query, Answer]]:
        """The sources, best first; equal scores keep the given order.

        Args:
            waiting: queries in the queue of each source.
        """
        return sorted(self.sources, key=lambda s: -self.score(s, waiting.get(s.name, 0)))
