"""Experience replay in device memory: the one file that knows the replay library (flashbax).

A row is one environment's experience in the order of time, so the future of a step lies after it;
the memory is a ring, in which the newest step takes the place of the oldest. Steps are drawn one by
one, each with the bounds of its whole episode, wherever in the ring that lies.
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
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from jaxagent.losses.hindsight import episode_bounds
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


class Sampled(NamedTuple):
    """Where steps lie that were drawn, and their episodes; times count from a row's oldest step."""

    row: Int[Array, "*S"]
    time: Int[Array, "*S"]
    first: Int[Array, "*S"]  # of the same episode, as far as it is still kept
    last: Int[Array, "*S"]  # of the same episode, as far as it was written
    is_ended: Bool[Array, "*S"]  # whether `last` is the episode's end


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
    """

    rows: int
    row_length: int

    def __post_init__(self):
        for name in ("rows", "row_length"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} ({getattr(self, name)}) must be at least 1")

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

    def sample(self, state: Any, keys: PRNGKeyArray, count: int) -> Sampled:
        """Steps drawn uniformly over rows and times, independently of each other.

        Nothing that was not written is drawn, provided `ready`.

        Args:
            state: the buffer.
            keys: one for each group, consumed.
            count: steps from each group.

        Returns:
            [groups, count].
        """

        def one(state, key):
            size, oldest = self._extent(state)
            in_order = jnp.roll(state.experience.episode_end, -oldest, axis=1).T  # [L, rows]
            written = jnp.arange(self.row_length)[:, None] < size
            bounds = episode_bounds(in_order, jnp.broadcast_to(written, in_order.shape))
            row_key, time_key = jax.random.split(key)
            row = jax.random.randint(row_key, (count,), 0, self.rows)
            time = jax.random.randint(time_key, (count,), 0, size)
            last = bounds.last[time, row]
            return Sampled(row, time, bounds.first[time, row], last, in_order[last, row])

        return jax.vmap(one)(state, keys)

    def read(
        self, state: Any, row: Int[Array, "groups *S"], time: Int[Array, "groups *S"]
    ) -> Transition:
        """The steps that lie at these places.

        Args:
            state: the buffer.
            row: as in `Sampled`.
            time: as in `Sampled`; steps of a row in the order of time.
        """

        def one(state, row, time):
            place = (time + self._extent(state)[1]) % self.row_length
            return jax.tree.map(lambda x: x[row, place], state.experience)

        return jax.vmap(one)(state, row, time)

    def _extent(self, state: Any) -> tuple[Int[Array, ""], Int[Array, ""]]:
        """Of one group: how many steps each row holds, and where in memory the oldest lies."""
        size = jnp.where(state.is_full, self.row_length, state.current_index)
        return size, jnp.where(state.is_full, state.current_index, 0)

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
        """Whether every group holds a step."""
        return jnp.all(state.is_full | (state.current_index > 0))
