"""A batch of environments from one simulator: time limit, fresh resets, statistics, layout."""

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from jaxagent.types import EnvState, EnvStep, Restartable, Simulator, SimulatorState


@dataclasses.dataclass(frozen=True)
class VectorEnv:
    """Implements `jaxagent.types.Env` over any `Simulator`.

    An episode that ends is replaced at once by one that starts from a *newly drawn* state; the
    step still reports the true successor. A simulator with `restart` sees the episode that ended
    (`jaxagent.types.Restartable`). A state with a non-finite observation (an exploded
    simulation) counts as terminated, so that one broken environment cannot poison a batch.

    Attributes:
        simulator: the physics of one environment.
        episode_length: time limit in steps; reaching it truncates.
        chunk_size: environments stepped together. On a CPU a batch that outgrows the cache runs
            at a third of the speed, so it is cut into chunks; `None` is one vmap over all.
    """

    simulator: Simulator
    episode_length: int = 1000
    chunk_size: int | None = None

    def __post_init__(self):
        if self.episode_length < 1:
            raise ValueError(f"episode_length ({self.episode_length}) must be at least 1")
        if self.chunk_size is not None and self.chunk_size < 1:
            raise ValueError(f"chunk_size ({self.chunk_size}) must be at least 1")

    @property
    def observation_size(self) -> int:
        """O of the simulator."""
        return self.simulator.observation_size

    @property
    def action_size(self) -> int:
        """A of the simulator."""
        return self.simulator.action_size

    def reset(self, keys: PRNGKeyArray) -> EnvState:
        """Start one episode for each key.

        Args:
            keys: [B] keys; each becomes that environment's own stream.
        """
        split = jax.vmap(jax.random.split)(keys)
        count = keys.shape[0]
        return EnvState(
            simulator=jax.vmap(self.simulator.reset)(split[:, 0]),
            key=split[:, 1],
            elapsed=jnp.zeros(count, jnp.int32),
            episode_return=jnp.zeros(count, jnp.float32),
        )

    def step(self, state: EnvState, action: Float[Array, "B A"]) -> tuple[EnvState, EnvStep]:
        """Advance every environment by one control step; replace those that ended.

        Args:
            state: B running episodes.
            action: in [-1, 1].

        Returns:
            The state to act on next, and the step as it was before any reset.

        Raises:
            ValueError: B is larger than `chunk_size` and no multiple of it.
        """
        count = action.shape[0]
        if self.chunk_size is None or count <= self.chunk_size:
            return self._step_chunk(state, action)
        if count % self.chunk_size:
            raise ValueError(
                f"environments on one device ({count}) must be a multiple of "
                f"chunk_size ({self.chunk_size})"
            )
        split = (count // self.chunk_size, self.chunk_size)
        chunked = jax.tree.map(lambda x: x.reshape(split + x.shape[1:]), (state, action))
        out = jax.lax.map(lambda pair: self._step_chunk(*pair), chunked)
        return jax.tree.map(lambda x: x.reshape((count,) + x.shape[2:]), out)

    def _step_chunk(self, state: EnvState, action: Float[Array, "B A"]) -> tuple[EnvState, EnvStep]:
        successor = jax.vmap(self.simulator.step)(state.simulator, action)
        successor = _contain_explosion(state.simulator, successor)
        elapsed = state.elapsed + 1
        episode_return = state.episode_return + successor.reward
        terminated = successor.terminated
        truncated = (elapsed >= self.episode_length) & ~terminated
        step = EnvStep(
            reward=successor.reward,
            terminated=terminated,
            truncated=truncated,
            success=successor.success,
            next_observation=successor.observation,
            next_body=successor.body,
            episode_return=episode_return,
            episode_length=elapsed,
            next_achieved_goal=successor.achieved_goal,
            next_features=successor.features,
            outcome=successor.outcome,
        )
        ended = terminated | truncated
        state = state.replace(
            simulator=successor,
            elapsed=jnp.where(ended, 0, elapsed),
            episode_return=jnp.where(ended, 0.0, episode_return),
        )
        return self._replace_ended(state, ended), step

    def _replace_ended(self, state: EnvState, ended: Bool[Array, " B"]) -> EnvState:
        """Draw fresh starts for the ended episodes only, a few at a time.

        Drawing one for every environment at every step would cost a third of the physics; most
        steps need none.
        """
        count = ended.shape[0]
        width = min(count, max(4, count // 16))

        def draw(carry):
            state, pending = carry
            index = jnp.nonzero(pending, size=width, fill_value=count)[0]
            row = jnp.minimum(index, count - 1)
            split = jax.vmap(jax.random.split)(state.key[row])
            if isinstance(self.simulator, Restartable):
                before = jax.tree.map(lambda x: x[row], state.simulator)
                fresh = jax.vmap(self.simulator.restart)(before, split[:, 0])
            else:
                fresh = jax.vmap(self.simulator.reset)(split[:, 0])
            simulator = jax.tree.map(
                lambda old, new: old.at[index].set(new, mode="drop"), state.simulator, fresh
            )
            key = state.key.at[index].set(split[:, 1], mode="drop")
            pending = pending.at[index].set(False, mode="drop")
            return state.replace(simulator=simulator, key=key), pending

        return jax.lax.while_loop(lambda carry: carry[1].any(), draw, (state, ended))[0]


def _contain_explosion(before: SimulatorState, after: SimulatorState) -> SimulatorState:
    """Terminate where the simulation left the finite numbers, and report its last finite state."""
    finite = jnp.isfinite(after.observation).all(-1) & jnp.isfinite(after.reward)

    def keep(old, new):
        return jnp.where(finite.reshape(finite.shape + (1,) * (new.ndim - 1)), new, old)

    return after.replace(
        observation=keep(before.observation, after.observation),
        body=jax.tree.map(keep, before.body, after.body),
        achieved_goal=jax.tree.map(keep, before.achieved_goal, after.achieved_goal),
        features=jax.tree.map(keep, before.features, after.features),
        outcome=jax.tree.map(keep, before.outcome, after.outcome),
        reward=jnp.where(finite, after.reward, 0.0),
        terminated=after.terminated | ~finite,
        success=after.success & finite,
    )
