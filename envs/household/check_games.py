"""Checks the games that ``ALFWORLD_DATA`` points to: ``python -m envs.household.check_games``."""

import argparse
import sys
from collections import Counter
from pathlib import Path

from envs.household.data import (
    HOW_TO_GET,
    SPLIT_FOLDERS,
    DataError,
    SplitContent,
    complain,
    data_root,
    left_out_text,
    read_split,
)
from envs.household.game import load_game
from envs.household.generator import is_generated
from envs.household.panels import check_names
from envs.household.pddl import GameFileError
from envs.household.task import TASK_TYPES


def check(root: Path) -> list[str]:
    """Reads every game of every split and prints what is there.

    Args:
        root: what `data_root` returned.

    Returns:
        What is wrong, one line each; empty if all is well.
    """
    found: dict[str, SplitContent] = {}
    problems: list[str] = []
    folder = root / "json_2.1.1"
    for split in SPLIT_FOLDERS:
        if (folder / split).is_dir():
            try:
                found[split] = read_split(root, split)
                complain(root, split, found[split])
                check_names(split, ["/".join(g.parts[-3:-1]) for g in found[split].games])
            except DataError as error:
                problems.append(str(error))
    missing = [split for split in SPLIT_FOLDERS if not (folder / split).is_dir()]
    if len(missing) == len(SPLIT_FOLDERS):
        return [f"{folder} holds none of {', '.join(SPLIT_FOLDERS)}: {HOW_TO_GET}"]
    print(f"{'split':<14}{'task type':<34}{'games':>6}  text")
    for split, content in found.items():
        problems += _print_split(split, content)
    for split in missing:
        print(f"{split:<14}no such folder")
    # Who generates games makes the splits that are wanted; the benchmark has all of them.
    if missing and not all(is_generated(game) for c in found.values() for game in c.games):
        problems.append(
            f"{', '.join(missing)} missing in {folder}; the download is incomplete: {HOW_TO_GET}"
        )
    return problems


def _print_split(split: str, content: SplitContent) -> list[str]:
    """Prints a line per task type and one of all; returns the games that cannot be played."""
    counts: Counter[str] = Counter()
    versions: Counter[str] = Counter()
    problems = []
    for path in content.games:
        try:
            game = load_game(path)
        except GameFileError as error:
            problems.append(str(error))
            continue
        counts[game.task.kind if game.task else "other"] += 1
        versions[game.wording.version] += 1
    spoken = ", ".join(sorted(versions))
    for kind in (*TASK_TYPES, "other"):
        if counts[kind] or kind != "other":
            print(f"{split:<14}{kind:<34}{counts[kind]:>6}  {spoken}")
    print(f"{split:<14}{'all':<34}{counts.total():>6}  ({left_out_text(content)})")
    return problems


def main(arguments: list[str] | None = None) -> int:
    """The command line; see ``--help``."""
    parser = argparse.ArgumentParser(
        prog="python -m envs.household.check_games", description=__doc__
    )
    parser.add_argument("--data", type=Path, help="folder to check (default: $ALFWORLD_DATA)")
    options = parser.parse_args(arguments)
    try:
        problems = check(data_root(options.data))
    except DataError as error:
        problems = [str(error)]
    for problem in problems:
        print(f"error: {problem}", file=sys.stderr)
    return 2 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
