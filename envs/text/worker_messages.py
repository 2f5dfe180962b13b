"""Blocks of a batch, one per worker: how steps cross a pipe, and what a lost worker leaves."""

import itertools
from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np

from envs.household.engine import Event
from envs.text.batch import SlotStep, stack_steps
from jaxagent.text import TextInfo, TextStep

_NUMBERS_KEPT = 16_384


class Block:
    """What the environments of one worker last showed; this outlives the worker.

    Args (of the constructor):
        num_envs: how many they are.
    """

    def __init__(self, num_envs: int) -> None:
        nothing = SlotStep("", 0.0, False, False, (), False, None, False, 0)
        self.last = stack_steps([nothing] * num_envs)
        # Environments whose worker is gone, not reset since: the worker now there has no episode.
        self._orphaned = np.zeros(num_envs, bool)

    def show(self, step: TextStep, begun: Sequence[int] = ()) -> None:
        """Takes the worker's answer, but for the environments that it knows nothing of.

        Args:
            step: the answer.
            begun: environments whose reset it answers.
        """
        self._orphaned[list(begun)] = False
        old, kept = self.last, self._orphaned
        if not kept.any():
            self.last = step
            return

        def choose(new: Any, old: Any) -> Any:
            if isinstance(new, np.ndarray):
                return np.where(kept, old, new)
            return [b if keep else a for a, b, keep in zip(new, old, kept)]

        info = TextInfo(*map(choose, step.info, old.info))
        observations, rewards, terminated, truncated = map(choose, step[:4], old[:4])
        self.last = TextStep(observations, rewards, terminated, truncated, info)

    def cut_off(self, begun: Sequence[int] = ()) -> None:
        """The worker was lost: what ran is truncated, what had ended stays as it was.

        Args:
            begun: environments that it was to reset; their new episodes are lost too.
        """
        last, info, num_envs = self.last, self.last.info, len(self._orphaned)
        ended = last.terminated | last.truncated
        ended[list(begun)] = False
        fresh = np.zeros(num_envs, bool)
        fresh[list(begun)] = True
        self._orphaned[:] = True
        self.last = TextStep(
            observations=[text if over else "" for text, over in zip(last.observations, ended)],
            rewards=np.zeros(num_envs, np.float32),
            terminated=last.terminated & ended,
            truncated=last.truncated | ~ended,
            info=TextInfo(
                admissible=[()] * num_envs,
                won=info.won & ended,
                event=[None] * num_envs,
                valid=np.zeros(num_envs, bool),
                steps=np.where(fresh, 0, info.steps),
                lost=info.lost | ~ended,
            ),
        )


class Packer:
    """Turns steps into whole columns of plain values, which cross a pipe fastest.

    Lists of commands and events recur, and are most of a step: each crosses once, and then its
    number does. Lists are known by identity, as `admissible_commands` gives them.
    """

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}
        self._lists: list[tuple[str, ...]] = []  # keeps what is numbered alive, and so its identity
        self._events: dict[Event | None, int] = {}

    def pack(self, parts: list[SlotStep]) -> tuple:
        """What `Unpacker` reads at the other end.

        Args:
            parts: what a block of environments did.
        """
        begins_anew = max(len(self._lists), len(self._events)) > _NUMBERS_KEPT
        if begins_anew:
            self._numbers.clear()
            self._lists.clear()
            self._events.clear()
        observations, rewards, terminated, truncated, lists, won, events, valid, steps = zip(*parts)
        return (
            begins_anew,
            *self._number_lists(lists),
            *self._number_events(events),
            observations,
            array("f", rewards).tobytes(),
            # NumPy takes three times as long over columns of Python's booleans.
            b"".join(map(bytes, (terminated, truncated, won, valid))),
            array("i", steps).tobytes(),
        )

    def _number_lists(self, lists: Sequence[tuple[str, ...]]) -> tuple[list[str], list[int]]:
        numbers, new, chosen = self._numbers, [], []
        for commands in lists:
            number = numbers.get(id(commands))
            if number is None:
                number = numbers[id(commands)] = len(self._lists)
                self._lists.append(commands)
                new.append("\n".join(commands))
            chosen.append(number)
        return new, chosen

    def _number_events(self, events: Sequence[Event | None]) -> tuple[list[tuple], list[int]]:
        numbers, new, happened = self._events, [], []
        for event in events:
            number = numbers.get(event)
            if number is None:
                number = numbers[event] = len(numbers)
                new.append(event and tuple(event))
            happened.append(number)
        return new, happened


class Unpacker:
    """Puts together the steps that one `Packer` has packed, in their order."""

    def __init__(self) -> None:
        self._lists: list[tuple[str, ...]] = []
        self._events: list[Event | None] = []

    def unpack(self, packed: tuple) -> TextStep:
        """The step that was packed, with nothing lost."""
        begins_anew, lists, chosen, events, happened, observations, rewards, flags, steps = packed
        if begins_anew:
            self._lists.clear()
            self._events.clear()
        self._lists += [tuple(joined.split("\n")) if joined else () for joined in lists]
        self._events += [event and Event(*event) for event in events]
        terminated, truncated, won, valid = (
            np.frombuffer(flags, bool).reshape(4, len(observations)).copy()
        )
        info = TextInfo(
            admissible=[self._lists[number] for number in chosen],
            won=won,
            event=[self._events[number] for number in happened],
            valid=valid,
            steps=np.frombuffer(steps, np.int32).copy(),
            lost=np.zeros(len(observations), bool),
        )
        rewards = np.frombuffer(rewards, np.float32).copy()
        return TextStep(list(observations), rewards, terminated, truncated, info)


def join(blocks: list[TextStep]) -> TextStep:
    """One step of the whole batch from those of its blocks, in their order."""
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
