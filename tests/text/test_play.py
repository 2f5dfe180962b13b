"""Playing by hand."""

import io

import pytest

from experiments.play_text import main, play
from tests.text.small import small_game


def session(game, *lines):
    shown, waiting = [], list(lines)

    def read(prompt):
        if not waiting:
            raise EOFError
        return waiting.pop(0)

    return play(game, read, shown.append), shown


def test_a_game_can_be_won_by_hand_with_hints_and_second_thoughts():
    won, shown = session(
        small_game(),
        "hint",
        "go to fridge 1",
        "undo",
        "undo",
        "",
        "fly away",
        "go to countertop 1",
        "take apple 2 from countertop 1",
        "?",
        "go to sinkbasin 1",
        "move apple 2 to sinkbasin 1",
    )
    assert won
    assert shown[2] == "go to countertop 1 (4 to go)"
    assert "Nothing happens." in shown
    assert any("move apple 2 to countertop 1\n" in text for text in shown)
    assert shown[-1] == "Done, in 5 steps."


@pytest.mark.parametrize("lines", [[], ["quit"], ["look"]])
def test_leaving_is_not_winning(lines):
    assert session(small_game(), *lines)[0] is False


def test_command_line(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr("sys.stdin", io.StringIO("look\nquit\n"))
    assert main(["--seed", "4"]) == 1
    assert "Your task is to" in capsys.readouterr().out
    (tmp_path / "game.tw-pddl").write_text("nonsense")
    assert main([str(tmp_path / "game.tw-pddl")]) == 2
    assert "cannot be read as a game file" in capsys.readouterr().err
