"""What a run leaves behind: records, pictures, pages, run folders, audit."""

import base64
import itertools
import json
import re
import sys
import time
import types

import numpy as np
import pytest
import yaml
from PIL import Image
from tensorboardX.proto.event_pb2 import Event, SessionLog

from experiments.ant_config import read_command_line
from jaxagent.training.audit import Audit
from jaxagent.training.config import RunConfig, to_plain
from jaxagent.training.metrics import MetricsLog, read_metrics
from jaxagent.training.plots import plot_curves, plot_paths
from jaxagent.training.render import write_gif, write_html
from jaxagent.training.run_folder import open_run_folder, record_of, write_config
from jaxagent.training.trials import steps_to_reach
from jaxagent.types import Skeleton


def test_records_are_strict_json_and_resume_cuts_what_comes_later(tmp_path):
    log = MetricsLog(tmp_path, None, False, {})
    for iteration in range(1, 5):
        log.write("train", iteration, 10 * iteration, {"kl": float("nan"), "many": [1.0, np.inf]})
    log.close()
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "train", "iter')  # a process killed while writing
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert json.loads(lines[0], parse_constant=pytest.fail)["kl"] is None
    assert json.loads(lines[0])["many"] == [1.0, None]
    log = MetricsLog(tmp_path, 2, False, {})
    log.write("train", 3, 30, {"kl": 0.5})
    log.close()
    records = read_metrics(tmp_path / "metrics.jsonl")
    assert [(r["iteration"], r["kl"]) for r in records] == [(1, None), (2, None), (3, 0.5)]


def test_a_run_that_begins_anew_begins_its_records_anew(tmp_path):
    log = MetricsLog(tmp_path, None, False, {})
    log.write("train", 1, 10, {"kl": 1.0})
    log.close()
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "train", "iter')  # and killed while writing
    log = MetricsLog(tmp_path, None, False, {})
    log.write("train", 1, 10, {"kl": 2.0})
    log.close()
    assert [r["kl"] for r in read_metrics(tmp_path / "metrics.jsonl")] == [2.0]


def shown_by_tensorboard(folder):
    """(step, value) of what TensorBoard shows: a START hides what came before, from its step on."""
    shown = []
    for file in sorted(folder.iterdir(), key=lambda path: path.name):
        content = file.read_bytes()
        while content:
            length = int.from_bytes(content[:8], "little")
            event = Event.FromString(content[12 : 12 + length])
            content = content[16 + length :]
            if event.session_log.status == SessionLog.START:
                shown = [point for point in shown if point[0] < event.step]
            shown += [(event.step, value.simple_value) for value in event.summary.value]
    return shown


@pytest.mark.parametrize(("resume_from", "kept"), [(2, [100, 200]), (None, [])])
def test_tensorboard_hides_what_is_computed_again_and_nothing_else(
    tmp_path, monkeypatch, resume_from, kept
):
    """Scalars stand at environment steps, checkpoints at iterations."""
    seconds = itertools.count(1_000_000_000)
    monkeypatch.setattr(time, "time", lambda: float(next(seconds)))  # a name for each file
    log = MetricsLog(tmp_path, None, False, {})
    for iteration in (1, 2, 3):
        log.write("train", iteration, 100 * iteration, {"kl": 0.5})
    log.close()
    log = MetricsLog(tmp_path, resume_from, False, {})
    log.write("train", 3, 300, {"kl": 0.25})
    log.close()
    shown = shown_by_tensorboard(tmp_path / "tensorboard")
    assert shown == [*((step, 0.5) for step in kept), (300, 0.25)]


def test_a_run_that_is_taken_up_is_the_same_run_at_weights_and_biases(tmp_path, monkeypatch):
    begun = []

    def init(**options):
        begun.append(options)
        return types.SimpleNamespace(log=lambda *a, **k: None, finish=lambda: None)

    monkeypatch.setitem(sys.modules, "wandb", types.SimpleNamespace(init=init))
    for name, resume_from in (("one", None), ("one", 0), ("other", None)):
        (tmp_path / name).mkdir(exist_ok=True)
        MetricsLog(tmp_path / name, resume_from, True, {}).close()
    first, again, other = (options["id"] for options in begun)
    assert first == again != other
    assert all(options["resume"] == "allow" for options in begun)


