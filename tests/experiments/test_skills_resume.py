"""Skills whose training is killed: a process of their own, a signal, and --resume."""

import os
import pathlib
import signal
import subprocess

import pytest

from experiments import train_skills
from jaxagent.training.checkpoint import Checkpoints
from jaxagent.training.metrics import read_metrics
from tests.training.stopped_run import start, stop_midway
from tests.training.test_loop import same

# Checkpoints at 0, 50, 100, ...; the kill falls well after the second and long before the last.
SMALL = (
    "--task reacher_goal --algorithm ppo --num-envs 8 --unroll-length 4 --total-steps 6400 "
    "--num-evaluations 4 --evaluation-episodes 8 --episode-length 10 --num-epochs 1 "
    "--num-minibatches 2 --encoder-sizes 8 --policy-hidden-sizes 8 --critic-hidden-sizes 8"
).split()
ITERATIONS, KILLED_AFTER = 200, 60
# Compiling is most of it, and what is compiled runs for a second.
HASTY = os.environ["XLA_FLAGS"] + " --xla_backend_optimization_level=0"


def train(folder: pathlib.Path, *options: str) -> subprocess.Popen:
    where = ("--runs-dir", str(folder.parent), "--name", folder.name)
    return start("-m", "experiments.train_skills", *SMALL, *where, *options, XLA_FLAGS=HASTY)


@pytest.mark.slow
def test_ppo_killed_and_resumed_ends_with_the_same_bits(tmp_path):
    """SIGKILL, which leaves no time to save: the last checkpoint is taken up."""
    whole, pieces = tmp_path / "whole", tmp_path / "pieces"
    undisturbed = train(whole)
    output = undisturbed.communicate(timeout=480)[0]
    assert undisturbed.returncode == 0, output
    metrics = pieces / "metrics.jsonl"
    killed = train(pieces)
    output = stop_midway(killed, metrics, KILLED_AFTER, signal.SIGKILL)
    assert killed.returncode == -signal.SIGKILL, output
    cut = read_metrics(metrics)[-1]["iteration"]
    assert 50 < cut < ITERATIONS
    resumed = train(pieces, "--resume")
    output = resumed.communicate(timeout=480)[0]
    assert resumed.returncode == 0, output
    _, trainer, state = train_skills.load_run(whole)
    checkpoints = Checkpoints(pieces / "checkpoints", 3)
    again, host = checkpoints.restore(state, trainer.shardings(state))
    checkpoints.close()
    assert host["iteration"] == ITERATIONS
    same(again, state)
    trained = [r["iteration"] for r in read_metrics(metrics) if r["kind"] == "train"]
    assert trained == list(range(1, ITERATIONS + 1))
    # What was written after the last checkpoint is written again.
    assert read_metrics(whole / "metrics.jsonl")[-1]["mean"] == read_metrics(metrics)[-1]["mean"]
