"""Imitation: behaviour cloning, token cross-entropy, distillation of a teacher's distribution."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxagent.losses.advantages import masked_mean
from jaxagent.losses.contract import Scalar, accumulate, checked
from jaxagent.losses.distributions import categorical_kl, categorical_log_prob, tanh_normal_kl
from jaxagent.losses.tokens import Normalisation, token_mean


@checked
def behaviour_cloning_loss(
    log_prob: Float[Array, "*S"], mask: Bool[Array, "*S"]
) -> Float[Array, ""]:
    """Behaviour cloning by maximum likelihood (Pomerleau 1991).

        L = −mean[log π(a* | s)]

    Args:
        log_prob: log π(a*ₜ | sₜ) of the expert's action, nats. For a tanh-normal policy the
            expert's pre-tanh action is needed: keep it, or clip |a*| to 1 − 1e-6 before arctanh,
            which is infinite at ±1.
        mask: True where the sample counts; a dead sample is never looked at.

    Returns:
        The loss, float32 or wider, 0 where nothing is live. Non-finite live input comes out
        non-finite.

    Raises:
        TypeError: an argument has another dtype, or the axes differ.

    Example:
        >>> behaviour_cloning_loss(jnp.array([-1.0, -3.0]), jnp.array([True, True])).item()
        2.0
    """
    return -masked_mean(log_prob, mask)


@checked
def behaviour_cloning_squared_error(
    action: Float[Array, "*B A"], expert_action: Float[Array, "*B A"], mask: Bool[Array, "*B"]
) -> Float[Array, ""]:
    """Behaviour cloning of a deterministic action: maximum likelihood at fixed unit variance.

        L = mean[½ Σ_A (a − a*)²]

    Args:
        action: a(sₜ) of the policy.
        expert_action: a*ₜ of the expert in the same units.
        mask: True where the sample counts; a dead sample is never looked at.

    Returns:
        The loss, float32 or wider, 0 where nothing is live. Non-finite live input comes out
        non-finite.

    Raises:
        TypeError: an argument has another dtype, or the axes differ.

    Example:
        >>> own, expert = jnp.array([[1.0, 0.0]]), jnp.array([[0.0, 2.0]])
        >>> behaviour_cloning_squared_error(own, expert, jnp.array([True])).item()
        2.5
    """
    action, expert_action = (
        jnp.where(mask[..., None], x, 0.0) for x in accumulate(action, expert_action)
    )
    return masked_mean(0.5 * jnp.sum((action - expert_action) ** 2, axis=-1), mask)


@checked
def token_cross_entropy(
    logits: Float[Array, "*B L V"],
    token: Int[Array, "*B L"],
    mask: Bool[Array, "*B L"],
    *,
    normalisation: Normalisation = "token",
    normaliser: Scalar | None = None,
) -> Float[Array, ""]:
    """Cross-entropy of the next token, on completion tokens only (supervised fine-tuning).

        L = −norm_{i,l}[log softmax(logitsᵢₗ)[tokenᵢₗ]]

    Args:
        logits: of the distribution over token l, that is, the model's output at l − 1: shift
            *before* the call.
        token: ids in [0, V).
        mask: True on completion tokens; a dead token (prompt, padding, any id) is never
            looked at.
        normalisation: token, sequence or constant, as in `token_mean`.
        normaliser: the divisor of `constant`.

    Returns:
        The loss, nats per token, float32 or wider, 0 where nothing is live. A live id out of
        range gives NaN. Non-finite live input comes out non-finite.

    Raises:
        TypeError: an argument has another dtype, or the axes differ.
        ValueError: normaliser is given without `constant`, or missing with it.

    Example:
        >>> token, mask = jnp.array([[3, -100]]), jnp.array([[True, False]])
        >>> round(token_cross_entropy(jnp.zeros((1, 2, 4)), token, mask).item(), 4)
        1.3863
    """
    live_logits = jnp.where(mask[..., None], logits, 0.0)
    log_prob = categorical_log_prob(live_logits, jnp.where(mask, token, 0))
    return -token_mean(log_prob, mask, normalisation=normalisation, normaliser=normaliser)


@checked
def categorical_distillation_loss(
    teacher_logits: Float[Array, "*B A"],
    student_logits: Float[Array, "*B A"],
    mask: Bool[Array, "*B"],
    *,
    softmax_temperature: Scalar = 1.0,
) -> Float[Array, ""]:
    """Distillation of a categorical teacher (Hinton et al. 2015; policies: Rusu et al. 2016).

        L = mean[τ² KL(softmax(teacher/τ) ‖ softmax(student/τ))]

    Args:
        teacher_logits: of the teacher; its gradient is stopped here.
        student_logits: of the student.
        mask: True where the sample counts; a dead sample is never looked at.
        softmax_temperature: τ > 0; τ² keeps the gradient's size as τ grows.

    Returns:
        The loss, nats, float32 or wider, 0 where nothing is live. Non-finite live input comes
        out non-finite.

    Raises:
        TypeError: an argument has another dtype, or the axes differ.

    Example:
        >>> teacher, live = jnp.array([[1.0, 2.0]]), jnp.array([True])
        >>> categorical_distillation_loss(teacher, teacher, live).item()
        0.0
    """
    teacher, student = (
        jnp.where(mask[..., None], x, 0.0) / softmax_temperature
        for x in accumulate(teacher_logits, student_logits)
    )
    divergence = categorical_kl(jax.lax.stop_gradient(teacher), student)
    return masked_mean(softmax_temperature**2 * divergence, mask)


@checked
def tanh_normal_distillation_loss(
    teacher_loc: Float[Array, "*B A"],
    teacher_scale: Float[Array, "*B A"],
    student_loc: Float[Array, "*B A"],
    student_scale: Float[Array, "*B A"],
    mask: Bool[Array, "*B"],
) -> Float[Array, ""]:
    """Distillation of a tanh-normal teacher, such as a guided policy into an unguided one.

        L = mean[KL(teacher ‖ student)]

    Args:
        teacher_loc: μ of the teacher; its gradient is stopped here.
        teacher_scale: σ > 0 of the teacher; its gradient is stopped here.
        student_loc: μ of the student.
        student_scale: σ > 0 of the student.
        mask: True where the sample counts; a dead sample is never looked at.

    Returns:
        The loss, nats, float32 or wider, 0 where nothing is live. Non-finite live input comes
        out non-finite.

    Raises:
        TypeError: an argument has another dtype, or the axes differ.

    Example:
        >>> zero, one, live = jnp.zeros((1, 2)), jnp.ones((1, 2)), jnp.array([True])
        >>> tanh_normal_distillation_loss(one, one, zero, one, live).item()
        1.0
    """
    parameters = (teacher_loc, teacher_scale, student_loc, student_scale)
    teacher_loc, teacher_scale, student_loc, student_scale = (
        # One is a valid scale, and equal locations make the dead divergence zero.
        jnp.where(mask[..., None], x, 1.0)
        for x in accumulate(*parameters)
    )
    teacher = jax.lax.stop_gradient((teacher_loc, teacher_scale))
    return masked_mean(tanh_normal_kl(*teacher, student_loc, student_scale), mask)
