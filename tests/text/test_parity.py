"""The engine against the stock one: on recordings everywhere, live where the extra is installed."""

import gzip
import importlib.util
import itertools
import json
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import text_parity
from envs.household.describe import opening_text
from envs.household.engine import admissible_commands, step
from envs.household.game import build_game, load_game
from envs.household.generator import generate_games, write_games
from envs.household.panels import load_panel
from envs.household.searching_expert import SearchingExpert
from envs.household.stock_engine import (
    StockEnv,
    event_of,
    stock_player,
    stock_version,
    written_game,
)
from envs.household.task import TASK_TYPES
from envs.household.wording import WORDINGS
from envs.text.batch import BatchEnv, Rewards
from experiments.evaluate_text import main
from tests.text.conftest import real_lines
from tests.text.small import GOALS, document, small_game

RECORDED = json.loads(
    gzip.decompress((Path(__file__).parent / "golden" / "stock_walks.json.gz").read_bytes())
)
installed = pytest.mark.skipif(
    importlib.util.find_spec("textworld") is None, reason="the extra alfworld is not installed"
)


@pytest.mark.parametrize("walk", RECORDED["walks"], ids=lambda walk: walk["name"].split("/")[0])
def test_recorded_walks_of_the_stock_engine(walk):
    game = build_game(document(walk["problem"], walk["task"]))
    state = game.initial
    assert opening_text(game, state) == walk["first"]["text"]
    expected = set(walk["first"]["admissible"])
    assert admissible_commands(game, state) == tuple(walk["first"]["admissible"])
    for command, text, added, removed, won in walk["steps"]:
        outcome = step(game, state, command)
        state = outcome.state
        expected = expected - set(removed) | set(added)
        assert outcome.feedback == text
        assert outcome.valid == (text != "Nothing happens.")
        assert admissible_commands(game, state) == tuple(sorted(expected))
        assert state.won == won


def test_recordings_cover_every_verb_and_task_type():
    verbs = {step[0].split()[0] for walk in RECORDED["walks"] for step in walk["steps"]}
    verbs_wanted = {"go", "open", "close", "take", "move", "examine", "look", "inventory", "help",
                    "heat", "cool", "clean", "use", "slice"}  # fmt: skip
    assert verbs_wanted <= verbs
    assert {walk["name"].partition("-")[0] for walk in RECORDED["walks"]} == set(TASK_TYPES)


def test_version_03_words_puts_and_arrivals_its_own_way():
    game = small_game()._replace(wording=WORDINGS["0.3"])
    state = game.initial
    texts = []
    for command in (
        "go to countertop 1",
        "take apple 2 from countertop 1",
        "go to sinkbasin 1",
        "move apple 2 to sinkbasin 1",
    ):
        outcome = step(game, state, command)
        state = outcome.state
        texts.append(outcome.feedback)
    assert texts[0].startswith("You arrive at loc 6. On the countertop 1, you see")
    assert texts[-1] == "You put the apple 2 in/on the sinkbasin 1."
    assert state.won
    assert not step(game, state, "help").valid
    assert "help" not in admissible_commands(game, state)
    holding = step(game, state, "take apple 2 from sinkbasin 1").state
    assert "put apple 2 in/on sinkbasin 1" in admissible_commands(game, holding)


def real_game(record):
    """A game of the benchmark, under this project's copy of the rules."""
    return build_game(document(record["pddl_problem"], record["task_desc"]), record["trial"])


@pytest.mark.alfworld
def test_every_recorded_expert_episode_of_the_benchmark():
    episodes = {record["trial"]: record for record in real_lines("expert_traj_v042.jsonl.xz")}
    steps = 0
    for record in real_lines("train.jsonl.xz"):
        game, episode = real_game(record), episodes.pop(record["trial"])
        state = game.initial
        texts = [opening_text(game, state)]
        for command in episode["actions"]:
            assert command in admissible_commands(game, state)
            outcome = step(game, state, command)
            state = outcome.state
            texts.append(outcome.feedback)
            steps += 1
        assert texts == episode["obs"]
        assert state.won
        assert game.task.kind == record["task_type"]
    assert not episodes
    assert steps == 60_591


