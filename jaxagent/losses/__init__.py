"""Losses and estimators as pure functions of arrays; importable without the rest of the house.

Time-major `[T, *B]` for trajectories, `[B, L]` for tokens. bfloat16 is accepted everywhere and
accumulated in float32. Wrong dtypes and axes are a TypeError, wrong static values a ValueError.
"""

from jaxagent.losses.advantages import gae, lambda_returns, masked_mean, masked_whiten
from jaxagent.losses.distributions import (
    TanhNormalSample,
    categorical_entropy,
    categorical_kl,
    categorical_log_prob,
    categorical_sample,
    tanh_normal_entropy,
    tanh_normal_kl,
    tanh_normal_log_prob,
    tanh_normal_mode,
    tanh_normal_sample,
)
from jaxagent.losses.divergence import k1, k2, k3
from jaxagent.losses.guidance import (
    angular_velocity_penalty,
    arrival,
    energy_penalty,
    heading,
    plan_guidance,
    potential_shaping,
    progress,
    velocity_linear,
    velocity_saturated,
    velocity_target,
    velocity_threshold,
)
from jaxagent.losses.ppo import PPOLoss, clipped_surrogate, clipped_value_error, ppo_loss
from jaxagent.losses.schedules import (
    AdaptiveLambda,
    adapt_lambda,
    adaptive_lambda,
    constant_lambda,
    cosine_lambda,
    linear_lambda,
    scale_matched_lambda,
    staged_lambda,
)
from jaxagent.losses.sources import (
    guidance_correlation,
    hacking_alarm,
    improve_source_logits,
    mix_by_priority,
    mix_by_weights,
    softmax_weights,
)

__all__ = [
    "AdaptiveLambda",
    "PPOLoss",
    "TanhNormalSample",
    "adapt_lambda",
    "adaptive_lambda",
    "angular_velocity_penalty",
    "arrival",
    "categorical_entropy",
    "categorical_kl",
    "categorical_log_prob",
    "categorical_sample",
    "clipped_surrogate",
    "clipped_value_error",
    "constant_lambda",
    "cosine_lambda",
    "energy_penalty",
    "gae",
    "guidance_correlation",
    "hacking_alarm",
    "heading",
    "improve_source_logits",
    "k1",
    "k2",
    "k3",
    "lambda_returns",
    "linear_lambda",
    "masked_mean",
    "masked_whiten",
    "mix_by_priority",
    "mix_by_weights",
    "plan_guidance",
    "potential_shaping",
    "ppo_loss",
    "progress",
    "scale_matched_lambda",
    "softmax_weights",
    "staged_lambda",
    "tanh_normal_entropy",
    "tanh_normal_kl",
    "tanh_normal_log_prob",
    "tanh_normal_mode",
    "tanh_normal_sample",
    "velocity_linear",
    "velocity_saturated",
    "velocity_target",
    "velocity_threshold",
]
