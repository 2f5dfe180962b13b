"""SAC with hindsight: speed, what relabelling costs, bytes: `python -m benchmarks.sac_throughput`.

Trains `reacher_goal` on spring physics for a while and reports gradient steps and environment
steps a second, the share of an iteration that choosing and judging goals in hindsight takes, and
the bytes that the replay buffer needs for a transition, beside those of its fields.

`--against brax` adds Brax's own SAC, without hindsight, in the same run: as many environments,
gradient steps to an environment step and transitions to a gradient step, critics of as many
parameters. The sides take turns. Brax runs on one device, as it is shipped, and on one device for
each core, which it can be made to; the ratio on the last line is against the faster of the two.
"""

import argparse
import contextlib
import dataclasses
import functools
import io
import sys
import warnings
from collections.abc import Callable, Generator, Sequence
from time import perf_counter
from typing import Any, cast

import jax
from rich.console import Console
from rich.table import Table

from benchmarks.brax_peer import device_put_replicated_restored, held
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
from envs.brax_env import brax_envs
from experiments.skills_config import SACSkillsConfig, preset
from experiments.train_skills import build, lay_out
from jaxagent.training.devices import prepare_cpu_devices
from jaxagent.training.evaluate import fetch, write_report
from jaxagent.training.off_policy import OffPolicyTrainer
from jaxagent.training.trainer import TrainState, sharded

with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from brax.training.agents.sac import networks as sac_networks
    from brax.training.agents.sac import train as sac_train

OURS = "jaxagent, with hindsight"
# A critic of ours has two encoders and two layers of 128: about 34,000 parameters, like this.
PEER_SIZES = (128, 128, 128)
WARM_EPOCHS = 2
Rate = Generator[float, None, None]  # environment steps a second, once an epoch


def configuration() -> SACSkillsConfig:
    """What is measured: the preset that trains the skill."""
    config = preset("reacher_goal", "sac_her")
    if not isinstance(config, SACSkillsConfig):
        raise TypeError("preset must be one of soft actor-critic")
    return config


def start(config: SACSkillsConfig) -> tuple[OffPolicyTrainer, Callable, TrainState]:
    """Trainer, compiled iteration, and a state whose buffer is old enough to learn from."""
    trainer = build(config, lay_out(config, config.run.num_devices))
    if not isinstance(trainer, OffPolicyTrainer):
        raise TypeError("trainer must be off-policy")
    state = trainer.init([config.run.seed])
    iterate = trainer.compile(state).iterate
    for _ in range(trainer.warmup_iterations + 1):
        state, _ = iterate(state)
    return trainer, iterate, jax.block_until_ready(state)


def our_rates(
    iterate: Callable, state: TrainState, steps: int, iterations: int, keep: list[TrainState]
) -> Rate:
    """Train on; `keep` holds the newest state, since every call donates the one before.

    Args:
        iterate: compiled.
        state: to go on from.
        steps: of the environment in one iteration.
        iterations: in one epoch.
        keep: filled.
    """
    while True:
        begin = perf_counter()
        for _ in range(iterations):
            state, metrics = iterate(state)
            fetch(metrics)  # a real run looks at them after every iteration
        keep[:] = [state]
        yield iterations * steps / (perf_counter() - begin)


def brax_rates(config: SACSkillsConfig, devices: int, epochs: int, iterations: int) -> Rate:
    """Brax's SAC at the same work, an epoch at a time."""
    run, sac = config.run, config.sac
    per_step = sac.updates_per_iteration // run.unroll_length
    prefill = max(sac.learning_starts, 2 * run.num_envs)
    steps = iterations * run.num_envs * run.unroll_length
    networks: Any = functools.partial(sac_networks.make_sac_networks, hidden_layer_sizes=PEER_SIZES)

    def train(progress: Callable) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            sac_train.train(
                environment=brax_envs.get_environment("reacher", backend="spring"),
                num_timesteps=prefill + epochs * steps,
                episode_length=run.episode_length,
                num_envs=run.num_envs,
                num_evals=epochs + 1,
                num_eval_envs=16,
                learning_rate=sac.critic_learning_rate,
                discounting=sac.discount_factor,
                batch_size=sac.batch_size,
                normalize_observations=True,
                min_replay_size=prefill,
                max_replay_size=sac.buffer_size,
                grad_updates_per_step=per_step,
                max_devices_per_host=devices,
                network_factory=networks,
                progress_fn=progress,
                seed=run.seed,
            )

    for _, _, metrics in held(train):
        if "training/sps" in metrics:
            yield float(metrics["training/sps"])


def seconds_of(function: Callable, repeats: int) -> float:
    """Median seconds of a compiled call."""
    jax.block_until_ready(function())
    times = []
    for _ in range(repeats):
        begin = perf_counter()
        jax.block_until_ready(function())
        times.append(perf_counter() - begin)
    return spread(times).median


