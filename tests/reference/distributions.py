"""Densities by the change of variables, with the naive formulas, in float64."""

import math

import numpy as np


def tanh_normal_log_prob(pre_tanh, loc, scale):
    out = np.zeros(pre_tanh.shape[:-1])
    for i in np.ndindex(out.shape):
        for u, m, s in zip(pre_tanh[i], loc[i], scale[i]):
            normal = math.exp(-(((u - m) / s) ** 2) / 2) / (s * math.sqrt(2 * math.pi))
            out[i] += math.log(normal / (1 - math.tanh(u) ** 2))
    return out


def tanh_normal_kl(loc_p, scale_p, loc_q, scale_q):
    """∫ p log(p/q) over the *squashed* action, by the midpoint rule in u."""
    out = np.zeros(loc_p.shape[:-1])
    for i in np.ndindex(out.shape):
        for mp, sp, mq, sq in zip(loc_p[i], scale_p[i], loc_q[i], scale_q[i]):
            u = mp + sp * (np.arange(20_000) - 9_999.5) / 1_000
            log_p = -(((u - mp) / sp) ** 2) / 2 - math.log(sp)
            log_q = -(((u - mq) / sq) ** 2) / 2 - math.log(sq)
            density = np.exp(log_p) / math.sqrt(2 * math.pi)
            out[i] += np.sum(density * (log_p - log_q)) * sp / 1_000
    return out


def _softmax(logits):
    weights = [math.exp(x) for x in logits]
    return [w / sum(weights) for w in weights]


def categorical_log_prob(logits, action):
    out = np.zeros(logits.shape[:-1])
    for i in np.ndindex(out.shape):
        out[i] = math.log(_softmax(logits[i])[action[i]])
    return out


def categorical_entropy(logits):
    out = np.zeros(logits.shape[:-1])
    for i in np.ndindex(out.shape):
        out[i] = -sum(p * math.log(p) for p in _softmax(logits[i]) if p > 0)
    return out


def categorical_kl(logits_p, logits_q):
    out = np.zeros(logits_p.shape[:-1])
    for i in np.ndindex(out.shape):
        p, q = _softmax(logits_p[i]), _softmax(logits_q[i])
        out[i] = sum(a * math.log(a / b) for a, b in zip(p, q) if a > 0)
    return out


def k1(policy_log_prob, reference_log_prob):
    return np.vectorize(lambda p, r: math.log(math.exp(p) / math.exp(r)))(
        policy_log_prob, reference_log_prob
    )


def k2(policy_log_prob, reference_log_prob):
    return k1(policy_log_prob, reference_log_prob) ** 2 / 2


def k3(policy_log_prob, reference_log_prob):
    ratio = np.exp(reference_log_prob) / np.exp(policy_log_prob)
    return ratio - 1 - np.log(ratio)
