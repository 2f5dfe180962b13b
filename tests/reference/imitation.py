"""Imitation, preferences and token objectives, one sequence at a time."""

import math

import numpy as np

from tests.reference.distributions import categorical_kl, categorical_log_prob
from tests.reference.ppo import clipped_surrogate


def _mean(values):
    return np.float64(sum(values) / len(values)) if values else np.float64(0)


def _live(x, mask):
    return [x[i] for i in np.ndindex(np.shape(mask)) if mask[i]]


def behaviour_cloning_loss(log_prob, mask):
    return _mean([-x for x in _live(log_prob, mask)])


def behaviour_cloning_squared_error(action, expert_action, mask):
    pairs = zip(_live(action, mask), _live(expert_action, mask))
    return _mean([sum((a - b) ** 2 for a, b in zip(x, y)) / 2 for x, y in pairs])


def token_mean(x, mask, normalisation, normaliser=None):
    rows = [[v for v, m in zip(x[i], mask[i]) if m] for i in np.ndindex(np.shape(mask)[:-1])]
    if normalisation == "token":
        return _mean([v for row in rows for v in row])
    if normalisation == "sequence":
        return _mean([_mean(row) for row in rows if row])
    return np.float64(sum(sum(row) for row in rows) / normaliser)


def token_cross_entropy(logits, token, mask, normalisation="token", normaliser=None):
    loss = -categorical_log_prob(logits, np.where(mask, token, 0))
    return token_mean(loss, mask, normalisation, normaliser)


def token_clipped_loss(
    log_prob, behaviour_log_prob, advantage, mask, clip_epsilon, normalisation, normaliser=None
):
    surrogate = clipped_surrogate(log_prob, behaviour_log_prob, advantage, clip_epsilon)
    total = -token_mean(surrogate, mask, normalisation, normaliser)
    log_ratios = _live(log_prob - behaviour_log_prob, mask)
    clipped = _mean([float(abs(math.exp(x) - 1) > clip_epsilon) for x in log_ratios])
    return total, clipped, _mean([math.exp(x) - 1 - x for x in log_ratios])


def categorical_distillation_loss(teacher, student, mask, softmax_temperature):
    t = softmax_temperature
    return t * t * _mean(_live(categorical_kl(teacher / t, student / t), mask))


def tanh_normal_distillation_loss(loc_p, scale_p, loc_q, scale_q, mask):
    """−H(p) − ∫ p log q of the two normals, term by term."""
    losses = []
    for mp, sp, mq, sq in zip(*(_live(x, mask) for x in (loc_p, scale_p, loc_q, scale_q))):
        total = 0.0
        for m, s, n, r in zip(mp, sp, mq, sq):
            negative_entropy = -0.5 * math.log(2 * math.pi * math.e * s**2)
            cross_entropy = 0.5 * math.log(2 * math.pi * r**2) + (s**2 + (m - n) ** 2) / (2 * r**2)
            total += negative_entropy + cross_entropy
        losses.append(total)
    return _mean(losses)


def sequence_log_prob(token_log_prob, mask, length_normalised=False):
    out = np.zeros(np.shape(mask)[:-1])
    for i in np.ndindex(out.shape):
        row = [v for v, m in zip(token_log_prob[i], mask[i]) if m]
        out[i] = _mean(row) if length_normalised else sum(row)
    return out


def _sigmoid(x):
    return 1 / (1 + math.exp(-x))


def dpo_loss(pc, pr, rc, rr, mask, dpo_beta, label_smoothing=0.0):
    losses, right, won, lost = [], [], [], []
    for i in np.ndindex(np.shape(mask)):
        if mask[i]:
            won.append(dpo_beta * (pc[i] - rc[i]))
            lost.append(dpo_beta * (pr[i] - rr[i]))
            p = _sigmoid(won[-1] - lost[-1])
            kept, flipped = (1 - label_smoothing) * math.log(p), label_smoothing * math.log(1 - p)
            losses.append(-kept - flipped)
            right.append(float(p > 0.5))
    return _mean(losses), _mean(right), _mean(won), _mean(lost)


def ipo_loss(pc, pr, rc, rr, mask, ipo_tau):
    _, right, won, lost = dpo_loss(pc, pr, rc, rr, mask, ipo_tau)
    target = 1 / (2 * ipo_tau)
    losses = [
        ((a - b) - (c - d) - target) ** 2
        for a, b, c, d in zip(_live(pc, mask), _live(pr, mask), _live(rc, mask), _live(rr, mask))
    ]
    return _mean(losses), right, won, lost


def bradley_terry_loss(chosen, rejected, mask, margin=0.0):
    won, lost = _live(chosen, mask), _live(rejected, mask)
    losses = [-math.log(_sigmoid(a - b - margin)) for a, b in zip(won, lost)]
    return _mean(losses), _mean([float(a > b) for a, b in zip(won, lost)]), _mean(won), _mean(lost)
