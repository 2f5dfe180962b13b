"""How fast the tiny planner trains and plays: `python -m benchmarks.planner_throughput`.

Training: tokens a second on packed demonstrations, beside the same model in PyTorch with as many
threads (``--against torch``), in turns. Playing: 140 games, greedy, to their ends, side by side.
"""

import argparse
import dataclasses
import json
import os
import pathlib
import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from benchmarks.planner_peer import TorchPlanner
from envs.household.format import FORMATS
from envs.household.generator import generate_games
from envs.household.noisy_demonstrations import Noise
from envs.household.world import HOUSEHOLD
from experiments.alfworld_data import Demonstrator, entity_tokenizer
from experiments.household_rounds import play_games
from experiments.planner_config import PlannerConfig, preset
from experiments.planner_model import batch_shapes, tiny_model
from jaxagent.agents.planner import OPTIMIZERS, Imitation, TokenBatch
from jaxagent.models.llm.words import with_embedding
from jaxagent.planning import household_player
from jaxagent.planning.household_player import HouseholdPlayer, PlannerModel
from jaxagent.planning.planner_files import load_planner
from jaxagent.training.devices import prepare_cpu_devices, use_compilation_cache
from jaxagent.training.progress import Reporter
from jaxagent.training.sft import SFTRunConfig, Teaching, Validation, data_mesh
from jaxagent.training.written import EpisodeWriter

_GAMES = 140


def some_batches(
    count: int, optimizer: str = "muon"
) -> tuple[list[TokenBatch], Imitation, PlannerConfig]:
    """Real batches of one shape, and the tiny planner that trains on them."""
    config = preset("tiny", None)
    imitation = dataclasses.replace(config.imitation, optimizer=optimizer)
    tokenizer = entity_tokenizer()
    games = [made.game for made in generate_games(60, 0)]
    demonstrator = Demonstrator(
        paths=[],
        generated=games,
        generated_share=1.0,
        writer=EpisodeWriter(FORMATS["compact"], tokenizer),
        shapes=batch_shapes(config),
        noise=Noise(),
        seed=0,
    )
    batches = demonstrator.batches(0)
    usual = [b for b in batches if b.tokens.shape == (config.rows, config.row_tokens)]
    model = tiny_model(tokenizer, "compact")
    agent = Imitation(model, imitation, 10_000, factors=tokenizer.factors)
    return usual[:count], agent, config


def tokens_per_second(update: Callable[[TokenBatch], object], batches: list[TokenBatch]) -> float:
    """Live tokens a second of one pass over the batches; the update waits for its result."""
    tokens = sum(int((batch.segment_ids != 0).sum()) for batch in batches)
    began = time.perf_counter()
    for batch in batches:
        update(batch)
    return tokens / (time.perf_counter() - began)


def train(
    repeats: int, count: int, optimizer: str, is_against_torch: bool, threads: int
) -> dict[str, float]:
    """Training figures; the sides take turns and the best of each counts."""
    batches, agent, config = some_batches(count, optimizer)
    mesh = data_mesh([shape.rows for shape in batch_shapes(config)], None)
    teaching = Teaching(
        imitation=agent,
        chunk=lambda number: batches,
        validate=lambda params: Validation(0.0, {}),
        keep=lambda params, is_best: None,
        run=SFTRunConfig(),
        mesh=mesh,
        folder=pathlib.Path("."),
        reporter=Reporter(),
    )
    state = [teaching.start()]

    def ours(batch: TokenBatch) -> float:
        stacked = jax.tree.map(lambda x: np.asarray(x)[None], batch)
        state[0], metrics = teaching.step(state[0], stacked)
        return float(metrics["loss"])

    sides: dict[str, Callable[[TokenBatch], object]] = {"jaxagent": ours}
    if is_against_torch:
        peer = TorchPlanner(agent.model, agent.config, threads)
        sides["torch"] = peer.update
    for update in sides.values():
        update(batches[0])
    best = dict.fromkeys(sides, 0.0)
    for _ in range(repeats):
        for name, update in sides.items():
            best[name] = max(best[name], tokens_per_second(update, batches))
    figures = {f"train_tokens_per_second_{name}": rate for name, rate in best.items()}
    figures["train_programs"] = float(compiled_programs(teaching.update))
    figures["devices"] = float(mesh.devices.size)
    return figures


def compiled_programs(jitted: Any) -> int:
    """How many programs a jitted function has been compiled to."""
    return jitted._cache_size()


def play(repeats: int, planner: str | None) -> dict[str, float]:
    """Seconds for 140 games, compilation apart; an untrained planner plays all of them to the end.

    Args:
        repeats: the best counts.
        planner: name or folder; None is untrained.
    """
    games = [made.game for made in generate_games(_GAMES, 3, "unseen")]
    if planner is None:
        _, agent, _ = some_batches(1)
        params = with_embedding(agent.init(jax.random.key(0)).params, agent.factors)
        model = PlannerModel(agent.model, params, entity_tokenizer(), FORMATS["compact"])
    else:
        model = load_planner(planner, HOUSEHOLD).playing()
    play_turn: Any = household_player.play_turn
    play_turn.clear_cache()
    seconds, won, programs = [], 0, []
    for _ in range(repeats + 1):
        began = time.perf_counter()
        episodes = play_games(HouseholdPlayer(model), games)
        seconds.append(time.perf_counter() - began)
        won = sum(episode.won for episode in episodes)
        programs.append(compiled_programs(play_turn))
    return {
        "play_140_seconds": min(seconds[1:]),
        "play_140_seconds_with_compilation": seconds[0],
        "play_won": float(won),
        "play_programs": float(programs[-1]),
        "play_programs_after_first_round": float(programs[0]),
    }


def main(arguments: list[str] | None = None) -> int:
    """The command line; see ``--help``."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.planner_throughput",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--against", choices=["torch"], help="train the same model in PyTorch in the same run")
    add("--optimizer", choices=OPTIMIZERS, default="muon", help="of both sides (default muon)")
    add("--planner", help="who plays: tiny, or a planner's folder (default: untrained)")
    add("--repeats", type=int, default=5, help="repetitions, the best counts (default 5)")
    add("--batches", type=int, default=12, help="batches of a repetition (default 12)")
    add("--json", type=pathlib.Path, help="file to write the figures to")
    options = parser.parse_args(arguments)
    if min(options.repeats, options.batches) < 1:
        parser.error("--repeats and --batches must both be at least 1")
    prepare_cpu_devices()
    use_compilation_cache()
    threads = os.cpu_count() or 1
    try:
        is_against_torch = options.against == "torch"
        figures = train(
            options.repeats, options.batches, options.optimizer, is_against_torch, threads
        )
        figures |= play(max(options.repeats // 2, 1), options.planner)
    except (ImportError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for name, value in figures.items():
        print(f"{name:<40}{value:>14,.2f}")
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    if options.against:
        ratio = (
            figures["train_tokens_per_second_jaxagent"] / figures["train_tokens_per_second_torch"]
        )
        print(f"ratio {ratio:.2f} (training tokens/s, {threads} threads; the bar is 1.0)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
