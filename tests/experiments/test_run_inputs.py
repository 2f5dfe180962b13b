"""Every experiment keeps what its runs depend on, and a run that is taken up goes by that."""

import dataclasses
import json
import shutil

import numpy as np
import pytest
import yaml
from rich.console import Console

from experiments import (
    alfworld_planner,
    ant_config,
    ant_guidance,
    ant_manager,
    evaluate,
    evaluate_skill,
    manager_config,
    record,
    skills_config,
    train_skills,
)
from experiments.alfworld_data import Split
from experiments.ant_plan import plan_beforehand, plan_of_run
from experiments.planner_config import continued as planner_continued
from experiments.planner_config import read_command_line as read_planner
from experiments.planner_inputs import check_games, input_sources
from experiments.run_kinds import check_kind
from jaxagent.models.skills import load_skill
from jaxagent.training.inputs import keep_inputs
from jaxagent.training.progress import Reporter
from jaxagent.training.recording import Recording, save_recording
from jaxagent.training.run_folder import write_config

PLAN = "sub_goals:\n - target: [{}, 5]\n"


@pytest.fixture
def with_plan(tmp_path):
    """The folder of a run that has been begun with a plan file, and that file."""
    plan = tmp_path / "plan.yaml"
    plan.write_text(PLAN.format(5))
    config = ant_config.read_command_line(["--task", "corner", "--planner", str(plan)], "cpu")
    folder = tmp_path / "run"
    ant_guidance.open_folders(config, [folder, folder / "guided"], plan_beforehand(config))
    return folder, plan


@pytest.mark.parametrize("change", ["edited", "broken", "moved"])
@pytest.mark.parametrize("arm", ["", "guided"])
def test_a_plan_file_is_part_of_the_run(with_plan, change, arm):
    folder, plan = with_plan
    if change == "moved":
        plan.unlink()
    else:
        plan.write_text(PLAN.format(9) if change == "edited" else "sub_goals: []")
    place = folder / arm
    config = ant_config.read_config(place)
    assert plan_of_run(config, place).sub_goals[0].target == (5.0, 5.0)
    # Naming it again is not asking for something else.
    arguments = ["--resume", "--name", "run", "--planner", str(plan)]
    config = ant_config.continued(folder, arguments)
    assert plan_beforehand(config).sub_goals[0].target == (5.0, 5.0)
    assert ant_config.read_command_line(arguments, "cpu").resume
    with pytest.raises(ValueError, match="was begun with planner"):
        ant_config.continued(folder, ["--resume", "--planner", "rule"])


def test_a_file_of_options_is_judged_beside_the_run(with_plan, tmp_path):
    """What it says is asked for, and refused where the run was begun otherwise."""
    folder, _ = with_plan
    file = tmp_path / "options.yaml"
    file.write_text("task: corner\nnum_devices: 1\n")
    config = ant_config.continued(folder, ["--resume", "--config", str(file)])
    assert config.run.num_devices == 1
    file.write_text("clip_epsilon: 0.1\n")
    with pytest.raises(ValueError, match=r"was begun with clip_epsilon 0\.2, not 0\.1"):
        ant_config.continued(folder, ["--resume", "--config", str(file)])


def test_a_run_of_a_model_is_read_without_the_model(tmp_path):
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    options = ["--task", "corner", "--planner", str(model)]
    config = ant_config.read_command_line(options, "cpu")
    ant_guidance.open_folders(config, [tmp_path / "run"], plan_beforehand(config))
    shutil.rmtree(model)
    assert plan_of_run(ant_config.read_config(tmp_path / "run"), tmp_path / "run").source
    kept = ant_config.continued(tmp_path / "run", ["--resume"]).planner
    assert kept == str(tmp_path / "run" / "inputs" / "planner")


@pytest.fixture
def cloning(monkeypatch):
    """What a run was warm-started from, without cloning it."""
    learnt = []

    def warm_start(trainer, state, recording, config):
        learnt.append(recording.steps)
        return state, {f"cloning_loss_{when}": np.zeros(1) for when in ("before", "after")}

    monkeypatch.setattr(train_skills, "warm_start", warm_start)
    return learnt


def saved_recording(path, steps):
    one = np.zeros((steps, 2), np.float32)
    wide = {n: np.zeros((steps, 2, k), np.float32) for n, k in (("o", 10), ("a", 2))}
    save_recording(
        path,
        Recording(wide["o"], wide["a"], wide["a"], one, one > 0, one > 0, one > 0,
                  task="reacher_goal-spring"),
    )  # fmt: skip


