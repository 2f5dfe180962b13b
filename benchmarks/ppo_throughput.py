"""PPO end to end against another library's: `python -m benchmarks.ppo_throughput --against brax`.

Part throughput: steady training steps a second (collecting and updating, without compiling and
evaluating) and compile time, on the same environment, batch, network sizes and epochs. The sides
take turns, an epoch each, so that other load on the machine hits all of them.

Part return: wall seconds, everything included, until an evaluation gives a return of 3,000; this
project's `cpu` preset against Brax's own settings for Ant with 512 environments.

Brax runs twice: on one device, as it is shipped, where XLA may use every core, and on one device
for each core, which it does not do by itself but can be made to. The throughput ratio on the last
line is against Brax as it is shipped; the other one is printed above it. The time to the return is
compared with the faster of the two.
"""

import argparse
import contextlib
import dataclasses
import math
import sys
from collections.abc import Generator, Iterable, Sequence
from time import perf_counter
from typing import Any, cast

import jax
import numpy as np
from rich.console import Console

from benchmarks.brax_peer import BraxPPO, Epoch, device_put_replicated_restored, epochs
from benchmarks.measurement import (
    Parser,
    consoles,
    describe,
    json_file,
    load_average,
    machine,
    positive,
    spread,
    without_nan,
)
from benchmarks.ppo_report import (
    compile_ratio,
    return_ratio,
    return_table,
    throughput_ratio,
    throughput_ratio_to_fastest,
    throughput_table,
)
from experiments.ant_config import AntConfig, preset
from experiments.ant_guidance import build
from jaxagent.agents.ppo import PPOConfig
from jaxagent.planning.guidance import GuidanceConfig
from jaxagent.training.config import RunConfig
from jaxagent.training.devices import choose_layout, prepare_cpu_devices
from jaxagent.training.evaluate import evaluate, fetch, write_report

OURS = "jaxagent"
# Brax's default networks.
POLICY_SIZES = (32,) * 4
CRITIC_SIZES = (256,) * 5
# 512 environments x 32 steps, cut into 8 minibatches, 4 times over.
NUM_ENVS, UNROLL_LENGTH, NUM_MINIBATCHES, NUM_EPOCHS = 512, 32, 8, 4
BATCH_STEPS = NUM_ENVS * UNROLL_LENGTH
SAME_WORK = (
    f"Ant, spring: {NUM_ENVS} environments x {UNROLL_LENGTH} steps, {NUM_MINIBATCHES} minibatches "
    f"x {NUM_EPOCHS} epochs, policy 4x32, critic 5x256"
)
# Iterations between two looks at the clock: its own cost then does not show.
ITERATIONS_PER_EPOCH = 2
# Brax cannot leave out its evaluations without leaving out their compilation, which ours has.
THROUGHPUT_EVALUATION_EPISODES = 16
# A second call that compiles again is compile time, not speed.
WARM_EPOCHS = 2
TARGET_RETURN = 3000.0
DEFAULT_CAP = 4_000_000


def our_epochs(config: AntConfig, iterations: int, evaluated: bool) -> Generator[Epoch, None, None]:
    """Train with this project's PPO; stands still whenever nobody asks for the next epoch.

    Args:
        config: what to train.
        iterations: in one epoch.
        evaluated: evaluate before the first epoch and after each.

    Yields:
        Number 0 once everything is compiled, then epochs to the end of the configured training.
    """
    begin, run = perf_counter(), config.run
    layout = choose_layout(run.num_envs, config.ppo.shuffle_groups, run.num_devices)
    trainer, _ = build(config, layout)
    state = jax.block_until_ready(trainer.init([run.seed]))
    programs = trainer.compile(state)
    done, training = 0, 0.0
    while True:
        value, looked = None, perf_counter()
        if evaluated:
            report = evaluate(trainer, programs.evaluate, state, run.seed)[1]
            returns = trainer.replicate(np.array(report.episode_return, np.float32))
            guidance = programs.observe_evaluation(state.guidance, returns)
            state, value = dataclasses.replace(state, guidance=guidance), report.mean
        now = perf_counter()
        evaluation = now - looked if evaluated else 0.0
        steps = done * run.num_envs * run.unroll_length
        yield Epoch(steps, now - begin, training, evaluation, value)
        begin = perf_counter()
        if done >= run.num_iterations:
            return
        for _ in range(min(iterations, run.num_iterations - done)):
            state, metrics = programs.iterate(state)
            fetch(metrics)  # a real run looks at them after every iteration
            done += 1
        training = perf_counter() - begin


