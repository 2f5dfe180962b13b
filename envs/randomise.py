"""Domain randomisation over Brax: mass, friction and gear, drawn afresh at every reset.

Each is one factor on what the model file says (Peng et al. 2018, "Sim-to-Real Transfer of Robotic
Control with Dynamics Randomization"). The factors lie in the state of each environment, so that
under vmap every environment has its own physics, and a reset inside a jitted step draws anew.
"""

import copy
import dataclasses
import math
import warnings
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float, PRNGKeyArray
from mujoco import mjx

from envs.brax_env import BraxSimulator
from jaxagent.types import SimulatorState

FIELDS = ("mass", "friction", "gear")
Range = tuple[float, float]
_KEY = "randomised"  # where Brax's own state carries the factors along


@dataclasses.dataclass(frozen=True)
class Randomisation:
    """Ranges of the factors on the model's physics; None leaves a field as it is."""

    randomise_mass: Range | None = None
    """Lowest and highest factor on all masses and inertias."""
    randomise_friction: Range | None = None
    """Lowest and highest factor on the friction of all contacts."""
    randomise_gear: Range | None = None
    """Lowest and highest factor on what an action becomes as a torque."""

    def __post_init__(self):
        for name, between in vars(self).items():
            if between is None:
                continue
            low, high = between
            if not (0 < low <= high and math.isfinite(high)):
                raise ValueError(f"{name} {between} must be 0 < low <= high, both finite")

    @property
    def ranges(self) -> dict[str, Range]:
        """The fields that are randomised, with their ranges."""
        return {
            name: between
            for name in FIELDS
            if (between := getattr(self, f"randomise_{name}")) is not None
        }


class Draw(struct.PyTreeNode, kw_only=True):
    """The physics of the episode that runs, and how widely the next one is drawn."""

    factors: dict[str, Float[Array, "*B"]]
    strength: Float[Array, "*B"]  # share of the ranges in use, in [0, 1]; 0 is the model as it is


class RandomisedBrax(BraxSimulator):
    """A Brax environment whose every episode has physics of its own.

    An episode inherits the strength of the one before it (`jaxagent.types.Restartable`), which is
    how a curriculum widens the ranges without compiling again.
    """

    def __init__(
        self,
        environment: str,
        backend: str = "spring",
        *,
        randomisation: Randomisation,
        strength: float = 1.0,
        **options,
    ):
        """Load a registered Brax environment.

        Args:
            environment: its name in Brax's registry.
            backend: a Brax backend.
            randomisation: what is drawn, and from where.
            strength: share of the ranges that the first episodes use, in [0, 1].
            options: passed on to the Brax environment.

        Raises:
            ValueError: an unknown name or backend, a field that has no effect there, or a
                strength out of range.
        """
        super().__init__(environment, backend, **options)
        if not 0 <= strength <= 1:
            raise ValueError(f"strength ({strength}) must lie in [0, 1]")
        self.randomisation, self.strength = randomisation, strength
        known = randomisable(self)
        for name in randomisation.ranges:
            if name not in known:
                raise ValueError(
                    f"randomise_{name} does nothing to {self.name}; what can be randomised "
                    f"there: {', '.join(known)}"
                )

    def draw(self, key: PRNGKeyArray, strength: Float[Array, ""]) -> Draw:
        """A factor for each field that is randomised: uniform over 1 + strength·(range − 1)."""
        factors = {}
        for name, (low, high) in self.randomisation.ranges.items():
            uniform = jax.random.uniform(jax.random.fold_in(key, FIELDS.index(name)))
            factors[name] = 1.0 + strength * (low - 1.0 + (high - low) * uniform)
        return Draw(factors=factors, strength=strength)

    def reset(self, key: PRNGKeyArray) -> SimulatorState:
        """Draw the physics, then a start state."""
        return self._start(key, jnp.asarray(self.strength, jnp.float32))

    def restart(self, state: SimulatorState, key: PRNGKeyArray) -> SimulatorState:
        """The same, with the strength of the episode that ended."""
        return self._start(key, drawn(state).strength)

    def step(self, state: SimulatorState, action: Float[Array, " A"]) -> SimulatorState:
        """Advance one control step under the episode's own physics."""
        info = dict(state.physics.info)
        draw = info.pop(_KEY)  # the simulator underneath knows its own entries only
        plain = state.replace(physics=state.physics.replace(info=info))
        return _carry(BraxSimulator.step(self._under(draw.factors), plain, action), draw)

    def _start(self, key: PRNGKeyArray, strength: Float[Array, ""]) -> SimulatorState:
        physics_key, start_key = jax.random.split(key)
        draw = self.draw(physics_key, strength)
        return _carry(BraxSimulator.reset(self._under(draw.factors), start_key), draw)

    def _under(self, factors: dict[str, Float[Array, ""]]) -> "RandomisedBrax":
        changed = copy.copy(self)
        changed.brax = copy.copy(self.brax)
        changed.brax.sys = scale_system(self.brax.sys, self.backend, factors)
        return changed


