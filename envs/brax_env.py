"""Brax behind the `Simulator` protocol: any registered environment, any of its backends."""

import contextlib
import io
import warnings
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from jaxagent.types import Body, SimulatorState

# brax probes for optional GPU engines at import and prints what it did not find.
with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from brax import envs as brax_envs

BACKENDS = ("spring", "positional", "generalized", "mjx")


@contextlib.contextmanager
def _as_brax_likes_it():
    """Brax promotes ranks silently, calls deprecated functions, and warns at every load."""
    with jax.numpy_rank_promotion("allow"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


class BraxSimulator:
    """One Brax environment without Brax's wrappers.

    Those wrappers merge termination with truncation and restart every episode from one cached
    first state; here the vector environment on top keeps the two apart and draws afresh.
    """

    def __init__(self, environment: str, backend: str = "spring", **options):
        """Load a registered Brax environment.

        Args:
            environment: its name in Brax's registry, "ant" for example.
            backend: "spring", "positional", "generalized" or "mjx".
            options: passed on to the Brax environment.

        Raises:
            ValueError: an unknown name or backend, or one that Brax cannot combine.
        """
        known = sorted(brax_envs._envs)
        if environment not in known:
            raise ValueError(f"environment ({environment}) must be one of {', '.join(known)}")
        if backend not in BACKENDS:
            raise ValueError(f"backend ({backend}) must be one of {', '.join(BACKENDS)}")
        with _as_brax_likes_it():
            self.brax: Any = brax_envs.get_environment(environment, backend=backend, **options)
        self.environment, self.backend = environment, backend
        with _as_brax_likes_it():
            shape = jax.eval_shape(self.brax.reset, jax.random.key(0))
        if isinstance(shape.obs, Mapping):
            raise ValueError(f"environment ({environment}) must have one flat observation array")
        self._observation_size = int(shape.obs.shape[-1])
        # Brax's steps return other dtypes and weak types than its resets; both are cast to these.
        self._signature = jax.tree.map(lambda x: x.dtype, shape)

    @property
    def name(self) -> str:
        """Environment and backend, "ant-spring"."""
        return f"{self.environment}-{self.backend}"

    @property
    def observation_size(self) -> int:
        """O."""
        return self._observation_size

    @property
    def action_size(self) -> int:
        """A."""
        return int(self.brax.action_size)

    @property
    def control_seconds(self) -> float:
        """Simulated seconds in one step."""
        return float(self.brax.dt)

    def reset(self, key: PRNGKeyArray) -> SimulatorState:
        """Draw a start state from Brax's own start distribution."""
        with _as_brax_likes_it():
            return self._observe(self.brax.reset(key))

    def step(self, state: SimulatorState, action: Float[Array, " A"]) -> SimulatorState:
        """Advance one control step; `terminated` is Brax's own `done`."""
        with _as_brax_likes_it():
            return self._observe(self.brax.step(state.physics, action))

    def pose(self, state: SimulatorState) -> Float[Array, " Q"]:
        """Generalised coordinates q, in MuJoCo's order."""
        return state.physics.pipeline_state.q

    def _observe(self, state) -> SimulatorState:
        state = jax.tree.map(
            lambda x, dtype: jax.lax.convert_element_type(x, dtype), state, self._signature
        )
        terminated = state.done > 0.5
        return SimulatorState(
            physics=state,
            observation=state.obs,
            reward=state.reward,
            terminated=terminated,
            success=jnp.zeros_like(terminated),
            body=_torso(state.pipeline_state),
        )


def _torso(pipeline_state) -> Body:
    """The first link's pose and motion."""
    w, x, y, z = pipeline_state.x.rot[0]
    ahead = jnp.stack([1 - 2 * (y * y + z * z), 2 * (x * y + w * z)])
    length = jnp.sqrt(jnp.sum(ahead**2) + 1e-12)  # 0 only when the torso points straight up
    return Body(
        position=pipeline_state.x.pos[0],
        heading=ahead / length,
        velocity=pipeline_state.xd.vel[0],
        angular_velocity=pipeline_state.xd.ang[0],
    )
