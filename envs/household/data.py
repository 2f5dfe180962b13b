"""Finds game files in the benchmark's standard layout, ``ALFWORLD_DATA/json_2.1.1/SPLIT/...``."""

import json
import os
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

from envs.household.task import TASK_TYPES

Game = TypeVar("Game")
SPLIT_FOLDERS = ("train", "valid_seen", "valid_unseen")
_GAME_FILES = frozenset({"game.tw-pddl", "traj_data.json"})
HOW_TO_GET = (
    "get the benchmark's games with `pip install alfworld && alfworld-download`, or "
    "make games of your own with `python -m envs.household.generator --out DIR --num 1000`, and "
    "point ALFWORLD_DATA to the folder that holds json_2.1.1"
)


class DataError(ValueError):
    """Game data that is missing or incomplete; the message says what and how to get it."""


class SplitContent(NamedTuple):
    """What a split's folder holds.

    ``games`` are playable files, sorted; ``left_out`` counts, for each reason, the trial folders
    that the stock loader skips as well: most of the official download's states have no game.
    ``broken`` are files that are there and empty, cut short or no JSON; ``untyped`` are games of
    which neither the task folder's name nor ``traj_data.json`` gives the task type.
    """

    games: list[Path]
    left_out: Counter[str]
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
    """Looks through one split as the stock loader does (alfworld 0.4.2), in a fixed order.

    A trial is a folder with ``traj_data.json``. Left out are trials with a movable receptacle or
    slicing in their path, trials without ``game.tw-pddl``, games that lack the key ``solvable``
    or deny it, and games of another task type. Hidden folders are not looked into.

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
    content = SplitContent([], Counter(), [], [])
    for place in _trial_folders(folder):
        # What the folders above are called is the user's affair.
        below = str(place.relative_to(folder))
        if "movable" in below or "Sliced" in below:
            content.left_out["movable receptacle or slicing"] += 1
        else:
            _sort_in(place, content)
    return content


def _sort_in(place: Path, content: SplitContent) -> None:
    """Adds one trial folder to what is known of its split."""
    game, trajectory = place / "game.tw-pddl", place / "traj_data.json"
    if not trajectory.exists():
        content.left_out["without traj_data.json"] += 1
    elif not game.exists():
        content.left_out["without a game"] += 1
    elif not trajectory.stat().st_size:
        content.broken.append(trajectory)
    elif (claims := _json_object(game)) is None:
        content.broken.append(game)
    elif "solvable" not in claims:
        content.left_out["without the key 'solvable'"] += 1
    elif not claims["solvable"]:
        content.left_out["unsolvable"] += 1
    elif task_type_of(game):
        content.games.append(game)
    elif (_json_object(trajectory) or {}).get("task_type"):
        content.left_out["of another task type"] += 1
    else:
        content.untyped.append(game)


def list_games(root: Path, split: str, task_types: Sequence[str] = TASK_TYPES) -> list[Path]:
    """The playable games of a split.

    Args:
        root: what `data_root` returned.
        split: train, valid_seen or valid_unseen.
        task_types: only games of these types.

    Returns:
        Paths of game files, sorted, without what `read_split` leaves out.

    Raises:
        DataError: there is none, or a file of one is broken.
    """
    content = read_split(root, split)
    complain(root, split, content)
    chosen = [game for game in content.games if task_type_of(game) in task_types]
    if not chosen:
        raise DataError(f"no games of type {', '.join(task_types)} in split {split} of {root}")
    return chosen


def complain(root: Path, split: str, content: SplitContent) -> None:
    """Raises a `DataError` for a split that is empty, damaged or misnamed."""
    where = root / "json_2.1.1" / split
    total = sum(map(len, (content.games, content.broken, content.untyped)))
    if content.broken:
        first = content.broken[0]
        state = "cannot be read" if first.is_file() and first.stat().st_size else "is empty"
        raise DataError(
            f"{len(content.broken)} of {total} games in {where} are damaged (the first: "
            f"{first.relative_to(where)} {state}); download them again: {HOW_TO_GET}"
        )
    if content.untyped:
        raise DataError(
            f"{len(content.untyped)} of {total} games in {where} lie in folders whose name begins "
            f"with none of the task types {', '.join(TASK_TYPES)}, and their traj_data.json names "
            f"none (the first: {content.untyped[0].parent.relative_to(where)}); rename or remove "
            f"them"
        )
    if not content.games:
        raise DataError(f"{where} holds no games ({left_out_text(content)}): {HOW_TO_GET}")


def left_out_text(content: SplitContent) -> str:
    """How many trial folders were left out, and why, as one phrase."""
    reasons = ", ".join(f"{n} {why}" for why, n in sorted(content.left_out.items()))
    return f"trial folders left out: {reasons or 'none'}"


def task_type_of(game: Path) -> str:
    """A game's task type, one of `TASK_TYPES`; "" if there is none.

    Args:
        game: path of the game file. The name of the task's folder tells the type, as in the
            official download; where it does not, ``traj_data.json`` beside the game is read.
    """
    kind = game.parent.parent.name.partition("-")[0]
    if kind not in TASK_TYPES:
        kind = (_json_object(game.with_name("traj_data.json")) or {}).get("task_type")
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


def shuffled_forever(games: Sequence[Game], seed: int) -> Iterator[Game]:
    """The games in a new random order each time round.

    Args:
        games: at least one.
        seed: decides all orders; the number of environments or workers does not.

    Returns:
        An endless iterator.

    Raises:
        ValueError: there are no games.
    """
    if not games:
        raise ValueError("no games to draw from")
    rng = random.Random(seed)

    def draw() -> Iterator[Game]:
        while True:
            order = list(games)
            rng.shuffle(order)
            yield from order

    return draw()


def _trial_folders(split: Path) -> list[Path]:
    """The folders that hold a file of a game, sorted."""
    found = []
    for here, folders, names in os.walk(split, onerror=_cannot_look):
        folders[:] = [name for name in folders if not name.startswith(".")]
        if here != str(split) and not _GAME_FILES.isdisjoint(names):
            found.append(Path(here))
    return sorted(found)


def _cannot_look(error: OSError) -> None:
    raise DataError(f"{error.filename} cannot be read: {error.strerror}")


def _json_object(path: Path) -> dict | None:
    """The JSON object in a file; None if the file cannot be read or holds something else."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
