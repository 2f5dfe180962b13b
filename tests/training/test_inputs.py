"""What a run depends on is kept in its folder: an original that changes or goes changes nothing."""

import json

import pytest

from jaxagent.training import inputs
from jaxagent.training.inputs import Written, keep_inputs, read_inputs, run_files


@pytest.fixture
def originals(tmp_path):
    """A file, a folder, and the folder of another run."""
    place = tmp_path / "originals"
    (place / "model" / "parts").mkdir(parents=True)
    (place / "plan.yaml").write_text("a plan")
    (place / "model" / "config.json").write_text("{}")
    (place / "model" / "parts" / "one").write_bytes(b"\0\1")
    for step in ("2", "10"):
        (place / "run" / "checkpoints" / step / "state").mkdir(parents=True)
        (place / "run" / "checkpoints" / step / "state" / "x").write_text(step)
    (place / "run" / "checkpoints" / "12.orbax-checkpoint-tmp").mkdir()
    (place / "run" / "config.yaml").write_text("seed: 1")
    (place / "run" / "metrics.jsonl").write_text("{}")
    return place


def keep(folder, originals):
    sources = {
        "planner": originals / "plan.yaml",
        "preset": originals / "model",
        "start_from": run_files(originals / "run"),
        "skill": Written(".npz", lambda path: path.write_text("written")),
    }
    keep_inputs(folder, sources, dict.fromkeys(sources, "as given"))
    return read_inputs(folder, [*sources, "other"])


def contents(folder):
    return {
        p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()
    }


def test_files_folders_and_runs_are_copied(tmp_path, originals):
    kept = keep(tmp_path / "run", originals)
    before = contents(tmp_path / "run")
    assert {name.split("/", 1)[1] for name in before} == {
        "inputs.json", "planner.yaml", "preset/config.json", "preset/parts/one", "skill.npz",
        "start_from/config.yaml", "start_from/checkpoints/10/state/x",
    }  # fmt: skip
    assert kept["planner"] == str(tmp_path / "run" / "inputs" / "planner.yaml")
    (originals / "plan.yaml").write_text("another plan")
    (originals / "model").rename(originals / "moved")
    assert read_inputs(tmp_path / "run", list(kept)) == kept
    assert contents(tmp_path / "run") == before


def test_a_run_folder_can_be_moved(tmp_path, originals):
    keep(tmp_path / "run", originals)
    (tmp_path / "run").rename(tmp_path / "there")
    kept = read_inputs(tmp_path / "there", ["planner"])
    assert kept == {"planner": str(tmp_path / "there" / "inputs" / "planner.yaml")}


def test_a_folder_that_kept_nothing_has_nothing(tmp_path):
    keep_inputs(tmp_path / "run", {}, {})
    assert read_inputs(tmp_path / "run", ["planner"]) == {}
    assert not (tmp_path / "run").exists()


def test_what_is_large_stays_where_it_is_and_may_not_change(tmp_path, originals, monkeypatch):
    monkeypatch.setattr(inputs, "COPIED_UP_TO", 1)
    kept = keep(tmp_path / "run", originals)
    assert kept["preset"] == str(originals / "model")
    # A run goes on; what was begun with is still there.
    (originals / "run" / "metrics.jsonl").write_text("{}\n{}")
    assert read_inputs(tmp_path / "run", ["start_from"])["start_from"] == str(originals / "run")
    for name, file, option in (
        ("model", "parts/one", "preset"),
        ("run", "checkpoints/10/state/x", "start_from"),
    ):
        (originals / name / file).write_text("other")
        with pytest.raises(ValueError, match=rf"^{option} \(as given\) is no longer what the run"):
            read_inputs(tmp_path / "run", [option])
    (originals / "plan.yaml").unlink()
    with pytest.raises(
        ValueError, match=r"^planner \(as given\) is gone: the run in \S+ was begun"
    ):
        read_inputs(tmp_path / "run", ["planner"])


@pytest.mark.parametrize("how", ["edited", "cut", "gone"])
def test_a_copy_that_is_damaged_is_named(tmp_path, originals, how):
    file = tmp_path / "run" / "inputs" / "planner.yaml"
    keep(tmp_path / "run", originals)
    if how == "gone":
        file.unlink()
    else:
        file.write_text("an edited plan" if how == "edited" else "a pl")
    with pytest.raises(ValueError, match=rf"planner \({file}\) is ") as refusal:
        read_inputs(tmp_path / "run", ["planner"])
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("text", ["{", "[]", '{"planner": 3}', '{"planner": {"given": "x"}}'])
def test_a_broken_list_of_inputs_is_refused(tmp_path, originals, text):
    keep(tmp_path / "run", originals)
    (tmp_path / "run" / "inputs" / "inputs.json").write_text(text)
    with pytest.raises(ValueError, match=r"inputs\.json"):
        read_inputs(tmp_path / "run", ["planner"])


def test_a_new_run_keeps_nothing_of_one_that_never_began(tmp_path, originals):
    keep(tmp_path / "run", originals)
    (originals / "plan.yaml").write_text("another plan")
    keep_inputs(tmp_path / "run", {"planner": originals / "plan.yaml"}, {"planner": "p"})
    assert (tmp_path / "run" / "inputs" / "planner.yaml").read_text() == "another plan"
    told = json.loads((tmp_path / "run" / "inputs" / "inputs.json").read_text())
    assert list(told) == ["planner"]


def test_another_run_must_be_one(tmp_path, originals):
    with pytest.raises(ValueError, match="is not a run folder: it has no checkpoints"):
        run_files(tmp_path)
    (originals / "run" / "config.yaml").unlink()
    with pytest.raises(ValueError, match=r"is not a run folder: it has no config\.yaml"):
        run_files(originals / "run")
