"""Walks the same path on the engine and on the stock engine and compares every word.

    python -m benchmarks.text_parity --games 500 --steps 60 --out parity.jsonl

Half the walks follow the shortest plan with detours, half wander; both go on after a win. Games
are spread over the task types. It takes about 8 seconds a game, so it can be interrupted: games
already in the file are not walked again. Needs the extra ``alfworld``.
"""

import argparse
import json
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Any

from envs.household.data import SPLIT_FOLDERS, DataError, data_root, list_games
from envs.household.describe import opening_text
from envs.household.engine import NOTHING_HAPPENS, admissible_commands, step
from envs.household.game import Game, load_game
from envs.household.generator import generate_games
from envs.household.shortest_plan import shortest_plan
from envs.household.state import State
from envs.household.stock_engine import stock_player, written_game
from envs.household.task import TASK_TYPES

_DOING = ("take", "move", "put", "clean", "heat", "cool", "slice", "use", "open", "close")
_NONSENSE = ("dance", "go to attic 1", "examine", "take apple 1 from fridge 9", "look up")
_SHARE_OF_NONSENSE = 0.04


def choose(rng: random.Random, game: Game, state: State, plan: list[str]) -> str:
    """The next command of a walk: of the plan, something that changes the world, or anything.

    Args:
        rng: the source of all chance.
        game: the game.
        state: where the walk is.
        plan: what is left of the plan; the command taken from it is removed.

    Returns:
        A command, now and then one that does nothing.
    """
    admissible = admissible_commands(game, state)
    if rng.random() < _SHARE_OF_NONSENSE:
        return rng.choice(_NONSENSE)
    if plan and rng.random() < 0.5:
        return plan.pop(0)
    # Knives, sliced things and stations are rare: seek them, or slicing is hardly ever tried.
    rare = [c for c in admissible if c.startswith(("slice", "use", "take knife", "take butterk"))]
    if rare and rng.random() < 0.3:
        return rng.choice(rare)
    doing = [c for c in admissible if c.split(" ")[0] in _DOING]
    return rng.choice(doing if doing and rng.random() < 0.5 else admissible)


def compare(
    path: Path, player: Any, steps: int, seed: int, *, follow_plan: bool
) -> tuple[list[str], dict | None]:
    """One walk on both engines.

    Args:
        path: the game file.
        player: what `stock_player` returned.
        steps: length of the walk.
        seed: of its choices.
        follow_plan: whether to follow the shortest plan, with detours.

    Returns:
        The commands, and the first difference found (None if there is none).
    """
    rng, game = random.Random(seed), load_game(path)
    state, plan = game.initial, (shortest_plan(game) or []) if follow_plan else []
    player.load(json.loads(path.read_text(encoding="utf-8")))
    stock = player.reset()
    difference = _difference(game, state, opening_text(game, state), stock)
    commands: list[str] = []
    while difference is None and len(commands) < steps:
        command = choose(rng, game, state, plan)
        commands.append(command)
        stock, _, _ = player.step(command)
        outcome = step(game, state, command)
        state = outcome.state
        difference = _difference(game, state, outcome.feedback, stock)
        if outcome.valid == (stock["feedback"] == NOTHING_HAPPENS):
            difference = {"valid": outcome.valid, "stock": stock["feedback"]}
    return commands, difference


def _difference(game: Game, state: State, text: str, stock: Any) -> dict | None:
    ours = {
        "text": text,
        "admissible": list(admissible_commands(game, state)),
        "won": state.won,
    }
    theirs = {
        "text": stock["feedback"],
        "admissible": list(stock["admissible_commands"]),
        "won": bool(stock["won"]),
    }
    return None if ours == theirs else {"ours": ours, "stock": theirs}


def spread(paths: list[Path]) -> Iterator[Path]:
    """Games in an order that takes the task types in turn; a fixed order for the same games."""
    games = [(load_game(path), path) for path in paths]
    random.Random(0).shuffle(games)
    groups = [[p for g, p in games if g.task and g.task.kind == kind] for kind in TASK_TYPES]
    for row in zip_longest(*groups):
        yield from (path for path in row if path is not None)


def run(paths: Iterator[Path], games: int, steps: int, out: Path) -> list[dict]:
    """Walks through games, writing a line after each; those in the file already are skipped.

    Args:
        paths: games in order.
        games: how many of them.
        steps: length of each walk.
        out: the file.

    Returns:
        All records of the file.
    """
    lines = out.read_text().splitlines() if out.exists() else []
    records = [json.loads(line) for line in lines]
    done = {record["game"] for record in records}
    player = stock_player()
    for number, path in zip(range(games), paths):
        name = "/".join(path.parts[-3:-1])
        if name in done:
            continue
        commands, difference = compare(path, player, steps, number, follow_plan=bool(number % 2))
        records.append({"game": name, "commands": commands, "difference": difference})
        with out.open("a") as file:
            file.write(json.dumps(records[-1]) + "\n")
        if difference:
            print(f"{name} differs after {commands[-1:]}: {difference}")
    return records


def main(arguments: list[str] | None = None) -> int:
    """The command line; see ``--help``."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.text_parity",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--games", type=int, default=500, help="games to walk in (default 500)")
    add("--steps", type=int, default=60, help="steps of each walk (default 60)")
    add("--out", type=Path, required=True, help="JSONL file; an existing one is continued")
    add("--data", type=Path, help="folder with the games (default: $ALFWORLD_DATA)")
    add("--split", choices=SPLIT_FOLDERS, default="train", help="of the data (default train)")
    add("--generated", action="store_true", help="walk in generated games instead")
    options = parser.parse_args(arguments)
    if min(options.games, options.steps) < 1:
        parser.error(f"--games {options.games} and --steps {options.steps} must be at least 1")
    kept = sys.argv, sys.stdout
    try:
        with tempfile.TemporaryDirectory(prefix="household-") as folder:
            if options.generated:
                paths = _generated(options.games, Path(folder))
            else:
                paths = spread(list_games(data_root(options.data), options.split))
            records = run(paths, options.games, options.steps, options.out)
    except (DataError, ImportError, OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    finally:
        sys.argv, sys.stdout = kept
    verbs = Counter(c.split(" ")[0] for record in records for c in record["commands"])
    differing = sum(record["difference"] is not None for record in records)
    print(f"{len(records)} games, {verbs.total()} steps, {differing} games differ")
    print(", ".join(f"{verb} {count}" for verb, count in verbs.most_common()))
    return 1 if differing else 0


def _generated(games: int, folder: Path) -> Iterator[Path]:
    for made in generate_games(games, 0, "seen"):
        place = folder / made.name
        place.mkdir(parents=True)
        yield written_game(made.game_data, str(place))


if __name__ == "__main__":
    sys.exit(main())