@dataclasses.dataclass
class Throughput:
    """Epochs of one side, and what they say."""

    name: str
    epochs: list[Epoch] = dataclasses.field(default_factory=list)

    def rates(self) -> list[float]:
        """Training steps a second in each epoch after the warm-up."""
        pairs = zip(self.epochs[WARM_EPOCHS:], self.epochs[WARM_EPOCHS + 1 :], strict=False)
        return [(late.steps - early.steps) / late.training_seconds for early, late in pairs]

    def compile_seconds(self) -> float:
        """Wall time to the end of the warm-up, less what as many steady epochs take.

        Making networks, environments and first states is part of it, and so is the evaluation's
        program, which Brax compiles a second time at its second call.
        """
        warm, steady = self.epochs[: WARM_EPOCHS + 1], self.epochs[WARM_EPOCHS + 1 :]
        training = spread([epoch.training_seconds for epoch in steady]).median
        evaluation = spread([epoch.evaluation_seconds for epoch in steady]).median
        return (
            sum(epoch.wall_seconds for epoch in warm)
            - WARM_EPOCHS * training
            - (len(warm) * evaluation)
        )

    def row(self) -> dict[str, Any]:
        """For the table and the JSON."""
        return {
            "name": self.name,
            "steps_per_second": spread(self.rates())._asdict(),
            "compile_seconds": self.compile_seconds(),
            "epochs": [epoch._asdict() for epoch in self.epochs],
        }


def brax_layouts() -> list[int]:
    """Devices on which Brax is measured: one, and all."""
    return sorted({1, jax.local_device_count()})


def brax_name(devices: int) -> str:
    """What a row is called."""
    return f"brax, {devices} device{'s' if devices > 1 else ''}"


def same_work(seed: int, rounds: int) -> tuple[AntConfig, BraxPPO]:
    """The two configurations of the throughput part; they differ in nothing that takes time."""
    steps = (WARM_EPOCHS + rounds) * ITERATIONS_PER_EPOCH * BATCH_STEPS
    ours = AntConfig(
        run=RunConfig(
            total_steps=steps,
            num_envs=NUM_ENVS,
            unroll_length=UNROLL_LENGTH,
            evaluation_episodes=THROUGHPUT_EVALUATION_EPISODES,
            seed=seed,
        ),
        ppo=PPOConfig(
            policy_hidden_sizes=POLICY_SIZES,
            critic_hidden_sizes=CRITIC_SIZES,
            num_minibatches=NUM_MINIBATCHES,
            num_epochs=NUM_EPOCHS,
        ),
        guidance=GuidanceConfig(guidance_terms=()),
    )
    theirs = BraxPPO(
        num_timesteps=steps,
        num_evals=WARM_EPOCHS + rounds + 1,
        seed=seed,
        num_envs=NUM_ENVS,
        unroll_length=UNROLL_LENGTH,
        batch_size=NUM_ENVS // NUM_MINIBATCHES,  # Brax counts it in unrolls
        num_minibatches=NUM_MINIBATCHES,
        num_updates_per_batch=NUM_EPOCHS,
        num_eval_envs=THROUGHPUT_EVALUATION_EPISODES,
    )
    return ours, theirs


def measure_throughput(seed: int, rounds: int, console: Console) -> list[dict[str, Any]]:
    """Rows of the throughput part, ours first.

    Ours begins, so that it pays for whatever tracing the sides share.
    """
    ours, theirs = same_work(seed, rounds)
    sides = [(Throughput(OURS), our_epochs(ours, ITERATIONS_PER_EPOCH, evaluated=False))]
    for devices in brax_layouts():
        options = dataclasses.replace(theirs, max_devices_per_host=devices)
        training = epochs(options, POLICY_SIZES, CRITIC_SIZES)
        sides.append((Throughput(brax_name(devices)), training))
    with contextlib.ExitStack() as stack:
        for _, training in sides:
            stack.enter_context(contextlib.closing(training))
        for number in range(WARM_EPOCHS + rounds + 1):
            for side, training in sides:
                side.epochs.append(next(training))
                console.print(f"{side.name}: epoch {number}, {side.epochs[-1].wall_seconds:.1f} s")
    return [side.row() for side, _ in sides]


def until_return(
    name: str, training: Iterable[Epoch], target: float, cap: int, patience: float
) -> dict[str, Any]:
    """Train until an evaluation gives the target.

    Args:
        name: of the row.
        training: with evaluations.
        target: evaluated return.
        cap: environment steps at which to give up.
        patience: wall seconds at which to give up: somebody else was faster.
    """
    last: Epoch | None = None
    wall = evaluation = 0.0
    evaluations, curve, outcome = 0, [], "cap"
    for last in training:
        wall += last.wall_seconds
        if evaluations:  # the first one of Brax holds its compilation
            evaluation += last.evaluation_seconds
        evaluations += 1
        curve.append({"steps": last.steps, "seconds": wall, "return": last.episode_return})
        if last.episode_return is not None and last.episode_return >= target:
            outcome = "reached"
        elif wall >= patience:
            outcome = "slower"
        if outcome != "cap" or last.steps >= cap:
            break
    return {
        "name": name,
        "outcome": outcome,
        "seconds": wall,
        "evaluations": evaluations,
        "evaluation_seconds": evaluation,
        "steps": last.steps if last else 0,
        "return": last.episode_return if last else None,
        "curve": curve,
    }


