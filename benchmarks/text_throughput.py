"""How fast the text world is: ``python -m benchmarks.text_throughput [--against alfworld]``.

Games are generated, commands drawn at random from the admissible ones, which are computed at
every step; workers are pinned to a core each (Linux). Prints a table and writes JSON.
"""

import argparse
import gc
import json
import multiprocessing
import os
import platform
import random
import sys
import tempfile
import threading
import time
import tracemalloc
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

from envs.household.game import Game, load_game
from envs.household.generator import SPLITS, generate_games, write_games
from envs.household.stock_engine import StockEnv, stock_version
from envs.text.batch import BatchEnv
from envs.text.workers import WorkerEnv
from jaxagent.text import TextEnv

_HORIZON = 50
_CAN_PIN = hasattr(os, "sched_setaffinity")
_BARS = {
    "steps_per_second": ("at least", 20_000.0),
    "new_episode_ms": ("under", 0.1),
    "new_game_ms": ("under", 5.0),
    "memory_per_env_kb": ("under", 50.0),
    "times_stock": ("at least", 2_000.0),
}


class Barrier(Protocol):
    """Of threads or of processes."""

    def wait(self) -> object:
        """Until all have come."""
        ...


def walk(env: TextEnv, games: list, steps: int, seed: int = 0) -> float:
    """Environment steps per second of a random walk.

    Args:
        env: a batch; it is reset first, outside the measured time.
        games: one for each environment.
        steps: per environment, at most the horizon.
        seed: of the commands.

    Returns:
        Steps of all environments over the seconds they took; won episodes count no more steps.
    """
    done, seconds = timed_walk(env, games, steps, seed)
    return done / seconds


def timed_walk(
    env: TextEnv, games: list, steps: int, seed: int, together: Barrier | None = None
) -> tuple[int, float]:
    """Steps and seconds of `walk`; with `together`, begun when all are reset that wait for it."""
    rng = random.Random(seed)
    _, info = env.reset(games)
    done = 0
    if together is not None:
        together.wait()
    began = time.perf_counter()
    for _ in range(steps):
        commands = [rng.choice(a) if a else "" for a in info.admissible]
        done += sum(map(bool, commands))
        info = env.step(commands).info
    return done, time.perf_counter() - began


def rate_of_all(walks: Sequence[tuple[int, float]]) -> float:
    """Steps of walks that began together, over the seconds of the slowest."""
    return sum(done for done, _ in walks) / max(seconds for _, seconds in walks)


def walk_apart(envs: Sequence[TextEnv], games: list, steps: int, seed: int = 0) -> float:
    """`walk` of several batches, each stepped by a thread of its own.

    Args:
        envs: batches of one size.
        games: of all of them, in their order.
        steps: per environment.
        seed: of the commands.
    """
    size, together = len(games) // len(envs), threading.Barrier(len(envs))

    def run(number: int) -> tuple[int, float]:
        own = games[number * size : (number + 1) * size]
        return timed_walk(envs[number], own, steps, seed + number, together)

    with ThreadPoolExecutor(len(envs)) as threads:
        return rate_of_all(list(threads.map(run, range(len(envs)))))


def best_walk(env: TextEnv, games: list, repeats: int) -> float:
    """The highest of several walks, each another one: other load only ever slows one down."""
    return max(walk(env, games, _HORIZON, seed) for seed in range(repeats))


def seconds_per_call(action: Callable[[], object], calls: int) -> float:
    """Mean seconds of one call."""
    began = time.perf_counter()
    for _ in range(calls):
        action()
    return (time.perf_counter() - began) / calls


def memory_per_env(game: Game, num_envs: int = 500) -> float:
    """Bytes that one more environment of a known game takes, after a random walk.

    Args:
        game: the loaded game.
        num_envs: environments to divide by.

    Returns:
        Python allocations per environment; the admissible commands it last returned included.
    """
    walk(BatchEnv(1), [game], _HORIZON - 1)
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    env = BatchEnv(num_envs)
    rng = random.Random(0)
    _, info = env.reset([game] * num_envs)
    for _ in range(_HORIZON - 1):
        info = env.step([rng.choice(a) if a else "" for a in info.admissible]).info
    gc.collect()
    used = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    return used / num_envs


def measure(paths: list[Path], repeats: int, workers: list[int], num_envs: int) -> dict[str, float]:
    """Everything about the engine here, by name.

    Args:
        paths: of the games.
        repeats: the best of so many counts.
        workers: numbers of processes to spread the batch over, besides none.
        num_envs: size of the batch; games are dealt out in turn.
    """
    games = [load_game(path) for path in paths]
    loading = [
        seconds_per_call(lambda: [load_game(path) for path in paths], 1) for _ in range(repeats)
    ]
    batch = [games[number % len(games)] for number in range(num_envs)]
    env = BatchEnv(num_envs, horizon=_HORIZON)
    results = {
        "steps_per_second": best_walk(env, batch, repeats),
        "new_game_ms": 1e3 * min(loading) / len(games),
    }
    single = BatchEnv(1)
    results["new_episode_ms"] = 1e3 * min(
        seconds_per_call(lambda: single.reset([games[0]]), 2_000) for _ in range(repeats)
    )
    results["memory_per_env_kb"] = memory_per_env(games[0]) / 1024
    for count in workers:
        for with_caller in (False, True) if count > 1 else (False,):
            spread = WorkerEnv(
                num_envs, count, with_caller=with_caller, pinned=_CAN_PIN, horizon=_HORIZON
            )
            name = f"{count}_processes_with_caller" if with_caller else f"{count}_workers"
            results[f"steps_per_second_{name}"] = best_walk(spread, batch, repeats)
            spread.close()
        if count > 1:
            in_threads = measure_in_threads(batch, repeats, count)
            results[f"steps_per_second_{count}_threads_of_a_worker"] = in_threads
            apart = measure_apart(paths, repeats, count, num_envs)
            results[f"steps_per_second_{count}_processes_apart"] = apart
    return results


