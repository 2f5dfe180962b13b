"""Layouts, rows that fail, the ratio, and what is written."""

import json
import math

import jax
import numpy as np
import pytest

from benchmarks import env_throughput
from benchmarks.env_throughput import (
    PEER,
    SCAN_LENGTH,
    WARM_CALLS,
    Row,
    Setting,
    best_ratio,
    main,
    our_program,
    settings,
)
from envs.probe import two_step_discount
from jaxagent.training.devices import CPU_CHUNK


def test_every_layout_is_there_once():
    assert settings(512, 2) == [
        Setting(1, None),
        Setting(1, CPU_CHUNK),
        Setting(2, None),
        Setting(2, CPU_CHUNK),
    ]
    assert settings(512, 1) == [Setting(1, None), Setting(1, CPU_CHUNK)]


def test_layouts_that_would_be_the_same_are_left_out():
    assert settings(8, 2) == [Setting(1, None), Setting(2, None)]
    assert settings(7, 2) == [Setting(1, None)]  # 2 devices do not divide 7


def test_names_tell_layouts_apart():
    names = [setting.name for setting in settings(512, 2)]
    assert names[0] == "1 device, one vmap"
    assert names[3] == f"2 devices, chunks of {CPU_CHUNK} each"
    assert len({PEER, *names}) == 5


@pytest.mark.parametrize("setting", [Setting(1, None), Setting(2, None), Setting(2, 2)])
def test_programs_step_every_environment_and_reset_it(setting):
    simulator = two_step_discount()
    program, state = our_program(simulator, setting, 8)
    state, (_, reward, terminated, _) = program(state, jax.random.key(1))
    assert reward.shape == (SCAN_LENGTH, 8)
    np.testing.assert_array_equal(terminated.sum(axis=0), SCAN_LENGTH // 2)  # 2 steps an episode
    assert len(state.elapsed.sharding.device_set) == setting.devices


def test_a_row_is_timed_after_its_warm_up():
    row = Row("spring", "x", lambda: (lambda state, key: (state + 1, None), np.int64(0)))
    for _ in range(WARM_CALLS + 2):
        row.advance()
    assert (len(row.seconds), int(row._state)) == (2, WARM_CALLS + 2)
    assert row.result(10)["steps_per_second"]["median"] > 0


def test_a_backend_that_cannot_be_loaded_says_why():
    def make():
        raise ModuleNotFoundError("No module named 'engine'\nand much more")

    row = Row("mjx", "x", make)
    row.advance()
    result = row.result(10)
    assert result["reason"] == "ModuleNotFoundError: No module named 'engine'"
    assert result["steps_per_second"] is None


def test_a_backend_that_fails_at_its_first_step_says_why():
    def program(state, key):
        raise FloatingPointError

    row = Row("mjx", "x", lambda: (program, np.zeros(1)))
    row.advance()
    assert row.result(10)["reason"] == "FloatingPointError: no message"


def figure(backend, layout, median):
    rate = None if median is None else {"median": median, "low": median, "high": median}
    return {
        "backend": backend,
        "layout": layout,
        "steps_per_second": rate,
        "compile_seconds": None if median is None else 1.0,
        "reason": "Error: why" if median is None else "",
    }


ROWS = [
    figure("spring", PEER, 100.0),
    figure("spring", "a", 150.0),
    figure("spring", "b", 300.0),
    figure("mjx", PEER, None),
    figure("mjx", "a", 900.0),
]


def test_ratio_is_the_best_layout_over_the_peer_of_the_same_backend():
    assert best_ratio(ROWS, "spring") == 3.0
    assert math.isnan(best_ratio(ROWS, "mjx"))
    assert math.isnan(best_ratio(ROWS[:1], "spring"))
    assert math.isnan(best_ratio([], "spring"))


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (["--backends", "bullet"], "bullet"),
        (["--environment", "antelope"], "antelope"),
        (["--num-envs", "0"], "num-envs"),
        (["--rounds", "-3"], "rounds"),
        (["--json", "/missing/folder/x.json"], "existing folder"),
        (["ant"], "ant"),
    ],
)
def test_wrong_options_take_one_line_and_status_2(arguments, names, capsys):
    with pytest.raises(SystemExit) as left:
        main(arguments)
    assert left.value.code == 2
    complaint = capsys.readouterr().err
    assert complaint.startswith("error: ")
    assert complaint.count("\n") == 1
    assert names in complaint


@pytest.mark.parametrize(
    ("backends", "status", "last"),
    [(["spring", "mjx"], 0, "ratio: 3.00"), (["mjx"], 1, "ratio: nan")],
)
def test_json_and_last_line(backends, status, last, tmp_path, capsys, monkeypatch):
    rows = {name: [row for row in ROWS if row["backend"] == name] for name in backends}
    monkeypatch.setattr(env_throughput, "measure", lambda _, backend, *rest: rows[backend])
    monkeypatch.setattr(env_throughput.jax.config, "update", lambda *_: None)
    path = tmp_path / "figures.json"
    assert main(["--backends", *backends, "--json", str(path)]) == status
    shown = capsys.readouterr().out
    assert shown.splitlines()[-1] == last
    assert "Error: why" in shown
    assert "load average" in shown
    written = json.loads(path.read_text())
    assert written.keys() == {"machine", "environment", "num_envs", "rows", "ratio_of", "ratio"}
    assert written["ratio"] == (3.0 if status == 0 else None)
    assert written["rows"] == [row for name in backends for row in rows[name]]
