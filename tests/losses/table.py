"""Every public loss with its oracle and a recipe for its arguments, for the tests of them all."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from jaxagent import losses
from tests.reference import (
    advantages,
    credit,
    distributions,
    group,
    guidance,
    hindsight,
    imitation,
    ppo,
    sac,
)

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


def batch(recipe=real) -> Recipe:
    """The recipe for one entry per column."""
    return lambda rng, shape: recipe(rng, shape[1:])


def stacked(size, recipe=real) -> Recipe:
    """The recipe with one more axis in front."""
    return lambda rng, shape: recipe(rng, (size, *shape))


def prefix(rng, shape):
    """A mask of the first few entries of each column, one at least."""
    length = rng.integers(1, shape[0] + 1, shape[1:])
    return np.arange(shape[0]).reshape(-1, *[1] * (len(shape) - 1)) < length


def segment(rng, shape):
    """Ids that start at 0 and sometimes go on to the next."""
    return np.cumsum(rng.random(shape) < 0.4, axis=0) * (np.arange(shape[0]) > 0).reshape(
        -1, *[1] * (len(shape) - 1)
    )


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
        return [np.asarray(recipe(rng, shape)) for recipe in self.recipes]

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
    "hindsight_weights": Case(
        losses.hindsight_weights,
        hindsight.hindsight_weights,
        [boolean] * 4,
        {"exploration_weight": 0.25},
    ),
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

PAIRS = [log_prob, log_prob, log_prob, log_prob, boolean]
TD = [real, unit, real, real]
HAE = [real, unit, real, real, real, real, real, boolean, boolean, prefix]

CASES |= {
    "soft_target": Case(
        losses.soft_target, sac.soft_target, [real, unit, stacked(2), log_prob],
        {"temperature": 0.3}, smooth=True,
    ),
    "critic_error": Case(
        losses.critic_error, sac.critic_error, [stacked(2), real, boolean]
    ),
    "soft_actor_loss": Case(
        losses.soft_actor_loss, sac.soft_actor_loss, [log_prob, stacked(2), boolean],
        {"temperature": 0.3}, smooth=True,
    ),
    "temperature_loss": Case(
        losses.temperature_loss, sac.temperature_loss,
        [lambda rng, shape: unit(rng, ()), log_prob, boolean], {"target_entropy": -1.5},
    ),
    "behaviour_cloning_loss": Case(
        losses.behaviour_cloning_loss, imitation.behaviour_cloning_loss, [log_prob, boolean],
        smooth=True,
    ),
    "behaviour_cloning_squared_error": Case(
        losses.behaviour_cloning_squared_error, imitation.behaviour_cloning_squared_error,
        [over(2), over(2), boolean], smooth=True,
    ),
    "token_cross_entropy": Case(
        losses.token_cross_entropy, imitation.token_cross_entropy, [over(4), index(4), boolean],
        smooth=True,
    ),
    "token_cross_entropy sequence": Case(
        losses.token_cross_entropy, imitation.token_cross_entropy, [over(4), index(4), boolean],
        {"normalisation": "sequence"},
    ),
    "categorical_distillation_loss": Case(
        losses.categorical_distillation_loss, imitation.categorical_distillation_loss,
        [over(4), over(4), boolean], {"softmax_temperature": 1.7},
    ),
    "tanh_normal_distillation_loss": Case(
        losses.tanh_normal_distillation_loss, imitation.tanh_normal_distillation_loss,
        [over(2), over(2, positive), over(2), over(2, positive), boolean],
    ),
    "token_mean token": Case(
        losses.token_mean, imitation.token_mean, [real, boolean], {"normalisation": "token"}
    ),
    "token_mean sequence": Case(
        losses.token_mean, imitation.token_mean, [real, boolean], {"normalisation": "sequence"},
        smooth=True,
    ),
    "token_mean constant": Case(
        losses.token_mean, imitation.token_mean, [real, boolean],
        {"normalisation": "constant", "normaliser": 12},
    ),
    "token_clipped_loss": Case(
        losses.token_clipped_loss, imitation.token_clipped_loss,
        [log_prob, log_prob, real, boolean],
        {"clip_epsilon": 0.2, "normalisation": "sequence"},
    ),
    "token_clipped_loss constant": Case(
        losses.token_clipped_loss, imitation.token_clipped_loss,
        [log_prob, log_prob, real, boolean],
        {"clip_epsilon": 0.1, "normalisation": "constant", "normaliser": 7.0},
    ),
    "sequence_log_prob": Case(
        losses.sequence_log_prob, imitation.sequence_log_prob, [log_prob, boolean], smooth=True
    ),
    "sequence_log_prob length": Case(
        losses.sequence_log_prob, imitation.sequence_log_prob, [log_prob, boolean],
        {"length_normalised": True},
    ),
    "dpo_loss": Case(losses.dpo_loss, imitation.dpo_loss, PAIRS, {"dpo_beta": 0.6}),
    "dpo_loss smoothed": Case(
        losses.dpo_loss, imitation.dpo_loss, PAIRS, {"dpo_beta": 2.0, "label_smoothing": 0.2}
    ),
    "ipo_loss": Case(losses.ipo_loss, imitation.ipo_loss, PAIRS, {"ipo_tau": 0.4}),
    "bradley_terry_loss": Case(
        losses.bradley_terry_loss, imitation.bradley_terry_loss, [real, real, boolean]
    ),
    "bradley_terry_loss margin": Case(
        losses.bradley_terry_loss, imitation.bradley_terry_loss, [real, real, boolean],
        {"margin": 0.7},
    ),
    "grpo_advantages": Case(
        losses.grpo_advantages, group.grpo_advantages, [real, index(3), boolean],
        {"num_groups": 3, "spread": "population"},
    ),
    "grpo_advantages sample": Case(
        losses.grpo_advantages, group.grpo_advantages, [real, index(2), boolean],
        {"num_groups": 4, "spread": "sample"},
    ),
    "grpo_advantages none": Case(
        losses.grpo_advantages, group.grpo_advantages, [real, index(3), boolean],
        {"num_groups": 3, "spread": "none"}, smooth=True,
    ),
    "rloo_advantages": Case(
        losses.rloo_advantages, group.rloo_advantages, [real, index(3), boolean],
        {"num_groups": 3}, smooth=True,
    ),
    "gigpo_advantages": Case(
        losses.gigpo_advantages, group.gigpo_advantages,
        [batch(), real, batch(index(2)), index(2), prefix],
        {"num_groups": 2, "step_weight": 0.7, "spread": "sample"},
    ),
    "gigpo_advantages none": Case(
        losses.gigpo_advantages, group.gigpo_advantages,
        [batch(), real, batch(index(2)), index(3), prefix],
        {"num_groups": 2, "step_weight": 1.0, "spread": "none"},
    ),
    "hgpo_advantages": Case(
        losses.hgpo_advantages, group.hgpo_advantages,
        [real, index(2), stacked(4, index(2)), boolean],
        {"weight_exponent": 1.5, "spread": "population"},
    ),
    "uniform_credit": Case(
        losses.uniform_credit, credit.uniform_credit, [batch(), prefix], smooth=True
    ),
    "duration_credit": Case(
        losses.duration_credit, credit.duration_credit, [batch(), index(9), prefix], smooth=True
    ),
    "decayed_credit": Case(
        losses.decayed_credit, credit.decayed_credit, [real, batch(), prefix],
        {"credit_decay": 0.8}, smooth=True,
    ),
    "eligibility_credit": Case(
        losses.eligibility_credit, credit.eligibility_credit, [real, unit, real, prefix],
        {"segment_lambda": 0.7}, smooth=True,
    ),
    "segment_gae": Case(
        losses.segment_gae, credit.segment_gae, [*TD, prefix], {"segment_lambda": 0.7},
        smooth=True,
    ),
    "difference_credit": Case(
        losses.difference_credit, credit.difference_credit, [batch(), real, prefix], smooth=True
    ),
    "conserve_return": Case(
        losses.conserve_return, credit.conserve_return, [real, batch(), prefix], smooth=True
    ),
    "sum_segments": Case(
        losses.sum_segments, credit.sum_segments, [real, unit, segment, prefix],
        {"num_segments": 5},
    ),
    "td_credit": Case(
        losses.td_credit, credit.td_credit, [*TD, segment, prefix], {"num_segments": 5},
        smooth=True,
    ),
    "hae_advantages": Case(
        losses.hae_advantages, credit.hae_advantages, HAE,
        {"turn_lambda": 0.8, "segment_lambda": 0.6},
    ),
}  # fmt: skip
