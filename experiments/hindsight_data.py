"""What a household planner learns from without demonstrations: its own play, in hindsight."""

import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from envs.household.game import Game
from envs.household.relabel import RelabelledEpisode, relabelled
from envs.household.task import TASK_TYPES, Task
from envs.household.walks import (
    Solution,
    critical_path,
    random_walk,
    solutions,
    with_other_thing,
)
from envs.text.batch import GameCache
from experiments.alfworld_data import CHUNK, renumbered
from experiments.hindsight_config import HindsightConfig
from experiments.household_episodes import LabelledEpisode, Rounds
from jaxagent.losses import hindsight_weights
from jaxagent.text import Episode, GameSource
from jaxagent.training.packing import Shape, TokenBatch, TokenEpisode, pack
from jaxagent.training.written import EpisodeWriter, LabelledTurn

SOLVED_FORMAT = "jaxagent.solved.1"
_LONGEST = 64  # turns of an episode, padded: one shape for all


class Solved(NamedTuple):
    """A task solved in one game, and whether it is the game's own, solved in play."""

    game: str
    kind: str
    item: str
    target: str
    commands: list[str]
    is_own: bool

    @property
    def solution(self) -> Solution:
        """As `envs.text.walks` has it."""
        return Solution(Task(self.kind, self.item, self.target), tuple(self.commands))


def solved_games(folder: Path) -> Rounds[Solved]:
    """What rounds of play have solved."""
    return Rounds(folder, SOLVED_FORMAT, _parsed)


def _parsed(episodes: Any) -> list[Solved]:
    try:
        kept = [Solved(*each) for each in episodes]
    except TypeError:
        raise ValueError(f"it does not hold what {SOLVED_FORMAT!r} does") from None
    for number, each in enumerate(kept):
        texts = [each.game, each.kind, each.item, each.target]
        texts += each.commands if isinstance(each.commands, list) else [None]
        if not all(isinstance(text, str) for text in texts) or each.kind not in TASK_TYPES:
            raise ValueError(f"episode {number} is not what {SOLVED_FORMAT!r} holds")
    return kept


class Pool:
    """Solved tasks to draw from: every type of task alike, frequent things less than rare ones.

    P(type) is uniform; within a type P ∝ n⁻¹ᐟ² for each of the n solutions with the same thing,
    times the weight of the task.

    Args (of the constructor):
        solved: what there is.
        wanted: tasks that train games ask for.
        other: weight of all other tasks.
    """

    def __init__(self, solved: Iterable[Solved], wanted: set[Task], other: float) -> None:
        by_kind: dict[str, list[Solved]] = {}
        for each in solved:
            if other or each.solution.task in wanted:
                by_kind.setdefault(each.kind, []).append(each)
        self._kinds = []
        for kind in sorted(by_kind):
            counts = Counter(each.item for each in by_kind[kind])
            weights = [
                counts[each.item] ** -0.5 * (1.0 if each.solution.task in wanted else other)
                for each in by_kind[kind]
            ]
            self._kinds.append((by_kind[kind], list(np.cumsum(weights))))

    def __bool__(self) -> bool:
        return bool(self._kinds)

    def draw(self, rng: random.Random) -> Solved:
        """One of them."""
        solved, cumulative = rng.choice(self._kinds)
        return rng.choices(solved, cum_weights=cumulative)[0]