def test_a_warm_start_is_kept_until_the_first_checkpoint(tmp_path, cloning):
    """Taken up before that, the run begins at its beginning, with its recording as it was."""
    file, folder = tmp_path / "walk.npz", tmp_path / "run"
    saved_recording(file, 4)
    options = ["--task", "reacher_goal", "--warm-start", str(file)]
    config = skills_config.read_command_line(options)
    keep_inputs(folder, {"warm_start": file}, {"warm_start": str(file)})
    write_config(folder, train_skills.to_plain(config))
    reporter = Reporter(Console(quiet=True))
    train_skills.warm_starter(config, folder, None, reporter)("fresh")
    saved_recording(file, 7)
    for _ in range(2):
        config = skills_config.continued(folder, ["--resume"])
        assert train_skills.warm_starter(config, folder, None, reporter)("fresh") == "fresh"
        file.unlink(missing_ok=True)
    assert cloning == [8, 8, 8]
    (folder / "checkpoints" / "0").mkdir(parents=True)
    shutil.rmtree(folder / "inputs")
    config = skills_config.continued(folder, ["--resume"])
    train_skills.warm_starter(config, folder, None, reporter)("fresh")
    assert cloning == [8, 8, 8]


def test_a_planner_run_keeps_model_recording_and_the_names_of_its_games(tmp_path):
    model, games = tmp_path / "model", tmp_path / "games"
    model.mkdir()
    (model / "config.json").write_text("{}")
    (tmp_path / "episodes.jsonl").write_text("{}\n")
    paths = [games / "kind" / f"trial-{n}" / "game.tw-pddl" for n in range(3)]
    for path in paths:
        path.parent.mkdir(parents=True)
        path.write_text("a game")
    options = ["--preset", f"hf:{model}", "--demonstrations", str(tmp_path / "episodes.jsonl")]
    config = read_planner([*options, "--name", "run", "--runs-dir", str(tmp_path)])
    sources = input_sources(config, Split(paths[:2], paths[2:], []))
    keep_inputs(
        tmp_path / "run", sources, {name: str(getattr(config, name, "")) for name in sources}
    )
    write_config(tmp_path / "run", alfworld_planner.to_plain(config))
    shutil.rmtree(model)
    (tmp_path / "episodes.jsonl").unlink()
    again = ["--resume", "--name", "run", "--runs-dir", str(tmp_path)]
    resumed = planner_continued(tmp_path / "run", again)
    place = tmp_path / "run" / "inputs"
    assert (resumed.preset, resumed.demonstrations) == (
        f"hf:{place / 'preset'}", str(place / "demonstrations.jsonl"),
    )  # fmt: skip
    check_games(tmp_path / "run", Split(paths, [], []))
    with pytest.raises(ValueError, match=r"begun with 3 games .* found 0; kind/trial-0 6 is miss"):
        check_games(tmp_path / "run", Split([], [], []))
    paths[1].write_text("another game")
    with pytest.raises(ValueError, match="begun with 3 games of the benchmark, found 3; kind/tri"):
        check_games(tmp_path / "run", Split(paths, [], []))


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A folder of each kind with its configuration and no more."""
    root = tmp_path_factory.mktemp("runs")
    configs = {
        "ant_guidance": ant_config.read_command_line([], "cpu"),
        "train_skills": skills_config.read_command_line([]),
        "ant_manager": manager_config.preset(),
        "alfworld_planner": read_planner([]),
    }
    for name, config in configs.items():
        write_config(root / name, train_skills.to_plain(config))
        (root / name / "checkpoints").mkdir()
    return root


@pytest.mark.parametrize(
    ("main", "kind", "command"),
    [
        (evaluate.main, "train_skills", "experiments.evaluate_skill {}"),
        (evaluate.main, "alfworld_planner", "experiments.evaluate_text --agent planner:{}/best"),
        (evaluate_skill.main, "ant_guidance", "experiments.evaluate {}"),
        (evaluate_skill.main, "ant_manager", "experiments.evaluate {}"),
        (record.main, "ant_manager", "experiments.evaluate {}"),
        (record.main, "alfworld_planner", "experiments.evaluate_text --agent planner:{}/best"),
    ],
)
def test_a_run_of_another_experiment_is_refused_with_the_command_for_it(
    folders, capsys, main, kind, command
):
    with pytest.raises(SystemExit, match="2"):
        main([str(folders / kind)])
    said = capsys.readouterr().err
    assert f"is a run of experiments.{kind}, not of " in said
    assert said.endswith(f"evaluate it with python -m {command.format(folders / kind)}\n")
    assert said.count("\n") == 1


def test_every_kind_is_known_by_its_configuration(folders):
    for folder in folders.iterdir():
        assert check_kind(folder, folder.name) == folder.name
        options = yaml.safe_load((folder / "config.yaml").read_text())
        assert not {"resume", "dry_run", "config"} & options.keys()
        assert "name" not in options["run"]


def test_a_shipped_skill_is_read_from_the_run(tmp_path):
    config = manager_config.preset()
    sources = ant_manager.input_sources(config)
    keep_inputs(tmp_path, sources, {"skill": config.skill})
    write_config(tmp_path, train_skills.to_plain(config))
    resumed = manager_config.continued(tmp_path, ["--resume", "--skill", "ant_goal"])
    assert resumed.skill == str(tmp_path / "inputs" / "skill.npz")
    assert load_skill(resumed.skill).meta == load_skill("ant_goal").meta
    assert dataclasses.replace(resumed, skill="ant_goal", resume=False) == config
    told = json.loads((tmp_path / "inputs" / "inputs.json").read_text())
    assert told["skill"]["given"] == "ant_goal"
