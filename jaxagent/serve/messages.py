"""Messages and tools of a chat request, and the prompt that the chat template makes of them.

Nothing of a message is lost in silence: a field that the template does not read is refused by name.
Tools and their calls are put the way the template puts them, or, where it knows none, in the words
of Hermes (Teknium et al. 2024), which Qwen's templates use too.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from jaxagent.serve.fields import ApiError, flag, text

_ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}
_NAME = re.compile(r"[a-zA-Z0-9_.-]{1,64}")
_FUNCTION = {"name", "description", "parameters", "strict"}
MAX_TOOLS = 128
# Fields that are read before the template: an id only says which call a result is of.
_READ = {"role", "content", "tool_calls", "tool_call_id"}
_NO_PARAMETERS: dict[str, Any] = {"type": "object", "properties": {}}

_TOOLS_TEXT = (
    "You may call one of these functions to answer. Their signatures, one a line:\n"
    "<tools>\n{tools}\n</tools>\n\n"
    "To call one, write its name and its arguments as JSON, and nothing after them:\n"
    '<tool_call>\n{{"name": <name>, "arguments": <arguments>}}\n</tool_call>'
)


class Tool(NamedTuple):
    """A function that the model may call."""

    name: str
    parameters: Mapping[str, Any]  # JSON schema of its arguments


class Tools(NamedTuple):
    """What the model is told of, and what it may or must call."""

    declared: list[dict[str, Any]]  # as the request gave them
    offered: tuple[Tool, ...]  # those that may be called now; none of them: no call
    is_required: bool


class CallForm(NamedTuple):
    """How a model writes a call: opening, name, middle, arguments."""

    opening: str
    middle: str

    @property
    def marker(self) -> str:
        """What shows that a call begins, however the model sets it off."""
        return self.opening.partition("{")[0].strip() or self.opening


_HERMES = CallForm('<tool_call>\n{"name": "', '", "arguments": ')


def read_messages(value: Any) -> list[dict[str, Any]]:
    """Messages as a chat template reads them.

    Args:
        value: the field `messages`.

    Returns:
        Of each message its role, its content as one text, and whatever else it has that is not
        empty; the arguments of calls as objects. Results of tools stand in the order of the calls
        and bear the function's name.

    Raises:
        ApiError: 400 with the place and the rule.
    """
    if not isinstance(value, list) or not value:
        raise ApiError(400, "messages must be a list of at least one", param="messages")
    messages: list[dict[str, Any]] = []
    calls: dict[str, str] = {}  # of the last assistant's message: function by id
    for i, entry in enumerate(value):
        message = _message(entry, f"messages[{i}]")
        if message["role"] == "assistant":
            calls = {call["id"]: call["function"]["name"] for call in message.get("tool_calls", ())}
        if message["role"] == "tool":
            _name_result(message, calls, f"messages[{i}]")
        messages.append(message)
    return _in_order_of_calls(messages)


def _message(entry: Any, place: str) -> dict[str, Any]:
    if not isinstance(entry, dict):
        raise ApiError(400, f"{place} must be an object", param=place)
    role = entry.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        raise ApiError(400, f"{place}.role must be one of {', '.join(_ROLES)}", param=place)
    message = {
        name: value for name, value in entry.items() if value not in (None, False, "", [], {})
    }
    message["role"] = _ROLES[role]
    content = entry.get("content")
    if isinstance(content, list):
        content = "".join(_part(part, place) for part in content)
    if "tool_calls" in message:
        if role != "assistant":
            raise ApiError(400, f"{place}.tool_calls: only an assistant calls tools", param=place)
        message["tool_calls"] = _calls(message["tool_calls"], f"{place}.tool_calls")
        content = "" if content is None else content
    message["content"] = text(content, f"{place}.content", place)
    return message


def _part(part: Any, place: str) -> str:
    if not isinstance(part, dict) or part.get("type") != "text":
        raise ApiError(400, f"{place}.content: only parts of type text are read", param=place)
    return text(part.get("text"), f"{place}.content.text", place)


def _calls(value: Any, place: str) -> list[dict[str, Any]]:
    if not isinstance(value, list):
        raise ApiError(400, f"{place} must be a list", param=place)
    return [_call(entry, f"{place}[{i}]") for i, entry in enumerate(value)]


def _call(entry: Any, place: str) -> dict[str, Any]:
    function = entry.get("function") if isinstance(entry, dict) else None
    if not isinstance(function, dict) or entry.get("type", "function") != "function":
        raise ApiError(400, f"{place} must be a call of type function", param=place)
    name = text(function.get("name"), f"{place}.function.name", place)
    label = text(entry.get("id"), f"{place}.id", place)
    given = text(function.get("arguments"), f"{place}.function.arguments", place)
    try:
        arguments = json.loads(given or "{}")
    except (ValueError, RecursionError):
        arguments = None
    if not isinstance(arguments, dict):
        raise ApiError(400, f"{place}.function.arguments must be a JSON object", param=place)
    return {
        "id": label,
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }


def _name_result(message: dict[str, Any], calls: Mapping[str, str], place: str) -> None:
    label = text(message.get("tool_call_id"), f"{place}.tool_call_id", place)
    if label not in calls:
        rule = "must be the id of a call in the assistant's message before it"
        raise ApiError(400, f"{place}.tool_call_id ({label[:80]}) {rule}", param=place)
    if message.setdefault("name", calls[label]) != calls[label]:
        raise ApiError(400, f"{place}.name must be {calls[label]}, which was called", param=place)


def _in_order_of_calls(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Results sorted as the calls stand: templates pair them by order alone."""
    ordered: list[dict[str, Any]] = []
    place: dict[str, int] = {}
    for message in messages:
        if message["role"] != "tool":
            place = {call["id"]: i for i, call in enumerate(message.get("tool_calls", ()))}
            ordered.append(message)
            continue
        at = len(ordered)
        mine = place.get(message["tool_call_id"], 0)
        while ordered[at - 1]["role"] == "tool" and (
            place.get(ordered[at - 1]["tool_call_id"], 0) > mine
        ):
            at -= 1
        ordered.insert(at, message)
    return ordered


