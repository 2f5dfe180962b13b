"""Checkpoints: what is written is what comes back, and what is broken is refused."""

import json
import pathlib
import random
import signal
import subprocess
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxagent.training.checkpoint import CheckpointError, Checkpoints
from tests.training.probe_run import make_trainer, run_config
from tests.training.stopped_run import start, stop_midway

SCRIPT = pathlib.Path(__file__).parent / "probe_run.py"


def tree():
    return {
        "weights": jnp.arange(12.0).reshape(3, 4),
        "count": jnp.array(7, jnp.int32),
        "key": jax.random.split(jax.random.key(3), 2),
        "flag": jnp.array([True, False]),
    }


def placement(like):
    mesh = Mesh(np.array(jax.devices()[:1]), ("data",))
    return jax.tree.map(lambda _: NamedSharding(mesh, PartitionSpec()), like)


def saved(folder: pathlib.Path, kept: int = 3) -> Checkpoints:
    checkpoints = Checkpoints(folder, kept)
    for iteration in (1, 2, 3, 4):
        checkpoints.save(iteration, tree(), {"seconds": 1.5 * iteration})
    return checkpoints


def test_state_and_host_values_come_back(tmp_path):
    checkpoints = saved(tmp_path)
    like = tree()
    state, host = checkpoints.restore(like, placement(like))
    assert host == {"seconds": 6.0}
    for name in ("weights", "count", "flag"):
        np.testing.assert_array_equal(state[name], like[name])
        assert state[name].dtype == like[name].dtype
    np.testing.assert_array_equal(
        jax.random.key_data(state["key"]), jax.random.key_data(like["key"])
    )
    _, host = checkpoints.restore(like, placement(like), 2)
    assert host == {"seconds": 3.0}
    checkpoints.close()


def test_only_so_many_are_kept(tmp_path):
    saved(tmp_path, kept=2).close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["3", "4"]


def restore(folder: pathlib.Path, like=None, iteration=None):
    checkpoints = Checkpoints(folder, 3)
    like = tree() if like is None else like
    try:
        return checkpoints.restore(like, placement(like), iteration)
    finally:
        checkpoints.close()


def test_nothing_there_is_said(tmp_path):
    with pytest.raises(CheckpointError, match="there is no complete checkpoint"):
        restore(tmp_path)


def test_another_shape_is_named(tmp_path):
    saved(tmp_path).close()
    other = tree() | {"weights": jnp.zeros((3, 5))}
    with pytest.raises(
        CheckpointError, match=r"4: belongs .*'weights'\] is float32\[3, 4\], .*\[3, 5\]"
    ):
        restore(tmp_path, other)
    with pytest.raises(CheckpointError, match=r"'more'\] is nothing, this run has float32\[1\]"):
        restore(tmp_path, tree() | {"more": jnp.zeros(1)})


def test_another_format_is_refused(tmp_path):
    saved(tmp_path).close()
    meta = tmp_path / "4" / "meta" / "metadata"
    meta.write_text(json.dumps({"format": "someone.else.9"}))
    with pytest.raises(CheckpointError, match=r"4: format 'someone.else.9' is not 'jaxagent"):
        restore(tmp_path)
    meta.write_text("{")
    with pytest.raises(CheckpointError, match=r"4: no readable description"):
        restore(tmp_path)


def test_a_damaged_checkpoint_is_refused_and_the_one_before_still_reads(tmp_path):
    saved(tmp_path).close()
    damaged = 0
    for file in (tmp_path / "4" / "state").rglob("*"):
        if file.is_file():
            content = bytearray(file.read_bytes())
            content[len(content) // 2 :] = b"\0" * (len(content) - len(content) // 2)
            file.write_bytes(bytes(content))
            damaged += 1
    assert damaged
    with pytest.raises(CheckpointError, match=r"4: damaged checkpoint"):
        restore(tmp_path)
    _, host = restore(tmp_path, iteration=3)
    assert host == {"seconds": 4.5}


def child(folder: pathlib.Path, *options: str) -> subprocess.Popen:
    return start(str(SCRIPT), str(folder), *options)


@pytest.mark.slow
def test_killed_at_any_moment_the_last_good_checkpoint_is_usable(tmp_path):
    """SIGKILL at twenty random moments of a run that saves after every iteration.

    Each try goes on from where the one before was killed, so that the chain is one long run.
    """
    folder, iterations = tmp_path / "run", 4000
    trainer = make_trainer(run_config(iterations))
    like = trainer.abstract_state(1)
    seen, moments = [], random.Random(0)
    for number in range(20):
        process = child(
            folder, "--iterations", str(iterations), "--evaluations", str(iterations),
            *(["--resume"] if number else []),
        )  # fmt: skip
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("compiled"):
                break
        # Most of each iteration's wall time is the writing, so most kills fall inside one.
        time.sleep(moments.uniform(0.05, 1.5))
        process.send_signal(signal.SIGKILL)
        process.communicate()
        checkpoints = Checkpoints(folder / "checkpoints", 3)
        if checkpoints.latest() is None:
            checkpoints.close()
            continue  # killed before the first was complete: nothing was lost
        state, host = checkpoints.restore(like, trainer.shardings(like))
        checkpoints.close()
        assert int(state.iteration[0]) == host["iteration"]
        assert all(np.isfinite(x).all() for x in jax.tree.leaves(state.agent.policy_params))
        seen.append(host["iteration"])
    assert seen == sorted(seen)
    assert len(seen) >= 15
    assert seen[-1] > seen[0]


def test_sigterm_saves_and_the_resumed_process_ends_like_an_undisturbed_one(tmp_path):
    whole = child(tmp_path / "whole", "--iterations", "60", "--evaluations", "2")
    output = whole.communicate(timeout=240)[0]
    assert whole.returncode == 0, output
    stopped = child(tmp_path / "pieces", "--iterations", "60", "--evaluations", "2")
    metrics = tmp_path / "pieces" / "metrics.jsonl"
    output = stop_midway(stopped, metrics, 4, signal.SIGTERM)
    assert stopped.returncode == 128 + signal.SIGTERM, output
    assert "interrupted by SIGTERM" in output
    resumed = child(tmp_path / "pieces", "--iterations", "60", "--evaluations", "2", "--resume")
    output = resumed.communicate(timeout=240)[0]
    assert resumed.returncode == 0, output
    one, two = (np.load(tmp_path / name / "final.npz") for name in ("whole", "pieces"))
    assert one.files == two.files
    for name in one.files:
        np.testing.assert_array_equal(one[name], two[name])
