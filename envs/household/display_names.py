"""From identifiers such as ``Apple_bar__plus_01_...`` to the words a player reads."""

from collections import Counter
from collections.abc import Iterable

_MARKS = (("_bar_", "|"), ("_minus_", "-"), ("_plus_", "+"), ("_dot_", "."), ("_comma_", ","))


def display_names(identifiers: Iterable[str]) -> dict[str, str]:
    """Names as the benchmark numbers them.

    Identifiers of one kind are numbered downwards in the order of their spelling: of three
    apples the first is "apple 3". A part such as the basin of a sink is "sinkbasin 1".

    Args:
        identifiers: lower-case identifiers, repeats allowed.

    Returns:
        Identifier to name, in sorted order of the identifiers. One without ``_bar_`` keeps its
        own spelling and, as in the stock package, a trailing blank.
    """
    ordered = sorted(set(identifiers))
    kinds = {i: _kind(i) for i in ordered if "_bar_" in i}
    left = Counter(kinds.values())
    names: dict[str, str] = {}
    for identifier in ordered:
        kind = kinds.get(identifier)
        if kind is None:
            names[identifier] = f"{_unmangled(identifier)} "
        else:
            names[identifier] = f"{kind} {left[kind]}"
            left[kind] -= 1
    return names


def _kind(identifier: str) -> str:
    kind = identifier.split("_bar_", 1)[0]
    return f"{kind}basin" if "basin" in identifier else kind


def _unmangled(identifier: str) -> str:
    for mark, character in _MARKS:
        identifier = identifier.replace(mark, character)
    return identifier
