"""Ask without waiting: an answer at once, if need be a stand-in, while the real one is fetched."""

import atexit
import dataclasses
import logging
import math
import queue
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypeVar

from jaxagent.planning.serving.cache import AnswerCache
from jaxagent.planning.serving.predictor import NearestAnswer
from jaxagent.planning.serving.queries import QueryKind
from jaxagent.planning.serving.resilience import CircuitBreaker
from jaxagent.planning.serving.router import Router, Source

Query = TypeVar("Query")
Answer = TypeVar("Answer")
_REMEMBERED = 1024
_log = logging.getLogger(__name__)


class Advice(NamedTuple, Generic[Answer]):
    """What the caller gets at once."""

    answer: Answer | None
    origin: str  # exact, bucket: a real answer; predicted, last: a stand-in; none
    source: str = ""  # who gave a real answer

    @property
    def is_stale(self) -> bool:
        """Whether this is not (yet) an answer to the question that was asked."""
        return self.origin not in ("exact", "bucket")


@dataclasses.dataclass(frozen=True)
class ServiceSettings:
    """Bounds of the service."""

    timeout: float = 300.0
    """Seconds after which a query counts as lost, and the next source is asked. A Flax model
    compiles in its first."""
    failures: int = 3
    """Failures in a row after which a source is left alone."""
    cooldown: float = 60.0
    """Seconds until one query tries such a source again, and for which the answer of a lesser
    source stands."""
    queue_length: int = 32
    """Queries waiting for one source; more are not taken in."""

    def __post_init__(self):
        if not self.timeout > 0 or self.queue_length < 1:
            raise ValueError(
                f"timeout ({self.timeout}) must be greater than 0 and queue_length "
                f"({self.queue_length}) at least 1"
            )


class _Job(Generic[Query]):
    """A query on its way, from source to source until one answers."""

    def __init__(self, key: str, query: Query):
        self.key, self.query = key, query
        self.tried: list[str] = []
        self.source = ""
        self.asked_at = 0.0


