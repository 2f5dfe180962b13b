"""The standard layout, its check, and panels that notice when their games change."""

import itertools
import json
import re
import shutil

import pytest

from envs.household import check_games as prepare
from envs.household import panels
from envs.household.data import (
    DataError,
    data_root,
    list_games,
    read_split,
    share_of,
    shuffled_forever,
)
from envs.household.generator import generate_games, write_games
from envs.household.panels import load_panel
from envs.household.task import TASK_TYPES
from tests.text.conftest import real_lines
from tests.text.small import document


@pytest.fixture
def root(tmp_path, generated):
    """A small data folder: 12 train games, 6 seen ones."""
    write_games(iter(generated[:12]), tmp_path, "train")
    write_games(iter(generated[12:18]), tmp_path, "seen")
    return tmp_path


def test_root_comes_from_the_environment(root, monkeypatch):
    monkeypatch.setenv("ALFWORLD_DATA", str(root))
    assert data_root() == root
    monkeypatch.delenv("ALFWORLD_DATA")
    with pytest.raises(DataError, match=r"ALFWORLD_DATA is not set.*alfworld-download.*generator"):
        data_root()
    with pytest.raises(DataError, match="does not exist"):
        data_root(root / "nowhere")
    (root / "file").touch()
    with pytest.raises(DataError, match="file is not a folder"):
        data_root(root / "file")
    with pytest.raises(DataError, match=r"has no folder json_2\.1\.1"):
        data_root(root / "json_2.1.1")


def test_games_by_type(root):
    assert len(list_games(root, "train")) == 12
    (kind,) = {p.parent.parent.name[:4] for p in list_games(root, "train", TASK_TYPES[1:2])}
    assert kind == "look"
    with pytest.raises(DataError, match="valid_unseen does not exist"):
        list_games(root, "valid_unseen")


def test_what_the_benchmark_leaves_out_is_left_out(root):
    games = list_games(root, "train")
    for name in ("pick_and_place_with_movable_recep-A-B-C-1/trial", "pick-AppleSliced-C/trial"):
        shutil.copytree(games[0].parent, root / "json_2.1.1" / "train" / name)
    data = json.loads(games[1].read_text())
    games[1].write_text(json.dumps({**data, "solvable": False}))
    assert list_games(root, "train") == [games[0], *games[2:]]
    # What lies above the split is none of the benchmark's names.
    above = root / "movable" / "Sliced"
    shutil.copytree(root / "json_2.1.1", above / "json_2.1.1")
    assert len(list_games(above, "train")) == 11


def set_key(path, **changes):
    """Changes fields of a JSON file; None removes one."""
    data = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({name: value for name, value in data.items() if value is not None}))


def without_a_game(trial):
    (trial / "game.tw-pddl").rename(trial / "initial_state.pddl")


def without_trajectory(trial):
    (trial / "traj_data.json").unlink()


def without_solvable(trial):
    set_key(trial / "game.tw-pddl", solvable=None)


def unsolvable(trial):
    set_key(trial / "game.tw-pddl", solvable=False)


def of_another_type(trial):
    set_key(trial / "traj_data.json", task_type="pick_and_stack")
    trial.parent.rename(trial.parent.with_name("stack-Mug-None-Shelf-1"))


LEFT_OUT = [
    (without_a_game, "1 without a game"),
    (without_trajectory, "1 without traj_data.json"),
    (without_solvable, "1 without the key 'solvable'"),
    (unsolvable, "1 unsolvable"),
    (of_another_type, "1 of another task type"),
]


@pytest.mark.parametrize(("change", "counted"), LEFT_OUT)
def test_what_the_stock_loader_skips_is_skipped_and_counted(root, change, counted, capsys):
    """alfworld 0.4.2, `AlfredTWEnv.collect_game_files`: none of these is an error there."""
    games = list_games(root, "train")
    change(games[3].parent)
    assert list_games(root, "train") == games[:3] + games[4:]
    assert prepare.main(["--data", str(root)]) == 0
    (line,) = re.findall(r"train +all.*", capsys.readouterr().out)
    assert line.split()[:3] == ["train", "all", "11"]
    assert f"trial folders left out: {counted})" in line


def test_a_split_of_states_without_games_says_so(root):
    for game in list_games(root, "train"):
        game.unlink()
    with pytest.raises(DataError, match=r"holds no games \(.*left out: 12 without a game\): get"):
        list_games(root, "train")


