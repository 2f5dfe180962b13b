"""Questions that are asked again: what is counted, and what the next question says."""

import logging

import pytest

from jaxagent.planning.asking import AskSettings, PlannerLog, ask
from jaxagent.planning.chat import Message, Reply, Usage
from jaxagent.planning.openai_chat import OpenAIChat
from jaxagent.planning.parse import read_json_object
from tests.planning.endpoint import completion, serving
from tests.planning.scripted import ScriptedChat

ASKED = [Message("system", "plan"), Message("user", "where to?")]
PLAN = '{"a": 1}'


class Ending(ScriptedChat):
    """Replies that end in the way that stands beside them."""

    def complete(self, messages, **options):
        text, finish = super().complete(messages, **options).text
        return Reply(text, Usage(1, 1), 0.1, finish)


def answer(chat, **settings):
    log = PlannerLog()
    value = ask(chat, ASKED, read_json_object, schema={}, settings=AskSettings(**settings), log=log)
    return value, log.summary()["refused"]


def test_a_reply_that_was_cut_is_counted_as_such_and_asked_for_with_more_room(caplog):
    chat = Ending(('{"a": ', "length"), ("", "length"), (PLAN, "stop"), context=4096)
    value, refused = answer(chat, max_tokens=100)
    assert (value, refused) == ({"a": 1}, {"cut_short": 2})
    assert [options["max_tokens"] for options in chat.options] == [100, 400, 1600]
    assert "cut after 100 tokens" in chat.asked[1][-1].content
    assert "cut after 400 tokens" in chat.asked[2][-1].content
    assert [record.getMessage() for record in caplog.records] == [
        "replies of scripted end at max_tokens (100) before they can be used"
    ]


def test_more_room_than_the_context_has_is_not_asked_for():
    chat = Ending(('{"a": ', "length"), context=200)
    value, refused = answer(chat, max_tokens=100)
    assert (value, refused) == (None, {"cut_short": 3})
    for messages, options in zip(chat.asked, chat.options):
        assert 100 <= options["max_tokens"] < 200
        assert chat.count_tokens(messages) + options["max_tokens"] <= 200


def test_a_thought_that_fills_the_reply_was_cut():
    chat = Ending((f"<think>{PLAN}", "length"), (f"<think>{PLAN}", "stop"), (PLAN, "stop"))
    value, refused = answer(chat)
    assert (value, refused) == ({"a": 1}, {"cut_short": 1, "unfinished_thought": 1})


def test_a_plan_that_is_whole_is_taken_however_the_reply_ended():
    assert answer(Ending((f"{PLAN} and so on", "length")))[0] == {"a": 1}


def test_a_model_that_declines_is_counted_as_such():
    value, refused = answer(Ending(("", "declined"), (PLAN, "stop")))
    assert (value, refused) == ({"a": 1}, {"declined": 1})


def test_an_endpoints_way_to_end_is_read(monkeypatch, caplog):
    pytest.importorskip("openai")
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    cut = (200, {}, completion("", "length"))
    with serving(cut, PLAN) as endpoint, caplog.at_level(logging.WARNING):
        value, refused = answer(OpenAIChat("m", base_url=endpoint.url), max_tokens=64)
        limits = [request["max_tokens"] for request in endpoint.requests]
    assert (value, refused, limits) == ({"a": 1}, {"cut_short": 1}, [64, 256])