def test_a_broken_record_in_the_middle_is_refused(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"iteration": 1}\nbroken\n{"iteration": 2}\n')
    with pytest.raises(ValueError, match=r"metrics.jsonl:2: not a JSON record"):
        read_metrics(path)


def test_wandb_that_is_not_installed_is_said(tmp_path):
    with pytest.raises(ValueError, match=r"wandb \(True\) needs the package"):
        MetricsLog(tmp_path, None, True, {})


def body(frames: int = 30) -> Skeleton:
    """A rod that moves along x."""
    segments = np.zeros((frames, 1, 2, 3), np.float32)
    segments[..., 2] = 0.5
    segments[:, 0, 1, 1] = 0.4
    segments[..., 0] = np.linspace(0, 3, frames)[:, None, None]
    return Skeleton(segments, np.array([0.1], np.float32), 0.05)


def test_the_gif_moves_at_true_speed(tmp_path):
    write_gif(tmp_path / "rollout.gif", body(), "a rod")
    pictures = []
    with Image.open(tmp_path / "rollout.gif") as image:
        assert image.n_frames == 30
        assert image.info["duration"] == 50
        for frame in (0, 7, 23):
            image.seek(frame)
            pictures.append(np.asarray(image.convert("RGB")))
    assert (pictures[0] != pictures[1]).any()
    assert (pictures[1] != pictures[2]).any()


def test_the_page_holds_every_frame_and_loads_nothing(tmp_path):
    drawn = body()
    write_html(tmp_path / "rollout.html", drawn, "a rod")
    page = (tmp_path / "rollout.html").read_text()
    assert not re.search(r"(src|href)=|https?://|@import|fetch\(", page)
    data = re.search(r'atob\("([^"]+)"\)', page)
    frames = np.frombuffer(base64.b64decode(data.group(1)), "<i4").reshape(30, 1, 2, 3)
    np.testing.assert_allclose(frames / 1000, drawn.segments, atol=6e-4)
    assert not re.search(r"\$[a-z]", page)  # every placeholder is filled


def test_curves_are_drawn_with_and_without_data(tmp_path):
    plot_curves(tmp_path / "empty.png", [], "nothing yet")
    records = [
        {"kind": "train", "steps": s, "reward_env": 1.0, "kl": None, "steps_per_second": 10.0}
        for s in (1, 2)
    ]
    records += [{"kind": "evaluation", "steps": s, "episode_return": [1.0, 2.0]} for s in (0, 2)]
    plot_curves(tmp_path / "curves.png", records, "two points")
    with Image.open(tmp_path / "curves.png") as image:
        assert np.asarray(image).std() > 5
    assert sorted(p.name for p in tmp_path.iterdir()) == ["curves.png", "empty.png"]


def test_paths_are_drawn(tmp_path):
    plot_paths(tmp_path / "paths.png", np.zeros((2, 5, 2)), [(1.0, 2.0, 0.5)], "plan")
    assert (tmp_path / "paths.png").stat().st_size > 3000


def test_steps_to_a_threshold_are_interpolated():
    records = [
        {"kind": "evaluation", "steps": s, "episode_return": r}
        for s, r in ((0, [0.0, 9.0, 1.0]), (100, [10.0, 9.0, 2.0]), (200, [30.0, 9.0, 3.0]))
    ]
    assert steps_to_reach(records, "episode_return", 5.0) == [50.0, 0.0, None]
    assert steps_to_reach(records, "episode_return", 20.0) == [150.0, None, None]


def test_run_folders_are_numbered_and_never_overwritten(tmp_path):
    run = RunConfig(runs_dir=str(tmp_path))
    first = open_run_folder(run, "ant", resume=False)
    assert first.name == "ant-1"
    write_config(first, {"seed": 0})
    assert open_run_folder(run, "ant", resume=False).name == "ant-2"
    assert open_run_folder(run, "ant", resume=True) == first
    with pytest.raises(ValueError, match=r"there is no run other-\* in"):
        open_run_folder(run, "other", resume=True)
    named = RunConfig(runs_dir=str(tmp_path), name="ant-1")
    assert open_run_folder(named, "ant", resume=True) == first
    with pytest.raises(ValueError, match=r"name \(ant-1\): .* exists; --resume goes on"):
        open_run_folder(named, "ant", resume=False)
    with pytest.raises(ValueError, match=r"ant-9 is not a run"):
        open_run_folder(RunConfig(runs_dir=str(tmp_path), name="ant-9"), "ant", resume=True)


