"""One gradient step of soft actor-critic in NumPy: networks, losses and how they are wired.

Haarnoja et al. 2018b, algorithm 1. Parameters are the trees of Flax; one goal feature is last.
"""

import math

import numpy as np

from tests.reference import sac
from tests.reference.distributions import tanh_normal_log_prob


def dense(layer, x):
    return x @ np.asarray(layer["kernel"], np.float64) + np.asarray(layer["bias"], np.float64)


def relu_layers(tree, x):
    for name in sorted(tree):
        x = np.maximum(dense(tree[name], x), 0.0)
    return x


def encoded(tree, seen):
    codes = [relu_layers(tree["state_encoder"], seen[..., :-1])]
    codes.append(relu_layers(tree["goal_encoder"], seen[..., -1:]))
    return np.concatenate(codes, axis=-1)


def policy(params, seen):
    """(loc, scale) before tanh."""
    tree = params["params"]
    x = relu_layers(tree["MLP_0"], encoded(tree, seen))
    log_scale = np.clip(dense(tree["log_scale"], x), -10.0, 2.0)
    return dense(tree["loc"], x), np.exp(log_scale) + 0.02


def values(params, seen, action):
    """Every critic's action value, [K, ...]."""
    result = []
    for k in range(len(params["params"])):
        tree = params["params"][f"critic_{k}"]
        x = np.concatenate([encoded(tree, seen), action], axis=-1)
        result.append(dense(tree["Dense_0"], relu_layers(tree["MLP_0"], x))[..., 0])
    return np.stack(result)


def normalised(mean, variance, observation):
    return np.clip((observation - mean) / np.sqrt(variance), -10.0, 10.0)


def acted(policy_params, seen, noise):
    loc, scale = policy(policy_params, seen)
    pre_tanh = loc + scale * noise
    return np.tanh(pre_tanh), tanh_normal_log_prob(pre_tanh, loc, scale)


def critic_loss(critic_params, learnt, batch, noise):
    """Against the *target* critics at an action of the policy in the next state."""
    action, log_prob = acted(learnt["policy"], batch["next_seen"], noise)
    target = sac.soft_target(
        batch["reward"],
        batch["discount"],
        values(learnt["target"], batch["next_seen"], action),
        log_prob,
        math.exp(learnt["log_temperature"]),
    )
    mask = np.ones(target.shape, bool)
    return sac.critic_error(values(critic_params, batch["seen"], batch["action"]), target, mask)


def policy_loss(policy_params, critic_params, log_temperature, batch, noise):
    action, log_prob = acted(policy_params, batch["seen"], noise)
    value = values(critic_params, batch["seen"], action)
    mask = np.ones(log_prob.shape, bool)
    return sac.soft_actor_loss(log_prob, value, mask, math.exp(log_temperature))


def temperature_slope(log_temperature, log_prob, target_entropy):
    """Derivative of the loss of the temperature by its logarithm."""
    return -math.exp(log_temperature) * np.mean(log_prob + target_entropy)
