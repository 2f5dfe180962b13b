"""Train a planner of household games by imitation: `python -m experiments.alfworld_planner`.

The demonstrations are made while it trains: an expert that searches plays with mistakes and labels
every state that they lead to. Nothing is trained on or chosen by but train games; the panels are
played at the end.
"""

import dataclasses
import functools
import hashlib
import json
import pathlib
import random
import sys
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from envs.household.data import DataError, data_root, list_games
from envs.household.format import FORMATS
from envs.household.game import load_game
from envs.household.panels import load_panel
from envs.household.pddl import GameFileError
from envs.household.world import HOUSEHOLD
from envs.text.scores import score_by_type
from envs.text.transcripts import write_transcripts
from experiments.alfworld_data import (
    Demonstrator,
    Games,
    entity_tokenizer,
    find_games,
    human_goals,
    human_words,
    plain_tokenizer,
    share_below,
)
from experiments.household_episodes import LabelledEpisode, VisitedStates, words_in
from experiments.household_rounds import label_episode, play_games
from experiments.planner_config import PlannerConfig, continued, read_command_line
from experiments.planner_inputs import check_games, input_sources
from jaxagent.agents.planner import Imitation
from jaxagent.models.llm.config import LlamaConfig
from jaxagent.models.llm.load import load_model
from jaxagent.models.llm.lora import LoRA, save_lora
from jaxagent.models.llm.words import SubwordTokenizer, WordTokenizer
from jaxagent.planning.household_player import HouseholdPlayer
from jaxagent.planning.planner_files import Planner, load_planner, save_planner
from jaxagent.training.chunks import Position
from jaxagent.training.config import refuse, to_plain
from jaxagent.training.devices import prepare_cpu_devices, use_compilation_cache
from jaxagent.training.ending import exit_status
from jaxagent.training.inputs import keep_inputs
from jaxagent.training.interruption import leave_on_signals
from jaxagent.training.metrics import read_metrics
from jaxagent.training.packing import Shape
from jaxagent.training.progress import Reporter
from jaxagent.training.run_folder import open_run_folder, record_of, write_config
from jaxagent.training.sft import Teaching, Validation, data_mesh
from jaxagent.training.sft_curves import plot_teaching
from jaxagent.training.written import EpisodeWriter

# Tokens an episode may have at the most; longer ones lose their oldest turns while playing.
_CONTEXT = {"compact": 1024, "plain": 2048}


class Learner(NamedTuple):
    """What learns, and what it needs to be written and kept."""

    imitation: Imitation
    tokenizer: WordTokenizer | SubwordTokenizer
    initial: Any
    frozen: Any
    source: str | None
    """The language model that training began with; None from scratch."""


def make_learner(config: PlannerConfig, games: Games) -> Learner:
    """The model of the preset with its optimiser.

    Raises:
        ValueError: the model cannot be loaded.
    """
    updates = config.run.num_updates
    if config.preset == "tiny":
        words = human_words(games.split.train) if config.goals == "human" else []
        compact = config.style.startswith("compact")
        if compact:
            tokenizer = entity_tokenizer(words)
        else:
            some = games.generated[:200] or [load_game(p) for p in games.split.train[:200]]
            tokenizer = plain_tokenizer(some, [*words, *words_in(games.recorded)])
        model = tiny_model(tokenizer, config.style, config.dtype)
        imitation = Imitation(
            model, config.imitation, updates, factors=tokenizer.factors if compact else None
        )
        initial = _initial_params(config.initial, imitation, tokenizer)
        return Learner(imitation, tokenizer, initial, None, None)
    source = "smollm2-135m" if config.preset == "smollm2" else config.preset.removeprefix("hf:")
    # What is not learnt needs no more digits than it is computed with.
    base = load_model(source, dtype=config.dtype if config.lora_rank else "float32")  # type: ignore[arg-type]
    model = dataclasses.replace(base.config, dtype=config.dtype, remat=True)
    lora = None
    if config.lora_rank:
        lora = LoRA(rank=config.lora_rank, alpha=2.0 * config.lora_rank)
    imitation = Imitation(model, config.imitation, updates, lora=lora)
    if len(base.tokenizer) > model.vocab_size:
        raise ValueError(
            f"preset ({config.preset}): its tokeniser has {len(base.tokenizer)} tokens, its model "
            f"{model.vocab_size}"
        )
    longest = max(shape.length for shape in batch_shapes(config))
    if longest > model.max_positions:
        raise ValueError(
            f"row_tokens ({config.row_tokens}): episodes may have {longest} tokens, twice as many; "
            f"the context of preset ({config.preset}) has {model.max_positions}"
        )
    tokenizer = SubwordTokenizer(base.tokenizer, model.vocab_size, base.end_tokens)
    initial, frozen = (None, base.params) if lora else (base.params, None)
    return Learner(imitation, tokenizer, initial, frozen, source)