@pytest.mark.alfworld
def test_searching_expert_on_the_seen_panel():
    won, games = 0, [real_game(record) for record in real_lines("valid_seen.jsonl.xz")]
    for game in games:
        state, text = game.initial, opening_text(game, game.initial)
        expert = SearchingExpert(text)
        for _ in range(50):
            choice = expert.act(text, admissible_commands(game, state))
            outcome = step(game, state, choice.command)
            state, text = outcome.state, outcome.feedback
        won += state.won or outcome.state.won
    assert won >= 0.95 * len(games)


def test_events_of_both_engines_are_the_same():
    """The stock engine's are read from the command: ours say no more, and no less."""
    kinds = set()
    for goal, seed in itertools.product(sorted(GOALS), range(8)):
        game, rng = small_game(goal), random.Random(seed)
        state = game.initial
        for _ in range(60):
            known = admissible_commands(game, state)
            treat = [c for c in known if c.split()[0] not in ("go", "look", "inventory", "help")]
            command = rng.choice(treat if treat and rng.random() < 0.7 else known)
            outcome = step(game, state, command)
            assert outcome.event == event_of(command), command
            state = outcome.state
            kinds.add(outcome.event.kind if outcome.event else "")
    assert kinds == {"", "at", "opened", "closed", "holds", "placed", "cleaned", "heated",
                     "cooled", "used", "sliced"}  # fmt: skip


@pytest.mark.alfworld
@installed
@pytest.mark.parametrize("kind", TASK_TYPES)
def test_events_of_won_games_are_the_same_on_the_stock_engine(tmp_path, kind):
    for made in generate_games(2, 33, kinds=(kind,)):
        ours, stock = BatchEnv(1), StockEnv(1)
        for env in (ours, stock):
            env.reset([written_game(made.game_data, str(tmp_path))])
        events = [[env.step([c]).info.event[0] for c in made.plan] for env in (ours, stock)]
        assert events[0] == events[1]
        assert None not in events[0]


