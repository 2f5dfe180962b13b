"""The benchmark runs; the bars that do not hang on a quiet machine hold with room to spare."""

import json

import pytest

from benchmarks import text_throughput


def test_bars_with_a_wide_margin_for_a_busy_machine(tmp_path, capsys):
    out = tmp_path / "result.json"
    assert text_throughput.main(["--games", "12", "--repeats", "3", "--out", str(out)]) == 0
    result = json.loads(out.read_text())
    assert result["steps_per_second"] > 5_000
    assert result["new_episode_ms"] < 0.4
    assert result["new_game_ms"] < 20
    assert result["memory_per_env_kb"] < 50
    assert result["steps_per_second_1_workers"] > 1_000
    assert "at least 20,000" in capsys.readouterr().out


def test_a_bad_command_line_is_refused(capsys):
    with pytest.raises(SystemExit) as stop:
        text_throughput.main(["--games", "0"])
    assert stop.value.code == 2
    assert "at least 1" in capsys.readouterr().err
