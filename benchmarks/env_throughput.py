"""Physics alone, every backend and layout: `python -m benchmarks.env_throughput`.

Steps a second with random actions, auto-reset included, beside Brax's own
`envs.training.wrap` stack in one vmap. All layouts of a backend take turns, so that other load on
the machine hits all of them.
"""

import argparse
import contextlib
import dataclasses
import io
import math
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from time import perf_counter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec
from rich.console import Console
from rich.table import Table

from benchmarks.measurement import (
    Parser,
    consoles,
    describe,
    json_file,
    load_average,
    machine,
    positive,
    ratio,
    spread,
    without_nan,
)
from envs.brax_env import BACKENDS, BraxSimulator, brax_envs
from envs.vector import VectorEnv
from jaxagent.training.devices import AXIS, local_chunk, prepare_cpu_devices
from jaxagent.training.evaluate import write_report

PEER = "brax wrap, 1 device, one vmap"
EPISODE_LENGTH = 1000
# Long enough that starting a program is nothing, short enough for several rounds.
SCAN_LENGTH = 20
# Random actions make an Ant fall after some 50 steps: resets then come as often as they will.
WARM_CALLS = 3


@dataclasses.dataclass(frozen=True)
class Setting:
    """How the environments of one row lie on the devices."""

    devices: int
    chunk_size: int | None

    @property
    def name(self) -> str:
        """What the row is called."""
        kind = f"chunks of {self.chunk_size}" if self.chunk_size else "one vmap"
        each = " each" if self.devices > 1 else ""
        return f"{self.devices} device{'s' if self.devices > 1 else ''}, {kind}{each}"