def measure_return(seed: int, cap: int, console: Console) -> list[dict[str, Any]]:
    """Rows of the return part, ours first; a Brax row that can no longer win is cut short."""
    config = preset("cpu", "run")
    config = dataclasses.replace(config, run=dataclasses.replace(config.run, seed=seed))
    interval = max(1, config.run.num_iterations // config.run.num_evaluations)
    sides = {OURS: our_epochs(config, interval, evaluated=True)}
    for devices in reversed(brax_layouts()):
        options = BraxPPO(num_timesteps=cap, num_evals=0, seed=seed, max_devices_per_host=devices)
        options = dataclasses.replace(
            options, num_evals=1 + math.ceil(cap / options.steps_per_update)
        )
        sides[brax_name(devices)] = epochs(options, POLICY_SIZES, CRITIC_SIZES)
    rows = []
    for name, training in sides.items():
        fastest = min(
            (r["seconds"] for r in rows[1:] if r["outcome"] == "reached"), default=math.inf
        )
        with contextlib.closing(training):
            shown = _said(name, training, console)
            rows.append(until_return(name, shown, TARGET_RETURN, cap, fastest))
    return rows


def _said(name: str, training: Iterable[Epoch], console: Console) -> Generator[Epoch, None, None]:
    for epoch in training:
        console.print(f"{name}: {epoch.steps:,} steps, return {epoch.episode_return:,.0f}")
        yield epoch


def read_command_line(arguments: Sequence[str]) -> argparse.Namespace:
    """Options, or one line and status 2."""
    parser = Parser(
        prog="python -m benchmarks.ppo_throughput",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--against", choices=["brax"], required=True, help="the peer")
    add("--part", choices=["throughput", "return", "all"], default="all", help="default: all")
    add("--seed", type=int, default=0, help="of all sides (default 0)")
    add("--rounds", type=positive, help="part throughput: measured epochs of each side (default 5)")
    add(
        "--steps",
        type=positive,
        help=f"part return: give up after so many environment steps (default {DEFAULT_CAP:,})",
    )
    add("--json", type=json_file, metavar="FILE", help="write everything there as well")
    options = parser.parse_args(arguments)
    if not 0 <= options.seed < 2**31 - 1:
        parser.error(f"seed ({options.seed}) must lie in [0, 2^31 - 1)")
    for name, part in (("rounds", "return"), ("steps", "throughput")):
        if getattr(options, name) is not None and options.part == part:
            parser.error(f"{name} has no meaning with --part {part}")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure; the exit status."""
    options = read_command_line(sys.argv[1:] if arguments is None else arguments)
    prepare_cpu_devices()
    jax.config.update("jax_enable_compilation_cache", False)  # compile time is measured
    console, progress = consoles()
    results: dict[str, Any] = {"machine": machine(), "seed": options.seed}
    cap = options.steps or DEFAULT_CAP
    with device_put_replicated_restored():
        if options.part != "return":
            rows = measure_throughput(options.seed, options.rounds or 5, progress)
            console.print(throughput_table(rows, SAME_WORK))
            console.print(f"compile time ratio, to the quickest: {compile_ratio(rows):.2f}")
            fastest = throughput_ratio_to_fastest(rows)
            console.print(f"throughput ratio to Brax with one device for each core: {fastest:.2f}")
            results["throughput"] = {
                "rows": rows,
                "ratio": throughput_ratio(rows),
                "ratio_to_fastest": throughput_ratio_to_fastest(rows),
                "compile_ratio": compile_ratio(rows),
            }
        if options.part != "throughput":
            rows = measure_return(options.seed, cap, progress)
            console.print(return_table(rows, TARGET_RETURN))
            console.print(f"time to return ratio: {return_ratio(rows):.2f}")
            results["return"] = {"rows": rows, "ratio": return_ratio(rows), "cap": cap}
    results["machine"]["load_average_after"] = load_average()
    headline = "return" if options.part == "return" else "throughput"
    results["ratio"] = results[headline]["ratio"]
    if options.json:
        write_report(options.json, cast(dict[str, Any], without_nan(results)))
    console.print(describe(results["machine"], results["machine"]["load_average_after"]))
    print(f"ratio: {results['ratio']:.2f}")
    return 1 if math.isnan(results["ratio"]) else 0


if __name__ == "__main__":
    sys.exit(main())
