"""How hard the next episodes of running environments are."""

from jaxtyping import Array, Float

from envs.goals import GoalState
from envs.randomise import is_randomised, with_strength
from jaxagent.types import Difficulty, SimulatorState


def set_difficulty(
    state: SimulatorState, difficulty: Difficulty, strength: Float[Array, "*B"]
) -> SimulatorState:
    """The same episodes with another threshold; those that follow are drawn at the difficulty.

    Args:
        state: of `envs.goals.GoalSimulator`, any leading axes.
        difficulty: with the same leading axes.
        strength: share of the ranges of `envs.randomise`, where the body is randomised.
    """
    physics: GoalState = state.physics
    body = physics.simulator
    if is_randomised(body):
        body = with_strength(body, strength)
    return state.replace(physics=physics.replace(difficulty=difficulty, simulator=body))