class GuidanceService(Generic[Query, Answer]):
    """Answers at once, from a cache or by a stand-in; asks its sources on threads of their own.

    Each source has one daemon thread; `close` ends them, at the latest when the process ends,
    which waits for none that cannot be stopped.
    """

    def __init__(
        self,
        kind: QueryKind[Query, Answer],
        router: Router[Query, Answer],
        *,
        cache: AnswerCache | None = None,
        predictor: NearestAnswer[Query, Answer] | None = None,
        settings: ServiceSettings | None = None,
        clock: Callable[[], float] = time.monotonic,
    ):
        """Start the threads.

        Args:
            kind: of questions.
            router: the sources.
            cache: where answers are kept; a fresh one in memory if None.
            predictor: the stand-in; None gives the last answer of the group alone.
            settings: bounds.
            clock: seconds, of deadlines and latencies.
        """
        self._kind, self._router, self._clock = kind, router, clock
        self._cache = cache or AnswerCache()
        self._predictor = predictor
        self._settings = settings or ServiceSettings()
        self._changed = threading.Condition(threading.RLock())
        self._jobs: dict[str, _Job[Query]] = {}
        self._last: dict[str, Answer] = {}
        # Answers by a source that was asked because better ones failed, and when they came.
        self._second_best: OrderedDict[str, tuple[float, Advice[Answer]]] = OrderedDict()
        self._counts: Counter[str] = Counter()
        self._waited = self._spent = 0.0
        self._closed = False
        self._waiting = {source.name: 0 for source in router.sources}
        # A query that another source has answered meanwhile reports to nobody: it counts as lost
        # when it would have counted as lost by itself.
        bounds = self._settings
        self._breakers = {
            source.name: CircuitBreaker(bounds.failures, bounds.cooldown, clock, bounds.timeout)
            for source in router.sources
        }
        self._queues: dict[str, queue.SimpleQueue[_Job[Query] | None]] = {}
        self._threads: list[threading.Thread] = []
        for source in router.sources:
            self._queues[source.name] = queue.SimpleQueue()
            self._threads.append(
                threading.Thread(
                    target=self._work, args=(source,), daemon=True, name=f"guidance-{source.name}"
                )
            )
        for thread in self._threads:
            thread.start()
        # The threads end before the interpreter takes their world away.
        atexit.register(self.close)

    def ask(self, query: Query) -> Advice[Answer]:
        """The best answer there is now; never waits.

        Args:
            query: the question.

        Returns:
            A real answer where one is cached. Otherwise a stand-in, or nothing, while the question
            is put to a source; ask again later.

        Raises:
            RuntimeError: the service is closed.
        """
        with self._changed:
            self._require_open()
            self._counts["queries"] += 1
            self._expire()
            found = self._cached(query)
            if found.answer is not None:
                self._counts[f"hits_{found.origin}"] += 1
                return found
            self._submit(query)
            return self._stand_in(query)

    def wait(self, query: Query, timeout: float | None = None) -> Advice[Answer]:
        """As `ask`, but stay until the answer is there, every source has failed, or time is up.

        Args:
            query: the question.
            timeout: seconds; None waits as long as a source may take, for each of them in turn.
        """
        begin = time.monotonic()
        if timeout is None:
            timeout = self._settings.timeout * len(self._router.sources)
        advice = self.ask(query)
        if not advice.is_stale:
            return advice
        key = self._kind.exact(query)
        with self._changed:
            self._counts["waits"] += 1
            while (job := self._jobs.get(key)) and (left := begin + timeout - time.monotonic()) > 0:
                self._expire()
                due = job.asked_at + self._settings.timeout - self._clock()
                self._changed.wait(min(left, max(due, 0.01)))
            self._waited += time.monotonic() - begin
            found = self._cached(query)
            return advice if found.answer is None else found

    def metrics(self) -> dict[str, Any]:
        """Everything counted so far, as plain data.

        Returns:
            queries, hits_exact, hits_bucket, asked (of sources), answered, failed, timeouts, late,
            dropped (full queues), unanswered (every source failed), stale (stand-ins given), none
            (not even that), waits and waited_seconds, cost, pending, prediction_error, cache, and
            for each source its latency, queue and breaker.
        """
        names = ("queries", "hits_exact", "hits_bucket", "asked", "answered", "failed", "timeouts")
        names += ("late", "dropped", "unanswered", "stale", "none", "waits")
        with self._changed:
            values: dict[str, Any] = {name: self._counts[name] for name in names}
            values |= {
                "waited_seconds": self._waited,
                "cost": self._spent,
                "pending": len(self._jobs),
                "prediction_error": self._predictor.mean_error if self._predictor else None,
                "cache": dict(self._cache.counts),
                "sources": {
                    name: {
                        "latency": self._router.latency(name),
                        "waiting": waiting,
                        "breaker": self._breakers[name].state,
                    }
                    for name, waiting in self._waiting.items()
                },
            }
            return values

    def close(self, timeout: float = 0.5, stopping_timeout: float = 60.0) -> bool:
        """Take no more questions and end the threads.

        Args:
            timeout: seconds to wait for a call that cannot be stopped; it dies with the process.
            stopping_timeout: seconds to wait for a call that can be, up to the end of what the
                device is doing (a compilation at worst).

        Returns:
            Whether all threads have ended.
        """
        with self._changed:
            self._closed = True
            self._jobs.clear()
            self._changed.notify_all()
        atexit.unregister(self.close)
        for waiting in self._queues.values():
            waiting.put(None)
        for source in self._router.sources:
            if source.stop is not None:
                source.stop()
        begin = time.monotonic()
        for source, thread in zip(self._router.sources, self._threads):
            patience = timeout if source.stop is None else stopping_timeout
            thread.join(max(0.0, begin + patience - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.close()

    def _require_open(self) -> None:
        if self._closed:
            raise RuntimeError("the guidance service is closed")

    def _key(self, source: Source, state: str) -> str:
        return f"{source.name}|{source.version}|{state}"

    def _acceptable(self) -> list[Source[Query, Answer]]:
        """Sources no worse than the one that would be asked now, the best first.

        An answer that a rule gave while the model was down must not keep the model from ever
        being asked.
        """
        usable = [s for s in self._router.rank(self._waiting) if self._usable(s)]
        least = usable[0].quality if usable else float("-inf")
        good = [source for source in self._router.sources if source.quality >= least]
        return sorted(good, key=lambda source: -source.quality)

    def _usable(self, source: Source) -> bool:
        return self._breakers[source.name].state != "open"

    def _cached(self, query: Query) -> Advice[Answer]:
        sources, exact = self._acceptable(), self._kind.exact(query)
        found = self._look_up(sources, "exact", exact)
        if found.answer is not None:
            return found
        came, second_best = self._second_best.get(exact, (-math.inf, found))
        if self._clock() - came < self._settings.cooldown:
            return second_best
        return self._look_up(sources, "bucket", self._kind.bucket(query))

    def _look_up(self, sources: list[Source], origin: str, state: str) -> Advice[Answer]:
        for source in sources:
            key = self._key(source, f"{origin}|{state}")
            data = self._cache.get(key)
            if data is None:
                continue
            try:
                return Advice(self._kind.load(data), origin, source.name)
            except ValueError as error:
                self._cache.forget(key, str(error))
        return Advice(None, "none")

    def _stand_in(self, query: Query) -> Advice[Answer]:
        guess = self._predictor.predict(query) if self._predictor else None
        last = self._last.get(self._kind.group(query))
        advice = Advice(guess, "predicted") if guess is not None else Advice(last, "last")
        if advice.answer is None:
            self._counts["none"] += 1
            return Advice(None, "none")
        self._counts["stale"] += 1
        return advice

    def _submit(self, query: Query) -> None:
        key = self._kind.exact(query)
        if key in self._jobs:
            return
        job = _Job(key, query)
        self._jobs[key] = job
        self._route(job)

    def _route(self, job: _Job[Query]) -> None:
        """Hand a job to the best source that has not had it; give it up if there is none."""
        full = False
        for source in self._router.rank(self._waiting):
            if source.name in job.tried:
                continue
            if self._waiting[source.name] >= self._settings.queue_length:
                full = True
            elif self._breakers[source.name].allow():
                job.tried.append(source.name)
                job.source, job.asked_at = source.name, self._clock()
                self._waiting[source.name] += 1
                self._counts["asked"] += 1
                self._spent += source.cost
                self._queues[source.name].put(job)
                return
        self._counts["dropped" if full else "unanswered"] += 1
        self._jobs.pop(job.key, None)
        self._changed.notify_all()

    def _expire(self) -> None:
        """Give jobs that take too long to the next source; their thread goes on by itself."""
        now = self._clock()
        for job in list(self._jobs.values()):
            if now - job.asked_at > self._settings.timeout:
                self._counts["timeouts"] += 1
                self._breakers[job.source].fail()
                self._router.observe(job.source, now - job.asked_at)
                self._route(job)

    def _work(self, source: Source[Query, Answer]) -> None:
        while (job := self._queues[source.name].get()) is not None and not self._closed:
            begin = self._clock()
            wanted = self._is_at(job, source)
            answer = self._answer(source, job.query) if wanted else None
            with self._changed:
                self._waiting[source.name] -= 1
                if answer is not None:  # to fail fast is not to be fast
                    self._router.observe(source.name, self._clock() - begin)
                if wanted:
                    self._finish(source, job, answer)

    def _is_at(self, job: _Job[Query], source: Source) -> bool:
        """Whether the job is still this source's to do."""
        with self._changed:
            return self._jobs.get(job.key) is job and job.source == source.name

    def _answer(self, source: Source[Query, Answer], query: Query) -> Answer | None:
        try:
            answer = source.ask(query)
            if answer is not None:
                self._remember(source, query, answer)
            return answer
        # Whatever a source does, neither its thread nor the run may end.
        except Exception as error:
            _log.debug("%s gave no answer: %s", source.name, type(error).__name__)
            return None

    def _remember(self, source: Source, query: Query, answer: Answer) -> None:
        data = self._kind.dump(answer)
        self._cache.put(self._key(source, f"exact|{self._kind.exact(query)}"), data)
        self._cache.put(self._key(source, f"bucket|{self._kind.bucket(query)}"), data)
        if self._predictor:
            self._predictor.learn(query, answer)

    def _finish(self, source: Source, job: _Job[Query], answer: Answer | None) -> None:
        in_time = self._is_at(job, source)
        self._counts["failed" if answer is None else "answered"] += 1
        if answer is None:
            if in_time:
                self._breakers[source.name].fail()
                self._route(job)
            return
        if in_time:
            self._breakers[source.name].succeed()
        else:
            self._counts["late"] += 1
        self._last[self._kind.group(job.query)] = answer
        if len(job.tried) > 1:
            self._second_best[job.key] = (self._clock(), Advice(answer, "exact", source.name))
            while len(self._second_best) > _REMEMBERED:
                self._second_best.popitem(last=False)
        if self._jobs.get(job.key) is job:
            del self._jobs[job.key]
        self._changed.notify_all()
