"""Trained planners where they are used: evaluate_text and play --watch."""

import json

import pytest

from envs.household.world import HOUSEHOLD
from experiments import evaluate_text
from experiments import play_text as play
from jaxagent.planning.planner_files import save_planner
from tests.planning.test_planner_files import small


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("planner")
    save_planner(place, small("compact-hierarchical"))
    return place


def test_a_planner_s_folder_plays_the_panel_within_its_constraint(folder, tmp_path):
    options = ["--panel", "generated_unseen", "--agent", f"planner:{folder}", "--horizon", "2"]
    arguments = [*options, "--decoding", "constrained", "--out", str(tmp_path)]
    assert evaluate_text.main(arguments) == 0
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["decoding"] == "constrained"
    total = result["scores"]["all"]
    assert (total["games"], total["inadmissible_share"]) == (120, 0.0)
    assert total["mean_steps"] > 1.5


@pytest.mark.parametrize("name", HOUSEHOLD.planners)
def test_the_shipped_planners_win_games_they_have_never_seen(name, tmp_path):
    options = ["--panel", "generated_unseen", "--limit", "20", "--agent", f"planner:{name}"]
    assert evaluate_text.main([*options, "--decoding", "constrained", "--out", str(tmp_path)]) == 0
    total = json.loads((tmp_path / "result.json").read_text())["scores"]["all"]
    assert total["games"] == 20
    assert total["won"] >= 18, "of the whole panel 116 and 117 of 120"


def test_a_planner_can_be_watched(folder, capsys):
    assert play.main(["--watch", f"planner:{folder}", "--delay", "0"]) == 1
    shown = capsys.readouterr().out
    assert "[49] > " in shown
    assert "Not done in 50 steps." in shown


def test_an_expert_that_is_watched_wins(capsys):
    assert play.main(["--watch", "expert", "--delay", "0"]) == 0
    shown = capsys.readouterr().out
    assert "(find " in shown
    assert "Done, in " in shown


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--agent planner:runs/no/best", "--agent planner:runs/no/best: there is no such folder"),
        ("--agent expert --horizon 0", "error: --horizon 0 must be at least 1\n"),
        ("--agent expert --workers -1", "error: --workers -1 must be at least 0\n"),
        ("--agent planner:nobody", "--agent planner:nobody: unknown; known agents: random"),
        ("--agent expert --decoding constrained", "agent expert generates no text"),
    ],
)
def test_evaluation_refuses(arguments, message, capsys):
    assert evaluate_text.main(["--panel", "generated_unseen", *arguments.split()]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_watching_refuses(folder, capsys):
    assert play.main(["--watch", "planner:nobody"]) == 2
    assert "unknown; known agents" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        play.main(["--delay", "1"])
    assert "--delay 1: goes with --watch" in capsys.readouterr().err


def test_a_planner_of_another_format_is_one_line(folder, tmp_path, capsys):
    save_planner(tmp_path, small())
    description = json.loads((tmp_path / "planner.json").read_text())
    (tmp_path / "planner.json").write_text(json.dumps({**description, "format": "other"}))
    options = ["--panel", "generated_unseen", "--agent", f"planner:{tmp_path}"]
    assert evaluate_text.main(options) == 2
    assert "format 'other' is not 'jaxagent.planner.1'" in capsys.readouterr().err
