"""Blocks of a batch, one per worker: how steps cross a pipe, and what a lost worker leaves."""

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from envs.text.bridge import SlotStep, stack_steps
from envs.text.engine import Event
from envs.text.protocol import TextInfo, TextStep

_LISTS_NUMBERED = 16_384


class Block:
    """What the environments of one worker last showed; this outlives the worker.

    Args (of the constructor):
        num_envs: how many they are.
    """

    def __init__(self, num_envs: int) -> None:
        nothing = SlotStep("", 0.0, False, False, [], False, None, False, 0)
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
                admissible=[[] for _ in range(num_envs)],
                won=info.won & ended,
                event=[None] * num_envs,
                valid=np.zeros(num_envs, bool),
                steps=np.where(fresh, 0, info.steps),
                lost=info.lost | ~ended,
            ),
        )


def pack(step: TextStep, numbers: dict[tuple[str, ...], int]) -> tuple:
    """Whole columns of plain values, which cross a pipe several times faster than tuples do.

    Lists of commands recur, and are most of the text: each crosses once, and then its number does.

    Args:
        step: what a block of environments did.
        numbers: of the lists of commands that have crossed; new ones are added.

    Returns:
        What `unpack` reads at the other end.
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


def unpack(packed: tuple, lists: dict[int, list[str]]) -> TextStep:
    """The step that was packed.

    Args:
        packed: what `pack` returned.
        lists: the lists of commands that have come, by number; new ones are added.

    Returns:
        The step, with nothing lost.
    """
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
