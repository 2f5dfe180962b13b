"""What is compared with what, how the figures are made, and that both sides do the same."""

import dataclasses
import importlib.util
import json
import math
import subprocess
import sys

import pytest

from benchmarks import generation
from benchmarks.generation import TASKS, main, own_figures, peak_memory, row_of, tokens_of
from benchmarks.generation_sides import TINY, Sizes, candidate_tokens


def task(name):
    return next(task for task in TASKS if task.name == name)


def test_candidates_are_many_and_share_beginnings():
    candidates = candidate_tokens(Sizes(), 49152)
    assert len({tuple(c) for c in candidates}) == len(candidates) == 200
    beginnings = {tuple(c[:n]) for c in candidates for n in range(1, len(c) + 1)}
    assert len(beginnings) < sum(map(len, candidates))


def test_rates_count_the_tokens_that_were_timed():
    sizes = dataclasses.replace(Sizes(), prompt=500, new_tokens=65, train_batch=4, train_length=100)
    assert tokens_of(task("prefill"), sizes) == 500
    # The first token is the prompt's.
    assert tokens_of(task("decode, batch 8"), sizes) == 8 * 64
    assert tokens_of(task("training"), sizes) == 400
    assert tokens_of(task("episode"), sizes) == 30 * 30
    own = sum(map(len, candidate_tokens(sizes, 49152)))
    assert tokens_of(task("score candidates"), sizes) == 300 + own


def test_a_row_has_the_ratio_of_medians_and_says_whether_tokens_agree():
    seconds = {"ours": [1.0, 2.0, 9.0], "transformers": [3.0, 5.0, 1.0]}
    said = {"ours": [1, 2], "transformers": [1, 3]}
    memory = {"ours": 1, "transformers": 2}
    row = row_of(task("prefill"), TINY, seconds, said, memory)
    assert row["ratio"] == pytest.approx(1.5)
    assert row["rate"]["ours"] == pytest.approx(TINY.prompt / 2.0)
    assert row["same_tokens"] is False
    alone = row_of(task("prefill"), TINY, {"ours": [1.0]}, {"ours": [1]}, {"ours": 1})
    assert math.isnan(alone["ratio"])
    assert alone["same_tokens"] is None


def test_own_figures_and_memory():
    rates = {"prefill": 300.0, "score candidates": 200.0}
    rates |= {"decode, batch 1": 10.0, "decode, batch 8": 40.0}
    rates |= {"decode, batch 1, set": 8.0, "decode, batch 1, JSON": 10.0}
    rates |= {"decode, batch 8, set": 40.0, "decode, batch 8, JSON": 32.0}

    def memory_of(name: str) -> int:
        return 2**30 if name == "prefill" else 2**31 if name.endswith(("1", "8")) else 2**32

    rows = [
        {"task": name, "rate": {"ours": rate}, "memory": {"ours": memory_of(name)}}
        for name, rate in rates.items()
    ]
    figures = own_figures(rows)
    assert figures["score_ratio"] == pytest.approx(1.5)
    assert figures["overhead, batch 1, set"] == pytest.approx(0.25)
    assert figures["overhead, batch 8, JSON"] == pytest.approx(0.25)
    assert figures["overhead, batch 8, set"] == 0.0
    rows.append({"task": "training", "rate": {}, "memory": {"ours": 2**33}})
    expected = {"generation of both": 2.0, "generation": 4.0, "training": 8.0}
    assert peak_memory(rows, "ours") == expected
    assert peak_memory(rows[-1:], "ours") == {"training": 8.0}


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (["--against", "nobody"], "nobody"),
        (["--size", "huge"], "huge"),
        (["--rounds", "0"], "rounds"),
        (["--threads", "x"], "threads"),
        (["--only", "nothing"], "nothing"),
        (["--json", "/missing/folder/x.json"], "existing folder"),
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


def test_the_peer_that_is_not_installed_is_named(monkeypatch, capsys):
    monkeypatch.setattr(generation.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SystemExit) as left:
        main(["--against", "transformers", "--size", "tiny"])
    assert left.value.code == 2
    assert "needs PyTorch" in capsys.readouterr().err


def test_a_side_that_dies_is_named(tmp_path):
    with pytest.raises(RuntimeError, match="the process of ours ended with 1"):
        generation.Side("ours", tmp_path / "missing", 1)


@pytest.mark.parity
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
def test_both_sides_say_the_same_and_learn_the_same(tmp_path, capsys):
    """The real thing, on a model of 4 M parameters."""
    path = tmp_path / "figures.json"
    tasks = ["prefill", "decode, batch 8", "episode", "training"]
    options = ["--size", "tiny", "--rounds", "1", "--threads", "1", "--json", str(path)]
    assert main(["--against", "transformers", "--only", *tasks, *options]) == 0
    written = json.loads(path.read_text())
    rows = {row["task"]: row for row in written["rows"]}
    assert [*rows] == tasks
    for name in tasks:
        assert rows[name]["same_tokens"], name  # of training: the loss, in thousandths
        assert set(rows[name]["rate"]) == {"ours", "transformers"}
    assert written["ratio"] == min(row["ratio"] for row in rows.values())
    assert written["memory"]["ours"]["training"] > 0.1
    assert capsys.readouterr().out.splitlines()[-1] == f"ratio: {written['ratio']:.2f}"


def test_our_side_runs_alone(tmp_path, capsys):
    path = tmp_path / "figures.json"
    options = ["--size", "tiny", "--rounds", "1", "--threads", "1", "--json", str(path)]
    assert main(["--only", "score candidates", *options]) == 0
    (row,) = json.loads(path.read_text())["rows"]
    assert row["rate"]["ours"] > 0
    assert row["ratio"] is None
    assert capsys.readouterr().out.splitlines()[-1] == "ratio: nan"


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a child's peak is its own")
def test_the_peak_of_a_side_is_not_that_of_the_program_that_began_it():
    peak = "from benchmarks.generation_sides import peak_memory; print(peak_memory() / 2**20)"
    begun = "import subprocess, sys; x = b'1' * 2**29; subprocess.run([sys.executable, '-c', "
    command = [sys.executable, "-c", f"{begun}{peak!r}])"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert float(done.stdout) < 256
