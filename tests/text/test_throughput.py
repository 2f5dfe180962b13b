"""The benchmark runs; bars are checked in processor time, which other load hardly changes."""

import json
import os
import random
import time

import pytest

from benchmarks import text_throughput
from envs.household.game import build_game
from envs.text.batch import BatchEnv


def test_the_benchmark_writes_every_figure(tmp_path, capsys):
    out = tmp_path / "result.json"
    assert text_throughput.main(["--games", "6", "--repeats", "1", "--out", str(out)]) == 0
    result = json.loads(out.read_text())
    names = ["steps_per_second", "new_game_ms", "new_episode_ms", "steps_per_second_1_workers"]
    cores = os.cpu_count() or 1
    names += [f"steps_per_second_{cores}_processes_apart"] if cores > 1 else []
    assert all(result[name] > 0 for name in names)
    assert result["memory_per_env_kb"] < 50
    assert "at least 20,000" in capsys.readouterr().out


def test_bars_in_processor_time(generated):
    games, rng = [made.game for made in generated], random.Random(0)
    env = BatchEnv(len(games))
    _, info = env.reset(games)
    began, steps = time.process_time(), 0
    for _ in range(50):
        commands = [rng.choice(a) if a else "" for a in info.admissible]
        steps += sum(map(bool, commands))
        info = env.step(commands).info
    assert steps / (time.process_time() - began) > 10_000  # the bar is 20,000 on a quiet core
    began = time.process_time()
    for made in generated:
        build_game(made.game_data)
    assert (time.process_time() - began) / len(generated) < 0.010  # the bar is 5 ms
    began = time.process_time()
    for _ in range(20):
        env.reset(games)
    assert (time.process_time() - began) / (20 * len(games)) < 0.0002  # the bar is 0.1 ms


def test_a_bad_command_line_is_refused(capsys):
    with pytest.raises(SystemExit) as stop:
        text_throughput.main(["--games", "0"])
    assert stop.value.code == 2
    assert "at least 1" in capsys.readouterr().err
