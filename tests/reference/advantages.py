"""NumPy loops for advantages and returns, one environment and one step at a time."""

import numpy as np


def _columns(*arrays):
    return [np.asarray(a, np.float64).reshape(len(a), -1) for a in arrays]


def gae(reward, discount, value, next_value, episode_end, gae_lambda):
    """The sum Σ_k Π(γλ) δ written out, forwards, until the episode ends."""
    r, g, v, nv, end = _columns(reward, discount, value, next_value, episode_end)
    out = np.zeros_like(r)
    for b in range(r.shape[1]):
        for t in range(len(r)):
            weight = 1.0
            for k in range(t, len(r)):
                out[t, b] += weight * (r[k, b] + g[k, b] * nv[k, b] - v[k, b])
                if end[k, b]:
                    break
                weight *= g[k, b] * gae_lambda
    return out.reshape(np.shape(reward))


def lambda_returns(reward, discount, next_value, episode_end, gae_lambda):
    """The mixture of n-step returns, (1 − λ) Σ λⁿ⁻¹ G⁽ⁿ⁾, the last one with all that is left."""
    r, g, nv, end = _columns(reward, discount, next_value, episode_end)
    out = np.zeros_like(r)
    for b in range(r.shape[1]):
        for t in range(len(r)):
            rewards, weight, remaining = 0.0, 1.0, 1.0
            for k in range(t, len(r)):
                rewards += weight * r[k, b]
                weight *= g[k, b]
                n_step = rewards + weight * nv[k, b]
                if end[k, b] or k == len(r) - 1:
                    out[t, b] += remaining * n_step
                    break
                out[t, b] += remaining * (1.0 - gae_lambda) * n_step
                remaining *= gae_lambda
    return out.reshape(np.shape(reward))


def masked_mean(x, mask, axis=None):
    if axis is None:
        live = [v for v, m in zip(np.ravel(x), np.ravel(mask)) if m]
        return np.float64(sum(live) / len(live)) if live else np.float64(0.0)
    x, mask = np.moveaxis(x, axis, -1), np.moveaxis(mask, axis, -1)
    out = np.zeros(x.shape[:-1])
    for index in np.ndindex(out.shape):
        out[index] = masked_mean(x[index], mask[index])
    return out


def masked_whiten(x, mask):
    live = np.asarray(x, np.float64)[mask]
    out = np.zeros(np.shape(x))
    if live.size:
        out[mask] = (live - live.mean()) / np.sqrt(live.var() + 1e-8)
    return out