def read_tools(tools: Any, choice: Any) -> Tools:
    """The fields `tools` and `tool_choice`.

    Raises:
        ApiError: 400 with the place and the rule.
    """
    declared = [] if tools is None else tools
    if not isinstance(declared, list) or len(declared) > MAX_TOOLS:
        raise ApiError(400, f"tools must be a list of at most {MAX_TOOLS}", param="tools")
    offered = tuple(_tool(entry, f"tools[{i}]") for i, entry in enumerate(declared))
    names = [tool.name for tool in offered]
    if len(set(names)) < len(names):
        raise ApiError(400, "tools must not hold two functions of one name", param="tools")
    if choice is None:
        choice = "auto" if offered else "none"
    if choice == "none":
        return Tools([], (), False)
    if choice == "auto":
        return Tools(declared, offered, False)
    if choice == "required" and offered:
        return Tools(declared, offered, True)
    function = choice.get("function") if isinstance(choice, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    chosen = tuple(tool for tool in offered if tool.name == name)
    if not chosen:
        rule = "none, auto, required, or name one of the functions in tools"
        raise ApiError(400, f"tool_choice must be {rule}", param="tool_choice")
    return Tools(declared, chosen, True)


def _tool(entry: Any, place: str) -> Tool:
    function = entry.get("function") if isinstance(entry, dict) else None
    if not isinstance(function, dict) or entry.get("type") != "function":
        raise ApiError(400, f"{place} must be of type function", param=place)
    for field, value in function.items():
        if field not in _FUNCTION and value is not None:
            raise ApiError(400, f"{place}.function: unknown field {field[:80]!r}", param=place)
    name = function.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        rule = "must be 1 to 64 letters, digits, underscores, points or hyphens"
        raise ApiError(400, f"{place}.function.name {rule}", param=place)
    if function.get("description") is not None:
        text(function["description"], f"{place}.function.description", place)
    flag(function, "strict")  # arguments are inside their schema in any case
    parameters = function.get("parameters") or _NO_PARAMETERS
    if not isinstance(parameters, dict):
        raise ApiError(400, f"{place}.function.parameters must be a JSON schema", param=place)
    return Tool(name, parameters)


class ChatPrompts:
    """The prompts that a model's chat template makes."""

    def __init__(self, tokenizer: Any, name: str):
        """Look at how the template puts calls.

        Args:
            tokenizer: has a chat template.
            name: of the model, for messages.
        """
        self._tokenizer, self._name = tokenizer, name
        form = self._probe()
        self.form, self._knows_tools = form or _HERMES, form is not None

    def render(self, messages: Sequence[dict[str, Any]], tools: Tools) -> str:
        """The prompt of a conversation, up to where the model's turn begins.

        Raises:
            ApiError: 400, the template refuses the messages, or loses a part of one.
        """
        declared, given = tools.declared, list(messages)
        if not self._knows_tools:
            given, declared = _spelled_out(given, declared), []
        try:
            prompt = self._render(given, declared)
            for i, message in enumerate(given):
                for field in message.keys() - _READ:
                    less = {name: value for name, value in message.items() if name != field}
                    if message["role"] == "tool" and field == "name":
                        continue
                    if self._render([*given[:i], less, *given[i + 1 :]], declared) == prompt:
                        raise ApiError(
                            400,
                            f"messages: the chat template of {self._name} does not read the field "
                            f"{field[:80]!r} of the role {message['role']}, it would be lost",
                            param=f"messages.{field[:80]}",
                        )
        except ApiError:
            raise
        # Templates raise what they like, of jinja's own, for orders of roles they do not know.
        except Exception as error:
            message = f"the chat template refuses the messages: {error}"
            raise ApiError(400, message[:1000], param="messages") from None
        return prompt

    def _render(self, messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> str:
        # Without tools a template is called as it was before there were any.
        options: dict[str, Any] = {"tools": tools} if tools else {}
        return str(
            self._tokenizer.apply_chat_template(
                messages, add_generation_prompt=True, tokenize=False, **options
            )
        )

    def _probe(self) -> CallForm | None:
        """How the template puts a call; None where it loses one of its parts."""
        function = {"name": "probe_name", "arguments": {"probe_key": "probe_value"}}
        declared = {"name": "probe_tool", "description": "probe", "parameters": _NO_PARAMETERS}
        tools = [{"type": "function", "function": declared}]
        call = {"id": "call00000", "type": "function", "function": function}
        result = {
            "role": "tool",
            "content": "probe_result",
            "tool_call_id": "call00000",
            "name": "probe_name",
        }
        asked: list[dict[str, Any]] = [{"role": "user", "content": "x"}]
        said = {"role": "assistant", "content": "", "tool_calls": [call]}
        try:
            before = self._render(asked, tools)
            whole = self._render([*asked, said, result], tools)
        except Exception:  # a template that knows no tools may raise anything
            return None
        if "probe_tool" not in before or "probe_result" not in whole:
            return None
        pairs = enumerate(zip(before, whole))
        start = next((i for i, (one, other) in pairs if one != other), min(len(before), len(whole)))
        after = whole[start:]
        opening, _, rest = after.partition("probe_name")
        middle, found, _ = rest.partition(json.dumps(function["arguments"]))
        return CallForm(opening, middle) if found and opening and middle else None


def _spelled_out(
    messages: list[dict[str, Any]], declared: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Tools, calls and results as text, for a template that knows none of them."""
    spelled: list[dict[str, Any]] = []
    results: list[str] = []
    for message in [*messages, None]:
        if message is not None and message["role"] == "tool":
            results.append(f"<tool_response>\n{message['content']}\n</tool_response>")
            continue
        if results:
            spelled.append({"role": "user", "content": "\n".join(results)})
            results = []
        if message is not None:
            spelled.append(_with_calls(message))
    if not declared:
        return spelled
    lines = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in declared)
    content = _TOOLS_TEXT.format(tools=lines)
    if spelled[0]["role"] == "system":
        content = f"{spelled[0]['content']}\n\n{content}"
        return [{**spelled[0], "content": content}, *spelled[1:]]
    return [{"role": "system", "content": content}, *spelled]


def _with_calls(message: dict[str, Any]) -> dict[str, Any]:
    if "tool_calls" not in message:
        return message
    lines = [message["content"]] if message["content"] else []
    for call in message["tool_calls"]:
        lines.append(
            f"<tool_call>\n{json.dumps(call['function'], ensure_ascii=False)}\n</tool_call>"
        )
    rest = {name: value for name, value in message.items() if name != "tool_calls"}
    return {**rest, "content": "\n".join(lines)}
