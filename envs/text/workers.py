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
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

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
_LISTS_NUMBERED = 16_384


class WorkerEnv:
    """A batch in several processes; see `TextEnv` for how it is used.

    What an environment does depends on its game and its commands alone, so results are the same
    for any number of workers.

    Args (of the constructor):
        num_envs: size of the batch.
        num_workers: processes; environments are dealt to them in contiguous blocks.
        with_caller: count this process as one of them. It plays the first block itself while the
            others play theirs, instead of waiting; its own share no timeout can end.
        call_timeout: seconds that one reset or step may take before a worker counts as hung.
        horizon: steps after which an episode that is not won is truncated.
        rewards: what a step pays.
    """

    def __init__(
        self,
        num_envs: int,
        num_workers: int,
        *,
        with_caller: bool = False,
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
        blocks = [range(start, stop) for start, stop in itertools.pairwise(bounds)]
        self._workers: list[_Worker | _Caller] = [
            _Caller(block, *settings) if with_caller and block.start == 0
            else _Worker(block, *settings)
            for block in blocks
        ]  # fmt: skip
        self._closed = threading.Event()
        threading.Thread(target=self._watch, daemon=True, name="text-env-watch").start()
        self._last = [_never_begun(len(worker.slots)) for worker in self._workers]

    @property
    def worker_ids(self) -> list[int]:
        """Process identifiers of the workers, in the order of their environments."""
        return [w.process.pid or 0 for w in self._workers if isinstance(w, _Worker)]

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
        wanted = dict(zip(check_batch(self.num_envs, games, slots), games))
        requests = []
        for worker, last in zip(self._workers, self._last):
            own = [slot for slot in worker.slots if slot in wanted]
            local = [slot - worker.slots.start for slot in own]
            last.info.lost[local] = False
            requests.append(("reset", [worker.carry(wanted[slot]) for slot in own], local))
        self._call(requests)
        whole = _joined(self._last)
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
        return _joined(self._last)

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
        for index, (worker, was_sent) in enumerate(zip(self._workers, sent)):
            answer = worker.receive(deadline) if was_sent else None
            if answer is None:
                worker.replace()
                self._last[index] = _cut_off(self._last[index])
            elif isinstance(answer, str):
                failure = failure or answer
            else:
                self._last[index] = _keeping_lost(answer, self._last[index])
        if failure is not None:
            raise GameFileError(failure)


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
        self._lists: dict[int, list[str]] = {}

    def carry(self, source: GameSource) -> GameSource:
        """A game as it goes through the pipe: without the text it has cached."""
        return source._replace(shared_text={}) if isinstance(source, Game) else source

    def send(self, request: tuple, deadline: float) -> bool:
        """Whether the request could be sent; a worker that does not read it in time is killed."""
        try:
            with self._killed_at(deadline):
                self._pipe.send(request)
        except OSError:
            return False
        return True

    def receive(self, deadline: float) -> TextStep | str | None:
        """The step, why a game was refused, or None from a worker that is late or dead."""
        try:
            # Data may be there in part only, and reading the rest would then wait for ever.
            if not self._pipe.poll(self._seconds_until(deadline)):
                return None
            with self._killed_at(deadline):
                answer = self._pipe.recv()
        except (EOFError, OSError):
            return None
        self._ready = True
        return answer if isinstance(answer, str) else _unpacked(answer, self._lists)

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


class _Caller:
    """This process's own block; it is played when its answer is asked for, before all others."""

    def __init__(self, slots: range, horizon: int, rewards: Rewards) -> None:
        self.slots = slots
        self._env = BatchEnv(len(slots), horizon=horizon, rewards=rewards)
        self._handlers = _handlers(self._env)
        self._request: tuple = ()

    def carry(self, source: GameSource) -> GameSource:
        """A game as it is: it goes nowhere."""
        return source

    def send(self, request: tuple, deadline: float) -> bool:
        """Keeps the request."""
        self._request = request
        return True

    def receive(self, deadline: float) -> TextStep | str:
        """The step, or why a game was refused."""
        name, *arguments = self._request
        try:
            return self._handlers[name](*arguments)
        except GameFileError as error:
            return str(error)

    def kill_if_overdue(self) -> None:
        """There is nobody to kill."""

    def replace(self) -> None:
        """It has always answered."""

    def stop(self) -> None:
        self._env.close()


def _handlers(env: BatchEnv) -> dict[str, Callable[..., TextStep]]:
    return {"step": env.step, "reset": lambda *given: stack_steps(env.reset_slots(*given))}


def _serve(pipe: Connection, num_envs: int, horizon: int, rewards: Rewards) -> None:
    """The worker's loop; it answers with `_packed` steps, or a text when a game is refused."""
    env, numbers = BatchEnv(num_envs, horizon=horizon, rewards=rewards), {}
    handlers = _handlers(env)
    while True:
        try:
            name, *arguments = pipe.recv()
        except (EOFError, KeyboardInterrupt):
            return
        if name == "close":
            return
        try:
            pipe.send(_packed(handlers[name](*arguments), numbers))
        except GameFileError as error:
            pipe.send(str(error))


def _packed(step: TextStep, numbers: dict[tuple[str, ...], int]) -> tuple:
    """Whole columns of plain values, which cross a pipe several times faster than tuples do.

    Lists of commands recur, and are most of the text: each crosses once, and then its number does.
    """
    info, chosen, new = step.info, [], {}
    if len(numbers) > _LISTS_NUMBERED:
        numbers.clear()  # a number given again replaces the list that the reader has under it
    for commands in map(tuple, info.admissible):
        number = numbers.get(commands)
        if number is None:
            number = numbers[commands] = len(numbers)
            new[number] = "\n".join(commands)
        chosen.append(number)
    events = {slot: tuple(event) for slot, event in enumerate(info.event) if event is not None}
    return (*step[:4], new, chosen, events, info.won, info.valid, info.steps)


def _unpacked(packed: tuple, lists: dict[int, list[str]]) -> TextStep:
    observations, rewards, terminated, truncated, new, chosen, events, won, valid, steps = packed
    for number, joined in new.items():
        lists[number] = joined.split("\n") if joined else []
    event: list[Event | None] = [None] * len(observations)
    for slot, values in events.items():
        event[slot] = Event(*values)
    info = TextInfo(
        admissible=[lists[number].copy() for number in chosen],
        won=won,
        event=event,
        valid=valid,
        steps=steps,
        lost=np.zeros(len(observations), bool),
    )
    return TextStep(observations, rewards, terminated, truncated, info)


def _joined(blocks: list[TextStep]) -> TextStep:
    """One step of the whole batch from those of its workers."""
    observations, rewards, terminated, truncated, infos = zip(*blocks)
    admissible, won, event, valid, steps, lost = zip(*infos)
    chain = itertools.chain.from_iterable
    info = TextInfo(
        admissible=list(chain(admissible)),
        won=np.concatenate(won),
        event=list(chain(event)),
        valid=np.concatenate(valid),
        steps=np.concatenate(steps),
        lost=np.concatenate(lost),
    )
    return TextStep(
        observations=list(chain(observations)),
        rewards=np.concatenate(rewards),
        terminated=np.concatenate(terminated),
        truncated=np.concatenate(truncated),
        info=info,
    )


def _never_begun(num_envs: int) -> TextStep:
    return stack_steps([SlotStep("", 0.0, False, False, [], False, None, False, 0)] * num_envs)


def _cut_off(last: TextStep) -> TextStep:
    """A block whose worker was lost: what ran is truncated, what had ended stays as it was."""
    ended, num_envs = last.terminated | last.truncated, len(last.observations)
    info = last.info._replace(
        admissible=[[] for _ in range(num_envs)],
        event=[None] * num_envs,
        valid=np.zeros(num_envs, bool),
        lost=np.ones(num_envs, bool),
    )
    return last._replace(
        observations=[text if over else "" for text, over in zip(last.observations, ended)],
        rewards=np.zeros(num_envs, np.float32),
        truncated=last.truncated | ~ended,
        info=info,
    )


def _keeping_lost(step: TextStep, last: TextStep) -> TextStep:
    """Environments that were lost and not reset since stay as they were cut off."""
    lost = last.info.lost
    if not lost.any():
        return step

    def choose(new: Any, old: Any) -> Any:
        if isinstance(new, np.ndarray):
            return np.where(lost, old, new)
        return [b if gone else a for a, b, gone in zip(new, old, lost)]

    info = TextInfo(*map(choose, step.info, last.info))
    observations, rewards, terminated, truncated = map(choose, step[:4], last[:4])
    return TextStep(observations, rewards, terminated, truncated, info)