def test_trials_are_found_at_any_depth_as_the_stock_loader_finds_them(root):
    games = list_games(root, "train")
    inner = games[0].parent / "again" / games[0].parent.parent.name / "trial_2"
    inner.mkdir(parents=True)
    for name in ("game.tw-pddl", "traj_data.json"):
        shutil.copy(games[0].with_name(name), inner)
    assert set(list_games(root, "train")) == {*games, inner / "game.tw-pddl"}


def test_the_type_is_read_where_the_folder_does_not_tell_it(root):
    games = list_games(root, "train")
    kind = json.loads(games[4].with_name("traj_data.json").read_text())["task_type"]
    moved = games[4].parent.parent.rename(games[4].parent.parent.with_name("fetch-Mug"))
    (game,) = set(list_games(root, "train")) - set(games)
    assert game.parent.parent == moved
    assert game in list_games(root, "train", [kind])
    others = [name for name in TASK_TYPES if name != kind]
    assert game not in list_games(root, "train", others)


def test_what_is_no_trial_does_not_count(root):
    games = list_games(root, "train")
    train = root / "json_2.1.1" / "train"
    (games[0].parent / "raw_images" / "0").mkdir(parents=True)
    (train / ".thumbnails").mkdir()
    (train / "pick_and_place_simple-Mug-None-Shelf-1" / "trial_without_files").mkdir(parents=True)
    (train / "notes.txt").touch()
    (games[1].parent / "._traj_data.json").touch()
    shutil.copytree(games[2].parent, train / ".trash" / "pick_and_place_simple-A" / "trial")
    assert list_games(root, "train") == games
    assert not read_split(root, "train").left_out


def test_types_are_needed_to_choose_by(root):
    spoil_type(root)
    with pytest.raises(DataError, match=r"1 of 12 games.*begins with none of.*fetch-Mug"):
        list_games(root, "train")


def test_prepare_counts_games(root, capsys):
    assert prepare.main(["--data", str(root)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "valid_unseen  no such folder" in lines
    counted = [line.split()[:3] for line in lines if line.startswith("valid_seen")]
    assert ["valid_seen", "all", "6"] in counted
    assert ["valid_seen", TASK_TYPES[3], "1"] in counted


def spoil_empty(root):
    shutil.rmtree(root / "json_2.1.1" / "valid_seen")
    (root / "json_2.1.1" / "valid_seen").mkdir()


def spoil_missing(root):
    for game in list_games(root, "train"):
        game.with_name("traj_data.json").unlink()


def spoil_trajectory(root):
    for path in list_games(root, "train")[:2]:
        path.with_name("traj_data.json").write_text("")


def spoil_game(root):
    list_games(root, "train")[0].write_text("")


def spoil_list(root):
    list_games(root, "train")[0].write_text("[1]")


def spoil_split(root):
    folder = root / "json_2.1.1" / "train"
    (trial,) = (folder / list_games(root, "train")[0].parent.parent.name).iterdir()
    trial.rename(trial.with_name("trial_T20190909_044715_250790"))


def spoil_type(root):
    place = list_games(root, "train")[0].parent
    set_key(place / "traj_data.json", task_type=None)
    place.parent.rename(place.parent.with_name("fetch-Mug-None-Shelf-1"))


def spoil_truncated(root):
    path = list_games(root, "train")[0]
    path.write_text(path.read_text()[:1000])


def spoil_problem(root):
    path = list_games(root, "train")[0]
    data = json.loads(path.read_text())
    path.write_text(json.dumps({**data, "pddl_problem": data["pddl_problem"][:500]}))


def spoil_all(root):
    shutil.rmtree(root / "json_2.1.1")
    (root / "json_2.1.1").mkdir()


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (spoil_empty, "valid_seen holds no games"),
        (spoil_missing, "train holds no games (trial folders left out: 12 without traj_data.json)"),
        (spoil_trajectory, "2 of 12 games in"),
        (spoil_trajectory, "traj_data.json is empty); download them again"),
        (spoil_game, "game.tw-pddl is empty"),
        (spoil_list, "game.tw-pddl cannot be read"),
        (spoil_split, "valid_unseen missing in"),
        (spoil_type, "1 of 12 games in"),
        (spoil_truncated, "game.tw-pddl cannot be read); download them again"),
        (spoil_problem, "the file is cut short"),
        (spoil_all, "holds none of train, valid_seen, valid_unseen"),
    ],
)
def test_prepare_says_what_is_wrong(root, spoil, message, capsys):
    spoil(root)
    assert prepare.main(["--data", str(root)]) == 2
    assert message in capsys.readouterr().err


def test_games_are_dealt_to_processes_without_overlap():
    games = [f"game {i}" for i in range(7)]
    parts = [share_of(games, i, 3) for i in range(3)]
    assert sorted(itertools.chain(*parts)) == games
    with pytest.raises(ValueError, match="process_index"):
        share_of(games, 3, 3)


