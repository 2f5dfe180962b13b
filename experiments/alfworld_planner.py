"""Train a planner of household games by imitation: `python -m experiments.alfworld_planner`.

The demonstrations are made while it trains: an expert that searches plays with mistakes and labels
every state that they lead to. Nothing is trained on or chosen by but train games; the panels are
played at the end.
"""

import functools
import hashlib
import json
import pathlib
import random
import sys
import time
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from envs.household.data import DataError, data_root, list_games
from envs.household.format import FORMATS
from envs.household.game import load_game
from envs.household.panels import games_digest, load_panel
from envs.household.pddl import GameFileError
from envs.text.scores import score_by_type
from envs.text.transcripts import write_transcripts
from experiments.alfworld_data import (
    Demonstrator,
    find_games,
    human_goals,
    share_below,
)
from experiments.hindsight_data import HindsightDemonstrator, solved_games
from experiments.household_episodes import LabelledEpisode, visited_states
from experiments.household_rounds import label_episode, play_games
from experiments.planner_config import PlannerConfig, continued, read_command_line
from experiments.planner_inputs import check_games, input_sources
from experiments.planner_model import batch_shapes, make_learner
from jaxagent.models.llm.lora import save_lora
from jaxagent.planning.household_player import HouseholdPlayer
from jaxagent.planning.planner_files import Planner, save_planner
from jaxagent.training.chunks import Position
from jaxagent.training.config import refuse, to_plain
from jaxagent.training.devices import prepare_cpu_devices, use_compilation_cache
from jaxagent.training.ending import exit_status
from jaxagent.training.inputs import keep_inputs
from jaxagent.training.interruption import leave_on_signals
from jaxagent.training.metrics import read_metrics
from jaxagent.training.progress import Reporter
from jaxagent.training.run_folder import open_run_folder, record_of, write_config
from jaxagent.training.sft import Teaching, Validation, data_mesh
from jaxagent.training.sft_curves import plot_teaching
from jaxagent.training.written import EpisodeWriter


class Run:
    """One run: games, learner, and what is written about them."""

    def __init__(self, config: PlannerConfig, folder: pathlib.Path, reporter: Reporter) -> None:
        self.config, self.folder, self.reporter = config, folder, reporter
        self.style = FORMATS[config.style]
        self.games = find_games(config)
        self.learner = make_learner(config, self.games)
        self.mesh = data_mesh([s.rows for s in batch_shapes(config)], config.run.num_devices)
        self.visited = visited_states(folder / "visited")
        self.solved = solved_games(folder / "solved")
        self.demonstrator = self._hindsight() if config.stage == "rl" else self._expert()

    def _hindsight(self) -> HindsightDemonstrator:
        config = self.config
        return HindsightDemonstrator(
            self.games.by_name(),
            config.algorithm,
            config.play,
            EpisodeWriter(self.style, self.learner.tokenizer),
            batch_shapes(config),
            config.run.seed,
            self.solved,
            config.renumbered_share,
        )

    def _expert(self) -> Demonstrator:
        config = self.config
        return Demonstrator(
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
        if isinstance(self.demonstrator, HindsightDemonstrator):
            tasks = sum(self.demonstrator.walked.values())
            played += (
                f"; learns from {config.play.walks:,} random walks, which solved {tasks:,} tasks, "
                f"and from rounds of play every {config.play.play_interval:,} updates"
            )
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
            between=self._rounds(),
        )
        state, _ = teaching.train(config.resume)
        self.judge(state.params)

    def player(self, params: Any, is_constrained: bool = False, **sampling: Any) -> HouseholdPlayer:
        """Someone who plays with these parameters."""
        model = self._planner(params).playing()
        return HouseholdPlayer(model, is_constrained=is_constrained, **sampling)

    def validate(self, params: Any) -> Validation:
        """Plays the validation games, greedily; freely if it imitates an expert."""
        begin = time.perf_counter()
        player = self.player(params, self.config.stage == "rl")
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
        result: dict[str, Any] = {"panels": {}}
        for name, games, goals in self._panels():
            result["panels"][name] = games_digest(games)
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

    def _rounds(self):
        source, updates = self.demonstrator, self.config.run.num_updates
        if not isinstance(source, HindsightDemonstrator):
            return self._dagger_rounds()
        every = self.config.play.play_interval
        places = range(every, updates, every) if every else ()
        return {
            at: functools.partial(self._play, source, number) for number, at in enumerate(places, 1)
        }

    def _play(
        self, source: HindsightDemonstrator, number: int, params: Any, position: Position
    ) -> None:
        """One round: train games played for their own goals, sampled; what they solved is kept."""
        play, seed = self.config.play, self.config.run.seed
        games = source.drawn_games(random.Random(f"play-{seed}-{number}"))
        key = jax.random.fold_in(jax.random.key(seed), number)
        player = self.player(params, True, temperature=play.play_temperature, key=key)
        episodes = play_games(player, games, horizon=play.play_steps)
        solved = [s for game, e in zip(games, episodes) for s in source.solved(game, e)]
        # The next chunk may be made already.
        self.solved.add(position.chunk + 2, solved, number)
        won = sum(each.won for each in episodes)
        self.reporter.say(
            f"round {number}: won {won} of {len(games)} train games; {len(solved)} tasks solved"
        )


def _by_hash(path: pathlib.Path) -> str:
    return hashlib.sha256("/".join(path.parts[-3:-1]).encode()).hexdigest()


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
