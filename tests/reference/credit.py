"""Credit of sub-goals, one episode at a time."""

import numpy as np

from tests.reference.advantages import gae, lambda_returns


def _columns(first, *arrays):
    """Indices of the columns of an array, with every other array's column."""
    for i in np.ndindex(first.shape[1:]):
        at = (slice(None), *i)
        yield at, [a[at] if np.ndim(a) == np.ndim(first) else a[i] for a in arrays]


def uniform_credit(task_return, mask):
    out = np.zeros(mask.shape)
    for at, (total, live) in _columns(mask, task_return, mask):
        for i in np.flatnonzero(live):
            out[at][i] = total / sum(live)
    return out


def duration_credit(task_return, duration, mask):
    out = np.zeros(mask.shape)
    for at, (total, lasted, live) in _columns(mask, task_return, duration, mask):
        whole = sum(d for d, m in zip(lasted, live) if m)
        for i in np.flatnonzero(live):
            out[at][i] = total * lasted[i] / whole if whole else 0.0
    return out


def decayed_credit(segment_reward, task_return, mask, credit_decay):
    out = np.zeros(mask.shape)
    for at, (reward, total, live) in _columns(mask, segment_reward, task_return, mask):
        n = sum(live)
        for i in range(n):
            later = sum(credit_decay ** (j - i) * reward[j] for j in range(i, n))
            out[at][i] = later + credit_decay ** (n - 1 - i) * total
    return out


def eligibility_credit(segment_reward, segment_discount, next_value, mask, segment_lambda):
    out = np.zeros(mask.shape)
    for at, (r, g, v, live) in _columns(mask, segment_reward, segment_discount, next_value, mask):
        n = sum(live)
        end = np.zeros(n, bool)
        out[at][:n] = lambda_returns(r[:n], g[:n], v[:n], end, segment_lambda) if n else []
    return out


def segment_gae(segment_reward, segment_discount, value, next_value, mask, segment_lambda):
    out = np.zeros(mask.shape)
    arrays = (segment_reward, segment_discount, value, next_value, mask)
    for at, (r, g, v, nv, live) in _columns(mask, *arrays):
        n = sum(live)
        if n:
            end = np.zeros(n, bool)
            out[at][:n] = gae(r[:n], g[:n], v[:n], nv[:n], end, segment_lambda)
    return out


def difference_credit(task_return, counterfactual_return, mask):
    out = np.zeros(mask.shape)
    for i in np.ndindex(mask.shape):
        if mask[i]:
            out[i] = task_return[i[1:]] - counterfactual_return[i]
    return out


def conserve_return(credit, task_return, mask):
    out = np.zeros(mask.shape)
    for at, (given, total, live) in _columns(mask, credit, task_return, mask):
        held = sum(c for c, m in zip(given, live) if m)
        for i in np.flatnonzero(live):
            out[at][i] = given[i] + (total - held) / sum(live)
    return out


def sum_segments(reward, discount, segment_id, mask, num_segments):
    shape = (num_segments, *mask.shape[1:])
    total, product, duration = np.zeros(shape), np.ones(shape), np.zeros(shape, int)
    for t in range(len(mask)):
        for b in np.ndindex(mask.shape[1:]):
            if mask[(t, *b)]:
                i = (segment_id[(t, *b)], *b)
                total[i] += product[i] * reward[(t, *b)]
                product[i] *= discount[(t, *b)]
                duration[i] += 1
    return total, np.where(duration > 0, product, 0.0), duration, duration > 0


def td_credit(reward, discount, value, next_value, segment_id, mask, num_segments):
    td_error = reward + discount * next_value - value
    return sum_segments(td_error, discount, segment_id, mask, num_segments)[0]


def hae_advantages(
    reward, discount, low_value, next_low_value, high_value, next_high_value, switch_value,
    switch, episode_end, mask, turn_lambda, segment_lambda,
):  # fmt: skip
    """Cut each column into episodes and these into segments, then sum inside each of them."""
    low, high, turn, begins = (np.zeros(mask.shape) for _ in range(4))
    arrays = (reward, discount, low_value, next_low_value, high_value, next_high_value,
              switch_value, switch, episode_end, mask)  # fmt: skip
    for at, column in _columns(mask, *arrays):
        r, g, vl, nvl, vh, nvh, vs, sw, end, live = column
        length = sum(live)
        starts = [t for t in range(length) if t == 0 or sw[t] or end[t - 1]]
        following = 0.0
        for start, stop in reversed(list(zip(starts, [*starts[1:], length]))):
            is_window_cut = stop == length and not end[stop - 1]
            bootstrap_low = nvl[stop - 1] if is_window_cut else nvh[stop - 1]
            next_v = np.append(nvl[start : stop - 1], bootstrap_low)
            inner = slice(start, stop)
            no_end = np.zeros(stop - start, bool)
            low[at][inner] = gae(r[inner], g[inner], vl[inner], next_v, no_end, turn_lambda)
            for t in range(start, stop):
                remainder, weight = 0.0, 1.0
                for j in range(t, stop):
                    remainder += weight * r[j]
                    weight *= g[j]
                turn[at][t] = remainder + weight * nvh[stop - 1] - vs[t]
                if t == start:
                    carried = 0.0 if stop == length or end[stop - 1] else following
                    beyond = nvh[stop - 1] + segment_lambda * carried
                    following = remainder + weight * beyond - vh[start]
            high[at][start], begins[at][start] = following, 1.0
    return low, high, turn, begins.astype(bool)
