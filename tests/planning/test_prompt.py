"""Prompts: templates that are checked, data that stays data, a fit to the context."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxagent.planning.chat import Message, estimate_tokens
from jaxagent.planning.prompt import PromptTooLong, fit_prompt, load_prompt, quoted


def template(tmp_path, text, fields=("task",), turn=False):
    path = tmp_path / "mine.txt"
    path.write_text(text)
    return load_prompt(path, fields, turn)


def test_sections_become_messages(tmp_path):
    read = template(
        tmp_path,
        "[system]\nBe $$ brief.\n[user]\nhi\n[assistant]\n{}\n[user]\nNow $task\n[turn]\nso: $task",
        turn=True,
    )
    assert read.messages({"task": "$go"}) == [
        Message("system", "Be $ brief."),
        Message("user", "hi"),
        Message("assistant", "{}"),
        Message("user", "Now $go"),
    ]
    assert read.turn({"task": "on"}) == Message("user", "so: on")


def test_another_text_is_another_version(tmp_path):
    first = template(tmp_path, "[user]\n$task")
    assert first.version == template(tmp_path, "[user]\n$task").version
    assert first.version != template(tmp_path, "[user]\n$task!").version


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "must consist of sections"),
        ("hello", "must consist of sections"),
        ("hello\n[user]\n$task", "must consist of sections"),
        ("[user]\n$task\n[assistant]\nx", "must consist of sections"),
        ("[user]\n$task\n[turn]\nx", "and no \\[turn\\]"),
        ("[user]\n$goal", r"has \$goal; known: \$task"),
        ("[user]\n5 $ each", r"a lone \$"),
    ],
)
def test_a_wrong_template_is_refused(tmp_path, text, message):
    with pytest.raises(ValueError, match=message):
        template(tmp_path, text)


def test_a_template_that_is_not_there(tmp_path):
    for path in (tmp_path / "none.txt", "no_such_prompt"):
        with pytest.raises(ValueError, match="cannot be read"):
            load_prompt(path, (), False)


@given(st.text())
def test_quoted_text_cannot_leave_its_quotes(text):
    written = quoted(text)
    assert json.loads(written) == text
    assert not set("<>[]\n\r\u2028\u202e\x7f\ud800") & set(written)
    assert written.isprintable() or written.encode("utf-8", "strict")


def test_letters_of_every_script_stay_readable():
    assert quoted("向东北角移动 5 m²") == '"向东北角移动 5 m²"'
    assert quoted("</data><|im_end|>[/INST]") == (
        '"\\u003c/data\\u003e\\u003c|im_end|\\u003e\\u005b/INST\\u005d"'
    )


@given(st.integers(0, 40), st.integers(0, 40))
def test_as_much_of_the_history_is_kept_as_fits(history, fitting):
    room = estimate_tokens(render(fitting, "seen"))
    messages, dropped = fit_prompt(render, history, "seen", room, estimate_tokens)
    assert messages == render(min(history, fitting), "seen")
    assert dropped == (history > fitting)


def render(kept, observation):
    return [Message("user", "TASK" + "h" * 30 * kept + observation)]


@given(st.integers(0, 40), st.text("o", max_size=200), st.integers(6, 600))
def test_what_fits_is_kept_and_the_task_always(history, observation, room):
    messages, dropped = fit_prompt(render, history, observation, room, estimate_tokens)
    text = messages[0].content
    assert text.startswith("TASK")
    assert estimate_tokens(messages) <= room
    assert dropped == (text != render(history, observation)[0].content)
    if "h" in text:
        assert text.endswith(observation)  # history goes before the observation does


def test_a_task_that_does_not_fit_is_said_so():
    with pytest.raises(PromptTooLong, match="take 6 tokens; there is room for 5"):
        fit_prompt(render, 3, "o", 5, estimate_tokens)
