"""Several processes train what one process with as many devices trains."""

import os
import pathlib
import socket
import subprocess
import sys

import jax
import numpy as np
import pytest

from jaxagent.training import devices
from jaxagent.training.devices import choose_layout, join_processes, local_chunk
from tests.training.probe_run import make_arm, make_trainer, run_config

SCRIPT = pathlib.Path(__file__).parent / "probe_run.py"
ROOT = SCRIPT.parents[2]


def test_two_processes_on_loopback_are_one_with_two_devices(tmp_path):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = os.environ | {
        "PYTHONPATH": str(ROOT),
        "XLA_FLAGS": "--xla_force_host_platform_device_count=1",
    }
    shared = tmp_path / "shared"
    shared.mkdir()
    processes = [
        subprocess.Popen(
            [sys.executable, str(SCRIPT), str(shared), "--coordinator", f"127.0.0.1:{port}"]
            + ["--num-processes", "2", "--process-id", str(number)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment,
            cwd=ROOT,
        )
        for number in range(2)
    ]
    try:
        outputs = [process.communicate(timeout=300)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0, 0], outputs
    run = run_config()
    alone = make_arm(tmp_path / "alone", run, make_trainer(run, num_devices=2))
    state, _ = alone.train(resume=False)
    together = np.load(shared / "final.npz")
    leaves = jax.tree.leaves(state.agent)
    assert len(together.files) == len(leaves)
    for name, leaf in zip(together.files, leaves):
        np.testing.assert_allclose(together[name], leaf, rtol=1e-4, atol=1e-6)
    assert (shared / "metrics.jsonl").read_text().count('"train"') == 6  # process 0 alone writes
    assert (shared / "checkpoints" / "6").is_dir()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("127.0.0.1:1", None, None), r"num_processes, process_id must be given together with"),
        ((None, 2, 0), r"coordinator must be given together with"),
        (("127.0.0.1:1", 2, 2), r"process_id \(2\) must lie in \[0, num_processes \(2\)\)"),
        (("127.0.0.1", 2, 0), r"coordinator \(127.0.0.1\) must be host:port"),
    ],
)
def test_half_a_description_of_processes_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        join_processes(*arguments)


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, None),
        # The shell of a job, as sbatch starts it: srun would start four tasks.
        ({"SLURM_NTASKS": "4"}, None),
        ({"SLURM_NTASKS": "4", "SLURM_PROCID": "0"}, None),
        # Of `salloc`, a step of its own with a reserved number, and inside `srun --pty bash`.
        ({"SLURM_NTASKS": "4", "SLURM_PROCID": "0", "SLURM_STEP_ID": "4294967290"}, None),
        ({"SLURM_NTASKS": "1", "SLURM_PROCID": "0", "SLURM_STEP_ID": "0"}, None),
        (
            {
                "SLURM_NTASKS": "4",
                "SLURM_STEP_NUM_TASKS": "1",
                "SLURM_PROCID": "0",
                "SLURM_STEP_ID": "0",
            },
            None,
        ),
        ({"SLURM_NTASKS": "4", "SLURM_PROCID": "3", "SLURM_STEP_ID": "0"}, "SLURM"),
        ({"SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "1", "SLURM_STEP_ID": "7"}, "SLURM"),
        ({"OMPI_COMM_WORLD_SIZE": "2"}, "Open MPI"),
        ({"TPU_WORKER_HOSTNAMES": "a,b"}, "Cloud TPU"),
        ({"TPU_WORKER_HOSTNAMES": "a"}, None),
    ],
)
def test_a_launcher_is_recognised_by_its_variables(monkeypatch, variables, expected):
    launched_by(monkeypatch, variables)
    joined = []
    monkeypatch.setattr(jax.distributed, "initialize", lambda *address: joined.append(address))
    assert devices._launcher() == expected
    join_processes(None, None, None)
    assert joined == ([()] if expected else [])


def launched_by(monkeypatch, variables):
    for marks, counters in devices._LAUNCHERS.values():
        for name in (*marks, *counters):
            monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)


def test_a_launcher_that_does_not_say_enough_is_named_in_one_line(monkeypatch):
    """JAX wants to know the nodes of the step as well."""
    launched_by(monkeypatch, {"SLURM_NTASKS": "4", "SLURM_PROCID": "3", "SLURM_STEP_ID": "0"})

    def fail(*address):
        raise ValueError("coordinator_address\nshould be defined.")

    monkeypatch.setattr(jax.distributed, "initialize", fail)
    with pytest.raises(ValueError, match=r"^SLURM started this process .* should be def") as said:
        join_processes(None, None, None)
    assert "\n" not in str(said.value)
    with pytest.raises(ValueError, match=r"^process_id \(1\) of num_processes \(2\) cannot join"):
        join_processes("127.0.0.1:1", 2, 1)


def test_the_layout_takes_all_devices_that_divide():
    assert choose_layout(256, 8).size == 2
    assert choose_layout(3, 8).size == 1
    assert choose_layout(256, 8, num_devices=1).size == 1
    with pytest.raises(ValueError, match=r"num_devices \(3\) must be one of \[1, 2\]"):
        choose_layout(256, 8, num_devices=3)


@pytest.mark.parametrize(
    ("local", "expected"), [(16, None), (64, None), (128, 64), (96, 48), (131, None), (130, 26)]
)
def test_chunks_divide_and_fit_the_cache(local, expected):
    assert local_chunk(local) == expected
