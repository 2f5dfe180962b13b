"""Run time and compile time of every loss: `python -m benchmarks.losses`.

Time-major losses at (T, B) = (128, 64) and (1000, 1024), token losses at [64, 512]. Those that
rlax has too are measured beside it where it can be imported, and beside the plain scan of one
column under vmap, in turns, so that other load on the machine hits both.
"""

import argparse
import importlib
import importlib.util
import inspect
import math
import sys
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
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
from jaxagent import losses
from jaxagent.training.evaluate import write_report

TRAJECTORIES = [(128, 64), (1000, 1024)]
TOKENS = (64, 512)
SMALL_AXES = {"A": 8, "D": 2, "G": 3, "K": 4, "V": 128, "P": 8}
NUM_IDS = 8
OPTIONS = {
    "num_groups": NUM_IDS,
    "num_segments": NUM_IDS,
    "num_levels": 3,
    "window_size": 8,
    "spread": "population",
    "strategy": "future",
    "normalisation": "token",
    "value_clip_epsilon": 0.2,
    "refine_from": 0.4,
    "zero_from": 0.8,
}
# Long enough to be seen by the clock, short enough for many rounds.
SECONDS_PER_TIMING = 0.02


class Problem(NamedTuple):
    """A loss with arguments of one size."""

    name: str
    size: str
    function: Callable
    arrays: tuple


def shape_of(axes: str, size: tuple[int, int], is_columnar: bool) -> tuple[int, ...]:
    """The shape of an annotation such as "T *B A" at a size."""
    long, wide = size
    shape: list[int] = []
    for axis in axes.split():
        if axis == "*S":
            shape += [long, wide]
        elif axis == "*B":
            shape += [wide] if is_columnar else [long, wide]
        elif axis in ("T", "N"):
            shape.append(long)
        elif axis == "L":
            shape[-2:] = [long, wide]
        else:
            shape.append(SMALL_AXES.get(axis, 4))
    return tuple(shape)


def argument(name: str, kind: str, shape: tuple[int, ...], rng: np.random.Generator) -> jax.Array:
    """An array that the argument of this name could be."""
    if kind == "Bool":
        return jnp.asarray(np.ones(shape, bool) if name == "mask" else rng.random(shape) < 0.05)
    if kind == "Int":
        ids = rng.integers(0, NUM_IDS, shape)
        return jnp.asarray(np.sort(ids, axis=0) if name == "segment_id" else ids)
    values = rng.uniform(0.5, 1.0, shape) if "scale" in name else rng.normal(size=shape)
    return jnp.asarray(values, jnp.float32)


def arguments(function: Callable, size: tuple[int, int]) -> tuple:
    """Arrays for the positional arguments of a loss, from its annotations."""
    described = inspect.signature(function).parameters.values()
    axes = [getattr(p.annotation, "dim_str", "") for p in described]
    is_columnar = any(a.split()[0] in ("T", "N", "S") for a in axes if a and "*B" in a)
    rng, arrays = np.random.default_rng(0), []
    for parameter in described:
        if parameter.kind is parameter.KEYWORD_ONLY or parameter.name == "axis":
            continue
        if parameter.name == "key":
            arrays.append(jax.random.key(0))
        elif parameter.name == "fraction":
            arrays.append(jnp.asarray(rng.uniform(size=size), jnp.float32))
        elif hasattr(parameter.annotation, "dim_str"):
            shape = shape_of(parameter.annotation.dim_str, size, is_columnar)
            kind = parameter.annotation.__name__.split("[")[0]
            arrays.append(argument(parameter.name, kind, shape, rng))
        else:
            arrays.append(special(parameter.name, size))
    return tuple(arrays)


def special(name: str, size: tuple[int, int]) -> Any:
    """Arguments that are no plain array."""
    if name == "state":
        return losses.adaptive_lambda(0.5, window_size=8)
    if name == "goal_steps":
        return losses.GoalSteps(jnp.zeros(size, jnp.int32), jnp.ones(size, bool))
    return jnp.float32(0.5)


def options_of(function: Callable) -> dict[str, Any]:
    """Values for the keyword-only arguments that have no default."""
    described = inspect.signature(function).parameters.values()
    required = [p for p in described if p.kind is p.KEYWORD_ONLY and p.default is p.empty]
    return {p.name: OPTIONS.get(p.name, 0.9) for p in required}


def reached(achieved: jax.Array, goal: jax.Array) -> jax.Array:
    """A reward function for `relabel`."""
    return (jnp.abs(achieved - goal).max(-1) < 0.5).astype(jnp.float32)


