"""The same batch spread over spawned processes; one that hangs or dies is replaced.

Processes are spawned, never forked: a fork after JAX has started its threads can deadlock. In a
run of several JAX processes each hosts its own environments; nothing here crosses hosts.
"""

import contextlib
import itertools
import math
import multiprocessing
import threading
import time
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection
from typing import Any

from envs.text.bridge import BatchEnv, SlotStep, stack_steps
from envs.text.engine import Event
from envs.text.game import Game
from envs.text.pddl import GameFileError
from envs.text.protocol import (
    DEFAULT_HORIZON,
    GameSource,
    Rewards,
    TextInfo,
    TextStep,
    check_batch,
    check_commands,
)

_START_TIMEOUT = 60.0
_GRACE = 0.05
_WATCH_PERIOD = 0.1
_LOST_OBSERVATION = ""


class WorkerEnv:
    """A batch in several processes; see `TextEnv` for how it is used.

    What an environment does depends on its game and its commands alone, so results are the same
    for any number of workers.

    Args (of the constructor):
        num_envs: size of the batch.
        num_workers: processes; environments are dealt to them in contiguous blocks.
        call_timeout: seconds that one reset or step may take before a worker counts as hung.
        horizon: steps after which an episode that is not won is truncated.
        rewards: what a step pays.
    """

    def __init__(
        self,
        num_envs: int,
        num_workers: int,
        *,
        call_timeout: float = 30.0,
        horizon: int = DEFAULT_HORIZON,
        rewards: Rewards | None = None,
    ) -> None:
        if not 1 <= num_workers <= num_envs:
            raise ValueError(
                f"num_workers ({num_workers}) must lie between 1 and num_envs ({num_envs})"
            )
        if call_timeout <= 0:
            raise ValueError(f"call_timeout ({call_timeout}) must be positive seconds")
        self.num_envs = num_envs
        self.call_timeout = call_timeout
        bounds = [num_envs * i // num_workers for i in range(num_workers + 1)]
        settings = (horizon, rewards or Rewards())
        self._workers = [
            _Worker(range(start, stop), *settings) for start, stop in itertools.pairwise(bounds)
        ]
        self._closed = threading.Event()
        threading.Thread(target=self._watch, daemon=True, name="text-env-watch").start()
        self._last: list[SlotStep] = [_never_begun() for _ in range(num_envs)]
        self._lost = [False] * num_envs

    @property
    def worker_ids(self) -> list[int]:
        """Process identifiers of the workers, in the order of their environments."""
        return [worker.process.pid or 0 for worker in self._workers]

    def reset(
        self, games: Sequence[GameSource], slots: Sequence[int] | None = None
    ) -> tuple[list[str], TextInfo]:
        """Begins an episode of ``games[i]`` in environment ``slots[i]`` (default: in all).

        Args:
            games: loaded games or paths of game files (readable by the workers).
            slots: the environments to reset; the others go on.

        Returns:
            Observations and information of the whole batch.

        Raises:
            GameFileError: a file cannot be played; environments of other workers are reset.
            ValueError: games and slots do not match.
        """
        chosen = check_batch(self.num_envs, games, slots)
        wanted = dict(zip(chosen, games))
        for slot in chosen:
            self._lost[slot] = False
        requests = []
        for worker in self._workers:
            own = [slot for slot in worker.slots if slot in wanted]
            local = [slot - worker.slots.start for slot in own]
            requests.append(("reset", [_portable(wanted[slot]) for slot in own], local))
        self._call(requests)
        whole = stack_steps(self._last, self._lost)
        return whole.observations, whole.info

    def step(self, commands: Sequence[str]) -> TextStep:
        """Carries out one command per environment.

        Args:
            commands: one text per environment; ended environments ignore theirs.

        Returns:
            The batch's step. Episodes of a worker that hung past ``call_timeout`` or died are
            truncated with ``info.lost`` set and stay so until they are reset.

        Raises:
            ValueError: not one text per environment.
        """
        check_commands(self.num_envs, commands)
        self._call([("step", [commands[slot] for slot in w.slots]) for w in self._workers])
        return stack_steps(self._last, self._lost)

    def close(self) -> None:
        """Ends the workers."""
        self._closed.set()
        for worker in self._workers:
            worker.stop()

    def _watch(self) -> None:
        """Frees a call that waits for a worker which has stopped in the middle of a message."""
        while not self._closed.wait(_WATCH_PERIOD):
            for worker in self._workers:
                worker.kill_if_overdue()

    def _call(self, requests: list[tuple]) -> None:
        """Sends all requests, then collects the answers until the deadline."""
        deadline = time.monotonic() + self.call_timeout
        sent = [worker.send(request, deadline) for worker, request in zip(self._workers, requests)]
        failure: str | None = None
        for worker, was_sent in zip(self._workers, sent):
            answer = worker.receive(deadline) if was_sent else None
            if answer is None:
                worker.replace()
                for slot in worker.slots:
                    self._lose(slot)
            elif isinstance(answer, str):
                failure = failure or answer
            else:
                for slot, part in zip(worker.slots, _unpacked(answer)):
                    if not self._lost[slot]:
                        self._last[slot] = part
        if failure is not None:
            raise GameFileError(failure)

    def _lose(self, slot: int) -> None:
        last = self._last[slot]
        if last.terminated or last.truncated:
            self._last[slot] = last._replace(reward=0.0, event=None, valid=False)
        else:
            self._last[slot] = _never_begun()._replace(truncated=True, steps=last.steps)
        self._lost[slot] = True


class _Worker:
    """One process, the pipe to it, and how to start it anew."""

    def __init__(self, slots: range, horizon: int, rewards: Rewards) -> None:
        self.slots = slots
        self._settings = (len(slots), horizon, rewards)
        self._start()

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self.process = context.Process(
            target=_serve, args=(theirs, *self._settings), daemon=True, name="text-env"
        )
        self.process.start()
        theirs.close()
        self._ready = False
        self._kill_at = math.inf

    def send(self, request: tuple, deadline: float) -> bool:
        """Whether the request could be sent; a worker that does not read it in time is killed."""
        try:
            with self._killed_at(deadline):
                self._pipe.send(request)
        except OSError:
            return False
        return True

    def receive(self, deadline: float) -> Any:
        """The answer, or None if the worker gave none in time or is dead."""
        try:
            # Data may be there in part only, and reading the rest would then wait for ever.
            if not self._pipe.poll(self._seconds_until(deadline)):
                return None
            with self._killed_at(deadline):
                answer = self._pipe.recv()
        except (EOFError, OSError):
            return None
        self._ready = True
        return answer

    def _seconds_until(self, deadline: float) -> float:
        # A fresh interpreter needs seconds to come up; that is not the call's fault.
        allowance = 0.0 if self._ready else _START_TIMEOUT
        return max(0.0, deadline - time.monotonic()) + allowance

    @contextlib.contextmanager
    def _killed_at(self, deadline: float) -> Iterator[None]:
        """Lets the process be killed at the deadline, which ends any wait for it with an error."""
        self._kill_at = time.monotonic() + self._seconds_until(deadline) + _GRACE
        try:
            yield
        finally:
            self._kill_at = math.inf

    def kill_if_overdue(self) -> None:
        """Called from the watching thread."""
        if time.monotonic() > self._kill_at:
            self.process.kill()

    def replace(self) -> None:
        self.process.kill()
        self.process.join()
        self._pipe.close()
        self._start()

    def stop(self) -> None:
        self.send(("close",), time.monotonic() + 2.0)
        self.process.join(timeout=2.0)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        self._pipe.close()


def _serve(pipe: Connection, num_envs: int, horizon: int, rewards: Rewards) -> None:
    """The worker's loop; it answers with `_packed` steps, or a text when a game is refused."""
    env = BatchEnv(num_envs, horizon=horizon, rewards=rewards)
    while True:
        try:
            name, *arguments = pipe.recv()
        except (EOFError, KeyboardInterrupt):
            return
        if name == "close":
            return
        try:
            pipe.send(_packed(getattr(env, f"{name}_slots")(*arguments)))
        except GameFileError as error:
            pipe.send(str(error))


def _packed(parts: list[SlotStep]) -> tuple:
    """Columns of plain values: they cross a pipe several times faster than the tuples do."""
    columns = [list(column) for column in zip(*parts)]
    columns[4] = ["\n".join(commands) for commands in columns[4]]
    columns[6] = [None if event is None else tuple(event) for event in columns[6]]
    return tuple(columns)


def _unpacked(columns: tuple) -> list[SlotStep]:
    fields = list(columns)
    fields[4] = [joined.split("\n") if joined else [] for joined in fields[4]]
    fields[6] = [None if event is None else Event(*event) for event in fields[6]]
    return [SlotStep(*row) for row in zip(*fields)]


def _never_begun() -> SlotStep:
    return SlotStep(_LOST_OBSERVATION, 0.0, False, False, [], False, None, False, 0)


def _portable(source: GameSource) -> GameSource:
    """Loaded games travel without the text they have cached."""
    return source._replace(shared_text={}) if isinstance(source, Game) else source
