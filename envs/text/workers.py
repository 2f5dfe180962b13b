"""The same batch spread over spawned processes; one that hangs or dies is replaced.

Processes are spawned, never forked: a fork after JAX has started its threads can deadlock. In a
run of several JAX processes each hosts its own environments; nothing here crosses hosts.
"""

import contextlib
import gc
import itertools
import math
import multiprocessing
import os
import pickle
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from envs.household.game import Game
from envs.text.batch import (
    GAMES_KEPT,
    BatchEnv,
    Rewards,
    SlotStep,
    check_batch,
    check_commands,
    check_open,
    stack_steps,
)
from envs.text.worker_messages import Block, Packer, Unpacker, join
from jaxagent.text import DEFAULT_HORIZON, GameSource, TextInfo, TextStep

_START_TIMEOUT = 60.0
_GRACE = 0.05
_WATCH_PERIOD = 0.1
_ALLOCATIONS_BETWEEN_COLLECTIONS = 100_000


class WorkerEnv:
    """A batch in several processes; see `TextEnv` for how it is used.

    What an environment does depends on its game and its commands alone, so results are the same
    for any number of workers.

    `step` waits for all of them, and they wait while commands are chosen. Where that costs too
    much, make several batches, and let a thread of its own step each: one then chooses while the
    others play.

    Args (of the constructor):
        num_envs: size of the batch.
        num_workers: processes; environments are dealt to them in contiguous blocks.
        with_caller: count this process as one of them. It plays the first block itself while the
            others play theirs, instead of waiting; its own share no timeout can end.
        pinned: keep each worker on a core of its own: True for the last that this process may
            use, or the numbers of ``num_workers`` cores (Linux; the caller's is not pinned). A
            scheduler that puts two of them on one core for a while, which happens where there
            are as many processes as cores, costs up to half the throughput; so do two batches
            that pin theirs to the same cores.
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
        pinned: bool | Sequence[int] = False,
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
        cores = [None] * num_workers if pinned is False else _cores(num_workers, pinned)
        self._workers: list[_Worker | _Caller] = [
            _Caller(block, *settings) if with_caller and block.start == 0
            else _Worker(block, core, *settings)
            for block, core in zip(blocks, cores)
        ]  # fmt: skip
        self._closed = threading.Event()
        threading.Thread(target=self._watch, daemon=True, name="text-env-watch").start()
        self._blocks = [Block(len(worker.slots)) for worker in self._workers]

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
            RuntimeError: after `close`.
        """
        check_open(self._closed.is_set())
        slots = check_batch(self.num_envs, games, slots)
        # What is no path is found out before anything is sent.
        sources = [game if isinstance(game, Game) else str(Path(game)) for game in games]
        wanted = dict(zip(slots, sources))
        requests = []
        for worker in self._workers:
            own = [slot for slot in worker.slots if slot in wanted]
            local = [slot - worker.slots.start for slot in own]
            requests.append(("reset", worker.carry([wanted[slot] for slot in own]), local))
        whole = self._call(requests)
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
            RuntimeError: after `close`.
        """
        check_open(self._closed.is_set())
        check_commands(self.num_envs, commands)
        return self._call([("step", [commands[slot] for slot in w.slots]) for w in self._workers])

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

    def _call(self, requests: list[tuple]) -> TextStep:
        """Sends all requests, then collects the answers until the deadline, all before it raises.

        An answer left in its pipe would be taken for that to the next request.
        """
        deadline = time.monotonic() + self.call_timeout
        sent = [worker.send(request, deadline) for worker, request in zip(self._workers, requests)]
        failures: list[Exception] = []
        for worker, block, request, was_sent in zip(self._workers, self._blocks, requests, sent):
            begun = request[2] if request[0] == "reset" else ()
            answer = worker.receive(deadline) if was_sent else None
            if answer is None:
                worker.replace()
                block.cut_off(begun)
            elif isinstance(answer, Exception):
                failures.append(answer)
            else:
                block.show(answer, begun)
        if failures:
            raise failures[0]
        return join([block.last for block in self._blocks])


class _Worker:
    """One process, the pipe to it, and how to start it anew."""

    def __init__(self, slots: range, core: int | None, horizon: int, rewards: Rewards) -> None:
        self.slots = slots
        self._settings = (core, len(slots), horizon, rewards)
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
        self._unpacker = Unpacker()
        self._numbers: dict[int, int] = {}
        self._games: list[Game] = []  # keeps what is numbered alive, and so its identity

    def carry(self, sources: Sequence[GameSource]) -> list:
        """Sources as they go through the pipe: a path as it is, of a game its number.

        A game goes with its number the first time, without the text that it remembers. The same
        one there for all its episodes keeps what the worker remembers of it.
        """
        carried = []
        for source in sources:
            if not isinstance(source, Game):
                carried.append(source)
            elif id(source) in self._numbers:
                carried.append(self._numbers[id(source)])
            else:
                if len(self._games) >= GAMES_KEPT:  # a number given again replaces its game
                    self._numbers.clear()
                    self._games.clear()
                number = self._numbers[id(source)] = len(self._games)
                self._games.append(source)
                carried.append((number, source._replace(shared_text={})))
        return carried

    def send(self, request: tuple, deadline: float) -> bool:
        """Whether the request could be sent; a worker that does not read it in time is killed."""
        try:
            with self._killed_at(deadline):
                self._pipe.send(request)
        except OSError:
            return False
        return True

    def receive(self, deadline: float) -> TextStep | Exception | None:
        """The step, what went wrong in it, or None from a worker that is late or dead."""
        try:
            # Data may be there in part only, and reading the rest would then wait for ever.
            if not self._pipe.poll(self._seconds_until(deadline)):
                return None
            with self._killed_at(deadline):
                answer = self._pipe.recv()
        except (EOFError, OSError):
            return None
        self._ready = True
        return answer if isinstance(answer, Exception) else self._unpacker.unpack(answer)

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

    def carry(self, sources: list) -> list:
        """Sources as they are: they go nowhere."""
        return sources

    def send(self, request: tuple, deadline: float) -> bool:
        """Keeps the request."""
        self._request = request
        return True

    def receive(self, deadline: float) -> TextStep | Exception:
        """The step, or what went wrong in it."""
        name, *arguments = self._request
        try:
            return stack_steps(self._handlers[name](*arguments))
        except Exception as error:
            return error

    def kill_if_overdue(self) -> None:
        """There is nobody to kill."""

    def replace(self) -> None:
        """It has always answered."""

    def stop(self) -> None:
        self._env.close()


def _cores(count: int, pinned: bool | Sequence[int]) -> list[int]:
    if not hasattr(os, "sched_setaffinity"):
        raise ValueError("pinned: processes can be kept on a core on Linux only")
    cores = sorted(os.sched_getaffinity(0))
    if not isinstance(pinned, bool):
        if len(pinned) != count or len(set(pinned) & set(cores)) != count:
            raise ValueError(
                f"pinned {list(pinned)} must name another core for each of num_workers ({count}), "
                f"of those that this process may use {cores}"
            )
        return list(pinned)
    if count > len(cores):
        raise ValueError(f"pinned: num_workers ({count}) exceeds the cores ({len(cores)})")
    return cores[-count:]


def _handlers(env: BatchEnv) -> dict[str, Callable[..., list[SlotStep]]]:
    return {"step": env.step_slots, "reset": env.reset_slots}


def _serve(
    pipe: Connection, core: int | None, num_envs: int, horizon: int, rewards: Rewards
) -> None:
    """The worker's loop; it answers with packed steps, or with the error that one ended in."""
    if core is not None:
        os.sched_setaffinity(0, {core})
    # Nothing in here makes cycles worth looking for after every third step, over all the games.
    gc.set_threshold(_ALLOCATIONS_BETWEEN_COLLECTIONS)
    env, packer = BatchEnv(num_envs, horizon=horizon, rewards=rewards), Packer()
    handlers, games = _handlers(env), {}
    while True:
        try:
            name, *arguments = pipe.recv()
        except (EOFError, KeyboardInterrupt):
            return
        if name == "close":
            return
        if name == "reset":
            arguments[0] = [_uncarried(source, games) for source in arguments[0]]
        try:
            answer = packer.pack(handlers[name](*arguments))
        except Exception as error:
            answer = _sendable(error)
        pipe.send(answer)


def _uncarried(source: Any, games: dict[int, Game]) -> GameSource:
    """What `_Worker.carry` was given."""
    if isinstance(source, tuple):
        number, games[number] = source
        return games[number]
    return games[source] if isinstance(source, int) else source


def _sendable(error: Exception) -> Exception:
    """The error itself, or its text where it cannot be put together again at the other end."""
    try:
        return pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
