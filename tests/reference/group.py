"""Group-relative advantages with dictionaries of lists, as one would on the host."""

from collections import defaultdict

import numpy as np


def _norm(members, value, spread):
    if len(members) < 2:
        return 0.0
    mean = sum(members) / len(members)
    if spread == "none":
        return value - mean
    freedom = len(members) - (spread == "sample")
    std = (sum((m - mean) ** 2 for m in members) / freedom) ** 0.5
    return (value - mean) / (std + 1e-6)


def _by_key(values, keys, mask, spread):
    """Advantages, and the number of members of each entry's group."""
    groups = defaultdict(list)
    for i in np.ndindex(mask.shape):
        if mask[i]:
            groups[keys[i]].append(values[i])
    out, size = np.zeros(mask.shape), np.zeros(mask.shape, int)
    for i in np.ndindex(mask.shape):
        if mask[i]:
            out[i] = _norm(groups[keys[i]], values[i], spread)
            size[i] = len(groups[keys[i]])
    return out, size


def _tuples(*arrays):
    out = np.empty(np.shape(arrays[0]), object)
    for i in np.ndindex(out.shape):
        out[i] = tuple(int(a[i]) for a in arrays)
    return out


def grpo_advantages(episode_return, group_id, mask, num_groups, spread):
    return _by_key(episode_return, group_id, mask, spread)[0]


def rloo_advantages(episode_return, group_id, mask, num_groups):
    out = np.zeros(mask.shape)
    live = [i for i in np.ndindex(mask.shape) if mask[i]]
    for i in live:
        others = [episode_return[j] for j in live if j != i and group_id[j] == group_id[i]]
        out[i] = episode_return[i] - sum(others) / len(others) if others else 0.0
    return out


def gigpo_advantages(
    episode_return, return_to_go, group_id, step_key, mask, num_groups, step_weight, spread
):
    attempts = np.array([mask[(slice(None), *i)].any() for i in np.ndindex(group_id.shape)])
    episode, _ = _by_key(episode_return, group_id, attempts.reshape(group_id.shape), spread)
    task = np.broadcast_to(group_id, mask.shape)
    step, _ = _by_key(return_to_go, _tuples(task, step_key), mask, spread)
    return np.where(mask, episode + step_weight * step, 0.0)


def hgpo_advantages(return_to_go, group_id, step_key, mask, weight_exponent, spread):
    total, weights = np.zeros(mask.shape), np.zeros(mask.shape)
    for k in range(1, len(step_key) + 1):
        term, size = _by_key(return_to_go, _tuples(group_id, step_key[k - 1]), mask, spread)
        weight = (k + 1) ** weight_exponent * (size >= 2)
        total, weights = total + weight * term, weights + weight
    return np.divide(total, weights, out=np.zeros(mask.shape), where=weights > 0)


def histories(observation_id, episode_end, level):
    """The last `level` observations of each step as a tuple, not reaching over an end."""
    out = np.empty(observation_id.shape, object)
    for i in np.ndindex(observation_id.shape):
        t, rest = i[0], i[1:]
        seen = [observation_id[i]]
        while len(seen) < level and t > 0 and not episode_end[(t - 1, *rest)]:
            t -= 1
            seen.append(observation_id[(t, *rest)])
        out[i] = tuple(int(x) for x in seen)
    return out
