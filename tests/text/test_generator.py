"""Generated games: all different, all winnable, split by pairs, the same for the same seed."""

import json
import subprocess
import sys
import time

import pytest

from envs.household import generator
from envs.household.data import data_root, list_games, task_type_of
from envs.household.demonstrations import demonstrate
from envs.household.engine import step
from envs.household.game import load_game
from envs.household.generator import SPLITS, generate_games, is_unseen, main, write_games
from envs.household.task import TASK_TYPES, read_sentence


def test_a_thousand_games_are_different_and_won_and_made_in_time():
    began = time.process_time()
    games = list(generate_games(1_000, 1))
    assert time.process_time() - began < 30
    assert len({made.name for made in games}) == 1_000
    contents = {made.game_data["pddl_problem"].partition("(:objects")[2] for made in games}
    assert len(contents) == 1_000
    for made in games:
        state = made.game.initial
        assert not state.won
        for command in made.plan:
            state = step(made.game, state, command).state
        assert state.won
        assert demonstrate(made.game, "searching") is not None
    kinds = [made.game.task.kind for made in games]
    assert min(map(kinds.count, TASK_TYPES)) >= 166


def test_the_documents_agree_with_the_game(generated):
    for made in generated:
        task = made.game.task
        params = made.traj_data["pddl_params"]
        assert made.traj_data["task_type"] == task.kind
        assert params["object_target"].lower() == task.item
        assert (params["parent_target"] or params["toggle_target"]).lower() == task.target
        assert read_sentence(made.game.task_text) == task
        assert made.game_data["walkthrough"] == made.plan
        assert made.game_data["solvable"] is True


def test_unseen_pairs_occur_in_neither_of_the_other_splits():
    pairs = {
        split: {(m.game.task.item, m.game.task.target) for m in generate_games(240, 2, split)}
        for split in SPLITS
    }
    assert not pairs["unseen"] & (pairs["train"] | pairs["seen"])
    assert len(pairs["train"] & pairs["seen"]) > 20
    assert min(map(len, pairs.values())) > 20
    assert is_unseen("Mug", "SinkBasin") == is_unseen("Mug", "SinkBasin")


def test_what_the_searching_expert_does_not_win_is_left_out_unless_wanted():
    drawn = list(generate_games(120, 20, "unseen", won_by_search=False))
    kept = list(generate_games(120, 20, "unseen"))
    hard = [made.game for made in drawn if demonstrate(made.game, "searching") is None]
    replaced = [old.game for old, new in zip(drawn, kept) if old.game_data != new.game_data]
    assert [game.name for game in replaced] == [game.name for game in hard]
    assert len(hard) == 1
    assert all(demonstrate(made.game, "searching") is not None for made in kept)


def test_no_kinds_make_no_games():
    with pytest.raises(ValueError, match="no task types given"):
        list(generate_games(1, 0, kinds=()))


def test_seeds_decide_everything():
    first = [made.game_data for made in generate_games(8, 3)]
    assert first == [made.game_data for made in generate_games(8, 3)]
    assert first[:3] == [made.game_data for made in generate_games(3, 3)]
    others = [made.game_data for made in generate_games(8, 4)]
    seen = [made.game_data for made in generate_games(8, 3, "seen")]
    for games in (others, seen):
        assert not any(game in first for game in games)


def test_one_kind_can_be_asked_for():
    kinds = {made.game.task.kind for made in generate_games(5, 0, kinds=(TASK_TYPES[5],))}
    assert kinds == {TASK_TYPES[5]}
    with pytest.raises(ValueError, match="split 'test' is none of"):
        next(generate_games(1, 0, "test"))
    with pytest.raises(ValueError, match="juggle"):
        next(generate_games(1, 0, kinds=("juggle",)))


def test_written_games_are_read_back(tmp_path, generated):
    assert write_games(iter(generated), tmp_path, "seen") == len(generated)
    paths = list_games(data_root(tmp_path), "valid_seen")
    assert len(paths) == len(generated)
    by_name = {made.name: made for made in generated}
    for path in paths:
        game = load_game(path)
        assert game.initial == by_name[game.name].game.initial
        assert task_type_of(path) == game.task.kind
        assert json.loads((path.parent / "traj_data.json").read_text())["task_type"]


def test_command_line(tmp_path, capsys):
    assert main(["--out", str(tmp_path), "--num", "3", "--seed", "9", "--split", "unseen"]) == 0
    assert "3 games written" in capsys.readouterr().out
    assert len(list(tmp_path.rglob("game.tw-pddl"))) == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--num", "3"], "--out"),
        (["--out", "x", "--num", "0"], "--num 0: must be at least 1"),
        (["--out", "x", "--num", "many"], "many"),
        (["--out", "x", "--num", "1", "--split", "test"], "test"),
        (["--out", __file__, "--num", "1"], "exists and is not a folder"),
    ],
)
def test_bad_command_lines(arguments, message, capsys):
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2
    assert message in capsys.readouterr().err.splitlines()[-1]


def test_runs_as_a_module_without_jax_or_anything_else(tmp_path):
    code = (
        "import sys\n"
        "for name in ('jax', 'flax', 'optax', 'brax', 'transformers', 'gymnasium', 'textworld'):\n"
        "    sys.modules[name] = None\n"
        f"from {generator.__name__} import main\n"
        "import envs.text.workers, envs.household.panels, experiments.play_text\n"
        "import envs.household.demonstrations\n"
        "import envs.household.stock_engine, envs.household.check_games, envs.text.transcripts\n"
        f"sys.exit(main(['--out', {str(tmp_path)!r}, '--num', '1']))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