def sizes() -> dict[str, list[tuple[int, int]]]:
    """Every loss, with the sizes that apply to it."""
    found = {}
    for name in losses.__all__:
        function = getattr(losses, name)
        # The first state of the adaptive schedule is made on the host, once.
        if inspect.isfunction(function) and name != "adaptive_lambda":
            parameters = inspect.signature(function).parameters.values()
            axes = " ".join(getattr(p.annotation, "dim_str", "") for p in parameters).split()
            found[name] = [TOKENS] if "L" in axes else TRAJECTORIES
    return found


def problem(name: str, size: tuple[int, int]) -> Problem:
    """A loss with its options bound; everything else is an argument of the compiled program."""
    function = getattr(losses, name)
    arrays, options = arguments(function, size), options_of(function)
    if name == "relabel":
        arrays = arrays[:-1]
        return Problem(name, str(size), lambda *a: function(*a, reached, **options), arrays)
    return Problem(name, str(size), lambda *a: function(*a, **options), arrays)


def compiled(function: Callable, arrays: tuple) -> tuple[Callable, float]:
    """The compiled program and the seconds it took to trace and compile."""
    start = perf_counter()
    # A function of its own each time: JAX remembers what it has compiled.
    program = jax.jit(lambda *inputs: function(*inputs)).lower(*arrays).compile()
    return program, perf_counter() - start


def seconds(program: Callable, arrays: tuple, repeats: int) -> float:
    """Seconds of one call, over a few calls in a row."""
    start = perf_counter()
    for _ in range(repeats):
        result = program(*arrays)
    jax.block_until_ready(result)
    return (perf_counter() - start) / repeats


def repeats_for(program: Callable, arrays: tuple) -> int:
    """How many calls fill one timing."""
    jax.block_until_ready(program(*arrays))
    once = seconds(program, arrays, 3)
    return max(1, min(1000, int(SECONDS_PER_TIMING / max(once, 1e-7))))


def plain_peers() -> dict[str, Callable]:
    """The obvious code: one column at a time, a scan, under vmap."""

    def gae(reward, discount, value, next_value, episode_end):
        def column(reward, discount, value, next_value, episode_end):
            def step(following, at_t):
                r, g, v, nv, end = at_t
                current = r + g * nv - v + g * 0.9 * (1.0 - end) * following
                return current, current

            xs = (reward, discount, value, next_value, episode_end)
            return jax.lax.scan(step, 0.0, xs, reverse=True)[1]

        arrays = (reward, discount, value, next_value, episode_end)
        return jax.vmap(column, in_axes=1, out_axes=1)(*arrays)

    def lambda_returns(reward, discount, next_value, episode_end):
        def column(reward, discount, next_value, episode_end):
            def step(following, at_t):
                r, g, v, end = at_t
                mixing = 0.9 * (1.0 - end)
                current = r + g * ((1.0 - mixing) * v + mixing * following)
                return current, current

            xs = (reward, discount, next_value, episode_end)
            return jax.lax.scan(step, next_value[-1], xs, reverse=True)[1]

        arrays = (reward, discount, next_value, episode_end)
        return jax.vmap(column, in_axes=1, out_axes=1)(*arrays)

    return {"gae": gae, "lambda_returns": lambda_returns}


def rlax_peers() -> dict[str, Callable]:
    """What rlax has of ours, under vmap over the batch; nothing where it is not installed."""
    if importlib.util.find_spec("rlax") is None:
        return {}
    rlax = importlib.import_module("rlax")

    def columns(function):
        return jax.vmap(function, in_axes=1, out_axes=1)

    def gae(reward, discount, value, next_value, episode_end):
        # It takes V(s₀), ..., V(s_T) and a λ of every step.
        values = jnp.concatenate([value, next_value[-1:]])
        trace = jnp.where(episode_end, 0.0, 0.9)
        return columns(rlax.truncated_generalized_advantage_estimation)(
            reward, discount, trace, values
        )

    def lambda_returns(reward, discount, next_value, episode_end):
        trace = jnp.where(episode_end, 0.0, 0.9)
        return columns(rlax.lambda_returns)(reward, discount, next_value, trace)

    def clipped_surrogate(log_prob, behaviour_log_prob, advantage):
        ratio_of_probs = jnp.exp(log_prob - behaviour_log_prob)
        surrogate = jax.vmap(lambda r, a: rlax.clipped_surrogate_pg_loss(r, a, 0.9), in_axes=1)
        return surrogate(ratio_of_probs, advantage)

    return {
        "gae": gae,
        "lambda_returns": lambda_returns,
        "clipped_surrogate": clipped_surrogate,
        "categorical_kl": rlax.categorical_kl_divergence,
    }


def like_its_peer(item: Problem) -> Callable:
    """Our side of a comparison: rlax averages the surrogate, so ours is averaged too."""
    if item.name == "clipped_surrogate":
        return lambda *arrays: -jnp.mean(item.function(*arrays), axis=0)
    return item.function