def test_endless_games_come_in_rounds_that_a_seed_decides():
    games = list("abcde")
    drawn = list(itertools.islice(shuffled_forever(games, 1), 15))
    assert all(sorted(drawn[i : i + 5]) == games for i in (0, 5, 10))
    assert drawn == list(itertools.islice(shuffled_forever(games, 1), 15))
    assert drawn != list(itertools.islice(shuffled_forever(games, 2), 15))
    with pytest.raises(ValueError, match="no games"):
        shuffled_forever([], 0)


def test_the_generated_panel_is_the_published_one():
    panel = load_panel("generated_unseen")
    assert len(panel.games) == 120
    assert [sum(g.game.task.kind == kind for g in panel.games) for kind in TASK_TYPES] == [20] * 6
    assert load_panel("generated_unseen", expected_digest=panel.digest[:12]).digest == panel.digest
    with pytest.raises(DataError, match="its games changed"):
        load_panel("generated_unseen", expected_digest="0123")
    with pytest.raises(DataError, match="none of valid_seen"):
        load_panel("test")


def test_a_generator_that_makes_other_games_is_noticed(monkeypatch):
    made = list(panels.generate_games(120, 20, "unseen"))
    # The same names, but one game's content is another's.
    made[0] = made[6]._replace(game=made[6].game._replace(name=made[0].name))
    monkeypatch.setattr(panels, "generate_games", lambda *arguments: iter(made))
    with pytest.raises(DataError, match="have changed"):
        load_panel("generated_unseen")


def test_a_panel_of_files_has_a_hash_of_its_content(root):
    before = load_panel("valid_seen", root)
    assert len(before.games) == 6
    assert load_panel("valid_seen", root).digest == before.digest
    path = list_games(root, "valid_seen")[0]
    data = json.loads(path.read_text())
    problem = data["pddl_problem"].replace("(pickupable", "(moveable", 1)
    path.write_text(json.dumps({**data, "pddl_problem": problem}))
    with pytest.raises(DataError, match="its games changed"):
        load_panel("valid_seen", root, before.digest)


@pytest.fixture
def published(root, monkeypatch):
    """The small folder's six seen games as if they were a published panel."""
    panel = load_panel("valid_seen", root)
    names = [game.name for game, _ in panel.games]
    pins = {"valid_seen": {"games": panel.digest, "names": names}}
    monkeypatch.setattr(panels, "_pins", lambda: pins)
    return names


def rename(root, name):
    folder = root / "json_2.1.1" / "valid_seen"
    (folder / name).rename((folder / name).with_name("trial_other"))


def remove(root, name):
    shutil.rmtree((root / "json_2.1.1" / "valid_seen" / name).parent)


def add(root, name):
    games = generate_games(2, 9, "seen")
    write_games(games, root, "seen")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (remove, r"is 6 games, here are 5: 1 of them are missing \(the first: {first}\)"),
        (rename, r"here are 6: 1 of them .*{first}\) and 1 are not among them .*trial_other\)"),
        (add, r"is 6 games, here are 8: 2 are not among them \(the first: .*Gseen_9_00000"),
    ],
)
def test_a_part_of_a_panel_is_not_the_panel(root, published, change, message, capsys):
    load_panel("valid_seen", root)
    change(root, published[1])
    message = message.format(first=published[1]) + ".*alfworld-download"
    with pytest.raises(DataError, match=message):
        load_panel("valid_seen", root)
    assert prepare.main(["--data", str(root)]) == 2
    assert re.search(message, capsys.readouterr().err)


def test_other_games_than_the_published_are_no_panel_of_its_name(root, published):
    shutil.rmtree(root / "json_2.1.1" / "valid_seen")
    write_games(generate_games(2, 9, "seen"), root, "seen")
    assert len(load_panel("valid_seen", root).games) == 2


@pytest.mark.alfworld
def test_the_published_panel_of_the_benchmark(tmp_path):
    for record in real_lines("valid_seen.jsonl.xz"):
        place = tmp_path / "json_2.1.1" / "valid_seen" / record["task"] / record["trial"]
        place.mkdir(parents=True)
        game = document(record["pddl_problem"], record["task_desc"])
        (place / "game.tw-pddl").write_text(json.dumps(game))
        (place / "traj_data.json").write_text("{}")
    assert len(load_panel("valid_seen", tmp_path, "d408e989760425ae").games) == 140
    shutil.rmtree(place.parent)
    with pytest.raises(DataError, match="1 of them are missing"):
        load_panel("valid_seen", tmp_path)
