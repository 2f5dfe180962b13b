"""How an episode of the household games is written for a language model to read and continue.

An episode is an opening (task and room) and turns: a marker that asks, a reply, an observation.
The marker may hold notes on what was read so far. The reply is a command; in the hierarchical
formats a word that keeps or switches the sub-goal stands before it, and after a switch the new
sub-goal.
"""

import re
from collections.abc import Mapping, Sequence

from envs.household.notes import CompactNotes, NoNotes
from jaxagent.text import KEEP, SWITCH, Notes, Reply, TextFormat

_NAME = re.compile(r"[a-z]+ \d+")
TASK_PREFIX = "Your task is to: "
_TASK = re.compile(rf"{TASK_PREFIX}(.*?)\.?\s*$")
_WELCOME = "-= Welcome to TextWorld, ALFRED! =-"


# Of each verb: its word here, how the games word it, how many things it takes.
_VERBS = (
    ("go", "go to {}", 1),
    ("open", "open {}", 1),
    ("close", "close {}", 1),
    ("take", "take {} from {}", 2),
    ("move", "move {} to {}", 2),
    ("put", "put {} in/on {}", 2),
    ("examine", "examine {}", 1),
    ("use", "use {}", 1),
    ("clean", "clean {} with {}", 2),
    ("heat", "heat {} with {}", 2),
    ("cool", "cool {} with {}", 2),
    ("slice", "slice {} with {}", 2),
    ("look", "look", 0),
    ("inventory", "inventory", 0),
    ("help", "help", 0),
)
_SUBGOALS = (
    ("find", "find {}", 1),
    ("take", "take {}", 1),
    ("clean", "clean {}", 1),
    ("heat", "heat {}", 1),
    ("cool", "cool {}", 1),
    ("use", "use {}", 1),
    ("put", "put {} in/on {}", 2),
    ("none", "none", 0),
)
COMMAND_ARITY: Mapping[str, int] = {word: arity for word, _, arity in _VERBS}
SUBGOAL_ARITY: Mapping[str, int] = {word: arity for word, _, arity in _SUBGOALS}

_THING = r"([a-z]+(?: \d+)?)"


def _patterns(wordings: Sequence[tuple[str, str, int]]) -> tuple[tuple[re.Pattern[str], str], ...]:
    return tuple(
        (re.compile(re.escape(wording).replace(r"\{\}", _THING)), word)
        for word, wording, _ in wordings
    )


_COMMAND_PATTERNS, _SUBGOAL_PATTERNS = _patterns(_VERBS), _patterns(_SUBGOALS)
_TASKS = (
    ("look", rf"(?:look at|examine the) {_THING} (?:under|with) the {_THING}"),
    ("two", rf"(?:put|find) two {_THING} (?:and put them )?in {_THING}"),
    ("clean", rf"(?:put a clean|clean some) {_THING} (?:and put it )?in {_THING}"),
    ("heat", rf"(?:put a hot|heat some) {_THING} (?:and put it )?in {_THING}"),
    ("cool", rf"(?:put a cool|cool some) {_THING} (?:and put it )?in {_THING}"),
    ("put", rf"put (?:a|some) {_THING} (?:in|on) {_THING}"),
)
_DONE = r"You (?:pick up|move|put|clean|heat|cool|turn on|close|sliced) .*"
# What is printed, and the words that it becomes before the names in it.
_OBSERVATIONS = tuple(
    (re.compile(pattern, re.DOTALL), words)
    for pattern, words in (
        (r"Nothing happens\.", "nothing"),
        (r"(?:You .*?\. )?The [a-z]+ \d+ is closed\.", "closed"),
        (r"(?:You .*?\. )?(?:The [a-z]+ \d+ is open\. In it|On the [a-z]+ \d+), you see (.*)\.",
         "sees"),
        (r"You are facing the (.*)\. Next to it, you see (.*)\.", "facing"),
        (r"You are in the middle of a room\..*", "middle"),
        (r"You are (?:not )?carrying(.*)\.", "holds"),
        (r"There's nothing special about .*\.", "plain"),
        (r"This is a normal .*?\. In it, you see (.*)\.", "inside"),
        (r"Available commands:.*", "help"),
        (_DONE, "done"),
    )
)  # fmt: skip
_CONDITIONS = ("hot", "cool", "cold", "clean", "sliced", "on")
OBSERVATION_WORDS = (
    "nothing", "closed", "sees", "facing", "beside", "middle", "holds", "plain", "inside",
    "done", "is", "other", *_CONDITIONS,
)  # fmt: skip


