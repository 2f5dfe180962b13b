"""The two printed languages of the benchmark, and how a game file says which one it speaks."""

import hashlib
import re
from functools import lru_cache
from importlib.resources import files
from typing import NamedTuple

from envs.text.pddl import GameFileError, strip_comments


class Wording(NamedTuple):
    """How one text version words things.

    Version 0.4 prints ``move X to Y`` and names the receptacle on arrival; version 0.3 prints
    ``put X in/on Y``, names the location instead, and has no ``help`` command.
    """

    version: str
    put_command: str
    put_feedback: str
    arrive_at_location: bool
    help_text: str | None


_HELP_LINES = (
    ("look", "look around your current location"),
    ("inventory", "check your current inventory"),
    ("go to (receptacle)", "move to a receptacle"),
    ("open (receptacle)", "open a receptacle"),
    ("close (receptacle)", "close a receptacle"),
    ("take (object) from (receptacle)", "take an object from a receptacle"),
    ("move (object) to (receptacle)", "place an object in or on a receptacle"),
    ("examine (something)", "examine a receptacle or an object"),
    ("use (object)", "use an object"),
    ("heat (object) with (receptacle)", "heat an object using a receptacle"),
    ("clean (object) with (receptacle)", "clean an object using a receptacle"),
    ("cool (object) with (receptacle)", "cool an object using a receptacle"),
    ("slice (object) with (object)", "slice an object using a sharp object"),
)


def _help_text() -> str:
    lines = [f"  {command + ':':<33} {meaning}" for command, meaning in _HELP_LINES]
    # The benchmark's own list is not aligned in this one line.
    lines = [line.replace("(receptacle):    place", "(receptacle):  place") for line in lines]
    return "Available commands:\n" + "\n".join(lines) + "\n"


WORDINGS = {
    "0.4": Wording("0.4", "move {} to {}", "You move the {} to the {}.", False, _help_text()),
    "0.3": Wording("0.3", "put {} in/on {}", "You put the {} in/on the {}.", True, None),
}

# SHA-256 of the rule texts as the published packages ship them, blanks collapsed: the meaning of
# every rule is fixed in the engine, so any other text would be played wrongly.
_PUBLISHED = {
    "6eca02b13b273d84ef7f20bb79d194d4e0542ba3127af5a257c0115ebb5c1930": "0.3",
    "da18d44ab1bcf831f61e90b88a99ad5766d8bbb562b6f87839b4b6ace4f796fe": "0.4",
    "8675f8a20f2b869f5b609e38575d07d1c6397208dd70e86ae4edeac5111e469b": "0.3",
    "49281f55d68cf8db1f80636d6247beb078daac200a340bedf133da0b161211fb": "0.4",
}
_TASK = re.compile(r'"Your task is to: ([^\n]*)\."')
_PLACEHOLDER = "UNKNOWN GOAL"


def own_rules() -> tuple[str, str]:
    """Domain and grammar that generated games carry; they speak version 0.4."""
    folder = files("envs.text") / "rules"
    domain = (folder / "household.pddl").read_text(encoding="utf-8")
    return domain, (folder / "household.twl2").read_text(encoding="utf-8")


def grammar_for_task(grammar: str, task_text: str) -> str:
    """The grammar with its task line filled in.

    Args:
        grammar: a grammar whose task still reads ``UNKNOWN GOAL``.
        task_text: the sentence after "Your task is to: ", without the full stop.

    Returns:
        The grammar of one game.
    """
    return grammar.replace(_PLACEHOLDER, task_text)


def recognise(domain: str, grammar: str) -> tuple[Wording, str]:
    """The wording and the task sentence of a game file.

    Args:
        domain: the file's ``pddl_domain``.
        grammar: the file's ``grammar``.

    Returns:
        The wording, and the sentence after "Your task is to: ".

    Raises:
        GameFileError: domain or grammar is none that the engine knows.
    """
    task = _TASK.search(grammar)
    if task is None:
        raise GameFileError("the grammar has no line 'Your task is to: ...'")
    bare = grammar[: task.start(1)] + _PLACEHOLDER + grammar[task.end(1) :]
    return _wording(domain, bare), task.group(1)


@lru_cache(maxsize=16)
def _wording(domain: str, grammar: str) -> Wording:
    known = _known_rules()
    versions = {}
    for field, digest in (("pddl_domain", _digest(strip_comments(domain))),
                          ("grammar", _digest(grammar))):  # fmt: skip
        if digest not in known:
            raise GameFileError(
                f"{field} is none that the engine knows (alfworld 0.2 to 0.4, or this project's "
                "generator); play it on the stock engine instead"
            )
        versions[field] = known[digest]
    if len(set(versions.values())) != 1:
        raise GameFileError(f"pddl_domain and grammar are of different versions: {versions}")
    return WORDINGS[versions["grammar"]]


@lru_cache(maxsize=1)
def _known_rules() -> dict[str, str]:
    domain, grammar = own_rules()
    return {**_PUBLISHED, _digest(strip_comments(domain)): "0.4", _digest(grammar): "0.4"}


def _digest(text: str) -> str:
    return hashlib.sha256(" ".join(text.split()).encode()).hexdigest()
