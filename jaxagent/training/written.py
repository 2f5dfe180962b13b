"""Demonstrations as token sequences: what was done stands in the text, what was right is asked."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxagent.models.llm.words import Tokenizer
from jaxagent.text import Reply, TextFormat
from jaxagent.training.packing import TokenEpisode


class LabelledTurn(NamedTuple):
    """A turn as it went, and the reply to learn.

    ``subgoal`` is what the label serves, in every turn; it is written where it changes. An empty
    label teaches nothing; one that is the beginning of a reply, that beginning.
    """

    command: str
    label: str
    subgoal: str
    observation: str


class EpisodeWriter:
    """Writes episodes in one format with one tokeniser; what recurs is encoded once.

    Args (of the constructor):
        style: the format.
        tokenizer: with `encode`.
    """

    def __init__(self, style: TextFormat, tokenizer: Tokenizer) -> None:
        self.style, self.tokenizer = style, tokenizer
        self._marker = self._encoded(lambda marker: marker)
        self._opening = self._encoded(style.opening)
        self._observation = self._encoded(style.observation)
        self._command = self._encoded(style.command)
        self._subgoal = self._encoded(style.subgoal)

    def write(self, opening: str, turns: Sequence[LabelledTurn]) -> TokenEpisode:
        """One episode.

        Args:
            opening: the first observation.
            turns: at least one.

        Returns:
            Ids and targets. A label is asked token by token as long as what was done agrees with
            it, and one token further: what follows a wrong word has no right continuation.
        """
        ids, notes = [*self._opening(opening)], self.style.notes(opening)
        asked: list[tuple[int, int]] = []
        subgoal = ""
        for turn in turns:
            ids += self._marker(notes.marker())
            change = turn.subgoal if turn.subgoal != subgoal else ""
            subgoal = turn.subgoal
            before = self._subgoal(Reply("", change)) if self.style.hierarchical else []
            said = [*before, *self._command(turn.command)]
            right = [*before, *self._command(turn.label)]
            for place, token in enumerate(right if turn.label else []):
                asked.append((len(ids) - 1 + place, token))
                if place >= len(said) or said[place] != token:
                    break
            ids += said
            ids += self._observation(turn.observation)
            notes.read(turn.observation)
        target = np.full(len(ids), -1, np.int32)
        for place, token in asked:
            target[place] = token
        return TokenEpisode(np.array(ids, np.int32), target)

    def _encoded(self, write: Callable[[Any], str]) -> Callable[[Any], list[int]]:
        kept: dict[Any, list[int]] = {}

        def encode(text: Any) -> list[int]:
            ids = kept.get(text)
            if ids is None:
                if len(kept) > _KEPT:
                    kept.clear()
                ids = kept[text] = list(self.tokenizer.encode(write(text)))
            return ids

        return encode


_KEPT = 50_000
