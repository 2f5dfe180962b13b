"""Soft actor-critic, one sample at a time."""

import math

import numpy as np


def soft_target(reward, discount, next_action_value, next_log_prob, temperature):
    out = np.zeros(np.shape(reward))
    for i in np.ndindex(out.shape):
        smallest = min(q[i] for q in next_action_value)
        out[i] = reward[i] + discount[i] * (smallest - temperature * next_log_prob[i])
    return out


def critic_error(action_value, target, mask):
    errors = [
        sum((q[i] - target[i]) ** 2 / 2 for q in action_value)
        for i in np.ndindex(np.shape(mask))
        if mask[i]
    ]
    return np.float64(np.mean(errors)) if errors else np.float64(0)


def soft_actor_loss(log_prob, action_value, mask, temperature):
    losses = [
        temperature * log_prob[i] - min(q[i] for q in action_value)
        for i in np.ndindex(np.shape(mask))
        if mask[i]
    ]
    return np.float64(np.mean(losses)) if losses else np.float64(0)


def temperature_loss(log_temperature, log_prob, mask, target_entropy):
    alpha = math.exp(log_temperature)
    losses = [-alpha * (lp + target_entropy) for lp, m in zip(log_prob.flat, mask.flat) if m]
    return np.float64(np.mean(losses)) if losses else np.float64(0)
