"""Plays every game of a fixed panel once and scores an agent.

python -m experiments.evaluate_text --agent expert --panel generated_unseen
"""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

from envs.household.data import DataError, data_root, list_games
from envs.household.describe import opening_text
from envs.household.frequencies import presence
from envs.household.game import Game
from envs.household.panels import PANELS, Panel, load_panel
from envs.household.pddl import GameFileError
from envs.household.searching_expert import SearchingExpert
from envs.household.shortest_plan import shortest_plan
from envs.household.stock_engine import replay_on_stock, stock_version
from envs.household.world import HOUSEHOLD
from envs.text.batch import BatchEnv
from envs.text.scores import Score, score_by_type
from envs.text.transcripts import write_transcripts
from envs.text.workers import WorkerEnv
from experiments.alfworld_data import human_goals
from experiments.household_chat import ChatAdvisor, chat_name
from experiments.household_players import LoopPlayer, PlanPlayer, Player, PlayerTeam, RandomPlayer
from experiments.household_rounds import ModelTeam, Team, batches, play
from jaxagent.planning.backends import PACKAGED as CHATS
from jaxagent.planning.household_player import HouseholdPlayer
from jaxagent.planning.planner_files import DESCRIPTION_FILE, load_planner
from jaxagent.planning.text_agent import AdmissibleWorker, RulePlanner, TextAgent, TextPlanner
from jaxagent.text import DEFAULT_HORIZON, Episode, TextEnv
from jaxagent.training.devices import use_compilation_cache

PLANNERS: dict[str, Callable[[], TextPlanner]] = {"rules": RulePlanner}
_SAMPLING = ("expert", "planner:rules")


class Settings(NamedTuple):
    """What is to be played and how."""

    agent: str
    temperature: float
    seed: int
    horizon: int
    workers: int
    decoding: str = "free"
    goals: str = "template"


def check_agent(name: str, temperature: float, decoding: str = "free") -> None:
    """Refuses agents that do not exist, temperatures and decodings that would do nothing.

    Args:
        name: as on the command line.
        temperature: 0 is greedy.
        decoding: free, or constrained to the admissible commands.

    Raises:
        ValueError: with the known names, or the rule that is broken.
    """
    planners = [f"planner:{planner}" for planner in (*PLANNERS, *HOUSEHOLD.planners)]
    known = ["random", "expert", "omniscient", *planners]
    is_model = _planner_model(name) is not None
    if name not in known and not is_model and chat_name(name) is None:
        place = Path(name.removeprefix("planner:"))
        if name.startswith("planner:") and len(place.parts) > 1 and not place.exists():
            raise ValueError(f"--agent {name}: there is no such folder")
        raise ValueError(
            f"--agent {name}: unknown; known agents: {', '.join(known)}, planner:FOLDER of a run "
            f"or a language model, {', '.join(f'planner:{chat}' for chat in CHATS)}, "
            "planner:openai:MODEL"
        )
    if decoding != "free" and not is_model:
        raise ValueError(
            f"--decoding {decoding}: agent {name} generates no text; those that do: "
            f"{', '.join(f'planner:{planner}' for planner in HOUSEHOLD.planners)}, planner:FOLDER"
        )
    if temperature < 0:
        raise ValueError(f"--temperature {temperature}: must not be negative")
    if temperature > 0 and name not in _SAMPLING:
        raise ValueError(
            f"--temperature {temperature}: agent {name} samples nothing; "
            f"those that do: {', '.join(_SAMPLING)}"
        )


def make_player(settings: Settings, number: int, game: Game, opening: str) -> Player:
    """A fresh agent for one game.

    Args:
        settings: which agent.
        number: the game's place in the panel; with the seed it decides all chance.
        game: shown to the omniscient expert only.
        opening: the first observation.

    Returns:
        The agent.
    """
    seed = settings.seed * 100_003 + number
    if settings.agent == "random":
        return RandomPlayer(seed)
    if settings.agent == "omniscient":
        return PlanPlayer(shortest_plan(game) or [])
    if settings.agent == "expert":
        return SearchingExpert(opening, temperature=settings.temperature, seed=seed)
    planner = PLANNERS[settings.agent.removeprefix("planner:")]()
    worker = AdmissibleWorker(_usual_place, settings.temperature, seed)
    return LoopPlayer(TextAgent(planner, worker, opening))


def _usual_place(thing: str, place: str) -> float:
    return presence().get((thing, place), 0.0)


