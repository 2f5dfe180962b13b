"""Numbers of JSON within limits, digit by digit: ranges of any size."""

import math
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from jaxagent.models.llm.constrain_bytes import (
    ByteAutomaton,
    Pattern,
    both,
    byte_range,
    choice,
    literal,
    of_machine,
    repeat,
    sequence,
)

MAX_DIGITS = 1_000
"""Of a limit; Python and others refuse to read numbers of some thousand digits."""

MAX_DIVISOR = 5_000
"""Of `multipleOf`, in units of the last digit: as many states for each digit."""

# Decimals of up to so many digits are read as different floats, in their order.
_EXACT_DIGITS = 15
_DIGIT, _LEADING = byte_range(0x30, 0x39), byte_range(0x31, 0x39)


class Limits(NamedTuple):
    """What a number may be; None is without limit.

    Attributes:
        low: least value.
        high: greatest value.
        is_above: the least value itself is excluded.
        is_below: the greatest value itself is excluded.
        multiple: it is a whole number of these.
    """

    low: Fraction | None = None
    high: Fraction | None = None
    is_above: bool = False
    is_below: bool = False
    multiple: Fraction | None = None


def whole_numbers(limits: Limits, digits: int) -> Pattern | None:
    """Integers within limits.

    Args:
        limits: on them.
        digits: written at most where a side is open, and one more than the other side's limit has.

    Returns:
        None if there is none.
    """
    return _decimals(limits, digits, 0)


def numbers(limits: Limits, digits: int, fraction_digits: int) -> Pattern | None:
    """Integers, and decimals of up to `fraction_digits` digits after the point; see above."""
    most = fraction_digits
    if limits.multiple is not None:
        # A multiple of n / 2ᵏ needs no more than k digits.
        most = min(most, limits.multiple.denominator.bit_length() - 1)
    parts = [_decimals(limits, digits, places) for places in range(most + 1)]
    found = [part for part in parts if part is not None]
    return choice(*found) if found else None


def _decimals(limits: Limits, digits: int, places: int) -> Pattern | None:
    """Decimals of exactly so many places, as integers in units of the last one."""
    unit = 10**places
    low = None if limits.low is None else math.ceil(limits.low * unit)
    high = None if limits.high is None else math.floor(limits.high * unit)
    if low is not None and limits.is_above and low == limits.low * unit:
        low += 1
    if high is not None and limits.is_below and high == limits.high * unit:
        high -= 1
    # An open side goes as far as the digits, but never less far than the other side's limit.
    known = [len(str(abs(each))) + 1 for each in (low, high) if each is not None]
    bound = 10 ** max([digits + places, *known]) - 1
    low, high = -bound if low is None else low, bound if high is None else high
    if places:
        exact = 10**_EXACT_DIGITS - 1
        low, high = max(low, -exact), min(high, exact)
    parts = []
    if high >= max(low, 0):
        parts.append(_between(max(low, 0), high, places))
    if low <= min(high, -1):
        parts.append(sequence(literal("-"), _between(max(-high, 1), -low, places)))
    if not parts:
        return None
    pattern = choice(*parts)
    if limits.multiple is None:
        return pattern
    # n / unit is a multiple of p / q where n is one of p · unit / gcd(p · unit, q).
    divisor = (limits.multiple * unit).numerator
    return both(pattern, _multiples(divisor)) if divisor > 1 else pattern


def _between(low: int, high: int, places: int) -> Pattern:
    """Numbers of [low, high], low ≥ 0, without leading zeros, a point before the last places."""
    shortest = places + 1
    first, last = str(low).zfill(shortest), str(high).zfill(shortest)
    if len(first) == len(last):
        return _same_length(first, last, places)
    parts = [_same_length(first, "9" * len(first), places)]
    if len(last) - len(first) > 1:
        fewest, most = len(first) + 1 - places, len(last) - 1 - places
        whole = sequence(_LEADING, repeat(_DIGIT, fewest - 1, most - 1))
        point = [literal("."), repeat(_DIGIT, places, places)] if places else []
        parts.append(sequence(whole, *point))
    parts.append(_same_length("1" + "0" * (len(last) - 1), last, places))
    return choice(*parts)


def _same_length(first: str, last: str, places: int) -> Pattern:
    """Strings of digits of one length, in their order from first to last.

    A state is a place and whether what was read so far is still the beginning of `first` (1) and
    of `last` (2).
    """
    length = len(first)
    point = length - places if places else None
    number, pending, rows = {(0, 3, False): 0}, [(0, 3, False)], []
    for place, tight, has_point in pending:
        row = np.full(256, -1, np.int32)
        steps = {}
        if place == point and not has_point:
            steps[ord(".")] = (place, tight, True)
        elif place < length:
            low = int(first[place]) if tight & 1 else 0
            high = int(last[place]) if tight & 2 else 9
            for digit in range(low, high + 1):
                is_low = tight & 1 and digit == low
                is_high = tight & 2 and digit == high
                steps[ord("0") + digit] = (place + 1, is_low + 2 * bool(is_high), has_point)
        for byte, key in steps.items():
            if key not in number:
                number[key] = len(number)
                pending.append(key)
            row[byte] = number[key]
        rows.append(row)
    dead = len(rows)
    targets = np.stack([*rows, np.full(256, dead, np.int32)])
    is_complete = np.array([place == length for place, _, _ in pending] + [False])
    return of_machine(ByteAutomaton(np.where(targets < 0, dead, targets), is_complete))


def _multiples(divisor: int) -> Pattern:
    """Decimals whose digits, read without sign and point, are a multiple; state r is the rest."""
    rest = np.arange(divisor)
    targets = np.full((divisor + 1, 256), divisor, np.int32)
    for digit in range(10):
        targets[:-1, ord("0") + digit] = (rest * 10 + digit) % divisor
    for sign in "-.":
        targets[:-1, ord(sign)] = rest
    is_complete = np.zeros(divisor + 1, bool)
    is_complete[0] = True
    return of_machine(ByteAutomaton(targets, is_complete))
