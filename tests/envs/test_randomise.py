"""Physics that is drawn for each episode."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from brax import com
from brax.base import Transform

from envs.brax_env import BACKENDS, BraxSimulator
from envs.randomise import (
    Randomisation,
    RandomisedBrax,
    drawn,
    randomisable,
    scale_system,
    with_strength,
)
from envs.vector import VectorEnv

EVERYTHING = Randomisation((0.5, 2.0), (0.2, 3.0), (0.8, 1.5))
PENDULUM = Randomisation(randomise_mass=(0.5, 2.0), randomise_gear=(0.8, 1.5))


def play(simulator: RandomisedBrax, factors: dict, steps: int = 10):
    """Observations under given factors, a swinging action, always from the same start."""
    under = simulator._under(factors)
    start = BraxSimulator.reset(under, jax.random.key(0))

    def advance(state, time):
        action = 0.5 * jnp.sin(jnp.arange(simulator.action_size) + 0.3 * time)
        state = BraxSimulator.step(under, state, action)
        return state, state.observation

    return jax.lax.scan(advance, start, jnp.arange(steps))[1]


def play_rows(simulator: RandomisedBrax, rows: dict) -> np.ndarray:
    return np.asarray(jax.jit(jax.vmap(lambda factors: play(simulator, factors)))(rows))


@pytest.mark.parametrize("backend", BACKENDS)
def test_mass_and_gear_act_on_every_backend_under_vmap(backend):
    simulator = RandomisedBrax("inverted_pendulum", backend, randomisation=PENDULUM)
    rows = {"mass": jnp.array([1.0, 2.0, 1.0, 2.0]), "gear": jnp.array([1.0, 1.0, 2.0, 2.0])}
    plain, heavy, strong, both = play_rows(simulator, rows)
    # The cart's speed under its own gear: twice the force on twice the mass is the same motion.
    speed = np.abs(plain[:, 2]).max()
    assert np.abs(heavy - plain)[:, 2].max() > 0.2 * speed
    assert np.abs(strong - plain)[:, 2].max() > 0.2 * speed
    assert np.abs(both - plain)[:, 2].max() < 0.1 * speed


def test_mass_friction_and_gear_act_on_the_ant_whose_masses_spring_ignores():
    simulator = RandomisedBrax("ant", "spring", randomisation=EVERYTHING)
    rows = {
        "mass": jnp.array([1.0, 2.0, 1.0, 1.0]),
        "friction": jnp.array([1.0, 1.0, 3.0, 1.0]),
        "gear": jnp.array([1.0, 1.0, 1.0, 2.0]),
    }
    plain, *changed = play_rows(simulator, rows)
    assert all(np.abs(row - plain).max() > 0.1 for row in changed)


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_engine_reads_the_arrays_that_are_scaled(backend):
    system = BraxSimulator("ant", backend).brax.sys
    scaled = scale_system(system, backend, {"friction": 3.0, "gear": 2.0, "mass": 2.0})
    np.testing.assert_allclose(scaled.geom_friction, 3 * system.geom_friction)
    gear = (lambda s: s.actuator_gear) if backend == "mjx" else (lambda s: s.actuator.gear)
    np.testing.assert_allclose(gear(scaled), 2 * gear(system))
    np.testing.assert_allclose(_mass(scaled, backend), 2 * _mass(system, backend))


def test_the_factor_one_is_the_engine_as_it_was():
    """Where the engine's own masses are powers of the file's."""
    simulator = BraxSimulator("halfcheetah", "spring")
    system = simulator.brax.sys
    scaled = scale_system(system, "spring", {"mass": 1.0})
    np.testing.assert_allclose(_mass(scaled, "spring"), _mass(system, "spring"), rtol=1e-6)
    pose = Transform.zero((7,))
    inverse = [com.inv_inertia(s, pose) for s in (scaled, system)]
    np.testing.assert_allclose(*inverse, rtol=1e-5)
    assert not np.allclose(_mass(system, "spring"), system.link.inertia.mass)


def _mass(system, backend):
    """What the engine computes with."""
    if backend == "mjx":
        return system.body_mass
    power = 1 - system.spring_mass_scale if backend in ("spring", "positional") else 1
    return system.link.inertia.mass**power


@pytest.fixture(scope="module")
def pendulums():
    """Six pendulums that restart after every five steps: reset, and one jitted step."""
    simulator = RandomisedBrax("inverted_pendulum", "spring", randomisation=PENDULUM)
    env = VectorEnv(simulator, episode_length=5)
    start = jax.jit(env.reset)(jax.random.split(jax.random.key(0), 6))
    step = jax.jit(lambda state: env.step(state, jnp.zeros((6, 1)))[0])
    return start, step


def test_physics_is_drawn_for_each_environment_and_again_at_each_reset(pendulums):
    state, step = pendulums
    rows = [drawn(state.simulator).factors]
    for _ in range(12):
        state = step(state)
        rows.append(drawn(state.simulator).factors)
    assert set(rows[0]) == {"mass", "gear"}
    mass = np.array([row["mass"] for row in rows])  # resets after steps 5 and 10
    assert len(np.unique(mass)) == 3 * 6
    for episode in (mass[:5], mass[5:10], mass[10:]):
        assert (episode == episode[0]).all()
    assert ((mass >= 0.5) & (mass <= 2.0)).all()
    assert mass.min() < 0.8 < 1.7 < mass.max()
    assert not np.allclose([row["gear"] for row in rows], mass)


def test_an_episode_inherits_the_strength_of_the_one_before_it(pendulums):
    state, step = pendulums
    before = np.asarray(drawn(state.simulator).factors["mass"])
    strength = jnp.array([0.0, 0.0, 0.0, 1.0, 1.0, 1.0])
    state = state.replace(simulator=with_strength(state.simulator, strength))
    for _ in range(5):
        np.testing.assert_array_equal(drawn(state.simulator).factors["mass"], before)
        state = step(state)
    mass = np.asarray(drawn(state.simulator).factors["mass"])
    np.testing.assert_array_equal(mass[:3], 1.0)
    assert (mass[3:] != 1.0).all()
    np.testing.assert_array_equal(drawn(state.simulator).strength, strength)


def test_strength_narrows_the_ranges():
    simulator = RandomisedBrax("inverted_pendulum", "generalized", randomisation=PENDULUM)
    keys = jax.random.split(jax.random.key(1), 500)
    draw = jax.jit(lambda strength: jax.vmap(lambda k: simulator.draw(k, strength))(keys))
    np.testing.assert_array_equal(draw(0.0).factors["mass"], 1.0)
    half, whole = (np.asarray(draw(strength).factors["mass"]) for strength in (0.5, 1.0))
    np.testing.assert_allclose([half.min(), half.max()], [0.75, 1.5], atol=0.01)
    np.testing.assert_allclose([whole.min(), whole.max()], [0.5, 2.0], atol=0.02)
    np.testing.assert_allclose(whole - 1, 2 * (half - 1), atol=1e-6)


def test_a_field_without_effect_is_refused_with_those_that_have_one():
    assert randomisable(BraxSimulator("ant")) == ("mass", "friction", "gear")
    wanted = r"randomise_friction does nothing to reacher-spring; .*: mass, gear$"
    with pytest.raises(ValueError, match=wanted):
        RandomisedBrax("reacher", "spring", randomisation=EVERYTHING)
    with pytest.raises(ValueError, match=r"strength \(1.5\) must lie in \[0, 1\]"):
        RandomisedBrax("ant", randomisation=PENDULUM, strength=1.5)


@pytest.mark.parametrize("between", [(0.0, 1.0), (2.0, 1.0), (1.0, float("inf")), (-1.0, 1.0)])
def test_ranges_that_mean_nothing_are_refused(between):
    with pytest.raises(ValueError, match=r"randomise_gear \(.*\) must be 0 < low <= high"):
        Randomisation(randomise_gear=between)