def _initial_params(source: str | None, imitation: Imitation, tokenizer: WordTokenizer) -> Any:
    """Parameters of a planner that has been trained before; None draws them.

    Raises:
        ValueError: it is of another vocabulary or another size.
    """
    if source is None:
        return None
    planner = load_planner(source, HOUSEHOLD)
    known = planner.tokenizer
    if not isinstance(known, WordTokenizer) or known.to_dict() != tokenizer.to_dict():
        raise ValueError(f"initial ({source}) has another vocabulary than this run")
    ours = jax.eval_shape(lambda key: imitation.init(key).params, jax.random.key(0))
    if jax.tree.map(jnp.shape, planner.params) != jax.tree.map(jnp.shape, ours):
        raise ValueError(f"initial ({source}) is a model of another size than this run's")
    return planner.params


def tiny_model(tokenizer: WordTokenizer, style: str, dtype: Any = "float32") -> LlamaConfig:
    """The decoder of about 1 M parameters; its type is that of the family with normed keys."""
    return LlamaConfig(
        model_type="qwen3",
        qk_norm=True,  # Muon's large steps need it: half as many updates to the same loss
        vocab_size=tokenizer.vocab_size,
        hidden_size=128,
        intermediate_size=352,
        num_layers=4,
        num_heads=4,
        num_kv_heads=4,
        head_dim=32,
        max_positions=_CONTEXT[style.partition("-")[0]],
        tie_embeddings=True,
        # 1 / sqrt(128): with the usual 0.02 so narrow a model takes twice as long to learn.
        initializer_range=0.08,
        dtype=dtype,
    )