def measure_in_threads(games: list[Game], repeats: int, count: int) -> float:
    """Steps per second of batches of one worker, each stepped by a thread of its own.

    Args:
        games: of all of them.
        repeats: the best counts.
        count: of batches, on as many cores.
    """
    cores = sorted(os.sched_getaffinity(0))[-count:] if _CAN_PIN else range(count)
    size = len(games) // count
    envs = [
        WorkerEnv(size, 1, pinned=[core] if _CAN_PIN else False, horizon=_HORIZON) for core in cores
    ]
    best = max(walk_apart(envs, games, _HORIZON, count * seed) for seed in range(repeats))
    for env in envs:
        env.close()
    return best


def _play_alone(paths: list[Path], num_envs: int, repeats: int, together, results) -> None:
    games = [load_game(path) for path in paths]
    env = BatchEnv(num_envs, horizon=_HORIZON)
    batch = [games[number % len(games)] for number in range(num_envs)]
    for seed in range(repeats):
        results.put(timed_walk(env, batch, _HORIZON, seed, together))


def measure_apart(paths: list[Path], repeats: int, count: int, num_envs: int) -> float:
    """Steps per second of processes that share nothing: what the cores have to give.

    Args:
        paths: of the games.
        repeats: the best sum counts.
        count: of processes, which begin each round together.
        num_envs: of all of them.
    """
    context = multiprocessing.get_context("spawn")
    together, results = context.Barrier(count), context.Queue()
    given = (paths, num_envs // count, repeats, together, results)
    processes = [context.Process(target=_play_alone, args=given) for _ in range(count)]
    for process in processes:
        process.start()
    # A walk begins when all have put what the one before it took.
    rates = [rate_of_all([results.get(timeout=300) for _ in range(count)]) for _ in range(repeats)]
    for process in processes:
        process.join()
    return max(rates)


def measure_stock(paths: list[Path], steps: int) -> float:
    """Steps per second of the stock engine, same games, same way of choosing commands."""
    env = StockEnv(1, horizon=_HORIZON)
    done, seconds = 0, 0.0
    for number, path in enumerate(paths):
        length = min(_HORIZON, steps - done)
        if length == 0:
            break
        seconds += length / walk(env, [path], length, seed=number)
        done += length
    return done / seconds


def show(results: dict[str, float]) -> None:
    """Prints figures beside their bars."""
    print(f"{'figure':<42}{'measured':>14}  bar")
    for name, value in results.items():
        rule, bar = _BARS.get(name, ("", 0.0))
        print(f"{name:<42}{value:>14,.3f}  {f'{rule} {bar:,g}' if rule else ''}")


def main(arguments: list[str] | None = None) -> int:
    """The command line; see ``--help``."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.text_throughput",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--against", choices=["alfworld"], help="measure the stock engine in the same run too")
    add("--games", type=int, default=60, help="generated games to play (default 60)")
    add("--envs", type=int, default=480, help="environments in a batch (default 480)")
    add("--repeats", type=int, default=5, help="repetitions, the best counts (default 5)")
    add("--stock-steps", type=int, default=100, help="steps of the stock engine (default 100)")
    add("--out", type=Path, help="JSON file to write (default: none)")
    options = parser.parse_args(arguments)
    if min(options.games, options.repeats, options.stock_steps) < 1:
        parser.error("--games, --repeats and --stock-steps must all be at least 1")
    cores = os.cpu_count() or 1
    if options.envs < cores:
        parser.error(f"--envs ({options.envs}) must be at least the number of cores ({cores})")
    with tempfile.TemporaryDirectory(prefix="household-") as folder:
        made = list(generate_games(options.games, 0))
        write_games(iter(made), Path(folder), "train")
        root = Path(folder) / "json_2.1.1" / SPLITS["train"]
        paths = [root / game.name / "game.tw-pddl" for game in made]
        results = measure(paths, options.repeats, sorted({1, cores}), options.envs)
        if options.against:
            try:
                results["stock_steps_per_second"] = measure_stock(paths, options.stock_steps)
            except ImportError as error:
                print(f"error: --against alfworld: {error}", file=sys.stderr)
                return 2
            ratio = results["steps_per_second"] / results["stock_steps_per_second"]
            results["times_stock"] = ratio
    show(results)
    if options.out:
        machine = {
            "python": platform.python_version(),
            "machine": platform.machine(),
            "cores": cores,
            "stock": stock_version() if options.against else None,
        }
        try:
            options.out.write_text(json.dumps({**results, **machine}, indent=1) + "\n")
        except OSError as error:
            print(f"error: --out {options.out}: {error}", file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
