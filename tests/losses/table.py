"""Every public loss with its oracle and a recipe for its arguments, for the tests of them all."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from jaxagent import losses
from tests.reference import advantages, distributions, guidance, ppo

Recipe = Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]


def real(rng, shape):
    return rng.normal(size=shape)


def log_prob(rng, shape):
    return rng.normal(-1.0, 0.4, shape)


def unit(rng, shape):
    return rng.uniform(0.0, 1.0, shape)


def fraction(rng, shape):
    return rng.uniform(-0.2, 1.2, shape)


def positive(rng, shape):
    return rng.uniform(0.5, 2.0, shape)


def boolean(rng, shape):
    drawn = rng.random(shape) < 0.6
    drawn.flat[0] = True
    return drawn


def over(size, recipe=real) -> Recipe:
    """The recipe with one more axis at the end."""
    return lambda rng, shape: recipe(rng, (*shape, size))


def along_first(recipe=real) -> Recipe:
    """The recipe for a vector as long as the leading axis."""
    return lambda rng, shape: recipe(rng, shape[:1])


def index(size) -> Recipe:
    return lambda rng, shape: rng.integers(0, size, shape)


class Case(NamedTuple):
    """A function, the NumPy oracle that takes the same arguments, and recipes for the arrays."""

    function: Callable
    oracle: Callable
    recipes: list[Recipe]
    options: Mapping[str, Any] = MappingProxyType({})
    smooth: bool = False
    hides_nan: bool = False
    ignores: tuple[int, ...] = ()

    def arrays(self, shape, seed=0):
        rng = np.random.default_rng(seed)
        return [recipe(rng, shape) for recipe in self.recipes]

    def call(self, *arrays):
        return self.function(*arrays, **self.options)

    def expect(self, *arrays):
        return self.oracle(*arrays, **self.options)


TRAJECTORY = [real, unit, real, real, boolean]
RETURNS = [real, unit, real, boolean]
PPO = [log_prob, log_prob, real, real, real, real, unit, boolean]
STAGES = {"explore_lambda": 1.0, "refine_lambda": 0.3, "refine_from": 0.4, "zero_from": 0.7}

CASES = {
    "gae": Case(losses.gae, advantages.gae, TRAJECTORY, {"gae_lambda": 0.8}, smooth=True),
    "gae monte carlo": Case(losses.gae, advantages.gae, TRAJECTORY, {"gae_lambda": 1}),
    "lambda_returns": Case(
        losses.lambda_returns, advantages.lambda_returns, RETURNS, {"gae_lambda": 0.8}, smooth=True
    ),
    "masked_mean": Case(losses.masked_mean, advantages.masked_mean, [real, boolean], smooth=True),
    "masked_mean axis": Case(
        losses.masked_mean, advantages.masked_mean, [real, boolean], {"axis": 0}
    ),
    "masked_whiten": Case(
        losses.masked_whiten, advantages.masked_whiten, [real, boolean], smooth=True
    ),
    "clipped_surrogate": Case(
        losses.clipped_surrogate, ppo.clipped_surrogate, [log_prob, log_prob, real],
        {"clip_epsilon": 0.2},
    ),
    "clipped_value_error": Case(
        losses.clipped_value_error, ppo.clipped_value_error, [real] * 3,
        {"value_clip_epsilon": 0.3},
    ),
    "clipped_value_error plain": Case(
        losses.clipped_value_error, ppo.clipped_value_error, [real] * 3,
        {"value_clip_epsilon": None}, smooth=True, ignores=(1,),
    ),
    "ppo_loss": Case(
        losses.ppo_loss, ppo.ppo_loss, PPO,
        {"clip_epsilon": 0.2, "value_clip_epsilon": 0.3, "value_cost": 0.7, "entropy_cost": 0.05},
    ),
    "ppo_loss plain": Case(
        losses.ppo_loss, ppo.ppo_loss, PPO,
        {"clip_epsilon": 0.1, "value_clip_epsilon": None, "value_cost": 0.5, "entropy_cost": 0.0},
        ignores=(4,),
    ),
    "tanh_normal_log_prob": Case(
        losses.tanh_normal_log_prob, distributions.tanh_normal_log_prob,
        [over(2), over(2), over(2, positive)], smooth=True,
    ),
    "tanh_normal_kl": Case(
        losses.tanh_normal_kl, distributions.tanh_normal_kl,
        [over(2), over(2, positive), over(2), over(2, positive)], smooth=True,
    ),
    "tanh_normal_mode": Case(losses.tanh_normal_mode, np.tanh, [over(2)], smooth=True),
    "categorical_log_prob": Case(
        losses.categorical_log_prob, distributions.categorical_log_prob, [over(4), index(4)],
        smooth=True,
    ),
    "categorical_entropy": Case(
        losses.categorical_entropy, distributions.categorical_entropy, [over(4)], smooth=True
    ),
    "categorical_kl": Case(
        losses.categorical_kl, distributions.categorical_kl, [over(4), over(4)], smooth=True
    ),
    "k1": Case(losses.k1, distributions.k1, [log_prob, log_prob], smooth=True),
    "k2": Case(losses.k2, distributions.k2, [log_prob, log_prob], smooth=True),
    "k3": Case(losses.k3, distributions.k3, [real, real], smooth=True),
    "velocity_linear": Case(losses.velocity_linear, guidance.velocity_linear, [real], smooth=True),
    "velocity_saturated": Case(
        losses.velocity_saturated, guidance.velocity_saturated, [real], {"velocity_scale": 1.7},
        smooth=True,
    ),
    "velocity_target": Case(
        losses.velocity_target, guidance.velocity_target, [real], {"target_velocity": 0.7},
        smooth=True,
    ),
    "velocity_threshold": Case(
        losses.velocity_threshold, guidance.velocity_threshold, [real],
        {"threshold_velocity": 0.1}, hides_nan=True,
    ),
    "heading": Case(
        losses.heading, guidance.heading, [over(2), over(2), over(2)], {"angle_threshold": 0.6},
        smooth=True,
    ),
    "progress": Case(losses.progress, guidance.progress, [over(2)] * 4, smooth=True),
    "arrival": Case(
        losses.arrival, guidance.arrival, [over(2)] * 2, {"radius": 1.3}, hides_nan=True
    ),
    "plan_guidance": Case(
        losses.plan_guidance, guidance.plan_guidance, [real] * 3,
        {"heading_weight": 0.3, "progress_weight": 2.0, "arrival_weight": 5.0}, smooth=True,
    ),
    "energy_penalty": Case(
        losses.energy_penalty, guidance.negative_square_sum, [over(3)], smooth=True
    ),
    "angular_velocity_penalty": Case(
        losses.angular_velocity_penalty, guidance.negative_square_sum, [over(3)], smooth=True
    ),
    "potential_shaping": Case(
        losses.potential_shaping, guidance.potential_shaping, [real, real, boolean],
        {"discount_factor": 0.9}, smooth=True,
    ),
    "constant_lambda": Case(
        losses.constant_lambda, lambda x, guidance_lambda: np.full(x.shape, guidance_lambda),
        [fraction], {"guidance_lambda": 0.4}, hides_nan=True,
    ),
    "linear_lambda": Case(
        losses.linear_lambda, guidance.linear_lambda, [fraction], {"start": 1.2, "end": 0.2}
    ),
    "cosine_lambda": Case(
        losses.cosine_lambda, guidance.cosine_lambda, [fraction], {"start": 1.2, "end": 0.2}
    ),
    "staged_lambda": Case(
        losses.staged_lambda, guidance.staged_lambda, [fraction], STAGES, hides_nan=True
    ),
    "scale_matched_lambda": Case(
        losses.scale_matched_lambda, guidance.scale_matched_lambda, [positive] * 3, {"ratio": 0.6}
    ),
    "mix_by_weights": Case(
        losses.mix_by_weights, guidance.mix_by_weights, [real, along_first()], smooth=True
    ),
    "mix_by_priority": Case(
        losses.mix_by_priority, guidance.mix_by_priority, [real, boolean, along_first(boolean)],
        hides_nan=True,
    ),
    "softmax_weights": Case(
        losses.softmax_weights, lambda x: np.exp(x) / np.sum(np.exp(x)), [along_first()],
        smooth=True,
    ),
    "improve_source_logits": Case(
        losses.improve_source_logits, guidance.improve_source_logits,
        [along_first(), lambda rng, shape: real(rng, (4, shape[0])), lambda rng, _: real(rng, 4)],
        {"perturbation_std": 0.5, "learning_rate": 0.3}, smooth=True,
    ),
    "guidance_correlation": Case(
        losses.guidance_correlation, guidance.guidance_correlation, [real, real, boolean],
        smooth=True,
    ),
    "hacking_alarm": Case(
        losses.hacking_alarm, guidance.hacking_alarm, [real, real], hides_nan=True
    ),
}  # fmt: skip
