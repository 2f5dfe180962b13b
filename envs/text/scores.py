"""Scores of played episodes: success with its uncertainty, steps, and how commands were wasted."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from jaxagent.text import Episode

_Z95 = 1.959963984540054


@dataclass(frozen=True)
class Score:
    """Figures over a set of episodes; shares are of all commands given in them.

    ``mean_steps`` is over all episodes, ``mean_steps_won`` over those won (None if none was). A
    command counts as repeated if the same command has answered the same observation before in
    its episode.
    """

    games: int
    won: int
    success: float
    success_low: float
    success_high: float
    mean_steps: float
    mean_steps_won: float | None
    inadmissible_share: float
    repeated_share: float

    def as_dict(self) -> dict:
        """The figures by name, for JSON."""
        return asdict(self)


def wilson_interval(successes: int, trials: int, z: float = _Z95) -> tuple[float, float]:
    """Confidence interval of a success probability (Wilson 1927).

        (p̂ + z²/2n ± z √(p̂(1−p̂)/n + z²/4n²)) / (1 + z²/n)

    Args:
        successes: how many succeeded.
        trials: n, at least 1.
        z: quantile of the normal distribution; the default gives 95 %.

    Returns:
        Lower and upper bound, within [0, 1].

    Raises:
        ValueError: no trials, or more successes than trials.
    """
    if not 0 <= successes <= trials or trials < 1:
        raise ValueError(f"{successes} successes in {trials} trials")
    share, spread = successes / trials, z * z / trials
    centre = (share + spread / 2) / (1 + spread)
    width = z * math.sqrt(share * (1 - share) / trials + spread / (4 * trials)) / (1 + spread)
    return max(0.0, centre - width), min(1.0, centre + width)


def score(episodes: Sequence[Episode]) -> Score:
    """Figures over episodes.

    Args:
        episodes: at least one.

    Returns:
        The figures, unrounded.

    Raises:
        ValueError: there are none.
    """
    if not episodes:
        raise ValueError("no episodes to score")
    won = [episode for episode in episodes if episode.won]
    commands = sum(len(episode.commands) for episode in episodes)
    wasted = sum(episode.valid.count(False) for episode in episodes)
    low, high = wilson_interval(len(won), len(episodes))
    return Score(
        games=len(episodes),
        won=len(won),
        success=len(won) / len(episodes),
        success_low=low,
        success_high=high,
        mean_steps=commands / len(episodes),
        mean_steps_won=sum(len(e.commands) for e in won) / len(won) if won else None,
        inadmissible_share=wasted / max(commands, 1),
        repeated_share=sum(map(_repeats, episodes)) / max(commands, 1),
    )


def score_by_type(episodes: Sequence[Episode]) -> dict[str, Score]:
    """Figures per task type, and over all of them under "all"."""
    kinds = sorted({episode.task_type for episode in episodes})
    parts = {kind: score([e for e in episodes if e.task_type == kind]) for kind in kinds}
    return {**parts, "all": score(episodes)}


def _repeats(episode: Episode) -> int:
    pairs = list(zip(episode.observations, episode.commands))
    return len(pairs) - len(set(pairs))
