"""Episodes of household games that are kept in files: visited by a planner, or recorded before."""

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from envs.household.demonstrations import read_demonstrations
from jaxagent.models.llm.words import words_of
from jaxagent.training.written import LabelledTurn

VISITED_FORMAT = "jaxagent.visited.1"


class LabelledEpisode(NamedTuple):
    """An episode with what the expert would have done in each of its states."""

    opening: str
    turns: list[LabelledTurn]


def recorded_episodes(path: Path) -> list[LabelledEpisode]:
    """What `envs.household.demonstrations` has recorded; what was done is what is to be learnt.

    Raises:
        ValueError: the file cannot be read, is of another format, or holds nothing.
    """
    return [
        LabelledEpisode(
            record["observations"][0],
            [
                LabelledTurn(command, command, subgoal, seen)
                for command, subgoal, seen in zip(
                    record["commands"], record["subgoals"], record["observations"][1:]
                )
            ],
        )
        for record in read_demonstrations(path)
    ]


def words_in(episodes: Sequence[LabelledEpisode]) -> list[str]:
    """Every word of their texts, once."""
    return sorted(
        {
            word
            for episode in episodes
            for text in (episode.opening, *(text for turn in episode.turns for text in turn))
            for word in words_of(text)
        }
    )


Kept = TypeVar("Kept")


class Rounds(Generic[Kept]):
    """What the planner's own play brought, kept in a folder by round.

    A round serves the chunks from a number on that no chunk already made can have: what a chunk
    holds does not depend on when it was made.

    Args (of the constructor):
        folder: where the rounds are kept.
        form: name of the files' format.
        parse: makes the file's content, as JSON holds it, what was kept; ValueError names what
            is wrong with it.

    Raises (the constructor):
        ValueError: a round's file is of another format.
    """

    def __init__(self, folder: Path, form: str, parse: Callable[[Any], list[Kept]]) -> None:
        self.folder, self._form = folder, form
        self._rounds: dict[tuple[int, int], list[Kept]] = {}
        for file in sorted(folder.glob("from-*.json")):
            named = re.fullmatch("from-([0-9]+)(?:-round-([0-9]+))?", file.stem)
            if not named:
                raise ValueError(
                    f"{file}: a round is named by a number, such as from-000000012-round-001"
                )
            self._rounds[int(named[1]), int(named[2] or 0)] = _read_round(file, form, parse)

    def add(self, first_chunk: int, episodes: Sequence[Kept], number: int = 0) -> None:
        """Keep a round, in place of the same one of an attempt that broke off.

        Args:
            first_chunk: of those that may draw from it.
            episodes: what it brought.
            number: of the round; several may serve the same chunks.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        file = self.folder / f"from-{first_chunk:09d}-round-{number:03d}.json"
        unfinished = file.with_suffix(".part")
        kept = {"format": self._form, "episodes": list(episodes)}
        unfinished.write_text(json.dumps(kept), encoding="utf-8")
        unfinished.replace(file)
        self._rounds[first_chunk, number] = list(episodes)

    def before(self, chunk: int) -> list[Kept]:
        """All episodes that a chunk may draw from."""
        return [
            episode
            for (first, _), episodes in sorted(self._rounds.items())
            if first <= chunk
            for episode in episodes
        ]


def visited_states(folder: Path) -> Rounds[LabelledEpisode]:
    """Episodes that the planner played and the expert labelled."""
    return Rounds(folder, VISITED_FORMAT, _visited)


def _read_round(file: Path, form: str, parse: Callable[[Any], list[Kept]]) -> list[Kept]:
    try:
        kept = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"{file} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{file} is not JSON: {error}") from None
    if not isinstance(kept, dict):
        raise ValueError(
            f"{file}: found a {type(kept).__name__} without a format, expected {form!r}"
        )
    if kept.get("format") != form:
        raise ValueError(f"{file}: found format {kept.get('format')!r}, expected {form!r}")
    try:
        return parse(kept.get("episodes"))
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from None


def _visited(episodes: Any) -> list[LabelledEpisode]:
    for number, episode in enumerate(episodes if isinstance(episodes, list) else [None]):
        if not _is_episode(episode):
            raise ValueError(
                f"episode {number} is not what {VISITED_FORMAT!r} holds: its opening and its "
                f"turns, of {len(LabelledTurn._fields)} texts each"
            )
    return [
        LabelledEpisode(opening, [LabelledTurn(*turn) for turn in turns])
        for opening, turns in episodes
    ]


def _is_episode(value: Any) -> bool:
    if not isinstance(value, list) or len(value) != 2:
        return False
    opening, turns = value
    return (
        isinstance(opening, str)
        and isinstance(turns, list)
        and all(
            isinstance(turn, list)
            and len(turn) == len(LabelledTurn._fields)
            and all(isinstance(text, str) for text in turn)
            for turn in turns
        )
    )
