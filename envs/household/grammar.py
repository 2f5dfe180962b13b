"""Reads the rule texts of a game file far enough to tell whether the engine plays by them.

The engine's rules are fixed; a file is accepted if its domain and grammar mean the same. What may
differ without changing the meaning is left out of the comparison: layout, comments, costs,
productions that no command reaches, and the few wordings that the published versions differ in.
"""

import hashlib
import json
import re

from envs.household.pddl import GameFileError, strip_comments

_BLOCK = re.compile(r'grammar :: """(.*?)"""', re.DOTALL)
_ACTION = re.compile(r'action (\w+) \{\s*template :: "(.*?)";\s*feedback :: "(.*?)";')
_REFERENCE = re.compile(r"#([^#]+)#")
_COST = re.compile(r"\( increase \( total-cost \) [^ ()]+ \)")
_PLAYED = (
    "gotolocation", "openobject", "closeobject", "pickupobject", "putobject", "inventory",
    "examinereceptacle", "examineobject", "toggleobject", "heatobject", "cleanobject",
    "coolobject", "sliceobject", "look",
)  # fmt: skip


class Grammar:
    """Commands and sentences of a game file.

    Args (of the constructor):
        text: the file's ``grammar``.

    Raises:
        GameFileError: it cannot be read, or a command of the household is missing.
    """

    def __init__(self, text: str) -> None:
        self.productions: dict[str, list[dict]] = {}
        for block in _BLOCK.findall(text):
            try:
                self.productions.update(json.loads(block))
            except (ValueError, RecursionError, TypeError) as error:
                raise GameFileError(f"a block of the grammar is not JSON: {error}") from None
        found = _ACTION.findall(text)
        self.actions = {name.lower(): (template, feedback) for name, template, feedback in found}
        missing = [name for name in _PLAYED if name not in self.actions]
        if missing:
            raise GameFileError(f"the grammar has no command for {', '.join(missing)}")

    def sentence(self, action: str) -> str:
        """The first wording of an action's feedback; "" if there is none."""
        rule = _REFERENCE.search(self.actions.get(action, ("", ""))[1])
        variants = self.productions.get(rule.group(1), []) if rule else []
        return str(variants[0].get("rhs", "")) if variants else ""

    def digest(self, same: tuple[tuple[str, str], ...]) -> str:
        """A hash of all that can be printed.

        Args:
            same: pairs (wording, stand-in): wordings that may differ.

        Returns:
            The hash; equal for grammars that print the same but for those wordings.
        """
        actions = {name: self.actions[name] for name in _PLAYED}
        waiting = ["intro", *_REFERENCE.findall(json.dumps(actions))]
        reached: dict[str, object] = {}
        while waiting:
            name = waiting.pop()
            if name not in reached:
                reached[name] = self.productions.get(name)
                waiting += _REFERENCE.findall(json.dumps(reached[name]))
        lists = {key: self.productions.get(key) for key in _LIST_WORDS}
        text = json.dumps([actions, reached, lists], sort_keys=True)
        for wording, stand_in in same:
            text = text.replace(wording, stand_in)
        return hashlib.sha256(text.encode()).hexdigest()


_LIST_WORDS = ("list_empty", "list_separator", "list_last_separator")


def domain_actions(domain: str) -> dict[str, str]:
    """The actions of a PDDL domain by name, laid out alike and without their costs."""
    spaced = strip_comments(domain).replace("(", " ( ").replace(")", " ) ")
    _, *blocks = " ".join(spaced.split()).split("( :action ")
    actions = {}
    for block in blocks:
        name, _, rest = block.partition(" ")
        actions[name] = " ".join(_COST.sub("", _closed(rest)).split())
    return actions


def domain_digest(actions: dict[str, str]) -> str:
    """A hash of all actions but ``help``, which changes nothing in the world."""
    played = {name: body for name, body in actions.items() if name != "help"}
    return hashlib.sha256(json.dumps(played, sort_keys=True).encode()).hexdigest()


def _closed(body: str) -> str:
    """The tokens up to the parenthesis that closes the action."""
    depth, kept = 1, []
    for token in body.split(" "):
        depth += (token == "(") - (token == ")")
        if depth == 0:
            break
        kept.append(token)
    return " ".join(kept)
