"""Makes new household games: ``python -m envs.household.generator --out DIR --num N --seed S``.

Every game is proved solvable by playing: its shortest plan wins it, and so does an expert that
must search for things, within the usual horizon. The stock ``AlfredTWEnv`` loads the
folder as it loads the benchmark's own data.
"""

import argparse
import hashlib
import json
import random
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from envs.household.describe import opening_text
from envs.household.engine import admissible_commands, step
from envs.household.frequencies import household
from envs.household.furnish import Layout, add_thing, clear_out, furnish
from envs.household.game import Game, build_game
from envs.household.problem import game_data, traj_data
from envs.household.searching_expert import SearchingExpert
from envs.household.shortest_plan import shortest_plan
from envs.household.task import TASK_TYPES
from jaxagent.text import DEFAULT_HORIZON

SPLITS = {"train": "train", "seen": "valid_seen", "unseen": "valid_unseen"}
_UNSEEN_SHARE = 0.15
_MAX_DRAWS = 400
_NEEDS = {
    TASK_TYPES[2]: ("cleanable", "SinkBasin"),
    TASK_TYPES[3]: ("heatable", "Microwave"),
    TASK_TYPES[4]: ("coolable", "Fridge"),
}
_LAMP = "DeskLamp"
_TRIAL = re.compile(rf"trial_G(?:{'|'.join(SPLITS)})_-?\d+_\d+")


class GeneratedGame(NamedTuple):
    """A new game, with the two JSON documents that make up its files."""

    name: str
    game: Game
    plan: list[str]
    game_data: dict
    traj_data: dict


def generate_games(
    num: int,
    seed: int,
    split: str = "train",
    kinds: tuple[str, ...] = TASK_TYPES,
    *,
    won_by_search: bool = True,
) -> Iterator[GeneratedGame]:
    """New games, all different, the task types in turn.

    Args:
        num: how many.
        seed: the same seed gives the same games; a longer run begins with those of a shorter.
        split: "train" and "seen" share their object–receptacle pairs and differ in their rooms;
            "unseen" has pairs that occur in neither.
        kinds: task types to make.
        won_by_search: leave out the games, about one in 400, that `SearchingExpert` does not win
            within the horizon. Whoever judges that expert sets it to False: otherwise it is
            judged by games that it has chosen.

    Returns:
        An iterator over the games.

    Raises:
        ValueError: an unknown split or task type, or no task type at all.
    """
    if split not in SPLITS:
        raise ValueError(f"split {split!r} is none of {', '.join(SPLITS)}")
    if unknown := set(kinds) - set(TASK_TYPES):
        raise ValueError(f"task types {sorted(unknown)} are none of {', '.join(TASK_TYPES)}")
    if not kinds:
        raise ValueError(f"no task types given to make; they are {', '.join(TASK_TYPES)}")
    known: set[str] = set()
    for number in range(num):
        kind = kinds[number % len(kinds)]
        rng = random.Random(f"household-{seed}-{split}-{number}")
        for _ in range(_MAX_DRAWS):
            game = _draw_game(rng, kind, split, f"{seed}_{number:06d}")
            if game is None or (won_by_search and not _is_won_by_searching(game.game)):
                continue
            if (content := _content(game)) not in known:
                known.add(content)
                yield game
                break
        else:
            raise RuntimeError(f"no solvable {kind} game in {_MAX_DRAWS} draws")


def is_unseen(item: str, target: str) -> bool:
    """Whether an object–receptacle pair is kept for the unseen split, in every run alike."""
    digest = hashlib.sha256(f"{item}/{target}".encode()).digest()
    return int.from_bytes(digest[:4], "big") < _UNSEEN_SHARE * 2**32


def is_generated(game: Path) -> bool:
    """Whether a game file is one that `write_games` wrote, by the name of its folder."""
    return _TRIAL.fullmatch(game.parent.name) is not None


def write_games(games: Iterator[GeneratedGame], folder: Path, split: str) -> int:
    """Writes games in the standard layout, ``json_2.1.1/SPLIT/TASK/TRIAL/``.

    Args:
        games: what to write.
        folder: what ``ALFWORLD_DATA`` is to point to.
        split: decides the name of the split's folder.

    Returns:
        The number of games written.
    """
    written = 0
    for game in games:
        place = folder / "json_2.1.1" / SPLITS[split] / game.name
        place.mkdir(parents=True, exist_ok=True)
        (place / "traj_data.json").write_text(json.dumps(game.traj_data, indent=1))
        (place / "initial_state.pddl").write_text(game.game_data["pddl_problem"])
        (place / "game.tw-pddl").write_text(json.dumps(game.game_data))
        written += 1
    return written


