"""PPO, one sample at a time."""

import math

import numpy as np


def clipped_surrogate(log_prob, behaviour_log_prob, advantage, clip_epsilon):
    out = np.zeros(np.shape(log_prob))
    for i in np.ndindex(out.shape):
        ratio = math.exp(log_prob[i] - behaviour_log_prob[i])
        if advantage[i] >= 0:
            out[i] = advantage[i] * min(ratio, 1 + clip_epsilon)
        else:  # the worse of the two is the one with the greater ratio
            out[i] = advantage[i] * max(ratio, 1 - clip_epsilon)
    return out


def clipped_value_error(value, behaviour_value, value_target, value_clip_epsilon):
    out = np.zeros(np.shape(value))
    for i in np.ndindex(out.shape):
        candidates = [(value[i] - value_target[i]) ** 2]
        if value_clip_epsilon is not None:
            low, high = (
                behaviour_value[i] - value_clip_epsilon,
                behaviour_value[i] + value_clip_epsilon,
            )
            candidates.append((min(max(value[i], low), high) - value_target[i]) ** 2)
        out[i] = max(candidates) / 2
    return out


def ppo_loss(
    log_prob,
    behaviour_log_prob,
    advantage,
    value,
    behaviour_value,
    value_target,
    entropy,
    mask,
    clip_epsilon,
    value_clip_epsilon,
    value_cost,
    entropy_cost,
):
    surrogate = clipped_surrogate(log_prob, behaviour_log_prob, advantage, clip_epsilon)
    error = clipped_value_error(value, behaviour_value, value_target, value_clip_epsilon)
    policy = value_error = mean_entropy = clipped = kl = 0.0
    count = max(int(np.sum(mask)), 1)
    for i in np.ndindex(np.shape(mask)):
        if not mask[i]:
            continue
        log_ratio = log_prob[i] - behaviour_log_prob[i]
        policy -= surrogate[i] / count
        value_error += error[i] / count
        mean_entropy += entropy[i] / count
        clipped += (abs(math.exp(log_ratio) - 1) > clip_epsilon) / count
        kl += (math.exp(log_ratio) - 1 - log_ratio) / count
    total = policy + value_cost * value_error - entropy_cost * mean_entropy
    return total, policy, value_error, mean_entropy, clipped, kl
