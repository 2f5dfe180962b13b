"""Options of learning without demonstrations, a section of `experiments.planner_config`."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class HindsightConfig:
    """How a planner learns from its own play (stage rl)."""

    walks: int = 13_000
    """Random walks in train games before the first update."""
    walk_steps: int = 60
    """Commands of each."""
    inserted_visits: bool = True
    """Write failed looks into solutions before what was searched for is gone to."""
    other_things: float = 0.75
    """Share of relabelled solutions in which another thing stands in for the one handled: where
    things lie is then as in the games, not as walking finds them."""
    exploration_weight: float = 0.25
    """Weight of a look that failed, beside 1 of the commands that mattered; 0 teaches nothing of
    where to look next but from looks that found."""
    play_interval: int = 300
    """Updates between two rounds of play; 0 plays none."""
    play_games: int = 96
    """Train games of a round, played for their own goals."""
    play_steps: int = 25
    """Steps of each."""
    play_temperature: float = 1.0
    """At which replies are sampled in a round; only admissible commands are."""
    own_share: float = 0.5
    """Share of the episodes taken from games that were won in play, once there are some."""
    other_goals: float = 0.1
    """Weight of tasks that no train game asks for, beside 1 of those that one does."""

    def __post_init__(self):
        for name in ("walks", "walk_steps", "play_games", "play_steps"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} ({getattr(self, name)}) must be at least 1")
        if self.play_interval < 0:
            raise ValueError(f"play_interval ({self.play_interval}) must be at least 0")
        if not 0 < self.play_temperature < float("inf"):
            raise ValueError(
                f"play_temperature ({self.play_temperature}) must be a positive, finite number"
            )
        for name in ("other_things", "exploration_weight", "own_share", "other_goals"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} ({getattr(self, name)}) must lie in [0, 1]")
