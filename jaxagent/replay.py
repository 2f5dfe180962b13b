"""Experience replay in device memory: the one file that knows the replay library (flashbax).

A row is one environment's experience in the order of time, so the future of a step lies after it.
Only what cannot be recomputed is stored: the features of a state, not the observation made of
them; the goal, not the reward it earned; no achieved goal, which is among the features.
"""

import dataclasses
import io
import warnings
from contextlib import redirect_stdout
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from jaxagent.types import Trajectory

with redirect_stdout(io.StringIO()), warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from flashbax.buffers import trajectory_buffer


class Transition(NamedTuple):
    """What is kept of a step; any leading axes."""

    features: Float[Array, "*S F"]  # of the state it was made in, without the goal
    next_features: Float[Array, "*S F"]  # of its true successor, before any reset
    goal: Float[Array, "*S G"]  # that was pursued
    action: Float[Array, "*S A"]
    fell: Bool[Array, "*S"]  # the body's own end: terminal whatever the goal
    episode_end: Bool[Array, "*S"]  # for any reason: nothing after it belongs to this episode

    @property
    def num_bytes(self) -> int:
        """Bytes of one step's fields; leading axes are divided out."""
        steps = self.fell.size
        return sum(x.size * x.dtype.itemsize for x in self) // steps


def transitions(trajectory: Trajectory) -> Transition:
    """What is kept of a trajectory of a goal-conditioned task.

    Raises:
        ValueError: the trajectory has no goals.
    """
    features, next_features, goal = (
        trajectory.features,
        trajectory.next_features,
        trajectory.goal,
    )
    if features is None or next_features is None or goal is None:
        raise ValueError("trajectory must come from a goal-conditioned task: it has no goals")
    return Transition(
        features=features,
        next_features=next_features,
        goal=goal,
        action=trajectory.action,
        fell=trajectory.terminated & ~trajectory.success,
        episode_end=trajectory.episode_end,
    )


@dataclasses.dataclass(frozen=True)
class Replay:
    """Pure functions of a buffer that is cut into groups of environments.

    Every group holds the rows of its own environments and is sampled from by its own key, so
    what is drawn does not depend on the devices over which the groups are spread.

    Attributes:
        rows: environments in one group.
        row_length: steps kept of each; the oldest make room.
        window: steps in a row that are sampled together.
    """

    rows: int
    row_length: int
    window: int

    def __post_init__(self):
        if self.rows < 1:
            raise ValueError(f"rows ({self.rows}) must be at least 1")
        if not 1 <= self.window <= self.row_length:
            raise ValueError(
                f"window ({self.window}) must lie in [1, row_length ({self.row_length})]"
            )

    def init(self, step: Transition, groups: int) -> Any:
        """An empty buffer.

        Args:
            step: one step, or its shapes and types; values are not read.
            groups: on this device.
        """
        blank = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), step)
        state = trajectory_buffer.init(blank, self.rows, self.row_length)
        return jax.tree.map(
            # Strongly typed, as `add` gives it back: otherwise the second call compiles again.
            lambda x: jax.lax.convert_element_type(
                jnp.broadcast_to(x[None], (groups, *x.shape)), x.dtype
            ),
            state,
        )

    def add(self, state: Any, batch: Transition) -> Any:
        """Append T steps of every environment.

        Args:
            state: the buffer.
            batch: [T, groups * rows, ...], environments in the order of their groups.
        """
        groups = state.current_index.shape[0]

        def by_rows(x):
            x = x.reshape((x.shape[0], groups, self.rows) + x.shape[2:])
            return jnp.moveaxis(x, 0, 2)

        return jax.vmap(trajectory_buffer.add)(state, jax.tree.map(by_rows, batch))

    def sample(self, state: Any, keys: PRNGKeyArray, count: int) -> Transition:
        """Windows of consecutive steps, uniform over rows and starts.

        A window may hold the end of one episode and the start of the next; it never spans the
        place where the newest step meets the oldest, and holds no step that was not written,
        provided `ready`.

        Args:
            state: the buffer.
            keys: one for each group, consumed.
            count: windows from each group.

        Returns:
            [groups, count, window, ...].
        """

        def one(state, key):
            with jax.numpy_rank_promotion("allow"):  # flashbax promotes silently
                drawn = trajectory_buffer.sample(state, key, count, self.window, period=1)
            return drawn.experience

        return jax.vmap(one)(state, keys)

    def contents(self, state: Any) -> tuple[Transition, Bool[Array, "groups L"]]:
        """Everything that lies in the buffer, and which steps of the rows were written.

        Returns:
            [groups, rows, L, ...], in the order of the memory, which is that of time but for the
            seam between the newest and the oldest; and the same for all rows of a group.
        """
        length = state.experience.fell.shape[-1]
        written = jnp.arange(length)[None] < state.current_index[:, None]
        return state.experience, written | state.is_full[:, None]

    def with_contents(self, state: Any, contents: Transition) -> Any:
        """The buffer with other contents in the same places."""
        return state.replace(experience=contents)

    def ready(self, state: Any) -> Bool[Array, ""]:
        """Whether every group holds a whole window."""
        return jax.vmap(lambda s: trajectory_buffer.can_sample(s, self.window))(state).all()
