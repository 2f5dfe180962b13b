"""What the household planner learns from: games, their splits, and demonstrations without end."""

import hashlib
import json
import random
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from envs.household.data import DataError, data_root, list_games
from envs.household.format import compact_words, plain_words
from envs.household.frequencies import household
from envs.household.game import Game, load_game
from envs.household.generator import generate_games
from envs.household.noisy_demonstrations import Noise, demonstrate_noisily
from envs.text.batch import GameCache
from experiments.household_episodes import LabelledEpisode, Rounds, recorded_episodes
from experiments.planner_config import PlannerConfig
from jaxagent.models.llm.words import WordTokenizer, words_of
from jaxagent.text import GameSource
from jaxagent.training.packing import Shape, TokenBatch, TokenEpisode, pack
from jaxagent.training.written import EpisodeWriter, LabelledTurn

VALIDATION_SHARE = 0.034
FLOOR_PLAN_SHARE = 0.15
CHUNK = 256
_SPARE_NUMBERS = 4
_GENERATED_SEED = 1
_VALIDATION_SEED = 2


def share_below(name: str, share: float) -> bool:
    """Whether a name's hash lies in the first ``share`` of all hashes: a split that never moves."""
    digest = hashlib.sha256(name.encode()).digest()
    return int.from_bytes(digest[:8], "big") < share * 2**64


def floor_plan(path: Path) -> str:
    """The floor plan of a game of the benchmark, the last part of its task folder's name."""
    return path.parent.parent.name.rpartition("-")[2]


class Split(NamedTuple):
    """Train games of the benchmark, divided."""

    train: list[Path]
    validation: list[Path]
    held_out: list[Path]


def split_games(paths: Sequence[Path], *, hold_out_floor_plans: bool = False) -> Split:
    """Divides games by the hash of their names.

    Args:
        paths: train games.
        hold_out_floor_plans: also keep whole floor plans out of training.

    Returns:
        Games to train on, to select by, and on floor plans held out (none by default).
    """

    def is_held_out(path: Path) -> bool:
        return hold_out_floor_plans and share_below(floor_plan(path), FLOOR_PLAN_SHARE)

    held_out = [path for path in paths if is_held_out(path)]
    rest = [path for path in paths if not is_held_out(path)]
    chosen = {p for p in rest if share_below("/".join(p.parts[-3:-1]), VALIDATION_SHARE)}
    return Split([p for p in rest if p not in chosen], sorted(chosen), held_out)


@lru_cache(maxsize=1)
def kinds_of_things() -> dict[str, int]:
    """Every kind of thing there is, with the highest number that one of them may bear."""
    facts = household()
    highest: dict[str, int] = {}
    for room in facts.rooms.values():
        for counts in (room.receptacles, room.objects):
            for kind, shares in counts.items():
                most = max(map(int, shares))
                highest[kind.lower()] = max(highest.get(kind.lower(), 1), most)
    for kind in (*facts.accepts, *(item for items in facts.attributes.values() for item in items)):
        highest.setdefault(kind.lower(), 1)
    return {kind: most + _SPARE_NUMBERS for kind, most in sorted(highest.items())}


def entity_tokenizer(more_words: Sequence[str] = ()) -> WordTokenizer:
    """The compact formats' tokeniser: every kind of thing there is, with room for more of each.

    Args:
        more_words: of people's sentences.
    """
    kinds = kinds_of_things()
    return WordTokenizer([*compact_words(), *(w for w in more_words if w not in kinds)], kinds)


def plain_tokenizer(games: Sequence[Game], more_words: Sequence[str] = ()) -> WordTokenizer:
    """The plain formats' tokeniser for a model from scratch: the words of the games' texts.

    Args:
        games: whose demonstrations are read, one of each.
        more_words: of people's sentences.
    """
    kinds = kinds_of_things()
    highest = max(kinds.values())
    words = set(kinds) | {str(number) for number in range(1, highest + 1)}
    rng = random.Random(0)
    for game in games:
        demonstration = demonstrate_noisily(game, rng)
        if demonstration is not None:
            words |= set(words_of(demonstration.opening))
            for turn in demonstration.turns:
                words |= set(words_of(f"{turn.label} {turn.subgoal} {turn.observation}"))
    return WordTokenizer(sorted(words | set(more_words) | set(plain_words())))


