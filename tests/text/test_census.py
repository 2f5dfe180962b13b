"""The counting of what is usual, on games whose truth is known."""

import json
from importlib.resources import files

import pytest

from envs.household.count_frequencies import Census, _room_of, main, take_census
from envs.household.frequencies import household
from envs.household.generator import generate_games, write_games
from envs.household.pddl import GameFileError
from tests.text.conftest import real_lines
from tests.text.small import problem


def test_the_small_kitchen_by_hand():
    census = Census()
    census.add(problem(), "kitchen")
    census.add(problem(), "kitchen")
    summary = census.summary()
    assert summary["attributes"]["sliceable"] == ["Apple"]
    assert summary["attributes"]["isReceptacleObject"] == ["Mug"]
    assert summary["accepts"]["Drawer"] == ["Book", "Knife"]
    assert summary["openable"] == {"Drawer": 1.0, "Fridge": 1.0, "Microwave": 1.0}
    # One of two drawers holds a book; the only counter holds an apple.
    assert summary["presence"]["Book"] == {"Drawer": 0.5}
    assert summary["presence"]["Apple"] == {"CounterTop": 1.0, "Fridge": 1.0}
    kitchen = summary["rooms"]["kitchen"]
    assert kitchen["receptacles"]["Drawer"] == {"2": 1.0}
    assert kitchen["objects"]["Apple"] == {"2": 1.0}
    assert kitchen["placements"]["Apple"] == {"CounterTop": 2, "Fridge": 2}


def test_generated_games_are_like_what_they_were_drawn_from(tmp_path):
    write_games(generate_games(150, 3), tmp_path, "train")
    out = tmp_path / "census.json"
    assert main(["--data", str(tmp_path), "--out", str(out)]) == 0
    summary, truth = json.loads(out.read_text()), household()
    for name, kinds in summary["attributes"].items():
        assert set(kinds) <= set(truth.attributes[name])
    for name, kinds in summary["accepts"].items():
        assert kinds == truth.accepts[name]
    assert set(summary["rooms"]) == set(truth.rooms)
    for kind in ("Cabinet", "Drawer"):
        assert summary["openable"][kind] == pytest.approx(truth.openable[kind], abs=0.08)


def test_rooms_are_known_by_their_scene(tmp_path):
    scenes = ("FloorPlan7", "FloorPlan212", "FloorPlan301", "FloorPlan430", "Generated bathroom")
    assert list(map(_room_of, scenes)) == [
        "kitchen", "living room", "bedroom", "bathroom", "bathroom",
    ]  # fmt: skip
    with pytest.raises(GameFileError, match=r"traj_data\.json"):
        take_census([tmp_path / "game.tw-pddl"])
    assert main(["--data", str(tmp_path), "--out", "x"]) == 2


@pytest.mark.slow
@pytest.mark.alfworld
def test_the_shipped_frequencies_are_those_of_the_train_split():
    census = Census()
    for record in real_lines("train.jsonl.xz"):
        census.add(record["pddl_problem"], _room_of(record["floor_plan"]))
    shipped = (files("envs.household") / "rules" / "household.json").read_text()
    assert census.summary() == json.loads(shipped)