class HindsightDemonstrator:
    """Episodes of tasks that the planner's own play solved, chunk after chunk.

    A chunk depends on its number and on the rounds that may serve it.

    Args (of the constructor):
        games: train games by name: files, or games themselves.
        algorithm: hindsight relabels what was played by what it achieved; own_successes keeps the
            games that were won.
        config: of the play.
        writer: of the episodes.
        shapes: of the batches.
        seed: decides everything.
        rounds: see `solved_games`.
        renumbered_share: how many of the episodes are `renumbered`.

    Raises (the constructor):
        ValueError: the walks solved nothing that may be learnt from.
    """

    def __init__(
        self,
        games: Mapping[str, GameSource],
        algorithm: str,
        config: HindsightConfig,
        writer: EpisodeWriter,
        shapes: Sequence[Shape],
        seed: int,
        rounds: Rounds[Solved],
        renumbered_share: float,
    ) -> None:
        self._config, self._writer, self._shapes = config, writer, shapes
        self._seed, self._rounds, self._renumbered_share = seed, rounds, renumbered_share
        self._relabels = algorithm == "hindsight"
        self._sources, self._cache = games, GameCache()
        tasks = [self.game(name).task for name in games]
        self._wanted = {task for task in tasks if task is not None}
        self._walked = self._walk(sorted(games))
        self._pool = self._pool_of(self._walked)
        if not self._pool:
            raise ValueError(
                f"walks ({config.walks} of {config.walk_steps} commands) solved no task that "
                f"algorithm ({algorithm}) may learn from: more or longer walks may"
            )

    @property
    def walked(self) -> Counter[str]:
        """How many tasks of each type the random walks solved."""
        return Counter(each.kind for each in self._walked)

    def game(self, name: str) -> Game:
        """A train game by its name."""
        return self._cache.get(self._sources[name])

    def drawn_games(self, rng: random.Random) -> list[Game]:
        """The games of one round of play."""
        names = sorted(self._sources)
        number = min(self._config.play_games, len(names))
        return [self.game(name) for name in rng.sample(names, number)]

    def batches(self, chunk: int) -> list[TokenBatch]:
        """The batches of one chunk, shuffled."""
        batches = pack(self.episodes(chunk), self._shapes)
        random.Random(f"batches-{self._seed}-{chunk}").shuffle(batches)
        return batches

    def episodes(self, chunk: int) -> list[TokenEpisode]:
        """The episodes of one chunk."""
        rng = random.Random(f"hindsight-{self._seed}-{chunk}")
        played = self._rounds.before(chunk)
        own = self._pool_of(_shortest(each for each in played if each.is_own))
        relabelled_play = [each for each in played if not each.is_own]
        pool = self._pool_of([*self._walked, *relabelled_play]) if relabelled_play else self._pool
        made: list[RelabelledEpisode] = []
        while len(made) < CHUNK:
            is_own = bool(own) and rng.random() < self._config.own_share
            solved = (own if is_own else pool).draw(rng)
            game, solution = self.game(solved.game), solved.solution
            if self._relabels and not is_own and rng.random() < self._config.other_things:
                solution = with_other_thing(game, solution, self._wanted, rng) or solution
            has_visits = self._config.inserted_visits
            episode = relabelled(game, solution, rng, has_visits=has_visits)
            if episode is not None:
                made.append(episode)
        labelled = [
            renumbered(episode, rng) if rng.random() < self._renumbered_share else episode
            for episode in labelled_episodes(made, self._config.exploration_weight, rng)
        ]
        return [self._writer.write(*episode) for episode in labelled]

    def solved(self, game: Game, episode: Episode) -> list[Solved]:
        """What an episode of play solved: the game, if it was won, and in hindsight the rest."""
        found = solutions(game, episode.commands) if self._relabels else []
        kept = [_solved(game, each, is_own=False) for each in found if each.task != game.task]
        if episode.won and game.task is not None:
            path = critical_path(game, game.task, episode.commands)
            kept.append(_solved(game, Solution(game.task, tuple(path)), is_own=True))
        return kept

    def _pool_of(self, solved: Iterable[Solved]) -> Pool:
        return Pool(solved, self._wanted, self._config.other_goals)

    def _walk(self, names: Sequence[str]) -> list[Solved]:
        found: list[Solved] = []
        for number in range(self._config.walks):
            rng = random.Random(f"walk-{self._seed}-{number}")
            game = self.game(rng.choice(names))
            commands = random_walk(game, rng, self._config.walk_steps)
            if self._relabels:
                found += [_solved(game, each, False) for each in solutions(game, commands)]
            else:
                own = [s for s in solutions(game, commands) if s.task == game.task]
                found += [_solved(game, each, True) for each in own]
        return found


def _solved(game: Game, solution: Solution, is_own: bool) -> Solved:
    return Solved(game.name, *solution.task, list(solution.commands), is_own)


def _shortest(solved: Iterable[Solved]) -> list[Solved]:
    """Of each game and task the shortest solution."""
    best: dict[tuple[str, Task], Solved] = {}
    for each in solved:
        key = each.game, each.solution.task
        if key not in best or len(each.commands) < len(best[key].commands):
            best[key] = each
    return list(best.values())


_weights = jax.jit(hindsight_weights, static_argnames="exploration_weight")


def labelled_episodes(
    episodes: Sequence[RelabelledEpisode], exploration_weight: float, rng: random.Random
) -> list[LabelledEpisode]:
    """Relabelled episodes with `hindsight_weights` turned into labels.

    A command is taught with its weight as probability, and has an empty label otherwise. Of a go
    that is not, the verb is taught nevertheless: that the thing was not here is known.

    Args:
        episodes: of at most `_LONGEST` turns.
        exploration_weight: see `hindsight_weights`.
        rng: draws what is taught.
    """
    shape = (_LONGEST, len(episodes))
    critical, seen, first = (np.zeros(shape, bool) for _ in range(3))
    for column, episode in enumerate(episodes):
        rows = np.array([turn[2:] for turn in episode.turns])
        for array, values in zip((critical, seen, first), rows.T):
            array[: len(values), column] = values
    nowhere = np.zeros(shape, bool)  # an episode ends where its goal is reached
    weights = np.asarray(
        _weights(nowhere, critical, seen, first, exploration_weight=exploration_weight)
    )
    return [
        LabelledEpisode(
            episode.opening,
            [
                LabelledTurn(
                    turn.command, _label(turn.command, rng.random() < weight), "", turn.observation
                )
                for turn, weight in zip(episode.turns, weights[:, column])
            ],
        )
        for column, episode in enumerate(episodes)
    ]


def _label(command: str, is_taught: bool) -> str:
    if is_taught:
        return command
    return "go" if command.startswith("go ") else ""