def human_goals(path: Path) -> list[str]:
    """What people wrote that is to be done in a game, one sentence each.

    Raises:
        DataError: the game's folder has no such sentences.
    """
    file = path.parent / "traj_data.json"
    try:
        annotations = json.loads(file.read_text(encoding="utf-8"))["turk_annotations"]["anns"]
        return [_sentence(annotation["task_desc"]) for annotation in annotations]
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        raise DataError(f"{file} holds no sentences of people (turk_annotations)") from None


def _sentence(text: str) -> str:
    return " ".join(text.lower().strip().rstrip(".").split())


class Games(NamedTuple):
    """What is played: `split` of the benchmark's train games and generated ones."""

    split: Split
    generated: list[Game]
    validation: list[Game]
    validation_goals: list[str]
    """Another wording of each validation game's task; "" keeps it."""
    recorded: list[LabelledEpisode]
    """Episodes of a file, beside those that are played while training."""

    def by_name(self) -> Mapping[str, GameSource]:
        """The benchmark's train games, or the generated ones where there are none."""
        paths = {"/".join(path.parts[-3:-1]): path for path in self.split.train}
        return paths or {game.name: game for game in self.generated}


def find_games(config: PlannerConfig) -> Games:
    """The games, and the recorded episodes, that the configuration names.

    Raises:
        DataError: they are not where they should be, or there are none.
        ValueError: the file of recorded episodes cannot be used.
    """
    recorded = recorded_episodes(Path(config.demonstrations)) if config.demonstrations else []
    split = Split([], [], [])
    if config.source != "generated":
        try:
            paths = list_games(data_root(config.data), "train")
            split = split_games(paths, hold_out_floor_plans=config.hold_out_floor_plans)
        except DataError:
            if config.source == "alfworld" or config.data or config.goals == "human":
                raise
    made = generate_games(config.generated_games, _GENERATED_SEED)
    is_played = config.stage == "sft" and config.generated_share
    generated = [each.game for each in made] if is_played or not split.train else []
    if not split.train and not generated:
        raise DataError(
            "generated_games (0) must be at least 1 where the benchmark's train games are not "
            "found: see --data and ALFWORLD_DATA"
        )
    if split.validation:
        chosen = split.validation[: config.validation_games]
        goals = [human_goals(p)[0] if config.goals == "human" else "" for p in chosen]
        return Games(split, generated, [load_game(path) for path in chosen], goals, recorded)
    validation = [g.game for g in generate_games(config.validation_games, _VALIDATION_SEED, "seen")]
    return Games(split, generated, validation, [""] * len(validation), recorded)


def with_goal(opening: str, sentence: str) -> str:
    """The opening with another wording of its task."""
    before, found, _ = opening.rpartition("Your task is to: ")
    return f"{before}{found}{sentence}." if found else opening


def human_words(paths: Sequence[Path], least: int = 3) -> list[str]:
    """Words of people's sentences about these games, those that occur at least so often."""
    counts = Counter(
        word for path in paths for sentence in human_goals(path) for word in words_of(sentence)
    )
    return sorted(word for word, count in counts.items() if count >= least)


_NAME = re.compile(r"\b([a-z]+) ([0-9]{1,9})\b")