def relabelling_seconds(trainer: OffPolicyTrainer, state: TrainState, repeats: int) -> float:
    """Seconds of an iteration that hindsight takes: drawn and relabelled, less drawn with k = 0.

    With k = 0 as many steps are drawn, observations made and rewards worked out, but no goal is
    looked for.
    """

    def drawing(share: float) -> Callable:
        agent = trainer.agent
        config = dataclasses.replace(agent.config, relabel_share=share)
        learner = type(agent)(
            config,
            agent.spec,
            observation_size=agent.observation_size,
            action_size=agent.action_size,
        )

        def draw(buffer, key):
            keys = trainer._streams(key, trainer.groups)
            return learner.draw(trainer.replay, buffer, keys)

        program = trainer._over_devices(draw, (sharded(), trainer.specs().key), sharded())
        # Updates lie before groups in what is drawn: only its size matters here.
        lowered = jax.jit(lambda buffer, key: jax.tree.map(lambda x: x.sum(), program(buffer, key)))
        return lambda: lowered(state.replay, state.key)

    with_goals, without = (drawing(trainer.agent.config.relabel_share), drawing(0.0))
    return max(0.0, seconds_of(with_goals, repeats) - seconds_of(without, repeats))


def buffer_bytes(trainer: OffPolicyTrainer, state: TrainState) -> dict[str, float]:
    """Bytes for a transition: what the buffer takes, what its fields are."""
    experience = state.replay.experience
    transitions = experience.fell.size
    total = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(state.replay))
    fields = experience.num_bytes
    return {"buffer": total / transitions, "fields": fields, "ratio": total / transitions / fields}


def measure(options: argparse.Namespace, progress: Console) -> dict[str, Any]:
    """Everything, the sides taking turns."""
    config = configuration()
    run, sac = config.run, config.sac
    steps = run.num_envs * run.unroll_length
    trainer, iterate, state = start(config)
    newest: list[TrainState] = []
    sides = {OURS: our_rates(iterate, state, steps, options.iterations, newest)}
    rounds = WARM_EPOCHS + options.rounds
    if options.against:
        for devices in sorted({1, jax.local_device_count()}):
            name = f"brax, {devices} device{'s' if devices > 1 else ''}"
            sides[name] = brax_rates(config, devices, rounds, options.iterations)
    rates: dict[str, list[float]] = {name: [] for name in sides}
    with contextlib.ExitStack() as stack:
        for side in sides.values():
            stack.enter_context(contextlib.closing(side))
        for number in range(rounds):
            for name, side in sides.items():
                rates[name].append(next(side))
                progress.print(f"{name}: epoch {number}, {rates[name][-1]:,.0f} steps/s")
    rows = []
    for name, measured in rates.items():
        rate = spread(measured[WARM_EPOCHS:])
        updates = rate.median * sac.updates_per_iteration / steps
        rows.append({"name": name, "steps": rate._asdict(), "updates_per_second": updates})
    relabelling = relabelling_seconds(trainer, newest[0], repeats=20)
    return {
        "rows": rows,
        "relabelling_seconds": relabelling,
        "relabelling_share": relabelling / (steps / rows[0]["steps"]["median"]),
        "bytes": buffer_bytes(trainer, newest[0]),
    }


def table(rows: list[dict[str, Any]], config: SACSkillsConfig) -> Table:
    """What is shown."""
    run, sac = config.run, config.sac
    shown = Table(
        title=f"reacher, spring: {run.num_envs} environments x {run.unroll_length} steps, then "
        f"{sac.updates_per_iteration} gradient steps of {sac.batch_size}"
    )
    for column in ("", "steps/s (median)", "lowest", "highest", "gradient steps/s"):
        shown.add_column(column, justify="right" if column else "left")
    for row in rows:
        figures = [f"{row['steps'][name]:,.0f}" for name in ("median", "low", "high")]
        shown.add_row(row["name"], *figures, f"{row['updates_per_second']:,.0f}")
    return shown


def read_command_line(arguments: Sequence[str]) -> argparse.Namespace:
    """Options, or one line and status 2."""
    parser = Parser(
        prog="python -m benchmarks.sac_throughput",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--against", choices=["brax"], help="the peer; default: none")
    add("--rounds", type=positive, default=5, help="measured epochs of each side (default 5)")
    add("--iterations", type=positive, default=60, help="in one epoch (default 60)")
    add("--json", type=json_file, metavar="FILE", help="write everything there as well")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure; the exit status."""
    options = read_command_line(sys.argv[1:] if arguments is None else arguments)
    prepare_cpu_devices(spare_threads=True)
    console, progress = consoles()
    results: dict[str, Any] = {"machine": machine()}
    with device_put_replicated_restored():
        results |= measure(options, progress)
    results["machine"]["load_average_after"] = load_average()
    rows, size = results["rows"], results["bytes"]
    console.print(table(rows, configuration()))
    console.print(f"relabelling: {results['relabelling_share']:.1%} of an iteration")
    console.print(
        f"replay buffer: {size['buffer']:.1f} bytes a transition, fields {size['fields']:.0f}, "
        f"ratio {size['ratio']:.3f}"
    )
    peers = [row["steps"]["median"] for row in rows[1:]]
    results["ratio"] = ratio(rows[0]["steps"]["median"], max(peers)) if peers else float("nan")
    if options.json:
        write_report(options.json, cast(dict[str, Any], without_nan(results)))
    console.print(describe(results["machine"], results["machine"]["load_average_after"]))
    if peers:
        print(f"ratio: {results['ratio']:.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