def drawn(state: SimulatorState) -> Draw:
    """What a state of `RandomisedBrax` was drawn as; for one environment or a batch."""
    return state.physics.info[_KEY]


def is_randomised(state: SimulatorState) -> bool:
    """Whether a state is one of `RandomisedBrax`."""
    return _KEY in getattr(state.physics, "info", {})


def with_strength(state: SimulatorState, strength: Float[Array, "*B"]) -> SimulatorState:
    """The same episodes; those that follow are drawn with another strength."""
    return _carry(state, drawn(state).replace(strength=strength))


def randomisable(simulator: BraxSimulator) -> tuple[str, ...]:
    """The fields whose factor changes how this environment moves."""
    system: Any = simulator.brax.sys
    with warnings.catch_warnings():  # of a way to the number of contacts that all versions have
        warnings.simplefilter("ignore", DeprecationWarning)
        contacts = mjx.make_data(system).ncon
    has = {"mass": True, "friction": contacts > 0, "gear": system.act_size() > 0}
    return tuple(name for name in FIELDS if has[name])


def scale_system(system: Any, backend: str, factors: dict[str, Float[Array, ""]]) -> Any:
    """A Brax system with some of its physics multiplied.

    Args:
        system: of the environment, as it was loaded.
        backend: decides which arrays the engine reads.
        factors: on "mass", "friction" and "gear".

    Returns:
        The system. With the mass, the constants that the constraint solvers derive from it are
        scaled as 1 / mass, which is exact but for the armature of joints.
    """
    if "mass" in factors:
        system = _scale_mass(system, backend, factors["mass"])
    if "friction" in factors:
        system = system.replace(geom_friction=system.geom_friction * factors["friction"])
    if "gear" in factors and backend == "mjx":
        system = system.replace(actuator_gear=system.actuator_gear * factors["gear"])
    elif "gear" in factors:
        actuator = system.actuator
        system = system.replace(actuator=actuator.replace(gear=actuator.gear * factors["gear"]))
    return system


def _scale_mass(system: Any, backend: str, factor: Float[Array, ""]) -> Any:
    if backend == "mjx":
        return system.replace(
            body_mass=system.body_mass * factor,
            body_inertia=system.body_inertia * factor,
            body_subtreemass=system.body_subtreemass * factor,
            body_invweight0=system.body_invweight0 / factor,
            dof_invweight0=system.dof_invweight0 / factor,
        )
    link, inertia = system.link, system.link.inertia
    mass, matrix = inertia.mass, inertia.i
    if backend in ("spring", "positional"):
        # These engines raise masses to the power 1 - spring_mass_scale, which for the Ant is 0:
        # a factor on the file's masses would do nothing. Scale what they come out as.
        mass = mass ** (1 - system.spring_mass_scale)
        matrix = _diagonal(matrix, 1 - system.spring_inertia_scale)
        system = system.replace(spring_mass_scale=0.0, spring_inertia_scale=0.0)
    inertia = inertia.replace(mass=mass * factor, i=matrix * factor)
    link = link.replace(inertia=inertia, invweight=link.invweight / factor)
    dof = system.dof.replace(invweight=system.dof.invweight / factor)
    return system.replace(link=link, dof=dof)


def _diagonal(matrix: Float[Array, "N 3 3"], power: float) -> Float[Array, "N 3 3"]:
    """The diagonal alone, raised to a power: these engines read nothing else."""
    return jax.vmap(jnp.diag)(jnp.diagonal(matrix, axis1=1, axis2=2) ** power)


def _carry(state: SimulatorState, draw: Draw) -> SimulatorState:
    physics = state.physics
    return state.replace(physics=physics.replace(info=physics.info | {_KEY: draw}))
