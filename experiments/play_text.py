"""Play a household game in the terminal: ``python -m experiments.play_text [GAME]``.

``--watch planner:tiny`` lets an agent of `experiments.evaluate_text` play instead.
"""

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path

from envs.household.describe import opening_text
from envs.household.engine import admissible_commands, step
from envs.household.game import Game, load_game
from envs.household.generator import generate_games
from envs.household.pddl import GameFileError
from envs.household.shortest_plan import shortest_plan
from jaxagent.text import DEFAULT_HORIZON

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


Act = Callable[[list[str], list[tuple[str, ...]]], list[tuple[str, str]]]


def watch(game: Game, act: Act, write: Callable[[str], None], pause: Callable[[], None]) -> bool:
    """Shows how an agent plays.

    Args:
        game: what is played.
        act: gives (command, sub-goal) for a batch of one: the texts printed last, and what can be
            done now.
        write: shows a text.
        pause: called before each command.

    Returns:
        Whether the game was won within the horizon.
    """
    state, text, aim = game.initial, opening_text(game, game.initial), ""
    write(text)
    for number in range(DEFAULT_HORIZON):
        ((command, subgoal),) = act([text], [admissible_commands(game, state)])
        if subgoal != aim:
            aim = subgoal
            write(f"    ({aim})")
        pause()
        state, text, _, _ = step(game, state, command)
        write(f"[{number}] > {command}\n{text}")
        if state.won:
            write(f"Done, in {number + 1} steps.")
            return True
    write(f"Not done in {DEFAULT_HORIZON} steps.")
    return False


def main(arguments: list[str] | None = None) -> int:
    """The command line; see ``--help``."""
    parser = argparse.ArgumentParser(prog="python -m experiments.play_text", description=__doc__)
    parser.add_argument("game", nargs="?", type=Path, help="a game.tw-pddl (default: a new game)")
    parser.add_argument("--seed", type=int, default=0, help="of the new game (default 0)")
    parser.add_argument("--watch", metavar="AGENT", help="let an agent play, e.g. planner:tiny")
    parser.add_argument("--delay", type=float, help="seconds between its commands (default 0.7)")
    options = parser.parse_args(arguments)
    if options.delay is not None and not (options.watch and options.delay >= 0):
        parser.error(f"--delay {options.delay:g}: goes with --watch and is at least 0")
    try:
        if options.game:
            game = load_game(options.game)
        else:
            # One of each task type, so that the seed decides the type as well.
            *_, made = generate_games(options.seed % 6 + 1, options.seed)
            game = made.game
        act = _agent(options.watch, options.seed, game) if options.watch else None
    except (GameFileError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if act is not None:
        delay = 0.7 if options.delay is None else options.delay
        return 0 if watch(game, act, print, lambda: time.sleep(delay)) else 1
    return 0 if play(game, input, print) else 1


def _agent(name: str, seed: int, game: Game) -> Act:
    # Agents need JAX, which takes seconds to load; who plays by hand does not wait for it.
    from experiments.evaluate_text import lone_agent

    return lone_agent(name, seed, game)


if __name__ == "__main__":
    sys.exit(main())
