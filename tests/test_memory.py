"""The suite's own memory: what a module compiled or cached is gone before the next begins."""

import argparse
import os
import pathlib
import subprocess
import sys

import jax
import pytest

from tests.memory import WORKER_BYTES, available_bytes, begin_peak, peak_bytes, workers_for

ROOT = pathlib.Path(__file__).parent.parent

SHARED = """
import functools
import jax

double = jax.jit(lambda x: 2 * x)

@functools.cache
def model():
    return object()

model.__module__ = "tests.models"
"""
FIRST = """
from shared import double, model

def test_it_fills_both_caches():
    double(1.0), model()
    assert (double._cache_size(), model.cache_info().currsize) == (1, 1)
"""
SECOND = """
from shared import double, model

def test_both_caches_are_empty():
    assert (double._cache_size(), model.cache_info().currsize) == (0, 0)
"""


def test_modules_leave_nothing_behind(tmp_path):
    settings = "from tests.conftest import _memory_of_a_module\n"
    files = {"conftest": settings, "shared": SHARED, "test_1": FIRST, "test_2": SECOND}
    for name, text in files.items():
        (tmp_path / f"{name}.py").write_text(text)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "0", str(tmp_path),
         "-c", str(ROOT / "pyproject.toml"), "--rootdir", str(tmp_path)],
        capture_output=True, text=True, timeout=300, cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{tmp_path}", "TEST_PEAKS": str(tmp_path / "peaks")},
    )  # fmt: skip
    assert "2 passed" in done.stdout, done.stdout + done.stderr
    peaks = [line.split() for line in (tmp_path / "peaks").read_text().splitlines()]
    assert [(unit, name) for _, unit, name in peaks] == [("GB", "test_1.py"), ("GB", "test_2.py")]
    assert all(0.05 < float(size) < 1.0 for size, _, _ in peaks)


def test_much_is_dropped_at_once(monkeypatch):
    from tests import memory

    double = jax.jit(lambda x: 2 * x)
    for least, left in ((1e15, 1), (1.0, 0)):
        double(1.0)
        monkeypatch.setattr(memory, "LARGE_BYTES", least)
        memory.drop_if_large()
        assert double._cache_size() == left


@pytest.mark.parametrize(
    ("cores", "gigabytes", "workers"), [(16, 48, 16), (16, 6.1, 4), (2, 48, 2), (2, 1.0, 1)]
)
def test_workers_follow_cores_and_memory(cores, gigabytes, workers):
    assert workers_for(cores, int(gigabytes * 1e9)) == workers
    assert workers * WORKER_BYTES <= gigabytes * 1e9 or workers == 1


def test_memory_is_measured():
    assert available_bytes() > 10_000_000
    begin_peak()
    before = peak_bytes()
    if before is None:
        pytest.skip("no /proc here")
    held = bytearray(b"x") * 100_000_000
    assert peak_bytes() - before > 80_000_000
    del held
    begin_peak()
    assert peak_bytes() - before < 80_000_000


def test_auto_workers_ask_for_the_memory(monkeypatch):
    from tests import conftest, memory

    monkeypatch.setattr(memory, "available_bytes", lambda: int(1.6 * WORKER_BYTES))
    option = argparse.Namespace(numprocesses="logical", dist="no")
    config = argparse.Namespace(option=option)
    monkeypatch.delenv("PYTEST_XDIST_AUTO_NUM_WORKERS", raising=False)
    assert conftest.pytest_xdist_auto_num_workers(config) == 1
    assert option.dist == "loadfile"
    monkeypatch.setenv("PYTEST_XDIST_AUTO_NUM_WORKERS", "7")
    assert conftest.pytest_xdist_auto_num_workers(config) is None
