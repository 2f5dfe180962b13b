"""Guidance terms, schedules and mixing, one entry at a time."""

import math

import numpy as np


def _each(function, *arrays):
    """Apply to the vectors along the last axis."""
    out = np.zeros(arrays[0].shape[:-1])
    for i in np.ndindex(out.shape):
        out[i] = function(*(a[i] for a in arrays))
    return out


def velocity_linear(v):
    return v


def velocity_saturated(v, velocity_scale):
    return np.vectorize(lambda x: 1 - 2 / (math.exp(2 * x / velocity_scale) + 1))(v)


def velocity_target(v, target_velocity):
    return np.vectorize(lambda x: -(x * x) + 2 * x * target_velocity - target_velocity**2)(v)


def velocity_threshold(v, threshold_velocity):
    return np.vectorize(lambda x: 1.0 if x > threshold_velocity else 0.0)(v)


def heading(facing, position, target, angle_threshold):
    def angle(f, x, g):
        bearing = math.atan2(g[1] - x[1], g[0] - x[0]) - math.atan2(f[1], f[0])
        return math.cos(bearing) - math.cos(angle_threshold)

    return _each(angle, facing, position, target)


def progress(position, next_position, origin, target):
    def along(x, y, o, g):
        length = math.dist(o, g)
        before = sum((a - c) * (d - c) for a, c, d in zip(x, o, g)) / length
        after = sum((a - c) * (d - c) for a, c, d in zip(y, o, g)) / length
        return after - before

    return _each(along, position, next_position, origin, target)


def arrival(next_position, target, radius):
    return _each(lambda y, g: float(math.dist(y, g) < radius), next_position, target)


def plan_guidance(heading, progress, arrival, heading_weight, progress_weight, arrival_weight):
    out = np.zeros(np.shape(heading))
    for i in np.ndindex(out.shape):
        out[i] = np.dot(
            [heading[i], progress[i], arrival[i]], [heading_weight, progress_weight, arrival_weight]
        )
    return out


def negative_square_sum(x):
    return _each(lambda row: -sum(v * v for v in row), x)


def potential_shaping(potential, next_potential, terminated, discount_factor):
    out = np.zeros(np.shape(potential))
    for i in np.ndindex(out.shape):
        following = 0.0 if terminated[i] else discount_factor * next_potential[i]
        out[i] = following - potential[i]
    return out


def linear_lambda(fraction, start, end):
    return np.interp(fraction, [0.0, 1.0], [start, end])


def cosine_lambda(fraction, start, end):
    def value(x):
        return end + (start - end) * math.cos(math.pi * min(max(x, 0), 1) / 2) ** 2

    return np.vectorize(value)(fraction)


def staged_lambda(fraction, explore_lambda, refine_lambda, refine_from, zero_from):
    def value(x):
        return explore_lambda if x < refine_from else refine_lambda if x < zero_from else 0.0

    return np.vectorize(value)(fraction)


def adaptive_lambda(guidance_lambda, returns, window_size, decay, growth, cap):
    """All λ after each evaluation, from the whole history of returns."""
    out = []
    for n in range(1, len(returns) + 1):
        if n > window_size:
            new = np.mean(returns[n - window_size : n])
            old = np.mean(returns[n - 1 - window_size : n - 1])
            if new > old:
                guidance_lambda *= decay
            elif growth * guidance_lambda <= cap:
                guidance_lambda *= growth
            elif guidance_lambda < cap:
                guidance_lambda = cap
        out.append(guidance_lambda)
    return out


def scale_matched_lambda(guidance_lambda, env_std, guidance_std, ratio):
    return np.vectorize(lambda lam, e, g: lam if g == 0 else min(lam, ratio * e / g))(
        guidance_lambda, env_std, guidance_std
    )


def mix_by_weights(guidance, weights):
    return sum(w * g for w, g in zip(weights, guidance))


def mix_by_priority(guidance, active, is_safety):
    out = np.zeros(guidance.shape[1:])
    for i in np.ndindex(out.shape):
        for s in range(len(guidance)):
            if active[s][i]:
                out[i] += guidance[s][i]
                if is_safety[s]:
                    break
    return out


def improve_source_logits(logits, perturbation, returns, perturbation_std, learning_rate):
    new = np.array(logits, np.float64)
    for row, value in zip(perturbation, returns):
        for s in range(len(new)):
            gain = (value - np.mean(returns)) * row[s] / perturbation_std
            new[s] += learning_rate * gain / len(returns)
    return new


def guidance_correlation(env_reward, guidance, mask):
    a, b = env_reward[mask], guidance[mask]
    if a.size == 0 or np.ptp(a) == 0 or np.ptp(b) == 0:
        return np.float64(0.0)
    return np.corrcoef(a, b)[0, 1]


def hacking_alarm(total_return, env_return):
    out = np.zeros(total_return.shape[1:], bool)
    time = np.arange(len(total_return))
    for i in np.ndindex(out.shape):
        rises = np.polyfit(time, total_return[(slice(None), *i)], 1)[0] > 0
        falls = np.polyfit(time, env_return[(slice(None), *i)], 1)[0] < 0
        out[i] = rises and falls
    return out
