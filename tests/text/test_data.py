"""The standard layout, its check, and panels that notice when their games change."""

import itertools
import json
import re
import shutil

import pytest

from envs.text import panels, prepare
from envs.text.data import DataError, data_root, list_games, share_of, shuffled_forever
from envs.text.generator import generate_games, write_games
from envs.text.panels import load_panel
from envs.text.task import TASK_TYPES
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


def test_what_is_no_trial_does_not_count(root):
    games = list_games(root, "train")
    (games[0].parent / "raw_images" / "0").mkdir(parents=True)
    (root / "json_2.1.1" / "train" / ".thumbnails").mkdir()
    assert list_games(root, "train") == games


def test_types_are_needed_to_choose_by(root):
    games = list_games(root, "train")
    games[4].parent.parent.rename(games[4].parent.parent.with_name("fetch-Mug-None-Shelf-1"))
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
    list_games(root, "train")[0].unlink()


def spoil_trajectory(root):
    for path in list_games(root, "train")[:2]:
        path.with_name("traj_data.json").unlink()


def spoil_size(root):
    list_games(root, "train")[0].with_name("traj_data.json").write_text("")


def spoil_trial(root):
    place = list_games(root, "train")[0].parent
    shutil.rmtree(place)
    place.mkdir()


def spoil_split(root):
    folder = root / "json_2.1.1" / "train"
    (trial,) = (folder / list_games(root, "train")[0].parent.parent.name).iterdir()
    trial.rename(trial.with_name("trial_T20190909_044715_250790"))


def spoil_type(root):
    place = list_games(root, "train")[0].parent.parent
    place.rename(place.with_name("fetch-Mug-None-Shelf-1"))


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
        (spoil_missing, "1 of 12 trial folders"),
        (spoil_trajectory, "2 of 12 trial folders"),
        (spoil_trajectory, "traj_data.json is missing); get them again"),
        (spoil_size, "traj_data.json is empty"),
        (spoil_trial, "game.tw-pddl is missing and traj_data.json is missing"),
        (spoil_split, "valid_unseen missing in"),
        (spoil_type, "1 of 12 games in"),
        (spoil_truncated, "1 game files in"),
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