def test_the_missing_extra_is_named(monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(sys.modules, "textworld", None)
    named = "pip install alfworld"
    with pytest.raises(ImportError, match=named):
        StockEnv(1)
    assert text_parity.main(["--generated", "--games", "1", "--out", str(tmp_path / "x")]) == 2
    assert re.search(named, capsys.readouterr().err)


@pytest.mark.alfworld
@installed
def test_live_walks_find_no_difference_and_can_be_continued(tmp_path, capsys):
    out = tmp_path / "parity.jsonl"
    arguments = ["--generated", "--steps", "15", "--out", str(out)]
    assert text_parity.main(["--games", "3", *arguments]) == 0
    assert text_parity.main(["--games", "6", *arguments]) == 0
    assert "6 games, 90 steps, 0 games differ" in capsys.readouterr().out
    assert len(out.read_text().splitlines()) == 6


@pytest.mark.alfworld
@installed
def test_live_walks_do_find_a_difference(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("benchmarks.text_parity.opening_text", lambda game, state: "Hello.")
    out = tmp_path / "parity.jsonl"
    assert text_parity.main(["--generated", "--games", "1", "--out", str(out)]) == 1
    assert "1 games differ" in capsys.readouterr().out


@pytest.mark.alfworld
@installed
def test_the_two_engines_are_the_same_behind_the_protocol(tmp_path):
    for number, made in enumerate(generate_games(3, 31, "unseen")):
        rng = random.Random(number)
        path = written_game(made.game_data, str(tmp_path))
        ours, stock = BatchEnv(1), StockEnv(1)
        seen = [env.reset([path]) for env in (ours, stock)]
        for _ in range(12):
            (text, info), (stock_text, stock_info) = seen
            assert text == stock_text
            assert info.admissible == stock_info.admissible
            command = rng.choice([*info.admissible[0], "dance"]) if info.admissible[0] else "look"
            if command.startswith("move ") and number % 2:
                command = command.replace("move ", "put ").replace(" to ", " in/on ")
            steps = [env.step([command]) for env in (ours, stock)]
            for ours_part, stock_part in zip(*steps):
                if not isinstance(ours_part, tuple | list):
                    assert ours_part.tolist() == stock_part.tolist()
            assert steps[0].info.event == steps[1].info.event
            seen = [(each.observations, each.info) for each in steps]


@pytest.mark.alfworld
@installed
def test_the_score_is_the_stock_engines(monkeypatch):
    monkeypatch.setattr(sys, "argv", sys.argv)  # the package changes both
    monkeypatch.setattr(sys, "stdout", sys.stdout)
    (made,) = generate_games(1, 31)
    ours, stock = BatchEnv(1), stock_player()
    ours.reset([made.game])
    stock.load(made.game_data)
    stock.reset()
    scores = []
    for command in ["dance", *made.plan]:
        scores.append(stock.step(command)[1])
        assert ours.step([command]).info.score.tolist() == scores[-1:]
    assert scores == [0] * len(made.plan) + [1]


@pytest.mark.alfworld
@installed
def test_the_stock_bridge_keeps_what_the_package_breaks(tmp_path, generated):
    write_games(iter(generated[:2]), tmp_path, "train")
    paths = sorted(tmp_path.rglob("game.tw-pddl"))
    arguments, stdout = sys.argv, sys.stdout
    env = StockEnv(2, horizon=3, rewards=Rewards(inadmissible=-0.5))
    observations, _ = env.reset(paths)
    assert observations[0] != observations[1]
    assert (sys.argv, sys.stdout) == (arguments, stdout)
    step = env.step(["dance", "look"])
    assert step.rewards.tolist() == [-0.5, 0.0]
    with pytest.raises(ValueError, match="give the path"):
        env.reset([load_game(paths[0])] * 2)
    assert "alfworld" in stock_version()
    env.close()
    for use in (lambda: env.reset(paths), lambda: env.step(["look"] * 2)):
        with pytest.raises(RuntimeError, match="are closed"):
            use()


PACKAGE_ALONE = """
import json, sys
from alfworld.agents.environment.alfred_tw_env import AlfredTWEnv

folder, num = sys.argv[1], int(sys.argv[2])
env = AlfredTWEnv({
    "env": {"goal_desc_human_anns_prob": 0, "task_types": [1, 2, 3, 4, 5, 6],
            "domain_randomization": False, "expert_type": "handcoded"},
    "general": {"training_method": "dqn"},
    "rl": {"training": {"max_nb_steps_per_episode": 50}},
    "dataset": {"eval_id_data_path": folder, "num_eval_games": -1},
}, train_eval="eval_in_distribution")
assert env.num_games == num, env.num_games
batch, won = env.init_env(batch_size=1), set()
for _ in range(num):
    _, infos = batch.reset()
    (game,) = infos["extra.gamefile"]
    for command in json.load(open(game))["walkthrough"]:
        _, _, _, infos = batch.step([command])
    if infos["won"][0]:
        won.add(game)
batch.close()
print("won", len(won))
"""


@pytest.mark.alfworld
@installed
def test_the_package_itself_loads_and_wins_generated_games(tmp_path):
    write_games(generate_games(6, 8, "seen"), tmp_path, "seen")
    folder = str(tmp_path / "json_2.1.1" / "valid_seen")
    # In a process of its own: the package forks, which a process with JAX in it must not.
    done = subprocess.run(
        [sys.executable, "-c", PACKAGE_ALONE, folder, "6"],
        capture_output=True, text=True, timeout=300, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert "won 6" in done.stdout.splitlines(), done.stdout + done.stderr


@pytest.mark.alfworld
@installed
def test_the_oracle_confirms_won_episodes(monkeypatch, capsys):
    panel = load_panel("generated_unseen")
    short = panel._replace(games=panel.games[:6])
    monkeypatch.setattr("experiments.evaluate_text.load_panel", lambda *arguments: short)
    assert main(["--agent", "expert", "--panel", "generated_unseen", "--oracle"]) == 0
    assert "not won there: none" in capsys.readouterr().out
