"""Fixed sets of games to judge agents by: every game once, and a hash that says which they were."""

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

from envs.household.data import HOW_TO_GET, DataError, data_root, list_games
from envs.household.game import Game, load_game
from envs.household.generator import generate_games
from envs.household.state import dump_state

PANELS = ("valid_seen", "valid_unseen", "generated_unseen")
_GENERATED_GAMES = 120
_GENERATED_SEED = 20


class PanelGame(NamedTuple):
    """One game of a panel; ``document`` is the content of its file."""

    game: Game
    document: dict


class Panel(NamedTuple):
    """A panel; ``digest`` depends on every game's content but not on the text version."""

    name: str
    games: list[PanelGame]
    digest: str


def load_panel(
    name: str, root: str | Path | None = None, expected_digest: str | None = None
) -> Panel:
    """Loads or generates a panel.

    Args:
        name: one of `PANELS`.
        root: the folder with the games (default: ``ALFWORLD_DATA``); not used for generated ones.
        expected_digest: the digest, or its beginning, that the panel must have.

    Returns:
        The panel, its games in a fixed order.

    Raises:
        DataError: games are missing, are not those that the digest stands for, or are not all
            of the published panel and nothing else though some of them are its games.
        GameFileError: a game cannot be played.
    """
    if name not in PANELS:
        raise DataError(f"panel {name!r} is none of {', '.join(PANELS)}")
    games = _generated() if name.startswith("generated") else _from_files(name, root)
    panel = Panel(name, games, _digest(games))
    if expected_digest and not panel.digest.startswith(expected_digest):
        raise DataError(
            f"panel {name} has hash {panel.digest[:16]}, not {expected_digest}: its games changed"
        )
    _check_pin(panel)
    return panel


def _generated() -> list[PanelGame]:
    made = generate_games(_GENERATED_GAMES, _GENERATED_SEED, "unseen")
    return [PanelGame(new.game, new.game_data) for new in made]


def _from_files(split: str, root: str | Path | None) -> list[PanelGame]:
    paths = list_games(data_root(root), split)
    return [
        PanelGame(load_game(path), json.loads(path.read_text(encoding="utf-8"))) for path in paths
    ]


def _digest(games: list[PanelGame]) -> str:
    total = hashlib.sha256()
    for game, document in games:
        problem = " ".join(document["pddl_problem"].split())
        total.update(f"{game.name}\0{game.task_text}\0{problem}\0".encode())
    return total.hexdigest()


def games_digest(games: Sequence[Game]) -> str:
    """A hash of games at hand, whether files or made: of names, tasks and first states."""
    total = hashlib.sha256()
    for game in games:
        start = dump_state(game.initial)
        total.update(f"{game.name}\0{game.task_text}\0{start}\0".encode())
    return total.hexdigest()


def check_names(panel: str, names: Sequence[str]) -> None:
    """Refuses a part of a published panel, and one that other games have been added to.

    Args:
        panel: one of `PANELS`.
        names: of the games at hand. If none is a published one these are other games (generated
            ones, say), which are nobody's panel and pass.

    Raises:
        DataError: games are missing or there are others.
    """
    published = _pins().get(panel, {"names": []})["names"]
    if set(published).isdisjoint(names):
        return
    missing = list((Counter(published) - Counter(names)).elements())
    surplus = list((Counter(names) - Counter(published)).elements())
    faults = [
        f"{len(found)} {what} (the first: {found[0]})"
        for what, found in (("of them are missing", missing), ("are not among them", surplus))
        if found
    ]
    if faults:
        how = "" if panel.startswith("generated") else f" (for a part: --limit); {HOW_TO_GET}"
        raise DataError(
            f"the published panel {panel} is {len(published)} games, here are {len(names)}: "
            f"{' and '.join(faults)}; results would not compare{how}"
        )


def _check_pin(panel: Panel) -> None:
    """Games that go by the names of a known panel must be those of the known panel."""
    names = [game.name for game, _ in panel.games]
    check_names(panel.name, names)
    pin = _pins().get(panel.name)
    if pin is None or set(pin["names"]).isdisjoint(names):
        return
    if panel.digest != pin["games"]:
        raise DataError(
            f"the games of panel {panel.name} have changed: their hash is {panel.digest[:16]}, "
            f"the published panel has {pin['games'][:16]}; results would not compare"
        )


def _pins() -> dict[str, dict]:
    """For each published panel the digest and the names of its games."""
    text = (files("envs.household") / "rules" / "panels.json").read_text(encoding="utf-8")
    return json.loads(text)
