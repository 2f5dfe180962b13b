"""One thread that steps a batch for all who ask: requests join, share steps, and leave."""

import logging
import queue
import threading

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


class Ticket:
    """A request under way: what it says, as it comes."""

    def __init__(self):
        self._events: queue.SimpleQueue[Progress | EngineFailure] = queue.SimpleQueue()

    def put(self, event: Progress | EngineFailure) -> None:
        """Report; called by the engine."""
        self._events.put(event)

    def get(self, timeout: float) -> Progress:
        """The next piece.

        Args:
            timeout: seconds.

        Raises:
            queue.Empty: nothing new.
            EngineFailure: nothing more will come.
        """
        event = self._events.get(timeout=timeout)
        if isinstance(event, EngineFailure):
            raise event
        return event


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
        self._most = rows + queue_length
        self._batcher: Batcher = generator.batcher(rows)
        self._changed = threading.Condition()
        self._arrivals: list[tuple[Ticket, list[int], SamplingConfig, Automaton | None]] = []
        self._departures: list[Ticket] = []
        self._tickets: dict[int, Ticket] = {}  # the engine thread's alone
        self._open: set[Ticket] = set()
        self._closed = False
        self.steps = 0
        self._thread = threading.Thread(target=self._work, daemon=True, name="engine")
        self._thread.start()

    @property
    def under_way(self) -> int:
        """Requests that are being answered or wait."""
        with self._changed:
            return len(self._open)

    def submit(
        self, prompt: list[int], sampling: SamplingConfig, constraint: Automaton | None = None
    ) -> Ticket:
        """Ask for a reply.

        Args:
            prompt: token ids.
            sampling: how tokens are drawn, and how many.
            constraint: what may be said; None is anything.

        Raises:
            ValueError: it cannot be answered (see `Generator.request`).
            QueueFull: ask again later.
            EngineFailure: the engine is closed.
        """
        self._generator.request(prompt, sampling, constraint)
        ticket = Ticket()
        with self._changed:
            if self._closed:
                raise EngineFailure("the server is shutting down")
            if len(self._open) >= self._most:
                raise QueueFull(f"{len(self._open)} requests are under way, no more are taken")
            self._open.add(ticket)
            self._arrivals.append((ticket, prompt, sampling, constraint))
            self._changed.notify_all()
        return ticket

    def cancel(self, ticket: Ticket) -> None:
        """Forget a request; its row is free before the next step. Harmless for complete ones."""
        with self._changed:
            if ticket in self._open:
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
        while self._take_in():
            try:
                progress = self._batcher.step(STEP_TOKENS)
                self.steps += 1
            # Memory that runs out or a lost device must fail these requests, not all to come.
            except Exception as error:
                _log.exception("a step failed")
                self._fail_all(f"the model failed ({type(error).__name__})")
                self._batcher = self._generator.batcher(self._rows)
                continue
            for number, piece in progress.items():
                self._tickets[number].put(piece)
                if piece.completion is not None:
                    self._forget(number)
        self._fail_all("the server is shutting down")

    def _take_in(self) -> bool:
        """Wait until there is something to do; False: the engine is closed."""
        with self._changed:
            while not (self._closed or self._arrivals or self._departures or self._batcher.is_busy):
                self._changed.wait()
            arrivals, self._arrivals = self._arrivals, []
            departures, self._departures = self._departures, []
        for ticket, prompt, sampling, constraint in arrivals:
            self._tickets[self._batcher.submit(prompt, sampling, constraint)] = ticket
        for number in [n for n, ticket in self._tickets.items() if ticket in departures]:
            self._batcher.cancel(number)
            self._forget(number)
        return not self._closed

    def _forget(self, number: int) -> None:
        ticket = self._tickets.pop(number)
        with self._changed:
            self._open.discard(ticket)

    def _fail_all(self, why: str) -> None:
        with self._changed:
            for ticket in self._open:
                ticket.put(EngineFailure(why))
            self._open.clear()
            # Those that came during the step have failed with the others.
            self._arrivals.clear()
        self._tickets.clear()
