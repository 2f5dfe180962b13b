"""The main job as a user runs it, on sizes that take seconds (after one Ant graph is compiled)."""

import importlib
import json
import os
import pathlib
import re
import subprocess
import sys

import pytest
import yaml
from PIL import Image

from experiments import ant_guidance
from jaxagent.training.metrics import read_metrics

ROOT = pathlib.Path(__file__).parents[2]
SMALL = (
    "--num-envs 16 --unroll-length 8 --num-minibatches 2 --total-steps 512 --num-evaluations 2 "
    "--evaluation-episodes 4 --episode-length 40 --policy-hidden-sizes 16 --critic-hidden-sizes 16"
).split()


def run(module: str, *arguments: str, status: int = 0) -> subprocess.CompletedProcess:
    done = subprocess.run(
        [sys.executable, "-W", "error::DeprecationWarning:jaxagent", "-m", module, *arguments],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=os.environ | {"COLUMNS": "200"},
        check=False,
    )
    assert done.returncode == status, done.stdout + done.stderr
    return done


def train(folder: pathlib.Path, *arguments: str, status: int = 0) -> subprocess.CompletedProcess:
    return run(
        "experiments.ant_guidance", *SMALL, "--runs-dir", str(folder), *arguments, status=status
    )


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """One small guided run on the corner task."""
    folder = tmp_path_factory.mktemp("runs")
    train(folder, "--task", "corner", "--name", "teacher")
    return folder


def test_the_run_folder_tells_what_happened(runs):
    folder = runs / "teacher"
    names = {path.name for path in folder.iterdir()}
    assert names == {
        "config.yaml", "plan.json", "metrics.jsonl", "tensorboard", "checkpoints",
        "curves.png", "paths.png", "rollout.gif", "rollout.html",
    }  # fmt: skip
    assert yaml.safe_load((folder / "config.yaml").read_text())["run"]["num_envs"] == 16
    assert len(json.loads((folder / "plan.json").read_text())["sub_goals"]) == 3
    kinds = [r["kind"] for r in read_metrics(folder / "metrics.jsonl")]
    assert kinds.count("train") == 4
    assert kinds.count("evaluation") == 3
    with Image.open(folder / "rollout.gif") as image:
        assert image.n_frames > 5


def test_a_run_is_evaluated_from_its_folder(runs):
    done = run("experiments.evaluate", str(runs / "teacher"), "--episodes", "6")
    assert re.search(r"0 +│ 6 +│", done.stdout)
    result = json.loads((runs / "teacher" / "evaluation" / "evaluation.json").read_text())
    assert len(result["returns"][0]) == 6
    assert (runs / "teacher" / "evaluation" / "rollout.html").exists()


def test_a_removal_test_trains_an_unguided_policy_beside(runs):
    done = train(runs, "--task", "corner", "--name", "removal", "--removal-test", "1")
    result = json.loads((runs / "removal" / "removal_test.json").read_text())
    assert (result["iterations"], result["learning_rate"], result["guidance_lambda"]) == (
        1, 3e-4, 1.0,
    )  # fmt: skip
    assert result["verdict"] in ("learnt", "dependent", "hacked")
    assert f"removal test: {result['verdict']}" in done.stdout
    records = read_metrics(runs / "removal" / "unguided" / "metrics.jsonl")
    assert {r["guidance_lambda"] for r in records if r["kind"] == "train"} == {0.0}


def test_a_student_is_distilled_from_it(runs):
    done = train(
        runs, "--task", "corner", "--name", "student", "--distill-from", str(runs / "teacher")
    )
    records = read_metrics(runs / "student" / "metrics.jsonl")
    trained = [r for r in records if r["kind"] == "train"]
    assert f"guidance: none; distilled from the teacher in {runs / 'teacher'}\n" in done.stdout
    assert all(r["distill_kl"] >= 0 and r["guidance_lambda"] == 0 for r in trained)


def test_it_goes_on_only_with_what_was_begun(runs):
    done = train(runs, "--task", "corner", "--name", "teacher", "--resume")
    assert "return without guidance" in done.stdout
    assert "going on from 512 of 512 steps" in done.stdout
    done = train(
        runs, "--task", "corner", "--name", "teacher", "--resume", "--clip-epsilon", "0.1", status=2
    )
    assert "was begun with clip_epsilon 0.2, not 0.1" in done.stderr
    done = train(runs, "--name", "teacher", "--resume", "--task", "corner", "--dry-run")
    assert json.loads(done.stdout.partition("\n}\n")[0] + "}")["run"]["num_envs"] == 16
    done = train(runs, "--task", "corner", "--name", "teacher", "--dry-run", status=2)
    assert "exists; --resume goes on with it" in done.stderr
    done = train(runs, "--task", "corner", "--name", "teacher", status=2)
    assert "exists; --resume goes on with it" in done.stderr


@pytest.mark.parametrize(
    ("module", "arguments", "message"),
    [
        ("experiments.evaluate", (), "folder must be given"),
        ("experiments.evaluate", ("nowhere",), "nowhere is not a run folder"),
        ("experiments.ant_guidance", ("--resume", "--name", "nowhere"), "is not a run"),
        ("experiments.ant_guidance", ("--distill-from", "nowhere"), "nowhere is not a run folder"),
        (
            "experiments.ant_guidance",
            ("--distill-from", "nowhere", "--dry-run"),
            "nowhere is not a run folder",
        ),
        (
            "experiments.ant_guidance",
            ("--planner", "openai:any", "--task", "corner", "--dry-run"),
            "planner openai needs a key in OPENAI_API_KEY",
        ),
        ("experiments.ant_guidance", ("--num-devices", "9"), "num_devices (9) must be one of"),
        ("experiments.ant_guidance", ("--process-id", "1"), "must be given together with"),
    ],
)
def test_a_mistake_is_one_line_and_leaves_nothing(
    tmp_path, capsys, monkeypatch, module, arguments, message
):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    where = () if module == "experiments.evaluate" else ("--runs-dir", str(tmp_path))
    with pytest.raises(SystemExit) as left:
        importlib.import_module(module).main([*arguments, *where])
    assert left.value.code == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_wrong_plan_is_refused_with_its_line(tmp_path, capsys):
    plan = tmp_path / "plan.yaml"
    plan.write_text("sub_goals:\n - target: [1, .inf]\n")
    options = ["--task", "corner", "--planner", str(plan), "--runs-dir", str(tmp_path / "runs")]
    with pytest.raises(SystemExit):
        ant_guidance.main(options)
    assert "plan.yaml:2: target (.inf) must be a finite number" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_a_dry_run_prints_and_writes_nothing(tmp_path, capsys):
    assert ant_guidance.main(["--dry-run", "--runs-dir", str(tmp_path)]) == 0
    resolved, _, told = capsys.readouterr().out.partition("\n}\n")
    assert json.loads(resolved + "}")["run"]["num_envs"] == 256
    assert "iterations" in told
    assert "devices: 2 x cpu, chunks of 64" in told
    assert list(tmp_path.iterdir()) == []
