"""Records what an expert does, with the sub-goal each command serves, as JSON lines.

python -m envs.household.demonstrations --out demos.jsonl --generated 1000
python -m envs.household.demonstrations --out demos.jsonl --split train   # of ALFWORLD_DATA
"""

import argparse
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from envs.household.data import SPLIT_FOLDERS, DataError, data_root, list_games
from envs.household.describe import opening_text
from envs.household.engine import Event, admissible_commands, step
from envs.household.game import Game, load_game
from envs.household.generator import generate_games
from envs.household.pddl import GameFileError
from envs.household.searching_expert import SearchingExpert
from envs.household.shortest_plan import shortest_plan
from envs.household.subgoals import serves
from envs.household.task import Task
from jaxagent.text import DEFAULT_HORIZON

FORMAT = "jaxagent.demonstrations.1"
EXPERTS = ("searching", "omniscient")


def demonstrate(game: Game, expert: str, horizon: int = DEFAULT_HORIZON) -> dict | None:
    """One episode of an expert.

    Args:
        game: what to play.
        expert: "searching" (what it does can be learnt from what it sees) or "omniscient" (it
            goes straight to hidden things: imitating it teaches guessing).
        horizon: steps within which it must win.

    Returns:
        The record, or None if the expert does not win in time. ``subgoals[i]`` is what
        ``commands[i]`` serves; ``observations`` has one entry more than ``commands``; ``format``
        names what a line holds, and its version.

    Raises:
        ValueError: an unknown expert, or a task sentence that the searching one cannot read.
    """
    if expert not in EXPERTS:
        raise ValueError(f"expert {expert!r} is none of {', '.join(EXPERTS)}")
    state, observations = game.initial, [opening_text(game, game.initial)]
    searching = SearchingExpert(observations[0]) if expert == "searching" else None
    plan = [] if searching else shortest_plan(game) or []
    commands: list[str] = []
    subgoals: list[str] = []
    events: list[Event | None] = []
    while not state.won and len(commands) < horizon:
        if searching:
            command, subgoal = searching.act(observations[-1], admissible_commands(game, state))
            subgoals.append(subgoal)
        elif plan:
            command = plan.pop(0)
        else:
            return None
        outcome = step(game, state, command)
        state = outcome.state
        commands.append(command)
        events.append(outcome.event)
        observations.append(outcome.feedback)
    if not state.won:
        return None
    return {
        "format": FORMAT,
        "game": game.name,
        "task_type": game.task.kind if game.task else "other",
        "task": game.task_text,
        "text_version": game.wording.version,
        "expert": expert,
        "observations": observations,
        "commands": commands,
        "subgoals": subgoals or label_subgoals(game.task, events),
        "won": True,
    }


def label_subgoals(task: Task | None, events: Sequence[Event | None]) -> list[str]:
    """What each command of a won episode was for: the next event that the task needs.

    Args:
        task: what the game asks for.
        events: what each command completed.

    Returns:
        One sub-goal per command, e.g. "take egg 1" for all commands up to taking it; "" after
        the last such event.
    """
    labels: list[str] = []
    current = ""
    for event in reversed(events):
        if event is not None and serves(task, event):
            current = _in_words(event)
        labels.append(current)
    return labels[::-1]


def write_demonstrations(
    path: Path, games: Iterable[Game], expert: str, horizon: int = DEFAULT_HORIZON
) -> tuple[int, int]:
    """Writes one record a line; the file appears only when it is complete.

    Args:
        path: the file.
        games: what to play, each once.
        expert: as in `demonstrate`.
        horizon: steps within which it must win.

    Returns:
        Games written, and games left out because the expert did not win them.
    """
    unfinished = path.with_name(path.name + ".part")
    written = left_out = 0
    file = unfinished.open("w", encoding="utf-8")
    try:
        with file:
            for game in games:
                record = demonstrate(game, expert, horizon)
                if record is None:
                    left_out += 1
                else:
                    file.write(json.dumps(record) + "\n")
                    written += 1
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
    return written, left_out


def read_demonstrations(path: Path) -> list[dict]:
    """The records that `write_demonstrations` wrote, every line checked.

    Raises:
        ValueError: the file cannot be read or is empty, or a line is not of this format; file and
            line are named, and what was found there.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not text: expected lines of format {FORMAT!r}") from None
    records = [_record(f"{path}:{number}", line) for number, line in enumerate(lines, 1)]
    if not records:
        raise ValueError(f"{path} is empty: expected lines of format {FORMAT!r}")
    return records


def _record(where: str, line: str) -> dict:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        raise ValueError(f"{where} is not JSON: expected format {FORMAT!r}") from None
    if not isinstance(record, dict):
        found = type(record).__name__
        raise ValueError(f"{where}: found a {found} without a format, expected {FORMAT!r}")
    if record.get("format") != FORMAT:
        raise ValueError(f"{where}: found format {record.get('format')!r}, expected {FORMAT!r}")
    for name in ("observations", "commands", "subgoals"):
        texts = record.get(name)
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            raise ValueError(f"{where}: {name} must be a list of texts")
    read, said, meant = (len(record[n]) for n in ("observations", "commands", "subgoals"))
    if not 0 < said == meant == read - 1:
        raise ValueError(
            f"{where}: found {said} commands, {meant} subgoals and {read} observations; expected "
            "as many subgoals as commands, at least one, and one observation more"
        )
    return record


_IN_WORDS = {"holds": "take {0}", "placed": "put {0} in/on {1}", "used": "use {0}"}
_TREATED = {"cleaned": "clean {0}", "heated": "heat {0}", "cooled": "cool {0}"}


def _in_words(event: Event) -> str:
    return {**_IN_WORDS, **_TREATED}[event.kind].format(event.item, event.receptacle)


def _games(options: argparse.Namespace) -> Iterator[Game]:
    if options.generated:
        for made in generate_games(options.generated, options.seed, "train"):
            yield made.game
    else:
        for path in list_games(data_root(options.data), options.split):
            yield load_game(path)


def main(arguments: list[str] | None = None) -> int:
    """The command line; see ``--help``."""
    parser = argparse.ArgumentParser(
        prog="python -m envs.household.demonstrations",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--out", required=True, type=Path, help="the JSONL file to write")
    add("--expert", choices=EXPERTS, default="searching", help="who plays (default searching)")
    add("--generated", type=int, default=0, help="play this many generated train games instead")
    add("--seed", type=int, default=0, help="of the generated games (default 0)")
    add("--split", choices=SPLIT_FOLDERS, default="train", help="of the data (default train)")
    add("--data", type=Path, help="folder with the games (default: $ALFWORLD_DATA)")
    add("--horizon", type=int, default=DEFAULT_HORIZON, help="steps to win in (default 50)")
    options = parser.parse_args(arguments)
    if options.generated < 0 or options.horizon < 1:
        parser.error(
            f"--generated {options.generated} must be at least 0 and --horizon "
            f"{options.horizon} at least 1"
        )
    try:
        written, left_out = write_demonstrations(
            options.out, _games(options), options.expert, options.horizon
        )
    except (DataError, GameFileError, ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"{written} episodes written to {options.out}; {left_out} left out as not won")
    return 0


if __name__ == "__main__":
    sys.exit(main())