def settings(num_envs: int, num_devices: int) -> list[Setting]:
    """One device and all of them, each in one vmap and in chunks where chunks differ from that.

    Args:
        num_envs: B, over all devices.
        num_devices: available; the most that divide B are used.
    """
    most = max(n for n in range(1, num_devices + 1) if num_envs % n == 0)
    found = []
    for devices in sorted({1, most}):
        chunks = {None, local_chunk(num_envs // devices)}
        found += [Setting(devices, chunk) for chunk in sorted(chunks, key=bool)]
    return found


def our_program(simulator: BraxSimulator, setting: Setting, num_envs: int) -> tuple[Callable, Any]:
    """A compiled scan over steps of this project's environments, and their first state."""
    env = VectorEnv(simulator, EPISODE_LENGTH, setting.chunk_size)
    mesh = Mesh(np.array(jax.devices()[: setting.devices]), (AXIS,))

    def play(state, key):
        def advance(state, time):
            noise = jax.random.fold_in(jax.random.fold_in(key, time), jax.lax.axis_index(AXIS))
            shape = (num_envs // setting.devices, env.action_size)
            action = jax.random.uniform(noise, shape, minval=-1.0, maxval=1.0)
            # What a rollout keeps must be made; what nobody reads would be optimised away.
            state, step = env.step(state, action)
            return state, (step.next_observation, step.reward, step.terminated, step.truncated)

        return jax.lax.scan(advance, state, jnp.arange(SCAN_LENGTH))

    sharded, over_time = PartitionSpec(AXIS), PartitionSpec(None, AXIS)
    keys = jax.random.split(jax.random.key(0), num_envs)
    start = jax.jit(
        jax.shard_map(env.reset, mesh=mesh, in_specs=sharded, out_specs=sharded, check_vma=False)
    )
    program = jax.shard_map(
        play,
        mesh=mesh,
        in_specs=(sharded, PartitionSpec()),
        out_specs=(sharded, over_time),
        check_vma=False,
    )
    state = start(keys)
    return jax.jit(program).lower(state, jax.random.key(0)).compile(), state


def brax_program(environment: str, backend: str, num_envs: int) -> tuple[Callable, Any]:
    """The same scan over Brax's own wrappers, on one device."""
    env = brax_envs.training.wrap(
        brax_envs.get_environment(environment, backend=backend), episode_length=EPISODE_LENGTH
    )

    def play(state, key):
        def advance(state, time):
            shape = (num_envs, env.action_size)
            noise = jax.random.fold_in(key, time)
            state = env.step(state, jax.random.uniform(noise, shape, minval=-1.0, maxval=1.0))
            return state, (state.obs, state.reward, state.done, state.info["truncation"])

        return jax.lax.scan(advance, state, jnp.arange(SCAN_LENGTH))

    # Brax's wrappers read the batch off a raw key's leading axes.
    state = jax.jit(env.reset)(jax.random.split(jax.random.PRNGKey(0), num_envs))
    return jax.jit(play).lower(state, jax.random.key(0)).compile(), state


class Row:
    """One backend in one layout: compiled at once, then timed call by call."""

    def __init__(self, backend: str, layout: str, make: Callable[[], tuple[Callable, Any]]):
        """Compile; a failure is kept for the table."""
        self.backend, self.layout = backend, layout
        self.seconds: list[float] = []
        self.reason, self._calls = "", 0
        begin = perf_counter()
        with self._failing():
            self._program, self._state = make()
            jax.block_until_ready(self._state)
        self.compile_seconds = perf_counter() - begin

    def advance(self) -> None:
        """One call, timed once warm."""
        if self.reason:
            return
        with self._failing():
            begin = perf_counter()
            key = jax.random.key(self._calls)
            self._state, _ = jax.block_until_ready(self._program(self._state, key))
            self._calls += 1
            if self._calls > WARM_CALLS:
                self.seconds.append(perf_counter() - begin)

    def result(self, num_envs: int) -> dict[str, Any]:
        """For the table and the JSON."""
        values = {"backend": self.backend, "layout": self.layout, "reason": self.reason}
        if self.reason:
            return values | {"steps_per_second": None, "compile_seconds": None}
        rates = [num_envs * SCAN_LENGTH / seconds for seconds in self.seconds]
        return values | {
            "steps_per_second": spread(rates)._asdict(),
            "compile_seconds": self.compile_seconds,
        }

    @contextlib.contextmanager
    def _failing(self) -> Iterator[None]:
        """Whatever a backend raises is its row's reason: the other rows are still worth having."""
        try:
            with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                yield
        except Exception as failure:
            first = (str(failure).strip() or "no message").splitlines()[0]
            self.reason = f"{type(failure).__name__}: {first}"


def measure(
    environment: str, backend: str, num_envs: int, rounds: int, console: Console
) -> list[dict[str, Any]]:
    """All rows of one backend, the peer first."""
    rows = [Row(backend, PEER, lambda: brax_program(environment, backend, num_envs))]
    for setting in settings(num_envs, jax.local_device_count()):
        rows.append(
            Row(
                backend,
                setting.name,
                lambda setting=setting: our_program(
                    BraxSimulator(environment, backend), setting, num_envs
                ),
            )
        )
        console.print(f"{backend}, {setting.name}: {'failed' if rows[-1].reason else 'compiled'}")
    for _ in range(WARM_CALLS + rounds):
        for row in rows:
            row.advance()
    return [row.result(num_envs) for row in rows]


def best_ratio(rows: Sequence[dict[str, Any]], backend: str) -> float:
    """Median steps a second of a backend's best layout over its peer row; nan if either failed."""
    medians = {
        row["layout"]: row["steps_per_second"]["median"]
        for row in rows
        if row["backend"] == backend and row["steps_per_second"]
    }
    peer = medians.pop(PEER, math.nan)
    return ratio(max(medians.values(), default=math.nan), peer)


def table(rows: Sequence[dict[str, Any]], environment: str, num_envs: int) -> Table:
    """What is shown."""
    shown = Table(title=f"{environment}, {num_envs} environments, random actions")
    shown.add_column("physics")
    shown.add_column("layout")
    for column in ("steps/s (median)", "lowest", "highest", "compile s"):
        shown.add_column(column, justify="right")
    if any(row["reason"] for row in rows):
        shown.add_column("not measured because", overflow="fold")
    for row in rows:
        rate = row["steps_per_second"]
        if rate is None:
            shown.add_row(row["backend"], row["layout"], *["—"] * 4, row["reason"])
            continue
        figures = [f"{rate[name]:,.0f}" for name in ("median", "low", "high")]
        shown.add_row(row["backend"], row["layout"], *figures, f"{row['compile_seconds']:.1f}")
    return shown


def read_command_line(arguments: Sequence[str]) -> argparse.Namespace:
    """Options, or one line and status 2."""
    parser = Parser(
        prog="python -m benchmarks.env_throughput",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add(
        "--backends",
        nargs="+",
        choices=BACKENDS,
        default=list(BACKENDS),
        help="default: all; the ratio is that of spring, or of the first if spring is not among "
        "them",
    )
    add("--environment", default="ant", help="in Brax's registry (default ant)")
    add("--num-envs", type=positive, default=512, help="over all devices (default 512)")
    add("--rounds", type=positive, default=5, help="measured calls of each layout (default 5)")
    add("--json", type=json_file, metavar="FILE", help="write everything there as well")
    options = parser.parse_args(arguments)
    known = sorted(brax_envs._envs)
    if options.environment not in known:
        parser.error(f"environment ({options.environment}) must be one of {', '.join(known)}")
    options.backends = list(dict.fromkeys(options.backends))
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure; the exit status."""
    options = read_command_line(sys.argv[1:] if arguments is None else arguments)
    prepare_cpu_devices()
    jax.config.update("jax_enable_compilation_cache", False)  # compile time is measured
    console, progress = consoles()
    where, rows = machine(), []
    for backend in options.backends:
        rows += measure(options.environment, backend, options.num_envs, options.rounds, progress)
    headline = "spring" if "spring" in options.backends else options.backends[0]
    result = best_ratio(rows, headline)
    where["load_average_after"] = load_average()
    console.print(table(rows, options.environment, options.num_envs))
    console.print(describe(where, where["load_average_after"]))
    console.print(f"best layout over Brax's own stack, {headline}:")
    if options.json:
        write_report(
            options.json,
            without_nan(
                {
                    "machine": where,
                    "environment": options.environment,
                    "num_envs": options.num_envs,
                    "rows": rows,
                    "ratio_of": headline,
                    "ratio": result,
                }
            ),
        )
    print(f"ratio: {result:.2f}")
    return 1 if math.isnan(result) else 0


if __name__ == "__main__":
    sys.exit(main())
