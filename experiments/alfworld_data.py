"""What the household planner learns from: games, their splits, and demonstrations without end."""

import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from envs.text.bridge import GameCache
from envs.text.game import Game
from envs.text.household import household
from envs.text.noisy import Noise, demonstrate_noisily
from jaxagent.models.llm.words import WordTokenizer
from jaxagent.planning.household_format import compact_words
from jaxagent.training.packing import Shape, TokenBatch, TokenEpisode, pack
from jaxagent.training.written import EpisodeWriter, LabelledTurn

VALIDATION_SHARE = 0.034
FLOOR_PLAN_SHARE = 0.15
CHUNK = 256
_SPARE_NUMBERS = 4


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


def entity_tokenizer() -> WordTokenizer:
    """The compact formats' tokeniser: every kind of thing there is, with room for more of each."""
    facts = household()
    highest: dict[str, int] = {}
    for room in facts.rooms.values():
        for counts in (room.receptacles, room.objects):
            for kind, shares in counts.items():
                most = max(map(int, shares))
                highest[kind.lower()] = max(highest.get(kind.lower(), 1), most)
    for kind in (*facts.accepts, *(item for items in facts.attributes.values() for item in items)):
        highest.setdefault(kind.lower(), 1)
    kinds = {kind: most + _SPARE_NUMBERS for kind, most in sorted(highest.items())}
    return WordTokenizer(compact_words(), kinds)


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
    """

    paths: Sequence[Path]
    generated: Sequence[Game]
    generated_share: float
    writer: EpisodeWriter
    shapes: Sequence[Shape]
    noise: Noise
    seed: int
    cache: GameCache

    def episodes(self, chunk: int) -> list[TokenEpisode]:
        """The episodes of one chunk."""
        rng = random.Random(f"demonstrations-{self.seed}-{chunk}")
        made = []
        while len(made) < CHUNK:
            demonstration = demonstrate_noisily(self._draw(rng), rng, self.noise)
            if demonstration is not None:
                turns = [
                    LabelledTurn(t.command, t.label, t.subgoal, t.observation)
                    for t in demonstration.turns
                ]
                made.append(self.writer.write(demonstration.opening, turns))
        return made

    def batches(self, chunk: int) -> list[TokenBatch]:
        """The batches of one chunk, shuffled."""
        batches = pack(self.episodes(chunk), self.shapes)
        random.Random(f"batches-{self.seed}-{chunk}").shuffle(batches)
        return batches

    def _draw(self, rng: random.Random) -> Game:
        if self.generated and (not self.paths or rng.random() < self.generated_share):
            return rng.choice(self.generated)
        return self.cache.get(rng.choice(self.paths))
