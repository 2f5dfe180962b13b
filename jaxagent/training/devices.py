"""Which devices a run uses, how a batch of environments is laid over them, and other processes."""

import dataclasses
import os

import jax
import numpy as np
from jax.sharding import Mesh

AXIS = "data"
# Enough for any cache, and for vector units to stay busy.
CPU_CHUNK = 64

_LEAST_SECONDS = "jax_persistent_cache_min_compile_time_secs"

# What a launcher sets in each of the processes that it starts, and what counts them there: the
# first of these variables that is set. The shell of a SLURM job has SLURM_NTASKS too, the number of
# tasks that `srun` would start.
_LAUNCHERS = {
    "SLURM": (("SLURM_STEP_ID", "SLURM_PROCID"), ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")),
    "Open MPI": ((), ("OMPI_COMM_WORLD_SIZE",)),
    "Cloud TPU": ((), ("TPU_WORKER_HOSTNAMES",)),
}
# From this number on SLURM's steps are its own: the shell of a job, batch or interactive.
_FIRST_RESERVED_STEP = 4_294_967_280


@dataclasses.dataclass(frozen=True)
class Layout:
    """How a batch of environments lies on the devices."""

    mesh: Mesh
    chunk_size: int | None
    """Environments stepped together on one device; None is all of them."""
    map_seeds: bool
    """Train several seeds one after the other inside the program (CPU) or in one vmap."""

    @property
    def size(self) -> int:
        """Devices in the mesh."""
        return self.mesh.devices.size

    def describe(self) -> str:
        """One line for the console."""
        kind = self.mesh.devices.flat[0].device_kind
        chunks = f"chunks of {self.chunk_size}" if self.chunk_size else "one vmap each"
        processes = f", {jax.process_count()} processes" if jax.process_count() > 1 else ""
        return f"{self.size} x {kind}, {chunks}{processes}"


def prepare_cpu_devices(spare_threads: bool = False) -> None:
    """Give the CPU backend one device for each core; must run before JAX is first used.

    XLA does not spread operations as small as an Ant over cores, so on a CPU each core steps its
    own share of the environments (three times the throughput). Does nothing where an XLA flag
    has already said how many.

    Args:
        spare_threads: give XLA four threads a core. With one a core, a device that waits in a
            collective holds a thread that another device's matrix product is waiting for, and a
            program that mixes the two, as off-policy updates do, sooner or later stands still.
    """
    if spare_threads:
        os.environ.setdefault("PJRT_NPROC", str(4 * (os.cpu_count() or 1)))
    if "xla_force_host_platform_device_count" not in os.environ.get("XLA_FLAGS", ""):
        affinity = getattr(os, "sched_getaffinity", None)  # not on macOS
        cores = len(affinity(0)) if affinity else os.cpu_count() or 1
        jax.config.update("jax_num_cpu_devices", cores)


def join_processes(
    coordinator: str | None, num_processes: int | None, process_id: int | None
) -> None:
    """Join the other processes of this run, if there are any.

    Args:
        coordinator: host:port of process 0; None looks for a launcher's variables (SLURM's srun,
            Open MPI, Cloud TPU) and stays alone without them. The shell of a SLURM job is alone.
        num_processes: how many there are.
        process_id: which of them this is.

    Raises:
        ValueError: only some of the three are given, they contradict each other, or the others
            cannot be joined.
    """
    given = {
        "coordinator": coordinator,
        "num_processes": num_processes,
        "process_id": process_id,
    }
    missing = [name for name, value in given.items() if value is None]
    if len(missing) == 3:
        launcher = _launcher()
        if launcher:
            _join(f"{launcher} started this process as one of several, but it")
        return
    if missing:
        raise ValueError(
            f"{', '.join(missing)} must be given together with {set(given) - set(missing)}"
        )
    if coordinator is None or num_processes is None or process_id is None:
        return  # unreachable; tells the type checker what `missing` says
    if num_processes < 1 or not 0 <= process_id < num_processes:
        raise ValueError(
            f"process_id ({process_id}) must lie in [0, num_processes ({num_processes}))"
        )
    if ":" not in coordinator:
        raise ValueError(f"coordinator ({coordinator}) must be host:port")
    who = f"process_id ({process_id}) of num_processes ({num_processes})"
    _join(who, coordinator, num_processes, process_id)


def _join(who: str, *address: str | int) -> None:
    try:
        jax.distributed.initialize(*address)  # type: ignore[arg-type]
    # Of a variable that is missing or wrong JAX raises whatever reading it did.
    except (ValueError, RuntimeError, LookupError, TypeError, OSError) as error:
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        raise ValueError(
            f"{who} cannot join the others: {reason}; to train alone, unset what the launcher set, "
            "or say who takes part: --coordinator --num-processes --process-id"
        ) from None


def _launcher() -> str | None:
    """Who started this process as one of several; None where nobody did."""
    for name, (marks, counters) in _LAUNCHERS.items():
        ids = [os.environ.get(mark, "") for mark in marks]
        if not all(id.isdecimal() and int(id) < _FIRST_RESERVED_STEP for id in ids):
            continue
        value = next((os.environ[c] for c in counters if os.environ.get(c)), "")
        count = int(value) if value.isdecimal() else len(value.split(",")) if value else 1
        if count > 1:
            return name
    return None


def choose_layout(num_envs: int, divisor: int, num_devices: int | None = None) -> Layout:
    """Lay environments over the devices: one share each, in cache-sized chunks on a CPU.

    Args:
        num_envs: B; the devices used must divide it.
        divisor: a number that the devices used must divide too (shuffle groups).
        num_devices: use this many; None uses as many as divide.

    Raises:
        ValueError: num_devices is not available or does not divide.
    """
    available = jax.devices()
    fitting = [n for n in range(1, len(available) + 1) if num_envs % n == 0 and divisor % n == 0]
    if num_devices is not None and num_devices not in fitting:
        raise ValueError(
            f"num_devices ({num_devices}) must be one of {fitting}: it must divide num_envs "
            f"({num_envs}) and shuffle_groups ({divisor}), and {len(available)} are available"
        )
    count = num_devices or fitting[-1]
    if jax.process_count() > 1 and count != len(available):
        raise ValueError(
            f"the {len(available)} devices of all processes must divide num_envs ({num_envs}) "
            f"and shuffle_groups ({divisor})"
        )
    on_cpu = available[0].platform == "cpu"
    return Layout(
        mesh=Mesh(np.array(available[:count]), (AXIS,)),
        chunk_size=local_chunk(num_envs // count) if on_cpu else None,
        map_seeds=on_cpu,
    )


def local_chunk(local: int) -> int | None:
    """The largest divisor of the local batch that the cache takes; None when all of it fits."""
    if local <= CPU_CHUNK:
        return None
    best = max(n for n in range(1, CPU_CHUNK + 1) if local % n == 0)
    return best if best >= CPU_CHUNK // 4 else None  # a prime batch is better left whole


def use_compilation_cache() -> None:
    """Keep compiled programs between runs, unless the user has chosen a folder or said no.

    JAX_COMPILATION_CACHE_DIR chooses the folder; JAX_ENABLE_COMPILATION_CACHE=0 turns it off.
    """
    if not jax.config.values["jax_compilation_cache_dir"]:
        base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
        jax.config.update("jax_compilation_cache_dir", os.path.join(base, "jaxagent", "jax"))
    # JAX keeps what took a second to compile; a layer of a language model takes half of one, at
    # each of a dozen sizes.
    if jax.config.values[_LEAST_SECONDS] == 1.0:
        jax.config.update(_LEAST_SECONDS, 0.2)
