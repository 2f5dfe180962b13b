"""Finds game files in the benchmark's standard layout, ``ALFWORLD_DATA/json_2.1.1/SPLIT/...``."""

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from envs.text.task import TASK_TYPES

SPLIT_FOLDERS = ("train", "valid_seen", "valid_unseen")
_GAME_FILES = frozenset({"game.tw-pddl", "traj_data.json"})
HOW_TO_GET = (
    "get the benchmark's games with `pip install alfworld && alfworld-download`, or "
    "make games of your own with `python -m envs.text.generator --out DIR --num 1000`, and point "
    "ALFWORLD_DATA to the folder that holds json_2.1.1"
)


class DataError(ValueError):
    """Game data that is missing or incomplete; the message says what and how to get it."""


class SplitContent(NamedTuple):
    """What a split's folder holds.

    ``games`` are playable files, sorted; ``left_out`` counts folders that the benchmark itself
    skips (movable receptacles, slicing, unsolvable); ``incomplete`` are trial folders that lack
    one of a game's files, or hold an empty one; ``broken`` are game files that cannot be read;
    ``untyped`` are games whose task folder begins with no task type.
    """

    games: list[Path]
    left_out: int
    incomplete: list[Path]
    broken: list[Path]
    untyped: list[Path]


def data_root(given: str | Path | None = None) -> Path:
    """The folder with the games.

    Args:
        given: the folder; None takes the environment variable ``ALFWORLD_DATA``.

    Returns:
        An existing folder that contains ``json_2.1.1``.

    Raises:
        DataError: none is given, or it is not such a folder.
    """
    named = given or os.environ.get("ALFWORLD_DATA")
    if not named:
        raise DataError(f"ALFWORLD_DATA is not set: {HOW_TO_GET}")
    root = Path(named).expanduser()
    if not (root / "json_2.1.1").is_dir():
        state = "is not a folder" if root.exists() else "does not exist"
        state = "has no folder json_2.1.1" if root.is_dir() else state
        raise DataError(f"{root} {state}: {HOW_TO_GET}")
    return root


def read_split(root: Path, split: str) -> SplitContent:
    """Looks through one split as the stock package does, in a fixed order.

    Args:
        root: what `data_root` returned.
        split: train, valid_seen or valid_unseen.

    Returns:
        What is there. The games themselves are not read beyond their ``solvable`` field.

    Raises:
        DataError: there is no such folder, or one in it cannot be looked into.
    """
    folder = root / "json_2.1.1" / split
    if not folder.is_dir():
        raise DataError(f"{folder} does not exist: {HOW_TO_GET}")
    content = SplitContent([], 0, [], [], [])
    left_out = 0
    for place in _trial_folders(folder):
        game = place / "game.tw-pddl"
        # What the folders above are called is the user's affair.
        below = str(place.relative_to(folder))
        if "movable" in below or "Sliced" in below:
            left_out += 1
        elif _lacking(place):
            content.incomplete.append(place)
        elif (solvable := _solvable(game)) is None:
            content.broken.append(game)
        elif not solvable:
            left_out += 1
        elif not task_type_of(game):
            content.untyped.append(game)
        else:
            content.games.append(game)
    return content._replace(left_out=left_out)


def list_games(root: Path, split: str, task_types: Sequence[str] = TASK_TYPES) -> list[Path]:
    """The playable games of a split.

    Args:
        root: what `data_root` returned.
        split: train, valid_seen or valid_unseen.
        task_types: only games of these types.

    Returns:
        Paths of game files, sorted; the task type is taken from the folder's name.

    Raises:
        DataError: there is none, or some are missing or broken.
    """
    content = read_split(root, split)
    complain(root, split, content)
    chosen = [game for game in content.games if task_type_of(game) in task_types]
    if not chosen:
        raise DataError(f"no games of type {', '.join(task_types)} in split {split} of {root}")
    return chosen


def complain(root: Path, split: str, content: SplitContent) -> None:
    """Raises a `DataError` for a split that is empty, half downloaded, damaged or misnamed."""
    where = root / "json_2.1.1" / split
    total = sum(map(len, (content.games, content.incomplete, content.broken, content.untyped)))
    if content.incomplete:
        first = content.incomplete[0]
        raise DataError(
            f"{len(content.incomplete)} of {total} trial folders in {where} are incomplete (the "
            f"first: in {first.relative_to(where)} {_lacking(first)}); get them again: "
            f"{HOW_TO_GET}"
        )
    if content.broken:
        raise DataError(
            f"{len(content.broken)} game files in {where} cannot be read (the first: "
            f"{content.broken[0].relative_to(where)}); download them again: {HOW_TO_GET}"
        )
    if content.untyped:
        raise DataError(
            f"{len(content.untyped)} of {total} games in {where} lie in folders whose name begins "
            f"with none of the task types {', '.join(TASK_TYPES)} (the first: "
            f"{content.untyped[0].parent.relative_to(where)}); rename or remove them"
        )
    if not content.games:
        raise DataError(f"{where} holds no games: {HOW_TO_GET}")


def task_type_of(game: Path) -> str:
    """The task type in the name of a game's folder; "" if it names none."""
    kind = game.parent.parent.name.partition("-")[0]
    return kind if kind in TASK_TYPES else ""


def share_of(games: Sequence[Path], process_index: int, process_count: int) -> list[Path]:
    """The games of one process of a multi-process run, dealt out in turn.

    Args:
        games: the same list in every process.
        process_index: this process, from 0.
        process_count: how many there are.

    Returns:
        Every ``process_count``-th game.

    Raises:
        ValueError: the index is out of range.
    """
    if not 0 <= process_index < process_count:
        raise ValueError(f"process_index ({process_index}) must be in 0..{process_count - 1}")
    return list(games[process_index::process_count])


def shuffled_forever(games: Sequence[Path], seed: int) -> Iterator[Path]:
    """The games in a new random order each time round.

    Args:
        games: at least one.
        seed: decides all orders; the number of environments or workers does not.

    Returns:
        An endless iterator.

    Raises:
        ValueError: there are no games.
    """
    import random

    if not games:
        raise ValueError("no games to draw from")
    rng = random.Random(seed)

    def draw() -> Iterator[Path]:
        while True:
            order = list(games)
            rng.shuffle(order)
            yield from order

    return draw()


def _trial_folders(split: Path) -> list[Path]:
    """The folders in which a game should be, sorted: those with a file of one, and empty ends."""
    found = []
    for here, folders, names in os.walk(split, onerror=_cannot_look):
        folders[:] = [name for name in folders if not name.startswith(".")]
        if here != str(split) and (not folders or not _GAME_FILES.isdisjoint(names)):
            found.append(Path(here))
            folders.clear()
    return sorted(found)


def _cannot_look(error: OSError) -> None:
    raise DataError(f"{error.filename} cannot be read: {error.strerror}")


def _lacking(place: Path) -> str:
    """Which files of a game are not in a trial folder, or not whole; "" if none."""
    faults = []
    for name in sorted(_GAME_FILES):
        if not (place / name).is_file():
            faults.append(f"{name} is missing")
        elif not (place / name).stat().st_size:
            faults.append(f"{name} is empty")
    return " and ".join(faults)


def _solvable(game: Path) -> bool | None:
    """The file's own claim; None if the file cannot be read."""
    try:
        return bool(json.loads(game.read_text(encoding="utf-8"))["solvable"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
