"""Calls that may fail: wait and try again, and stop trying where it is no use."""

import dataclasses
import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jaxagent.planning.chat import ChatError, ChatModel, Message, Reply


@dataclasses.dataclass(frozen=True)
class Backoff:
    """Exponential back-off with jitter.

    delay_n = min(longest, first · factorⁿ) · u,   u uniform in [1/2, 1]
    """

    attempts: int = 3
    """Calls in all before giving up."""
    first: float = 0.5
    """Seconds before the second call."""
    factor: float = 2.0
    """Growth from one delay to the next."""
    longest: float = 20.0
    """Seconds; an endpoint that asks for more is not waited for."""

    def __post_init__(self):
        if self.attempts < 1:
            raise ValueError(f"attempts ({self.attempts}) must be at least 1")
        if not (0 <= self.first <= self.longest < float("inf") and self.factor >= 1):
            raise ValueError(
                f"first ({self.first}), longest ({self.longest}) and factor ({self.factor}) must "
                "satisfy 0 <= first <= longest and factor >= 1"
            )

    def delay(self, attempt: int, chance: random.Random, retry_after: float | None) -> float:
        """Seconds to wait after a failed call.

        Args:
            attempt: n, from 0.
            chance: of the jitter.
            retry_after: seconds that the endpoint asked for; never waited for less.
        """
        # The exponent is bounded first: a large one would overflow.
        grown = self.first * self.factor ** min(attempt, 64)
        return max(min(self.longest, grown) * chance.uniform(0.5, 1.0), retry_after or 0.0)


class CircuitBreaker:
    """Stops calls to what keeps failing (Nygard, *Release It!*): closed, open, half-open.

    Closed lets all calls through. After `failures` failures in a row it is open and lets none
    through; `cooldown` seconds later it is half-open and lets a single one through, which decides.
    One that is not heard of within `probe_timeout` seconds is given up, and another takes its
    place.
    """

    def __init__(
        self,
        failures: int = 3,
        cooldown: float = 30.0,
        clock: Callable[[], float] = time.monotonic,
        probe_timeout: float = 60.0,
    ):
        """Begin closed.

        Args:
            failures: in a row that open it.
            cooldown: seconds until one call is let through.
            clock: seconds.
            probe_timeout: seconds after which the call that was let through counts as lost.

        Raises:
            ValueError: a bound that makes no sense.
        """
        if failures < 1 or cooldown < 0 or not probe_timeout > 0:
            raise ValueError(
                f"failures ({failures}) must be at least 1, cooldown ({cooldown}) at least 0 and "
                f"probe_timeout ({probe_timeout}) greater than 0"
            )
        self._limit, self._cooldown, self._clock = failures, cooldown, clock
        self._probe_timeout = probe_timeout
        self._lock = threading.Lock()
        self._failures = 0
        self._opened: float | None = None
        self._probe: float | None = None  # when the call that decides was let through

    @property
    def state(self) -> str:
        """closed, open or half-open."""
        with self._lock:
            return self._state()

    def _state(self) -> str:
        if self._opened is None:
            return "closed"
        return "half-open" if self._clock() - self._opened >= self._cooldown else "open"

    def allow(self) -> bool:
        """Whether a call may be made now; who is allowed should report how it went."""
        with self._lock:
            state, now = self._state(), self._clock()
            is_lost = self._probe is not None and now - self._probe >= self._probe_timeout
            if state == "half-open" and (self._probe is None or is_lost):
                self._probe = now
                return True
            return state == "closed"

    def succeed(self) -> None:
        """The call went well."""
        with self._lock:
            self._failures, self._opened, self._probe = 0, None, None

    def fail(self, at_once: bool = False) -> None:
        """The call failed.

        Args:
            at_once: open now, however few failures there were: it is no use to try again soon.
        """
        with self._lock:
            self._failures += 1
            if at_once or self._probe is not None or self._failures >= self._limit:
                self._opened = self._clock()
            self._probe = None


class ResilientChat:
    """A language model whose calls are tried again, and not made while they keep failing."""

    def __init__(
        self,
        chat: ChatModel,
        *,
        backoff: Backoff | None = None,
        breaker: CircuitBreaker | None = None,
        sleep: Callable[[float], Any] | None = None,
        seed: int = 0,
    ):
        """Wrap a model.

        Args:
            chat: the model.
            backoff: how failed calls are tried again.
            breaker: when they are not made at all.
            sleep: waits; None waits too, but is cut short by `stop`.
            seed: of the jitter.
        """
        self._chat, self._backoff = chat, backoff or Backoff()
        self._stopped = threading.Event()
        self._sleep = sleep or self._stopped.wait
        self.breaker = breaker or CircuitBreaker()
        self._chance = random.Random(seed)

    @property
    def name(self) -> str:
        """The model's."""
        return self._chat.name

    @property
    def context(self) -> int:
        """The model's."""
        return self._chat.context

    def count_tokens(self, messages: Sequence[Message]) -> int:
        """The model's."""
        return self._chat.count_tokens(messages)

    def stop(self) -> None:
        """The model's; and nothing is waited for any more."""
        self._stopped.set()
        self._chat.stop()

    def complete(
        self,
        messages: Sequence[Message],
        *,
        max_tokens: int,
        schema: Mapping[str, Any] | None = None,
        temperature: float | None = None,
        seed: int = 0,
    ) -> Reply:
        """As `ChatModel.complete`, several times if need be.

        Raises:
            ChatError: the last failure, or circuit_open where no call was made.
        """
        attempt = 0
        while True:
            if self._stopped.is_set():
                raise ChatError("stopped", f"{self.name} is asked no more")
            if not self.breaker.allow():
                raise ChatError("circuit_open", f"{self.name} keeps failing and is left alone")
            try:
                reply = self._chat.complete(
                    messages,
                    max_tokens=max_tokens,
                    schema=schema,
                    temperature=temperature,
                    seed=seed,
                )
            except ChatError as error:
                if error.reason == "refused_request":
                    self.breaker.succeed()  # whoever refuses a request is well
                else:
                    self.breaker.fail(at_once=error.reason == "wrong_key")
                delay = self._backoff.delay(attempt, self._chance, error.retry_after)
                attempt += 1
                if not self._worth_waiting(error, attempt, delay):
                    raise
                self._sleep(delay)
            except BaseException:
                self.breaker.fail()
                raise
            else:
                self.breaker.succeed()
                return reply

    def _worth_waiting(self, error: ChatError, attempt: int, delay: float) -> bool:
        return (
            error.transient
            and attempt < self._backoff.attempts
            and delay <= self._backoff.longest
            and not self._stopped.is_set()
            and self.breaker.state != "open"
        )
