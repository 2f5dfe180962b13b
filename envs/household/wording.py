"""The two printed languages of the benchmark, and how a game file says which one it speaks."""

import re
from functools import lru_cache
from importlib.resources import files
from typing import NamedTuple

from envs.household.grammar import Grammar, domain_actions, domain_digest
from envs.household.pddl import GameFileError


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

# Hashes of what the published packages' rules mean (see `Grammar.digest`, `domain_digest`).
_PUBLISHED_DOMAIN = "94baad332a7af447ce79dccd1644db8e526a0c9fccb10aaf9e75f91d0b202c04"
_PUBLISHED_GRAMMAR = "3382f6286d8278cb24726baa8a910f8474a80d51765527ecd5b55521589336e8"
_VARIANTS = (
    ("move {o} to {r}", "PUT"),
    ("put {o} in/on {r}", "PUT"),
    ("You move the {o.name} to the {r.name}.", "DONE"),
    ("You put the {o.name} in/on the {r.name}.", "DONE"),
    ("You arrive at {r.name}.", "ARRIVE"),
    ("You arrive at {lend.name}.", "ARRIVE"),
)
_TASK = re.compile(r'"Your task is to: ([^\n]*)\."')
_PLACEHOLDER = "UNKNOWN GOAL"


def own_rules() -> tuple[str, str]:
    """Domain and grammar that generated games carry; they speak version 0.4."""
    folder = files("envs.household") / "rules"
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
    known_domains, known_grammars = _known_rules()
    actions = domain_actions(domain)
    if domain_digest(actions) not in known_domains:
        raise GameFileError(_UNKNOWN.format("pddl_domain"))
    parsed = Grammar(grammar)
    if parsed.digest(_VARIANTS) not in known_grammars:
        raise GameFileError(_UNKNOWN.format("grammar"))
    puts = parsed.actions["putobject"][0] == "put {o} in/on {r}"
    base = WORDINGS["0.3" if puts else "0.4"]
    told = parsed.sentence("putobject").startswith("You put")
    return base._replace(
        put_feedback=WORDINGS["0.3" if told else "0.4"].put_feedback,
        arrive_at_location=parsed.sentence("gotolocation").startswith("You arrive at {lend.name}"),
        # The stock engine swallows the line break that the text begins with.
        help_text=parsed.sentence("help").lstrip("\n") or None if "help" in actions else None,
    )


_UNKNOWN = (
    "{} is none that the engine knows (those of alfworld 0.2 to 0.4 and of this project's "
    "generator, or rules that mean the same); play it on the stock engine instead"
)


@lru_cache(maxsize=1)
def _known_rules() -> tuple[set[str], set[str]]:
    domain, grammar = own_rules()
    return (
        {_PUBLISHED_DOMAIN, domain_digest(domain_actions(domain))},
        {_PUBLISHED_GRAMMAR, Grammar(grammar).digest(_VARIANTS)},
    )