def _draw_game(rng: random.Random, kind: str, split: str, number: str) -> GeneratedGame | None:
    """One attempt; None if the room drawn does not suit the task."""
    layout = furnish(rng, rng.choice(_rooms(kind)))
    pair = _draw_pair(rng, layout, kind, split)
    if pair is None or not _prepare(rng, layout, kind, *pair):
        return None
    item, target = pair
    trial = f"trial_G{split}_{number}"
    name = f"{kind}-{item}-None-{target}-{layout.room.replace(' ', '')}/{trial}"
    sentence = rng.choice(_SENTENCES[kind]).format(item=item.lower(), target=target.lower())
    data = game_data(layout, kind, item, target, sentence, trial)
    game = build_game(data, name)
    plan = None if game.initial.won else shortest_plan(game)
    if plan is None:
        return None
    data["walkthrough"] = plan
    return GeneratedGame(
        name, game, plan, data, traj_data(layout, kind, item, target, trial, sentence)
    )


def _is_won_by_searching(game: Game) -> bool:
    """Whether someone who knows only what was read wins in time; one game in 400 hides too well."""
    state, text = game.initial, opening_text(game, game.initial)
    expert = SearchingExpert(text)
    for _ in range(DEFAULT_HORIZON):
        command = expert.act(text, admissible_commands(game, state)).command
        state, text, _, _ = step(game, state, command)
        if state.won:
            return True
    return False


_SENTENCES = {
    TASK_TYPES[0]: ("put a {item} in {target}", "put some {item} on {target}"),
    TASK_TYPES[1]: ("look at {item} under the {target}", "examine the {item} with the {target}"),
    TASK_TYPES[2]: ("put a clean {item} in {target}", "clean some {item} and put it in {target}"),
    TASK_TYPES[3]: ("put a hot {item} in {target}", "heat some {item} and put it in {target}"),
    TASK_TYPES[4]: ("put a cool {item} in {target}", "cool some {item} and put it in {target}"),
    TASK_TYPES[5]: ("put two {item} in {target}", "find two {item} and put them in {target}"),
}


def _rooms(kind: str) -> list[str]:
    rooms = household().rooms
    if kind == TASK_TYPES[1]:
        return [name for name, room in rooms.items() if _LAMP in room.objects]
    station = _NEEDS.get(kind, ("", ""))[1]
    return [name for name, room in rooms.items() if not station or station in room.receptacles]


def _draw_pair(rng: random.Random, layout: Layout, kind: str, split: str) -> tuple[str, str] | None:
    """Types of the thing and of its target, of a pair that the split may use."""
    facts = household()
    able = facts.attributes[_NEEDS[kind][0] if kind in _NEEDS else "pickupable"]
    placements = facts.rooms[layout.room].placements
    items = [item for item in able if item in placements]
    if kind == TASK_TYPES[1]:
        targets = {item: [_LAMP] for item in items if item != _LAMP}
    else:
        present = sorted({place.type for place in layout.places})
        targets = {
            item: [place for place in present if item in facts.accepts.get(place, ())]
            for item in items
        }
    pairs = [
        (item, target)
        for item, fitting in targets.items()
        for target in fitting
        if is_unseen(item, target) == (split == "unseen")
        and any(place != target for place in placements[item])
    ]
    return rng.choice(pairs) if pairs else None


def _prepare(rng: random.Random, layout: Layout, kind: str, item: str, target: str) -> bool:
    """Makes the room fit the task: enough things, none of them in place already."""
    if kind in _NEEDS and not layout.of_type(_NEEDS[kind][1]):
        return False
    if kind == TASK_TYPES[1]:
        lit = target in layout.types.values() or add_thing(rng, layout, target, avoid=())
        return lit and (item in layout.types.values() or add_thing(rng, layout, item, avoid=()))
    clear_out(rng, layout, item, target)
    needed = 2 if kind == TASK_TYPES[5] else 1
    while list(layout.types.values()).count(item) < needed:
        if not add_thing(rng, layout, item, avoid=(target,)):
            return False
    return True


def _content(game: GeneratedGame) -> str:
    """The problem without its name: two games with the same content are the same game."""
    _, _, body = game.game_data["pddl_problem"].partition("(:objects")
    return hashlib.sha256((body + game.game.task_text).encode()).hexdigest()


def main(arguments: list[str] | None = None) -> int:
    """The command line; see ``--help``."""
    parser = argparse.ArgumentParser(prog="python -m envs.household.generator", description=__doc__)
    parser.add_argument("--out", required=True, type=Path, help="folder to write (ALFWORLD_DATA)")
    parser.add_argument("--num", required=True, type=int, help="number of games, at least 1")
    parser.add_argument("--seed", type=int, default=0, help="seed of all games (default 0)")
    parser.add_argument(
        "--split", choices=SPLITS, default="train", help="which pairs to use (default train)"
    )
    options = parser.parse_args(arguments)
    if options.num < 1:
        parser.error(f"--num {options.num}: must be at least 1")
    if options.out.exists() and not options.out.is_dir():
        parser.error(f"--out {options.out}: exists and is not a folder")
    games = generate_games(options.num, options.seed, options.split)
    try:
        written = write_games(games, options.out, options.split)
    except OSError as error:
        parser.error(f"--out {options.out}: {error}")
    where = options.out / "json_2.1.1" / SPLITS[options.split]
    print(f"{written} games written to {where}; use them with ALFWORLD_DATA={options.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