@pytest.mark.parametrize("resume", [False, True])
def test_a_configuration_that_is_kept_says_nothing_of_one_start(tmp_path, resume):
    """Given to --config it begins that very run anew, whatever it was started by."""
    file = tmp_path / "options.yaml"
    file.write_text("total_steps: 100000\n")
    options = ["--config", str(file), "--name", "one", "--runs-dir", str(tmp_path), "--dry-run"]
    options += ["--coordinator", "a:1", "--num-processes", "2", "--process-id", "1"]
    config = read_command_line([*options, *(["--resume"] if resume else [])], "cpu")
    write_config(tmp_path / "one", to_plain(config))
    again = read_command_line(["--config", str(tmp_path / "one" / "config.yaml")], "cpu")
    assert (again.resume, again.dry_run, again.run.name) == (False, False, "")
    run = again.run
    assert (run.coordinator, run.num_processes, run.process_id) == (None, None, None)
    assert run.total_steps == 100_000
    assert record_of(again) == yaml.safe_load((tmp_path / "one" / "config.yaml").read_text())


def rings(audit: Audit, total, env) -> int:
    return sum(audit.observe(float(t), float(e)) for t, e in zip(total, env))


def test_the_audit_rings_once_when_the_total_rises_and_the_task_falls():
    noise = np.random.default_rng(0).normal(0, 0.05, (2, 80))
    up, down = np.linspace(0, 1, 80) + noise[0], np.linspace(1, 0, 80) + noise[1]
    assert rings(Audit(), up, down) == 1
    assert rings(Audit(), up, up) == 0
    assert rings(Audit(), down, down) == 0


def remembering(generator, runs, memory, length=400):
    """[runs, length] noise, correlated from one iteration to the next."""
    noise = generator.normal(size=(runs, length))
    for i in range(1, length):
        noise[:, i] = memory * noise[:, i - 1] + np.sqrt(1 - memory**2) * noise[:, i]
    return noise


@pytest.mark.parametrize("memory", [0.0, 0.9])
@pytest.mark.parametrize("kind", ["apart", "added", "mirrored"])
def test_noise_rings_the_audit_in_less_than_a_fiftieth_of_the_runs(kind, memory):
    """As stated in its documentation; `added` is R_total = R_env + R_guidance, both noise."""
    generator = np.random.default_rng(1)
    env, other = remembering(generator, 100, memory), remembering(generator, 100, memory)
    total = {"apart": other, "added": env + other, "mirrored": -env}[kind]
    alarms = sum(rings(Audit(), *pair) > 0 for pair in zip(total, env))
    assert alarms <= 2


@pytest.mark.parametrize("memory", [0.0, 0.8])
def test_slow_hacking_over_noise_rings_the_audit(memory):
    """12 or 25 standard deviations in 400 iterations; nine of ten runs are caught."""
    generator = np.random.default_rng(2)
    env, other = remembering(generator, 20, memory), remembering(generator, 20, memory)
    drift = np.linspace(0.0, 12.0 if memory == 0 else 25.0, 400)
    caught = [rings(Audit(), t + drift, e - drift) > 0 for t, e in zip(other, env)]
    assert sum(caught) >= 18


def test_a_lost_iteration_and_a_constant_reward_do_not_ring_or_blind_the_audit():
    up, down = np.linspace(0, 1, 80), np.linspace(1, 0, 80)
    up[::7] = np.nan
    assert rings(Audit(), up, down) == 1
    assert rings(Audit(), np.full(90, 0.1), np.full(90, 0.3)) == 0


def test_the_audit_goes_on_after_a_resume():
    up, down = np.linspace(0, 1, 60), np.linspace(1, 0, 60)
    whole = Audit()
    expected = [whole.observe(*pair) for pair in zip(up, down)]
    first, second = Audit(), Audit()
    found = [first.observe(*pair) for pair in zip(up[:35], down[:35])]
    second.restore(json.loads(json.dumps(first.snapshot())))
    found += [second.observe(*pair) for pair in zip(up[35:], down[35:])]
    assert found == expected
    assert second.alarms == whole.alarms == 1