def renumbered(episode: LabelledEpisode, rng: random.Random) -> LabelledEpisode:
    """The same episode with other numbers in the names of its things, the same all through.

    In a floor plan a thing has the same number in every game, so numbers can be learnt by heart;
    here they have to be read. The order of the things of a kind stays: it is what places are
    searched in.

    Args:
        episode: as it was played.
        rng: decides the numbers.
    """
    kinds = kinds_of_things()
    texts = [episode.opening, *(text for turn in episode.turns for text in turn)]
    names = {found for text in texts for found in _NAME.findall(text) if found[0] in kinds}
    numbers: dict[str, list[int]] = {}
    for kind, number in sorted(names):
        numbers.setdefault(kind, []).append(int(number))
    new = {}
    for kind, old in numbers.items():
        drawn = rng.sample(range(1, max(kinds[kind], *old) + 1), len(old))
        new |= {(kind, str(a)): f"{kind} {b}" for a, b in zip(sorted(old), sorted(drawn))}

    def rename(text: str) -> str:
        return _NAME.sub(lambda found: new.get(found.groups(), found.group()), text)

    turns = [LabelledTurn(*map(rename, turn)) for turn in episode.turns]
    return LabelledEpisode(rename(episode.opening), turns)


@dataclass(frozen=True)
class Demonstrator:
    """Plays games as the expert with mistakes, chunk after chunk; a chunk depends on its number.

    Attributes:
        paths: games of the benchmark.
        generated: games of the generator.
        generated_share: how many of the episodes are played in those.
        writer: of the episodes.
        shapes: of the batches.
        noise: of the demonstrations.
        seed: decides everything.
        are_goals_human: tasks of the benchmark's games as people worded them.
        visited: what the planner itself has visited.
        visited_share: how many of the episodes are taken from there, once there are some.
        recorded: episodes of a file.
        recorded_share: how many of the other episodes are taken from there.
        renumbered_share: how many of the episodes are `renumbered`.
    """

    paths: Sequence[Path]
    generated: Sequence[Game]
    generated_share: float
    writer: EpisodeWriter
    shapes: Sequence[Shape]
    noise: Noise
    seed: int
    are_goals_human: bool = False
    visited: Rounds[LabelledEpisode] | None = None
    visited_share: float = 0.0
    recorded: Sequence[LabelledEpisode] = ()
    recorded_share: float = 0.0
    renumbered_share: float = 0.0
    games: GameCache = field(default_factory=GameCache)

    def episodes(self, chunk: int) -> list[TokenEpisode]:
        """The episodes of one chunk."""
        rng = random.Random(f"demonstrations-{self.seed}-{chunk}")
        visited = self.visited.before(chunk) if self.visited else []
        made = []
        while len(made) < CHUNK:
            if visited and rng.random() < self.visited_share:
                episode = rng.choice(visited)
            elif self.recorded and rng.random() < self.recorded_share:
                episode = rng.choice(self.recorded)
            else:
                episode = self._demonstrate(rng)
            if episode is not None:
                if rng.random() < self.renumbered_share:
                    episode = renumbered(episode, rng)
                made.append(self.writer.write(*episode))
        return made

    def batches(self, chunk: int) -> list[TokenBatch]:
        """The batches of one chunk, shuffled."""
        batches = pack(self.episodes(chunk), self.shapes)
        random.Random(f"batches-{self.seed}-{chunk}").shuffle(batches)
        return batches

    def _demonstrate(self, rng: random.Random) -> LabelledEpisode | None:
        game, path = self._draw(rng)
        demonstration = demonstrate_noisily(game, rng, self.noise)
        if demonstration is None:
            return None
        opening = demonstration.opening
        if path is not None and self.are_goals_human:
            opening = with_goal(opening, rng.choice(human_goals(path)))
        turns = [LabelledTurn(t.command, t.label, t.subgoal, t.observation)
                 for t in demonstration.turns]  # fmt: skip
        return LabelledEpisode(opening, turns)

    def _draw(self, rng: random.Random) -> tuple[Game, Path | None]:
        if self.generated and (not self.paths or rng.random() < self.generated_share):
            return rng.choice(self.generated), None
        path = rng.choice(self.paths)
        return self.games.get(path), path