def play_panel(
    panel: Panel, settings: Settings, goals: Sequence[str] | None = None
) -> tuple[list[Episode], dict | None]:
    """Plays every game once: side by side, or one after the other for a language model.

    Args:
        panel: the games.
        settings: the agent and the horizon.
        goals: another wording of each game's task; None keeps them all.

    Returns:
        One episode per game, in the panel's order, whatever the number of workers; and what a
        language model was asked and answered, None without one.

    Raises:
        ValueError: workers for an agent that plays one game after the other.
    """
    games = [game for game, _ in panel.games]
    player = make_model_player(settings)
    is_chat = isinstance(player, ChatAdvisor)
    if is_chat and settings.workers:
        raise ValueError(
            f"--workers {settings.workers}: agent {settings.agent} plays one game after the other"
        )
    episodes: list[Episode] = []
    most = player.most_games if isinstance(player, HouseholdPlayer) else len(games)
    for some in batches(len(games), 1 if is_chat else most):
        games_now = games[some]
        env = _make_env(len(games_now), settings)
        try:
            gather = partial(make_team, settings, player, games_now)
            episodes += play(env, games_now, gather, goals[some] if goals else None)
        finally:
            env.close()
    for note in player.notes() if player else ():
        print(f"note: {note}", file=sys.stderr)
    return episodes, player.summary() if isinstance(player, ChatAdvisor) else None


def _make_env(count: int, settings: Settings) -> TextEnv:
    if settings.workers:
        # Of games that do not fit into memory at once, the last ones may be few.
        return WorkerEnv(count, min(settings.workers, count), horizon=settings.horizon)
    return BatchEnv(count, horizon=settings.horizon)


def make_model_player(settings: Settings) -> HouseholdPlayer | ChatAdvisor | None:
    """The trained planner or the language model that the agent is; None if it is none."""
    name = _planner_model(settings.agent)
    if name is None:
        chat = chat_name(settings.agent) if settings.agent not in _SAMPLING else None
        if chat is None:
            return None
        use_compilation_cache()
        return ChatAdvisor(chat, settings.seed)
    use_compilation_cache()
    is_constrained = settings.decoding == "constrained"
    return HouseholdPlayer(load_planner(name, HOUSEHOLD).playing(), is_constrained=is_constrained)


def make_team(
    settings: Settings,
    player: HouseholdPlayer | ChatAdvisor | None,
    games: Sequence[Game],
    openings: Sequence[str],
) -> Team:
    """Fresh agents, one for each game.

    Args:
        settings: which agent.
        player: a planner model, which plays all games in one batch, or a language model, which
            proposes sub-goals to a worker.
        games: what is played.
        openings: the first observations.

    Returns:
        The team.
    """
    if isinstance(player, ChatAdvisor):
        workers = [AdmissibleWorker(_usual_place) for _ in openings]
        agents = map(TextAgent, (player.planner() for _ in openings), workers, openings)
        return PlayerTeam([LoopPlayer(agent) for agent in agents])
    if player is not None:
        return ModelTeam(player, openings)
    numbered = zip(range(len(games)), games, openings)
    return PlayerTeam([make_player(settings, *item) for item in numbered])


def lone_agent(
    name: str, seed: int, game: Game
) -> Callable[[list[str], list[tuple[str, ...]]], list[tuple[str, str]]]:
    """One agent for one game, greedy and free, as `experiments.play_text` watches it.

    Raises:
        ValueError: there is no such agent.
    """
    check_agent(name, 0.0)
    settings = Settings(name, 0.0, seed, DEFAULT_HORIZON, 0)
    opening = opening_text(game, game.initial)
    return make_team(settings, make_model_player(settings), [game], [opening]).act


def _planner_model(agent: str) -> str | None:
    """Name or folder of the trained planner that an agent is; None if it is none."""
    name = agent.removeprefix("planner:")
    is_trained = name in HOUSEHOLD.planners or (Path(name) / DESCRIPTION_FILE).is_file()
    return name if agent.startswith("planner:") and is_trained else None


def report(panel: Panel, settings: Settings, scores: dict[str, Score]) -> dict:
    """The result as it is written: what was played, by whom, under which rules, how well."""
    return {
        "panel": panel.name,
        "panel_hash": panel.digest,
        "games": len(panel.games),
        "engine": f"jaxagent {version('jaxagent')}",
        "text_versions": sorted({game.wording.version for game, _ in panel.games}),
        "horizon": settings.horizon,
        "agent": settings.agent,
        "decoding": settings.decoding,
        "goals": settings.goals,
        "temperature": settings.temperature,
        "seed": settings.seed,
        "scores": {kind: part.as_dict() for kind, part in scores.items()},
    }


