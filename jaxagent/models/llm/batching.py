"""Requests that come and go, answered together: what a server stands on."""

import itertools
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from jaxagent.models.llm.constrain import Automaton
from jaxagent.models.llm.generate_reply import Completion, Prompt, Request
from jaxagent.models.llm.generate_rows import RowBatch, common_prefix
from jaxagent.models.llm.sampling import SamplingConfig


class Progress(NamedTuple):
    """What a step added to one reply.

    Attributes:
        text: new text; "" while a character or a possible stop string is incomplete.
        num_tokens: how many tokens the reply has so far.
        completion: the whole reply, once it is complete.
    """

    text: str
    num_tokens: int
    completion: Completion | None


class Batcher:
    """Continuous batching over the rows of one cache; not for several threads at once.

        batcher = generator.batcher(rows=8)
        number = batcher.submit(prompt, SamplingConfig(max_new_tokens=100))
        while batcher.is_busy:
            for number, progress in batcher.step().items(): ...

    A request waits until a row is free. It takes the one whose cache begins most like its prompt,
    so that a conversation that comes back is not read again. What a reply says does not depend on
    the requests beside it.

    Args:
        rows: of the batch, all idle.
        make_request: checks a prompt with its settings, `Generator.request`.
    """

    def __init__(self, rows: RowBatch, make_request: Callable[..., Request]) -> None:
        self._rows, self._make_request = rows, make_request
        self._numbers = itertools.count()
        self._waiting: deque[tuple[int, Request]] = deque()
        self._row_of: dict[int, int] = {}

    @property
    def is_busy(self) -> bool:
        """Whether a step would do anything."""
        return bool(self._waiting or self._row_of)

    @property
    def num_waiting(self) -> int:
        """Requests that wait for a row."""
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        """Requests that have a row."""
        return len(self._row_of)

    def submit(
        self, prompt: Prompt, sampling: SamplingConfig, constraint: Automaton | None = None
    ) -> int:
        """Ask for a reply; see `Generator.request` for the arguments.

        Returns:
            The number under which `step` reports on it. Nothing is computed yet.

        Raises:
            ValueError: it cannot be answered (the lengths are named).
        """
        request = self._make_request(prompt, sampling, constraint)
        number = next(self._numbers)
        self._waiting.append((number, request))
        return number

    def cancel(self, number: int) -> bool:
        """Forget a request; its row is free at once.

        Returns:
            Whether there was one of this number that was not complete.
        """
        if number in self._row_of:
            self._rows.stop(self._row_of.pop(number))
            return True
        kept = deque(each for each in self._waiting if each[0] != number)
        found = len(kept) < len(self._waiting)
        self._waiting = kept
        return found

    def step(self, steps: int = 1) -> dict[int, Progress]:
        """Let waiting requests begin, and all others say up to `steps` more tokens.

        While some rows are in the middle of their replies only one request begins in each step:
        to read its prompt is the only pause that they notice.

        Args:
            steps: at most `generate_steps.CAPACITY`; more cost less host work, and text comes
                in larger pieces.

        Returns:
            What was added to each reply, by number; numbers of complete ones do not come again.
        """
        self._admit()
        if self._rows.running:
            self._rows.step(steps)
        progress = {}
        for number, row in list(self._row_of.items()):
            reply = self._rows.replies[row]
            if reply is None:
                continue
            completion = reply.completion() if reply.finish_reason else None
            progress[number] = Progress(reply.new_text(), len(reply.tokens), completion)
            if completion:
                del self._row_of[number]
        return progress

    def _admit(self) -> None:
        """Give free rows to waiting requests: one, or all that fit while nobody is disturbed."""
        at_most = 1 if self._row_of else self._rows.batch
        chosen: dict[int, Request] = {}
        while self._waiting and len(chosen) < at_most:
            taken = {*self._row_of.values(), *chosen}
            free = [row for row in range(self._rows.batch) if row not in taken]
            if not free:
                break
            number, request = self._waiting.popleft()
            row = max(free, key=lambda r: common_prefix(self._rows.read(r), request.prompt))
            chosen[row], self._row_of[number] = request, row
        if chosen:
            self._rows.start(chosen)
