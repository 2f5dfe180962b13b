"""Demonstrations with mistakes and their repair: the expert labels every state that is visited.

What is carried out is not always what the expert says: a random command, one that the game
refuses, the same refused command again, or a place drawn from a wider search. The label is what
the expert says all the while, so that a learner sees how to go on after its own mistakes.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from envs.household.describe import opening_text
from envs.household.engine import NOTHING_HAPPENS, admissible_commands, step
from envs.household.game import Game
from envs.household.memory import Memory
from envs.household.searching_expert import Choice, SearchingExpert
from jaxagent.text import DEFAULT_HORIZON


class NoisyTurn(NamedTuple):
    """What was done, what the expert would have done and for what, and what was printed."""

    command: str
    label: str
    subgoal: str
    observation: str


class Demonstration(NamedTuple):
    """An episode that ends won."""

    game: str
    opening: str
    turns: list[NoisyTurn]


@dataclass(frozen=True)
class Noise:
    """How far the demonstrator strays."""

    random_shares: tuple[float, ...] = (0.0, 0.1, 0.25)
    """Share of commands that are random; each episode draws one of these."""
    refused: float = 0.4
    """Share of the random commands that the game will refuse."""
    repeats: float = 0.4
    """Chance that a refused command is given once more, in episodes with random commands."""
    wide_search: float = 0.25
    """Share of episodes that search in a random order."""
    temperature: float = 2.0
    """Of that order; see `SearchingExpert`."""
    noisy_steps: int = 25
    """From here on the expert has its way, so that the episode ends."""

    def __post_init__(self):
        if not self.random_shares:
            raise ValueError("random_shares () must hold at least one share")
        shares = {name: (getattr(self, name),) for name in ("refused", "repeats", "wide_search")}
        for name, values in {"random_shares": self.random_shares, **shares}.items():
            for value in values:
                # Not "< 0 or > 1", which lets nan pass.
                if isinstance(value, str) or not 0 <= value <= 1:
                    raise ValueError(f"{name} ({value!r}) must lie in [0, 1]")
        if not 0 <= self.temperature < float("inf"):
            raise ValueError(f"temperature ({self.temperature}) must lie in [0, infinity)")
        if not 0 <= self.noisy_steps < DEFAULT_HORIZON:
            raise ValueError(
                f"noisy_steps ({self.noisy_steps}) must lie in [0, {DEFAULT_HORIZON}), the steps "
                "of a demonstration"
            )


def demonstrate_noisily(
    game: Game, rng: random.Random, noise: Noise | None = None, horizon: int = DEFAULT_HORIZON
) -> Demonstration | None:
    """One episode with mistakes.

    The labels depend on nothing but what was printed: where the expert acts at a place that it
    only knows to be within reach from the list of admissible commands, the label is to go there,
    until that was refused once or a look has shown it.

    Args:
        game: what to play; its task must be worded in the benchmark's templates.
        rng: decides all chance.
        noise: how much of what goes wrong; by default `Noise()`.
        horizon: steps within which the episode must be won.

    Returns:
        The episode, or None if it was not won in time.
    """
    noise = noise or Noise()
    share = rng.choice(noise.random_shares)
    state, text = game.initial, opening_text(game, game.initial)
    opening, turns = text, []
    expert = SearchingExpert(text)
    searcher = (
        SearchingExpert(text, temperature=noise.temperature, seed=rng.getrandbits(32))
        if rng.random() < noise.wide_search
        else None
    )
    reached = Reached()
    for number in range(horizon):
        admissible = admissible_commands(game, state)
        choice = expert.act(text, admissible)
        label = reached.visible(choice, expert.memory)
        command = label
        other = searcher.act(text, admissible) if searcher else choice
        if number < noise.noisy_steps:
            if other.subgoal.startswith("find ") and choice.subgoal.startswith("find "):
                command = reached.visible(other, expert.memory)
            refused_before = bool(turns) and text == NOTHING_HAPPENS and share > 0
            if refused_before and rng.random() < noise.repeats:
                command = turns[-1].command
            elif rng.random() < share:
                command = _mistake(rng, noise, expert, admissible, reached)
        state, text, _, _ = step(game, state, command)
        reached.read(command, text)
        turns.append(NoisyTurn(command, label, choice.subgoal, text))
        if state.won:
            return Demonstration(game.name, opening, turns)
    return None


class Reached:
    """The receptacles that the printed text has shown to be within reach."""

    def __init__(self) -> None:
        self.places: set[str] = set()

    def visible(self, choice: Choice, memory: Memory) -> str:
        """The expert's command, or to go to its place first while nothing says that it is here."""
        verb = choice.command.partition(" ")[0]
        if verb in ("go", "look", "inventory"):
            return choice.command
        if verb == "use":
            lamp = choice.command.removeprefix("use ")
            places = [at for name, at in memory.where(lamp.rpartition(" ")[0]) if name == lamp]
            place = places[0] if places else ""
        else:
            place = " ".join(choice.command.split(" ")[-2:])
        if place in memory.receptacles and place not in self.places:
            return f"go to {place}"
        return choice.command

    def read(self, command: str, text: str) -> None:
        """Takes in a command and what it printed."""
        if command.startswith("go to "):
            if text != NOTHING_HAPPENS:
                self.places.clear()
            self.places.add(command.removeprefix("go to "))
        elif text.startswith("You are facing "):
            facing = text.removeprefix("You are facing the ").partition(". Next to it")[0]
            self.places.update(
                name.removeprefix("and ") for name in facing.replace(" and ", ", ").split(", ")
            )


def _mistake(
    rng: random.Random,
    noise: Noise,
    expert: SearchingExpert,
    admissible: Sequence[str],
    reached: Reached,
) -> str:
    """A random command, or one that a learner gives in vain: it takes the place for another."""
    memory, wanted = expert.memory, expert.task.item
    if rng.random() >= noise.refused or not reached.places:
        return rng.choice(admissible)
    here = rng.choice(sorted(reached.places))
    elsewhere = rng.choice(memory.receptacles)
    if memory.held:
        in_vain = [f"move {memory.held} to {elsewhere}", f"take {wanted} 1 from {here}"]
    else:
        # What is wanted, where it is not: the commonest mistake of all.
        thing = f"{wanted} {rng.randint(1, 3)}"
        in_vain = [f"take {thing} from {here}"] * 3 + [f"take {thing} from {elsewhere}"]
    in_vain += [f"go to {here}", f"open {elsewhere}", f"examine {elsewhere}"]
    return rng.choice(in_vain)