def _print_scores(panel: Panel, scores: dict[str, Score], horizon: int) -> None:
    print(
        f"panel {panel.name} ({len(panel.games)} games, hash {panel.digest[:16]}, {horizon} steps)"
    )
    print(f"{'task type':<34}{'won':>9}{'success':>9}{'95 % interval':>16}{'steps':>7}"
          f"{'inadm.':>8}{'repeated':>10}")  # fmt: skip
    for kind, part in scores.items():
        interval = f"{100 * part.success_low:.1f}-{100 * part.success_high:.1f}"
        print(
            f"{kind:<34}{part.won:>5}/{part.games:<3}{100 * part.success:>8.1f}%{interval:>15}%"
            f"{part.mean_steps:>7.1f}{100 * part.inadmissible_share:>7.1f}%"
            f"{100 * part.repeated_share:>9.1f}%"
        )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.evaluate_text",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add(
        "--agent",
        required=True,
        help="random, expert, omniscient, planner:NAME, planner:FOLDER (of a run, or of a language "
        "model), planner:openai:MODEL",
    )
    add("--panel", required=True, choices=PANELS, help="the fixed set of games")
    add("--data", type=Path, help="folder with the games (default: $ALFWORLD_DATA)")
    add("--horizon", type=int, default=DEFAULT_HORIZON, help="steps per game (default 50)")
    add(
        "--decoding",
        choices=("free", "constrained"),
        default="free",
        help="of trained planners: anything, or admissible commands only (default free)",
    )
    add(
        "--goals",
        choices=("template", "human"),
        default="template",
        help="tasks as the benchmark words them, or as the first of the people who described each "
        "game did (default template)",
    )
    add("--temperature", type=float, default=0.0, help="0 is greedy (default)")
    add("--seed", type=int, default=0, help="of agents that sample (default 0)")
    add("--workers", type=int, default=0, help="processes; 0 plays in this one (default)")
    add("--out", type=Path, help="folder for result.json and transcripts.html")
    add("--expect-hash", help="refuse a panel whose hash does not begin with this")
    add("--limit", type=int, help="play the panel's first games only; the result says so")
    add("--oracle", action="store_true", help="replay won games on the stock engine")
    return parser


def main(arguments: list[str] | None = None) -> int:
    """The command line; see ``--help``."""
    parser = _parser()
    options = parser.parse_args(arguments)
    settings = Settings(
        options.agent, options.temperature, options.seed, options.horizon, options.workers,
        options.decoding, options.goals,
    )  # fmt: skip
    try:
        check_agent(settings.agent, settings.temperature, settings.decoding)
        for option, least in (("horizon", 1), ("workers", 0)):
            if getattr(options, option) < least:
                given = getattr(options, option)
                raise ValueError(f"--{option} {given} must be at least {least}")
        if options.oracle:
            stock_version()
        if settings.goals == "human" and options.panel.startswith("generated"):
            raise ValueError(f"--goals human: nobody described the games of {options.panel}")
        panel = load_panel(options.panel, options.data, options.expect_hash)
        panel = _first_games(panel, options.limit)
        goals = _human_goals(panel, options.data) if settings.goals == "human" else None
        episodes, asked = play_panel(panel, settings, goals)
        refused = replay_on_stock(panel, episodes, settings.horizon) if options.oracle else None
    except (DataError, GameFileError, ImportError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    scores = score_by_type(episodes)
    _print_scores(panel, scores, settings.horizon)
    result = report(panel, settings, scores)
    if asked is not None:
        result["planner"] = asked
    if refused is not None:
        result["oracle"] = {"engine": stock_version(), "not_won": refused}
        print(f"stock engine: {result['oracle']['engine']}; not won there: {refused or 'none'}")
    if options.out:
        try:
            _write(options.out, result, episodes, scores)
        except OSError as error:
            print(f"error: --out {options.out}: {error}", file=sys.stderr)
            return 2
    return 1 if refused else 0


def _human_goals(panel: Panel, root: Path | None) -> list[str]:
    """What the first person who described each game of a panel wrote that is to be done."""
    paths = list_games(data_root(root), panel.name.partition("[")[0])
    return [human_goals(path)[0] for path in paths[: len(panel.games)]]


def _first_games(panel: Panel, limit: int | None) -> Panel:
    """A panel cut short, under a name that cannot be taken for the panel's."""
    if limit is None:
        return panel
    if not 1 <= limit <= len(panel.games):
        raise ValueError(f"--limit {limit} must lie in [1, {len(panel.games)}]")
    return panel._replace(name=f"{panel.name}[:{limit}]", games=panel.games[:limit])


def _write(
    folder: Path, result: dict, episodes: Sequence[Episode], scores: dict[str, Score]
) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "result.json").write_text(json.dumps(result, indent=1) + "\n")
    title = f"{result['agent']} on {result['panel']}"
    write_transcripts(folder / "transcripts.html", title, episodes, scores)
    print(f"written: {folder / 'result.json'}, {folder / 'transcripts.html'}")


if __name__ == "__main__":
    sys.exit(main())
