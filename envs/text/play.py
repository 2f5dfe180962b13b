"""Play a household game in the terminal: ``python -m envs.text.play [GAME]``."""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from envs.text.describe import opening_text
from envs.text.engine import admissible_commands, step
from envs.text.game import Game, load_game
from envs.text.generator import generate_games
from envs.text.omniscient import shortest_plan
from envs.text.pddl import GameFileError

_HELP = "type a command; ? lists those possible, hint shows the way, undo goes back, quit leaves"


def play(game: Game, read: Callable[[str], str], write: Callable[[str], None]) -> bool:
    """Plays until the game is won or the player leaves.

    Args:
        game: what to play.
        read: gives the player's next line for a prompt; raises EOFError at the end.
        write: shows a text.

    Returns:
        Whether the game was won.
    """
    state, past = game.initial, []
    write(opening_text(game, state))
    write(f"({_HELP})")
    while not state.won:
        try:
            line = read(f"[{len(past)}] > ").strip()
        except (EOFError, KeyboardInterrupt):
            return False
        if line == "quit":
            return False
        if line == "?":
            write("\n".join(admissible_commands(game, state)))
        elif line == "hint":
            plan = shortest_plan(game, state)
            write(f"{plan[0]} ({len(plan)} to go)" if plan else "There is no way from here.")
        elif line == "undo":
            state = past.pop() if past else state
            write("You are back where you were.")
        elif line:
            past.append(state)
            outcome = step(game, state, line)
            state = outcome.state
            write(outcome.feedback)
    write(f"Done, in {len(past)} steps.")
    return True


def main(arguments: list[str] | None = None) -> int:
    """The command line; see ``--help``."""
    parser = argparse.ArgumentParser(prog="python -m envs.text.play", description=__doc__)
    parser.add_argument("game", nargs="?", type=Path, help="a game.tw-pddl (default: a new game)")
    parser.add_argument("--seed", type=int, default=0, help="of the new game (default 0)")
    options = parser.parse_args(arguments)
    try:
        if options.game:
            game = load_game(options.game)
        else:
            # One of each task type, so that the seed decides the type as well.
            *_, made = generate_games(options.seed % 6 + 1, options.seed)
            game = made.game
    except GameFileError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0 if play(game, input, print) else 1


if __name__ == "__main__":
    sys.exit(main())
