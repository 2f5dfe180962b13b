"""Prompts: template files, data that cannot pass for instructions, and a fit to the context.

A template is a text file of sections. `[system]`, `[user]` and `[assistant]` become messages in
the order in which they stand; `[turn]`, where there is one, is what the user says after each
sub-goal. `$name` is replaced by a value, `$$` is a dollar.
"""

import dataclasses
import hashlib
import json
import pathlib
import re
import string
from collections.abc import Callable, Mapping, Sequence

from jaxagent.planning.chat import Message

FOLDER = pathlib.Path(__file__).parent / "prompts"
_SECTION = re.compile(r"^\[(system|user|assistant|turn)\]\n", re.MULTILINE)
# Marks with which chat templates and our own delimiters begin, and characters that hide or turn
# text around: all of them stay readable as escapes, none of them acts.
_ACTIVE = re.compile(
    "[<>\\[\\]\x7f-\x9f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff"
    "\ud800-\udfff\U000e0000-\U000e007f]"
)


class PromptTooLong(ValueError):
    """The prompt does not fit the context, even without history."""


@dataclasses.dataclass(frozen=True)
class PromptTemplate:
    """A template as it was read.

    Attributes:
        name: of the file, without its folder.
        version: hash of the text; a cache never mixes answers of two versions.
        sections: (role, text) in order.
    """

    name: str
    version: str
    sections: tuple[tuple[str, str], ...]

    def messages(self, values: Mapping[str, str]) -> list[Message]:
        """The messages, filled in; turns are left out."""
        return [
            Message(role, string.Template(text).substitute(values))
            for role, text in self.sections
            if role != "turn"
        ]

    def turn(self, values: Mapping[str, str]) -> Message:
        """What the user says after a sub-goal."""
        text = dict(self.sections)["turn"]
        return Message("user", string.Template(text).substitute(values))


def load_prompt(path: str | pathlib.Path, fields: Sequence[str], turn: bool) -> PromptTemplate:
    """Read a template.

    Args:
        path: the file, or the name of one that is part of the package.
        fields: what it may refer to by `$name`.
        turn: whether it must have a `[turn]` section.

    Raises:
        ValueError: it cannot be read, or is no template for these fields.
    """
    file = FOLDER / f"{path}.txt" if re.fullmatch(r"\w+", str(path)) else pathlib.Path(path)
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"prompt ({path}) cannot be read: {error}") from None
    parts = _SECTION.split(text)
    sections = tuple((role, body.strip()) for role, body in zip(parts[1::2], parts[2::2]))
    roles = [role for role, _ in sections]
    spoken = [role for role in roles if role != "turn"]
    if parts[0].strip() or not spoken or spoken[-1] != "user" or roles.count("turn") != int(turn):
        rule = "sections [system], [user], [assistant], the last of them [user]"
        rule += ", and one [turn]" if turn else ", and no [turn]"
        raise ValueError(f"prompt ({path}) must consist of {rule}")
    for _, body in sections:
        template = string.Template(body)
        unknown = sorted(set(template.get_identifiers()) - set(fields))
        if unknown or not template.is_valid():
            named = f"${unknown[0]}" if unknown else "a lone $ (write $$)"
            raise ValueError(f"prompt ({path}) has {named}; known: ${', $'.join(fields)}")
    version = hashlib.sha256(text.encode()).hexdigest()[:12]
    return PromptTemplate(file.stem, version, sections)


def quoted(text: str) -> str:
    """Text from outside as one JSON string, which no chat template or reader takes for more.

    Args:
        text: an observation, a task, a result.

    Returns:
        The text in double quotes on one line; `<`, `>`, brackets, control and invisible characters
        are escaped, letters of every script are left as they are.
    """
    plain = json.dumps(text, ensure_ascii=False)
    return _ACTIVE.sub(_escape, plain)


def _escape(found: re.Match[str]) -> str:
    return (
        json.dumps(found.group(), ensure_ascii=True)[1:-1]
        if found.group() > "~"
        else (f"\\u{ord(found.group()):04x}")
    )


def fit_prompt(
    render: Callable[[int, str], list[Message]],
    history: int,
    observation: str,
    room: int,
    count_tokens: Callable[[Sequence[Message]], int],
) -> tuple[list[Message], bool]:
    """The longest prompt that fits: the oldest history goes first, then the observation's end.

    Args:
        render: makes the prompt of the last n entries of history and an observation. What it puts
            in by itself, the task above all, is never cut.
        history: entries there are.
        observation: the text to be cut when no history is left.
        room: tokens that the prompt may have.
        count_tokens: of a prompt.

    Returns:
        The messages, and whether anything was dropped.

    Raises:
        PromptTooLong: the task and the instructions alone do not fit.
    """

    def fits(kept: int, length: int) -> bool:
        return count_tokens(render(kept, observation[:length])) <= room

    if fits(history, len(observation)):
        return render(history, observation), False
    kept = _largest(history, lambda n: fits(n, len(observation)))
    if kept is not None:
        return render(kept, observation), True
    length = _largest(len(observation), lambda n: fits(0, n))
    if length is None:
        raise PromptTooLong(
            f"the task and the instructions take {count_tokens(render(0, ''))} tokens; "
            f"there is room for {room}"
        )
    return render(0, observation[:length]), True


def _largest(most: int, fits: Callable[[int], bool]) -> int | None:
    """The largest number up to `most` that fits, if 0 does."""
    if not fits(0):
        return None
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low
