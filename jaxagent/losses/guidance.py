"""Action guidance, R_total = R_env + λ·R_guidance: the terms of R_guidance.

Positions are in metres, velocities in metres per second, angles in radians. Every term is per
environment step and unweighted. Schedules of λ are in `schedules`, mixing in `sources`.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxagent.losses.contract import Scalar, accumulate, checked, not_hidden


def _safe_norm(vector: jax.Array) -> jax.Array:
    """Euclidean length over the last axis, with gradient 0 (not NaN) at the origin."""
    squared = jnp.sum(vector**2, axis=-1)
    is_zero = squared == 0
    return jnp.where(is_zero, 0.0, jnp.sqrt(jnp.where(is_zero, 1.0, squared)))


def _unit(vector: jax.Array) -> jax.Array:
    """The direction of a vector; the zero vector has none and stays zero."""
    length = _safe_norm(vector)[..., None]
    return vector / jnp.where(length == 0, 1.0, length)


@checked
def velocity_linear(forward_velocity: Float[Array, "*B"]) -> Float[Array, "*B"]:
    """Guidance term: forward velocity.

        R = v_x

    Args:
        forward_velocity: v_x of the torso, m/s.

    Returns:
        v_x, m/s, float32 or wider; unbounded. Non-finite input comes out non-finite.

    Raises:
        TypeError: forward_velocity is not floating point.

    Example:
        >>> print(velocity_linear(jnp.array([1.5])))
        [1.5]
    """
    return accumulate(forward_velocity)[0]


@checked
def velocity_saturated(
    forward_velocity: Float[Array, "*B"], *, velocity_scale: Scalar
) -> Float[Array, "*B"]:
    """Guidance term: forward velocity, saturated (the default term of action guidance).

        R = tanh(v_x / v_scale)

    Args:
        forward_velocity: v_x of the torso, m/s.
        velocity_scale: v_scale > 0, m/s; the speed that earns tanh 1 = 0.76.

    Returns:
        A number in [−1, 1], float32 or wider. Non-finite input comes out non-finite.

    Raises:
        TypeError: forward_velocity is not floating point.

    Example:
        >>> print(velocity_saturated(jnp.array([0.0, 100.0]), velocity_scale=1.0))
        [0. 1.]
    """
    (velocity,) = accumulate(forward_velocity)
    return not_hidden(jnp.tanh(velocity / velocity_scale), velocity)


@checked
def velocity_target(
    forward_velocity: Float[Array, "*B"], *, target_velocity: Scalar
) -> Float[Array, "*B"]:
    """Guidance term: closeness to a wanted velocity.

        R = −(v_x − v*)²

    Args:
        forward_velocity: v_x of the torso, m/s.
        target_velocity: v*, m/s.

    Returns:
        At most 0, m²/s², float32 or wider. Non-finite input comes out non-finite.

    Raises:
        TypeError: forward_velocity is not floating point.

    Example:
        >>> print(velocity_target(jnp.array([3.0]), target_velocity=1.0))
        [-4.]
    """
    return -((accumulate(forward_velocity)[0] - target_velocity) ** 2)


@checked
def velocity_threshold(
    forward_velocity: Float[Array, "*B"], *, threshold_velocity: Scalar
) -> Float[Array, "*B"]:
    """Guidance term: faster than a threshold or not.

        R = 1[v_x > v*]

    Args:
        forward_velocity: v_x of the torso, m/s.
        threshold_velocity: v*, m/s.

    Returns:
        0 or 1, float32 or wider; its gradient is zero everywhere, and NaN earns 0.

    Raises:
        TypeError: forward_velocity is not floating point.

    Example:
        >>> print(velocity_threshold(jnp.array([1.0, 1.1]), threshold_velocity=1.0))
        [0. 1.]
    """
    (velocity,) = accumulate(forward_velocity)
    return (velocity > threshold_velocity).astype(velocity.dtype)


@checked
def heading(
    facing: Float[Array, "*B D"],
    position: Float[Array, "*B D"],
    target: Float[Array, "*B D"],
    *,
    angle_threshold: Scalar,
) -> Float[Array, "*B"]:
    """Guidance term: the torso faces the target.

        R = cos ∠(facing, target − position) − cos(angle_threshold)

    Args:
        facing: direction in which the torso points, any length, world frame.
        position: of the torso, metres.
        target: of the sub-goal, metres.
        angle_threshold: in (0, π], radians; the term is positive below it, negative above.

    Returns:
        A number in [−1 − cos τ, 1 − cos τ], float32 or wider. On the target, or without a
        facing, the cosine counts as 0 and the gradient is finite. Non-finite input comes out
        non-finite.

    Raises:
        TypeError: an argument is not floating point or their axes differ.

    Example:
        >>> east, here, north = jnp.array([1.0, 0.0]), jnp.zeros(2), jnp.array([0.0, 5.0])
        >>> round(heading(east, here, north, angle_threshold=jnp.pi / 3).item(), 3)
        -0.5
    """
    facing, position, target = accumulate(facing, position, target)
    cosine = jnp.sum(_unit(facing) * _unit(target - position), axis=-1)
    return cosine - jnp.cos(angle_threshold)


@checked
def progress(
    position: Float[Array, "*B D"],
    next_position: Float[Array, "*B D"],
    origin: Float[Array, "*B D"],
    target: Float[Array, "*B D"],
) -> Float[Array, "*B"]:
    """Guidance term: how far one step moved along the line to the target.

        R = (x′ − x) · (target − origin) / ‖target − origin‖

    Args:
        position: x of the torso, metres.
        next_position: x′ of the torso after the step, before any auto-reset, metres.
        origin: where this sub-goal began, metres; fixed while the sub-goal lasts, so that the
            steps sum to the distance covered along the line and circling earns nothing.
        target: of the sub-goal, metres.

    Returns:
        Metres per step, float32 or wider; negative when moving away, and still positive when
        moving on behind the target. 0 where origin and target coincide. Non-finite input
        comes out non-finite.

    Raises:
        TypeError: an argument is not floating point or their axes differ.

    Example:
        >>> x, moved = jnp.zeros(2), jnp.array([0.5, 9.0])
        >>> progress(x, moved, jnp.zeros(2), jnp.array([10.0, 0.0])).item()
        0.5
    """
    position, next_position, origin, target = accumulate(position, next_position, origin, target)
    return jnp.sum((next_position - position) * _unit(target - origin), axis=-1)


@checked
def arrival(
    next_position: Float[Array, "*B D"], target: Float[Array, "*B D"], *, radius: Scalar
) -> Float[Array, "*B"]:
    """Guidance term: sparse bonus inside the radius of the target.

        R = 1[‖x′ − target‖ < radius]

    Args:
        next_position: x′ of the torso after the step, before any auto-reset, metres.
        target: of the sub-goal, metres.
        radius: metres.

    Returns:
        0 or 1 per step, float32 or wider: every step inside earns it, so end or change the
        sub-goal on arrival. Its gradient is zero, and NaN earns 0.

    Raises:
        TypeError: an argument is not floating point or their axes differ.

    Example:
        >>> arrival(jnp.array([9.5, 10.0]), jnp.array([10.0, 10.0]), radius=1.0).item()
        1.0
    """
    next_position, target = accumulate(next_position, target)
    distance = _safe_norm(next_position - target)
    return (distance < radius).astype(distance.dtype)


@checked
def plan_guidance(
    heading: Float[Array, "*B"],
    progress: Float[Array, "*B"],
    arrival: Float[Array, "*B"],
    *,
    heading_weight: Scalar,
    progress_weight: Scalar,
    arrival_weight: Scalar,
) -> Float[Array, "*B"]:
    """Guidance of a plan of sub-goals: the weighted sum of its three terms.

        R_guidance = w_heading·heading + w_progress·progress + w_arrival·arrival

    Args:
        heading: the `heading` term.
        progress: metres that the step came nearer to the sub-goal, or its `progress` term.
        arrival: the `arrival` term.
        heading_weight: w_heading.
        progress_weight: w_progress, per metre.
        arrival_weight: w_arrival.

    Returns:
        R_guidance per step, not yet multiplied by λ, float32 or wider. Non-finite input comes
        out non-finite.

    Raises:
        TypeError: an argument is not floating point or their axes differ.

    Example:
        >>> one, weights = jnp.ones(()), dict(heading_weight=0.1, progress_weight=1.0)
        >>> round(plan_guidance(one, one, one, arrival_weight=10.0, **weights).item(), 3)
        11.1
    """
    heading, progress, arrival = accumulate(heading, progress, arrival)
    return heading_weight * heading + progress_weight * progress + arrival_weight * arrival


@checked
def energy_penalty(action: Float[Array, "*B A"]) -> Float[Array, "*B"]:
    """Term against reward hacking: control energy.

        R = −Σ_A a²

    Args:
        action: torques in their normalised range [−1, 1].

    Returns:
        At most 0, to be *added* with a positive weight; float32 or wider. Non-finite input
        comes out non-finite.

    Raises:
        TypeError: action is not floating point.

    Example:
        >>> energy_penalty(jnp.array([1.0, -2.0])).item()
        -5.0
    """
    return -jnp.sum(accumulate(action)[0] ** 2, axis=-1)


@checked
def angular_velocity_penalty(angular_velocity: Float[Array, "*B D"]) -> Float[Array, "*B"]:
    """Term against reward hacking: spinning and tumbling.

        R = −Σ_D ω²

    Args:
        angular_velocity: ω of the torso, rad/s.

    Returns:
        At most 0, rad²/s², to be *added* with a positive weight; float32 or wider. Non-finite
        input comes out non-finite.

    Raises:
        TypeError: angular_velocity is not floating point.

    Example:
        >>> angular_velocity_penalty(jnp.array([0.0, 0.0, 3.0])).item()
        -9.0
    """
    return -jnp.sum(accumulate(angular_velocity)[0] ** 2, axis=-1)


@checked
def potential_shaping(
    potential: Float[Array, "*S"],
    next_potential: Float[Array, "*S"],
    terminated: Bool[Array, "*S"],
    *,
    discount_factor: Scalar,
) -> Float[Array, "*S"]:
    """Potential-based shaping, which keeps every optimal policy (Ng et al. 1999, thm. 1).

        F = γ Φ(s′) − Φ(s),  Φ(terminal) = 0

    Args:
        potential: Φ(sₜ).
        next_potential: Φ(s′ₜ), s′ₜ the successor seen before any auto-reset.
        terminated: True where the task truly ended; *not* where it was truncated.
        discount_factor: the γ of the return that is optimised; another γ voids the theorem.

    Returns:
        F per step, float32 or wider; at terminated steps Φ(s′) is not looked at. Non-finite
        input comes out non-finite.

    Raises:
        TypeError: an argument has another dtype, or the axes differ.

    Example:
        >>> phi, next_phi, ends = jnp.ones(2), jnp.full(2, 3.0), jnp.array([False, True])
        >>> print(potential_shaping(phi, next_phi, ends, discount_factor=0.5))
        [ 0.5 -1. ]
    """
    potential, next_potential = accumulate(potential, next_potential)
    return discount_factor * jnp.where(terminated, 0.0, next_potential) - potential