class CompactFormat:
    """Entities and little else: the names of a thing and of a place make up most of it.

    The opening keeps the task (its type, thing and target for the benchmark's templates, a
    person's sentence as it is) and the receptacles in the order printed; an observation keeps
    what is new in it, since the place is known from the command.
    """

    version = 3
    task_prefix = TASK_PREFIX
    command_arity: Mapping[str, int] | None = COMMAND_ARITY
    subgoal_arity: Mapping[str, int] | None = SUBGOAL_ARITY

    def __init__(self, hierarchical: bool = False, has_notes: bool = True) -> None:
        self.hierarchical, self._has_notes = hierarchical, has_notes
        self.name = "compact-hierarchical" if hierarchical else "compact"
        self.name += "" if has_notes else "-without-notes"

    def notes(self, opening: str) -> Notes:
        """See `CompactNotes`; without notes, the marker alone."""
        if not self._has_notes:
            return NoNotes(">")
        task = _TASK.search(opening)
        words = _compact_task(_sentence_of(opening)).split()
        is_known = len(words) == 3 and words[0] in _TASK_WORDS
        room = _NAME.findall(opening[: task.start()] if task else opening)
        return CompactNotes(room, *(words if is_known else ("", "", "")))

    def opening(self, text: str) -> str:
        """``heat egg fridge sees cabinet 4 cabinet 3 ...``."""
        task = _TASK.search(text)
        room = text[: task.start()] if task else text
        told = _compact_task(_sentence_of(text))
        return f"task {told} sees {' '.join(_NAME.findall(room))}".rstrip()

    def observation(self, text: str) -> str:
        """``sees apple 1 egg 2``, ``closed``, ``nothing``, ``done``; names only where new."""
        text = text.strip()
        for pattern, word in _OBSERVATIONS:
            found = pattern.fullmatch(text)
            if found is None:
                continue
            names = [" ".join(_NAME.findall(part)) for part in found.groups()]
            return " ".join([word, " beside ".join(names)]).strip()
        if text.startswith("This "):
            held = [word for word in _CONDITIONS if re.search(rf"\b{word}\b", text)]
            return " ".join(["is", *held])
        return " ".join(["other", *_NAME.findall(text)])

    def command(self, command: str) -> str:
        """``go cabinet 1``, ``take apple 1 fridge 1``; the little words go."""
        return _compact(command, _COMMAND_PATTERNS) or command

    def subgoal(self, reply: Reply) -> str:
        """``keep``, or ``switch take egg 1``."""
        if not self.hierarchical:
            return ""
        if not reply.subgoal:
            return KEEP
        return f"{SWITCH} {_compact(reply.subgoal, _SUBGOAL_PATTERNS) or 'none'}"

    def read(self, text: str) -> Reply:
        """The reply; see `TextFormat.read`."""
        words = _pieces(text)
        subgoal = ""
        if self.hierarchical and words:
            if words[0] == SWITCH:
                arity = SUBGOAL_ARITY.get(words[1], 0) if len(words) > 1 else 0
                subgoal = _worded(words[1 : 2 + arity], _SUBGOALS)
                words = words[2 + arity :]
            elif words[0] == KEEP:
                words = words[1:]
        return Reply(_worded(words, _VERBS), subgoal)


class PlainFormat:
    """The printed text as it is, a line for each reply."""

    version = 1
    task_prefix = TASK_PREFIX
    command_arity: Mapping[str, int] | None = None
    subgoal_arity: Mapping[str, int] | None = None

    def __init__(self, hierarchical: bool = False) -> None:
        self.hierarchical = hierarchical
        self.name = "plain-hierarchical" if hierarchical else "plain"

    def notes(self, opening: str) -> Notes:
        """A new line with a sign."""
        return NoNotes("\n> ")

    def opening(self, text: str) -> str:
        """The first observation without the greeting."""
        return text.replace(_WELCOME, "").strip()

    def observation(self, text: str) -> str:
        """As printed."""
        return text.strip()

    def command(self, command: str) -> str:
        """The command and the end of its line."""
        return f"{command}\n"

    def subgoal(self, reply: Reply) -> str:
        """``keep``, or ``switch: take egg 1``, on a line of its own."""
        if not self.hierarchical:
            return ""
        return f"{SWITCH}: {reply.subgoal}\n" if reply.subgoal else f"{KEEP}\n"

    def read(self, text: str) -> Reply:
        """The reply; see `TextFormat.read`."""
        lines = [" ".join(line.split()) for line in text.strip().split("\n")]
        subgoal = ""
        if self.hierarchical and len(lines) > 1:
            said, lines = lines[0], lines[1:]
            subgoal = said.partition(":")[2].strip() if said.startswith(SWITCH) else ""
        return Reply(lines[0] if lines else "", subgoal)


FORMATS: dict[str, TextFormat] = {
    made.name: made
    for made in (
        CompactFormat(),
        CompactFormat(True),
        CompactFormat(has_notes=False),
        PlainFormat(),
        PlainFormat(True),
    )
}


def compact_words() -> list[str]:
    """All words of the compact formats that are no things."""
    tasks = [name for name, _ in _TASKS]
    said = [*COMMAND_ARITY, *SUBGOAL_ARITY, KEEP, SWITCH]
    return ["task", *tasks, *said, ">", "left", *OBSERVATION_WORDS]


def plain_words() -> list[str]:
    """The words of all commands and sub-goals as the games word them, and of the plain formats."""
    wordings = " ".join(wording for _, wording, _ in (*_VERBS, *_SUBGOALS)).replace("{}", "")
    return [*dict.fromkeys(wordings.split()), KEEP, SWITCH, ":", ">", "\n"]


_TASK_WORDS = frozenset(name for name, _ in _TASKS)


def _sentence_of(opening: str) -> str:
    task = _TASK.search(opening)
    return task.group(1) if task else ""


def _compact_task(sentence: str) -> str:
    for name, pattern in _TASKS:
        found = re.fullmatch(pattern, sentence)
        if found:
            return " ".join([name, *found.groups()])
    return sentence


def _compact(text: str, patterns: Sequence[tuple[re.Pattern[str], str]]) -> str:
    """A command or sub-goal with its things alone; "" if no pattern fits."""
    for pattern, word in patterns:
        found = pattern.fullmatch(text)
        if found:
            return " ".join([word, *found.groups()])
    return ""


def _pieces(text: str) -> list[str]:
    return re.findall(r"[a-z]+ \d+|\S+", text)


def _worded(words: Sequence[str], wordings: Sequence[tuple[str, str, int]]) -> str:
    """A command or sub-goal as the games word it; the words as they are if they make none."""
    for word, wording, arity in wordings:
        if words and words[0] == word and len(words) == 1 + arity:
            return wording.format(*words[1:])
    return " ".join(words)