class Run:
    """One run: games, learner, and what is written about them."""

    def __init__(self, config: PlannerConfig, folder: pathlib.Path, reporter: Reporter) -> None:
        self.config, self.folder, self.reporter = config, folder, reporter
        self.style = FORMATS[config.style]
        self.games = find_games(config)
        self.learner = make_learner(config, self.games)
        self.mesh = data_mesh([s.rows for s in batch_shapes(config)], config.run.num_devices)
        self.visited = VisitedStates(folder / "visited")
        self.demonstrator = Demonstrator(
            paths=self.games.split.train,
            generated=self.games.generated,
            generated_share=config.generated_share,
            writer=EpisodeWriter(self.style, self.learner.tokenizer),
            shapes=batch_shapes(config),
            noise=config.noise,
            seed=config.run.seed,
            are_goals_human=config.goals == "human",
            visited=self.visited,
            visited_share=config.dagger_share,
            recorded=self.games.recorded,
            recorded_share=config.demonstrations_share,
            renumbered_share=config.renumbered_share,
        )

    def describe(self) -> str:
        """What the configuration amounts to."""
        config, games, learner = self.config, self.games, self.learner
        made = len(games.generated)
        source, played = "generated", f"{made:,} generated ones"
        if games.split.train:
            source, share = "alfworld", f" ({config.generated_share:.0%} of the demonstrations)"
            beside = f" and {played}{share}" if made else ""
            played = f"{len(games.split.train):,} of the benchmark{beside}"
        if games.recorded:
            share = f"{config.demonstrations_share:.0%} of the demonstrations"
            played += f", and {len(games.recorded):,} recorded episodes ({share})"
        state = jax.eval_shape(learner.imitation.init, jax.random.key(0), learner.initial)
        count, frozen = (
            sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(tree))
            for tree in (state.params, learner.frozen)
        )
        beside = f" beside {frozen:,} frozen ones" if frozen else ""
        tokens, groups = config.rows * config.row_tokens, config.imitation.accumulation
        batch = f"{config.rows} rows x {config.row_tokens} tokens = {tokens:,} a batch"
        return (
            f"source {source}: trains on {played}; plays "
            f"{len(games.validation)} to choose the planner\n"
            f"devices: {self.mesh.devices.size} x {jax.default_backend()}\n"
            f"{batch}, {groups} to an update; {config.run.num_updates:,} updates; "
            f"{count:,} parameters{beside}"
        )

    def train(self) -> None:
        """To the end, and judge."""
        config = self.config
        teaching = Teaching(
            imitation=self.learner.imitation,
            chunk=self.demonstrator.batches,
            validate=self.validate,
            keep=self.keep,
            run=config.run,
            mesh=self.mesh,
            folder=self.folder,
            reporter=self.reporter,
            config=record_of(config),
            initial=self.learner.initial,
            frozen=self.learner.frozen,
            between=self._dagger_rounds(),
        )
        state, _ = teaching.train(config.resume)
        self.judge(state.params)

    def player(self, params: Any, is_constrained: bool = False) -> HouseholdPlayer:
        """Someone who plays with these parameters."""
        return HouseholdPlayer(self._planner(params).playing(), is_constrained=is_constrained)

    def validate(self, params: Any) -> Validation:
        """Plays the validation games, freely and greedily."""
        begin = time.perf_counter()
        player = self.player(params)
        episodes = play_games(
            player, self.games.validation, self.games.validation_goals, self.config.horizon
        )
        total = score_by_type(episodes)["all"]
        plot_teaching(self.folder / "curves.png", read_metrics(self.folder / "metrics.jsonl"))
        metrics = {
            "success": total.success,
            "mean_steps": total.mean_steps,
            "inadmissible_share": total.inadmissible_share,
            "overflows": float(player.overflows),
            "play_seconds": time.perf_counter() - begin,
        }
        return Validation(total.success, metrics)

    def keep(self, params: Any, is_best: bool) -> None:
        """Writes the planner, with LoRA merged; and the low-rank terms beside it, as PEFT does."""
        folder = self.folder / ("best" if is_best else "last")
        learner = self.learner
        save_planner(folder, self._planner(params))
        if learner.imitation.lora is not None:
            model, lora = learner.imitation.model, learner.imitation.lora
            save_lora(folder / "adapter", model, lora, params, base=learner.source)

    def judge(self, params: Any) -> None:
        """Plays the panels at the end, freely and constrained, and writes evaluation.json."""
        result: dict[str, Any] = {}
        for name, games, goals in self._panels():
            for mode in ("free", "constrained"):
                # What the demonstrations lacked is not what this panel lacks.
                getattr(self.learner.tokenizer, "missing", {}).clear()
                player = self.player(params, mode == "constrained")
                episodes = play_games(player, games, goals, self.config.horizon)
                scores = score_by_type(episodes)
                result[f"{name} {mode}"] = {k: part.as_dict() for k, part in scores.items()}
                total = scores["all"]
                self.reporter.say(
                    f"{name}, {mode}: {total.won} of {total.games} won "
                    f"[{total.success_low:.1%}, {total.success_high:.1%}], "
                    f"{total.mean_steps:.1f} steps"
                )
                page = self.folder / f"{name}-{mode}.html".replace(" ", "-")
                write_transcripts(page, f"{name}, {mode}", episodes, scores)
                for note in player.notes():
                    self.reporter.say(note)
        text = json.dumps(result, indent=1)
        (self.folder / "evaluation.json").write_text(text + "\n", encoding="utf-8")

    def _planner(self, params: Any) -> Planner:
        learner, lora = self.learner, self.learner.imitation.lora
        if lora is not None:
            params = lora.merge(learner.frozen, params)
        made = {"config": record_of(self.config), "games": len(self.games.split.train)}
        # Longer episodes than these are not trained on.
        context = max(s.length for s in batch_shapes(self.config)) if learner.source else None
        model, tokenizer = learner.imitation.model, learner.tokenizer
        return Planner(model, params, tokenizer, self.style, made, context)

    def _panels(self):
        """(name, games, goals) of each panel."""
        most, human = self.config.final_games, self.config.goals == "human"
        if not most:
            return
        if self.games.split.train:
            paths = list_games(data_root(self.config.data), "valid_seen")[:most]
            yield "valid_seen", [load_game(path) for path in paths], [""] * len(paths)
            if human:
                goals = [human_goals(path)[0] for path in paths]
                yield "valid_seen human", [load_game(path) for path in paths], goals
        if self.games.split.held_out:
            # Sorted by hash, so that fewer are a sample of all.
            paths = sorted(self.games.split.held_out, key=_by_hash)[:most]
            yield "held_out_floor_plans", [load_game(path) for path in paths], [""] * len(paths)
        panel = load_panel("generated_unseen")
        games = [game for game, _ in panel.games[:most]]
        yield "generated_unseen", games, [""] * len(games)

    def _dagger_rounds(self):
        rounds, updates = self.config.dagger, self.config.run.num_updates
        places = [updates * number // (rounds + 1) for number in range(1, rounds + 1)]
        return {at: functools.partial(self._visit, number) for number, at in enumerate(places, 1)}

    def _visit(self, number: int, params: Any, position: Position) -> None:
        """One round: the planner plays train games, the expert labels what it has visited."""
        share = self.config.dagger_games / max(len(self.games.split.train), 1)
        paths = [p for p in self.games.split.train if share_below(f"{number}/{p}", share)]
        paths = paths[: self.config.dagger_games]
        made, first = self.games.generated, (number - 1) * self.config.dagger_games
        games = [load_game(path) for path in paths] or [*made[first:], *made[:first]]
        games = games[: self.config.dagger_games]
        goals = [""] * len(games)
        if self.config.goals == "human":
            rng = random.Random(f"visited-{self.config.run.seed}-{number}")
            goals[: len(paths)] = [rng.choice(human_goals(path)) for path in paths]
        episodes = play_games(self.player(params), games, goals, self.config.horizon)
        labelled = [label_episode(game, each) for game, each in zip(games, episodes)]
        # The next chunk may be made already.
        kept = [LabelledEpisode(*each) for each in labelled]
        self.visited.add(position.chunk + 2, kept, number)
        won = sum(each.won for each in episodes)
        self.reporter.say(f"round {number}: played {len(games)} train games, won {won}")


def _by_hash(path: pathlib.Path) -> str:
    return hashlib.sha256("/".join(path.parts[-3:-1]).encode()).hexdigest()


# Share of a row's tokens that are asked for, at most: a little above that of any demonstration.
_ASKED = {"compact": 0.25, "compact-hierarchical": 0.35, "plain": 0.45, "plain-hierarchical": 0.55}


def batch_shapes(config: PlannerConfig) -> list[Shape]:
    """Shapes of batches: the usual one, and half as many rows of twice the length."""
    asked = _ASKED[config.style]
    short, long = config.rows, max(config.rows // 2, 1)
    tokens = config.row_tokens
    return [
        Shape(short, tokens, int(asked * tokens)),
        Shape(long, 2 * tokens, int(2 * asked * tokens)),
    ]


@leave_on_signals()
def main(arguments: Sequence[str] | None = None) -> int:
    """Train; the exit status."""
    arguments = sys.argv[1:] if arguments is None else arguments
    prepare_cpu_devices()
    config = read_command_line(arguments)
    try:
        folder = open_run_folder(config.run, "planner", config.resume)  # type: ignore[arg-type]
        if config.resume:
            config = continued(folder, arguments)
        reporter = Reporter()
        if config.dry_run:
            told = Run(config, folder, reporter).describe()
            print(json.dumps(to_plain(config), indent=2))
            print(told)
            return 0
        use_compilation_cache()
        run = Run(config, folder, reporter)
        reporter.say(run.describe())
        reporter.say(f"run folder: {folder}")
        if config.resume:
            check_games(folder, run.games.split)
        else:
            sources = input_sources(config, run.games.split)
            given = {name: str(getattr(config, name, "")) for name in sources}
            keep_inputs(folder, sources, given)
            write_config(folder, to_plain(config))
        return exit_status(folder, run.train)
    except (DataError, GameFileError, ValueError) as error:
        refuse(str(error))


if __name__ == "__main__":
    sys.exit(main())