def compare(item: Problem, kind: str, peer: Callable, rounds: int) -> dict[str, Any]:
    """Ours and a peer's in turns."""
    (ours, ours_compile), (theirs, peer_compile) = (
        compiled(f, item.arrays) for f in (like_its_peer(item), peer)
    )
    if kind == "plain" or item.name != "gae":
        # rlax's advantages take V(s′) from the next row, so only their cost can be compared.
        np.testing.assert_allclose(ours(*item.arrays), theirs(*item.arrays), rtol=1e-3, atol=1e-3)
    repeats = repeats_for(theirs, item.arrays)
    pairs = []
    for turn in range(rounds):
        # Whoever comes second finds other things in the caches: take turns at that too.
        order = (ours, theirs) if turn % 2 == 0 else (theirs, ours)
        times = {program: seconds(program, item.arrays, repeats) for program in order}
        pairs.append((times[ours], times[theirs]))
    return {
        "loss": item.name,
        "size": item.size,
        "peer": kind,
        "microseconds": 1e6 * spread([a for a, _ in pairs]).median,
        "peer_microseconds": 1e6 * spread([b for _, b in pairs]).median,
        "compile_seconds": ours_compile,
        "peer_compile_seconds": peer_compile,
        "ratio": spread([ratio(a, b) for a, b in pairs]).median,
    }


def measure(item: Problem, rounds: int) -> dict[str, Any]:
    """One loss by itself."""
    program, compile_seconds = compiled(item.function, item.arrays)
    repeats = repeats_for(program, item.arrays)
    times = spread([1e6 * seconds(program, item.arrays, repeats) for _ in range(rounds)])
    return {
        "loss": item.name,
        "size": item.size,
        "microseconds": times.median,
        "fastest": times.low,
        "slowest": times.high,
        "compile_seconds": compile_seconds,
    }


def bar(beside: list[dict[str, Any]]) -> float:
    """The worst ratio to rlax; to the plain scan where rlax is not installed."""
    kind = "rlax" if any(row["peer"] == "rlax" for row in beside) else "plain"
    return max((row["ratio"] for row in beside if row["peer"] == kind), default=math.nan)


def read_command_line(arguments: Sequence[str]) -> argparse.Namespace:
    """The options; a mistake ends the program with status 2."""
    parser = Parser(prog="benchmarks.losses", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=positive, default=7, help="timings of each loss")
    parser.add_argument(
        "--only", nargs="+", choices=losses.__all__, metavar="NAME", help="these losses alone"
    )
    parser.add_argument("--json", type=json_file, help="write every figure to this file")
    return parser.parse_args(arguments)


def own_table(rows: list[dict[str, Any]]) -> Table:
    """Every loss by itself."""
    table = Table("loss", "size", "run, µs", "fastest", "slowest", "compile, s")
    for row in rows:
        figures = (f"{row[key]:.1f}" for key in ("microseconds", "fastest", "slowest"))
        table.add_row(row["loss"], row["size"], *figures, f"{row['compile_seconds']:.2f}")
    return table


def peer_table(rows: list[dict[str, Any]]) -> Table:
    """The losses that others have too."""
    headings = ("loss", "size", "peer", "ours, µs", "peer, µs", "ratio", "compile, s", "peer, s")
    table = Table(*headings)
    for row in rows:
        table.add_row(
            row["loss"],
            row["size"],
            row["peer"],
            *(f"{row[key]:.1f}" for key in ("microseconds", "peer_microseconds")),
            *(f"{row[key]:.2f}" for key in ("ratio", "compile_seconds", "peer_compile_seconds")),
        )
    return table


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure; the exit status."""
    options = read_command_line(sys.argv[1:] if arguments is None else arguments)
    jax.config.update("jax_enable_compilation_cache", False)  # compile time is measured
    console, progress = consoles()
    where, own, beside = machine(), [], []
    peers = {"plain": plain_peers(), "rlax": rlax_peers()}
    if not peers["rlax"]:
        progress.print("rlax is not installed: beside the plain vmapped scan only")
    for name, sizes_of_it in sizes().items():
        if options.only and name not in options.only:
            continue
        for size in sizes_of_it:
            item = problem(name, size)
            progress.print(f"{item.name} {item.size}")
            own.append(measure(item, options.rounds))
            for kind, functions in peers.items():
                if name in functions:
                    beside.append(compare(item, kind, functions[name], options.rounds))
    where["load_average_after"] = load_average()
    worst = bar(beside)
    console.print(own_table(own))
    if beside:
        console.print(peer_table(beside))
    console.print(describe(where, where["load_average_after"]))
    if options.json:
        report = {"machine": where, "losses": own, "beside": beside, "ratio": worst}
        write_report(options.json, without_nan(report))
    print(f"ratio: {worst:.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
