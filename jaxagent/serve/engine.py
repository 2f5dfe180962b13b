"""One thread that steps a batch for all who ask: requests join, share steps, and leave."""

import contextlib
import dataclasses
import logging
import threading
from collections.abc import Callable, Iterator

from jaxagent.models.llm.batching import Batcher, Progress
from jaxagent.models.llm.constrain import Automaton
from jaxagent.models.llm.generate import Generator
from jaxagent.models.llm.sampling import SamplingConfig

# Tokens between two looks at who came and who left; a joining request waits that long.
STEP_TOKENS = 4
_log = logging.getLogger(__name__)


class QueueFull(Exception):
    """As many requests as the engine takes are under way already."""


class EngineFailure(Exception):
    """The engine gave up on a request; the message says why."""


Report = Callable[[Progress | EngineFailure], None]
"""Takes each piece of a reply as it comes, on the engine's thread; the last is complete, or a
failure."""


@dataclasses.dataclass(frozen=True, eq=False)
class Ticket:
    """A request under way; two that ask for the same are two."""

    prompt: list[int]
    sampling: SamplingConfig
    constraint: Automaton | None
    report: Report


class Engine:
    """Answers requests from any thread, all together in one batch."""

    def __init__(self, generator: Generator, *, rows: int = 4, queue_length: int = 32):
        """Start the thread.

        Args:
            generator: the model.
            rows: requests that are answered at a time.
            queue_length: requests that may wait for a row besides.

        Raises:
            ValueError: a bound that leaves no room.
        """
        if rows < 1 or queue_length < 0:
            raise ValueError(f"rows ({rows}) must be at least 1, queue ({queue_length}) at least 0")
        self._generator, self._rows = generator, rows
        self.most = rows + queue_length
        self._batcher: Batcher | None = None  # made when it is needed, and anew after a failure
        self._changed = threading.Condition()
        self._arrivals: list[Ticket] = []
        self._departures: list[Ticket] = []
        # The engine thread's alone: requests of the batch by number, and those that are to join.
        self._tickets: dict[int, Ticket] = {}
        self._joining: list[Ticket] = []
        self._places = 0
        self._closed = False
        self.steps = 0
        self._thread = threading.Thread(target=self._work, daemon=True, name="engine")
        self._thread.start()

    @property
    def under_way(self) -> int:
        """Places that are taken."""
        with self._changed:
            return self._places

    @property
    def is_closed(self) -> bool:
        """Whether it takes no more requests."""
        return self._closed

    @contextlib.contextmanager
    def places(self, count: int) -> Iterator[None]:
        """Take places for as long as the block lasts: replies, and what is prepared for them.

        Args:
            count: replies that are asked for together.

        Raises:
            QueueFull: ask again later.
            EngineFailure: the engine is closed.
        """
        with self._changed:
            if self._closed:
                raise EngineFailure("the server is shutting down")
            if self._places + count > self.most:
                raise QueueFull(
                    f"{self._places} requests are under way, of {self.most} at most; {count} more "
                    "are not taken now"
                )
            self._places += count
        try:
            yield
        finally:
            with self._changed:
                self._places -= count

    def submit(
        self,
        prompt: list[int],
        sampling: SamplingConfig,
        constraint: Automaton | None,
        report: Report,
    ) -> Ticket:
        """Ask for a reply. How many may be asked for is said by `places`.

        Args:
            prompt: token ids.
            sampling: how tokens are drawn, and how many.
            constraint: what may be said; None is anything.
            report: is told.

        Raises:
            ValueError: it cannot be answered (see `Generator.request`).
            EngineFailure: the engine is closed.
        """
        self._generator.request(prompt, sampling, constraint)
        ticket = Ticket(prompt, sampling, constraint, report)
        with self._changed:
            if self._closed:
                raise EngineFailure("the server is shutting down")
            self._arrivals.append(ticket)
            self._changed.notify_all()
        return ticket

    def cancel(self, ticket: Ticket) -> None:
        """Forget a request; its row is free before the next step. Harmless for complete ones."""
        with self._changed:
            self._departures.append(ticket)
            self._changed.notify_all()

    def close(self, timeout: float | None = None) -> bool:
        """End the thread; requests under way fail.

        Args:
            timeout: seconds to wait for the step under way; None waits as long as it takes.

        Returns:
            Whether the thread has ended.
        """
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.close()

    def _work(self) -> None:
        is_open = True
        while is_open:
            try:
                is_open = self._turn()
            # Memory that runs out, a lost device, whatever it is: it must fail these requests and
            # not all to come. The next batch is made by the next turn, inside of this block too.
            except BaseException as error:
                self._batcher = None
                _log.exception("a batch failed")
                self._fail_all(f"the model failed ({type(error).__name__})")
        self._fail_all("the server is shutting down")

    def _turn(self) -> bool:
        """Wait for something to do and do it; False: the engine is closed."""
        with self._changed:
            while not (self._closed or self._arrivals or self._departures or self._tickets):
                self._changed.wait()
            if self._closed:
                return False
            departures, self._departures = self._departures, []
            self._joining = [each for each in self._arrivals if each not in departures]
            self._arrivals = []
        if self._batcher is None:
            if not self._joining:  # somebody has left who was told of the failure already
                return True
            self._batcher = self._generator.batcher(self._rows)
        for number in [n for n, ticket in self._tickets.items() if ticket in departures]:
            self._batcher.cancel(number)
            del self._tickets[number]
        while self._joining:
            ticket = self._joining[0]
            number = self._batcher.submit(ticket.prompt, ticket.sampling, ticket.constraint)
            self._tickets[number] = self._joining.pop(0)
        if self._tickets:
            self._step(self._batcher)
        return True

    def _step(self, batcher: Batcher) -> None:
        progress = batcher.step(STEP_TOKENS)
        self.steps += 1
        for number, piece in progress.items():
            ticket = self._tickets[number]
            if piece.completion is not None:
                del self._tickets[number]
            ticket.report(piece)

    def _fail_all(self, why: str) -> None:
        """Tell everybody, those too that came during the step."""
        with self._changed:
            told = [*self._tickets.values(), *self._joining, *self._arrivals]
            self._arrivals, self._joining = [], []
        self._tickets.clear()
        for ticket in told:
            # Nothing that a caller does may end the thread.
            with contextlib.suppress(Exception):
                ticket.report(EngineFailure(why))
