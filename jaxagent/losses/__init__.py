"""Losses and estimators as pure functions of arrays; importable without the rest of the house.

Time-major `[T, *B]` for trajectories, `[B, L]` for tokens. bfloat16 is accepted everywhere and
accumulated in float32. NumPy arrays and scalars are taken like JAX's (float64 becomes float32
unless 64 bits are enabled), and a number where an array has no axes. Wrong dtypes and axes are a
TypeError, wrong static values a ValueError.
"""

from jaxagent.losses.advantages import gae, lambda_returns, masked_mean, masked_whiten
from jaxagent.losses.credit import (
    conserve_return,
    decayed_credit,
    difference_credit,
    duration_credit,
    eligibility_credit,
    segment_gae,
    uniform_credit,
)
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
from jaxagent.losses.group import (
    gigpo_advantages,
    grpo_advantages,
    hgpo_advantages,
    history_keys,
    rloo_advantages,
)
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
from jaxagent.losses.hae import HAEAdvantages, hae_advantages
from jaxagent.losses.hindsight import (
    GoalSteps,
    Relabelled,
    choose_goal_steps,
    hindsight_weights,
    relabel,
)
from jaxagent.losses.imitation import (
    behaviour_cloning_loss,
    behaviour_cloning_squared_error,
    categorical_distillation_loss,
    tanh_normal_distillation_loss,
    token_cross_entropy,
)
from jaxagent.losses.ppo import PPOLoss, clipped_surrogate, clipped_value_error, ppo_loss
from jaxagent.losses.preference import (
    PreferenceLoss,
    bradley_terry_loss,
    dpo_loss,
    ipo_loss,
    sequence_log_prob,
)
from jaxagent.losses.sac import critic_error, soft_actor_loss, soft_target, temperature_loss
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
from jaxagent.losses.segments import Segments, sum_segments, td_credit
from jaxagent.losses.sources import (
    guidance_correlation,
    hacking_alarm,
    improve_source_logits,
    mix_by_priority,
    mix_by_weights,
    softmax_weights,
)
from jaxagent.losses.tokens import TokenLoss, token_clipped_loss, token_mean

__all__ = [
    "AdaptiveLambda",
    "GoalSteps",
    "HAEAdvantages",
    "PPOLoss",
    "PreferenceLoss",
    "Relabelled",
    "Segments",
    "TanhNormalSample",
    "TokenLoss",
    "adapt_lambda",
    "adaptive_lambda",
    "angular_velocity_penalty",
    "arrival",
    "behaviour_cloning_loss",
    "behaviour_cloning_squared_error",
    "bradley_terry_loss",
    "categorical_distillation_loss",
    "categorical_entropy",
    "categorical_kl",
    "categorical_log_prob",
    "categorical_sample",
    "choose_goal_steps",
    "clipped_surrogate",
    "clipped_value_error",
    "conserve_return",
    "constant_lambda",
    "cosine_lambda",
    "critic_error",
    "decayed_credit",
    "difference_credit",
    "dpo_loss",
    "duration_credit",
    "eligibility_credit",
    "energy_penalty",
    "gae",
    "gigpo_advantages",
    "grpo_advantages",
    "guidance_correlation",
    "hacking_alarm",
    "hae_advantages",
    "heading",
    "hgpo_advantages",
    "hindsight_weights",
    "history_keys",
    "improve_source_logits",
    "ipo_loss",
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
    "relabel",
    "rloo_advantages",
    "scale_matched_lambda",
    "segment_gae",
    "sequence_log_prob",
    "soft_actor_loss",
    "soft_target",
    "softmax_weights",
    "staged_lambda",
    "sum_segments",
    "tanh_normal_distillation_loss",
    "tanh_normal_entropy",
    "tanh_normal_kl",
    "tanh_normal_log_prob",
    "tanh_normal_mode",
    "tanh_normal_sample",
    "td_credit",
    "temperature_loss",
    "token_clipped_loss",
    "token_cross_entropy",
    "token_mean",
    "uniform_credit",
    "velocity_linear",
    "velocity_saturated",
    "velocity_target",
    "velocity_threshold",
]
