"""The client of a chat endpoint, over a real socket."""

import logging
import traceback

import pytest

from jaxagent.planning.chat import ChatError, Message
from jaxagent.planning.openai_chat import MAX_BODY, OpenAIChat
from tests.planning.endpoint import completion, serving

pytest.importorskip("openai")
KEY = "sk-a-key-that-nobody-must-see"
ASKED = [Message("system", "be brief"), Message("user", "hello")]


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    for name in ("OPENAI_BASE_URL", "OPENAI_MODEL", "HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OPENAI_API_KEY", KEY)


def failure(endpoint, **options):
    chat = OpenAIChat("m", base_url=endpoint.url, **options)
    with pytest.raises(ChatError) as caught:
        chat.complete(ASKED, max_tokens=8)
    return caught.value


def test_a_reply_with_what_it_took():
    with serving("hi") as endpoint:
        chat = OpenAIChat("m", base_url=endpoint.url)
        reply = chat.complete(
            ASKED, max_tokens=8, schema={"type": "object"}, temperature=0.5, seed=3
        )
        assert (reply.text, reply.usage) == ("hi", (7, 3))
        assert 0 <= reply.seconds < 30
        sent = endpoint.requests[0]
        assert sent["messages"] == [m._asdict() for m in ASKED]
        assert (sent["model"], sent["max_tokens"], sent["temperature"], sent["seed"]) == (
            "m", 8, 0.5, 3,
        )  # fmt: skip
        assert sent["response_format"]["json_schema"]["schema"] == {"type": "object"}
        assert endpoint.headers_seen[0]["authorization"] == f"Bearer {KEY}"


def test_nothing_is_asked_for_that_the_caller_did_not_ask_for():
    with serving("hi") as endpoint:
        OpenAIChat("m", base_url=endpoint.url).complete(ASKED, max_tokens=8)
        assert set(endpoint.requests[0]) == {"model", "messages", "max_tokens", "seed"}


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (
            (401, {}, '{"error": {"message": "Incorrect API key provided: ' + KEY + '"}}'),
            "wrong_key",
        ),
        ((403, {}, "{}"), "wrong_key"),
        ((400, {}, '{"error": "' + KEY + '"}'), "refused_request"),
        ((404, {}, ""), "refused_request"),
        ((500, {}, "<html>"), "server_error"),
        ((503, {}, ""), "server_error"),
        ((504, {}, ""), "timeout"),
        ((200, {}, "this is not JSON"), "bad_response"),
        ((200, {}, ""), "bad_response"),
        ((200, {}, "[" * 100_000), "bad_response"),
        ((200, {}, '{"choices": []}'), "bad_response"),
        ((200, {}, '{"choices": [{"message": {"content": 3}}]}'), "bad_response"),
        ((200, {}, '{"choices": [{"message": {"content": ["hi"]}}]}'), "bad_response"),
        ((200, {}, b"\xff\xfe"), "bad_response"),
        ((200, {}, completion("x" * (MAX_BODY + 1))), "reply_too_large"),
    ],
)
def test_each_failure_has_its_reason_and_none_shows_the_key(answer, reason, caplog):
    with serving(answer) as endpoint, caplog.at_level(logging.DEBUG):
        error = failure(endpoint)
    assert error.reason == reason
    shown = "".join(traceback.format_exception(error)) + caplog.text + repr(error)
    assert KEY not in shown
    assert error.__cause__ is None


def test_retry_after_is_passed_on():
    with serving((429, {"retry-after": "7.5"}, "{}")) as endpoint:
        error = failure(endpoint)
        assert (error.reason, error.retry_after, error.transient) == ("rate_limited", 7.5, True)
        assert len(endpoint.requests) == 1  # whoever waits is above this class
    for nonsense in ("soon", "-3", "inf", "nan", "Wed, 21 Oct 2015 07:28:00 GMT"):
        with serving((429, {"retry-after": nonsense}, "{}")) as endpoint:
            assert failure(endpoint).retry_after is None


def test_a_slow_endpoint_times_out():
    def stall(handler):
        handler.server.released.wait(20)

    with serving(stall) as endpoint:
        assert failure(endpoint, timeout=0.2).reason == "timeout"


def test_a_dripping_endpoint_cannot_outlast_the_timeout():
    """Each byte is in time, the whole is not: the client's own limits would wait for ever."""
    times = iter([0.0, 1.0, 2.0, 31.0])

    def drip(handler):
        handler.send_response(200)
        handler.send_header("transfer-encoding", "chunked")
        handler.end_headers()
        while not handler.server.released.wait(0.01):
            handler.wfile.write(b"1\r\n \r\n")
            handler.wfile.flush()

    with serving(drip) as endpoint:
        error = failure(endpoint, timeout=30.0, clock=lambda: next(times))
        assert error.reason == "timeout"


def test_after_stop_nothing_is_read():
    with serving("hi") as endpoint:
        chat = OpenAIChat("m", base_url=endpoint.url)
        chat.stop()
        with pytest.raises(ChatError) as caught:
            chat.complete(ASKED, max_tokens=8)
        assert caught.value.reason == "stopped"


def test_a_connection_that_closes_half_way():
    def hang_up(handler):
        handler.send_response(200)
        handler.send_header("content-length", "1000")
        handler.end_headers()
        handler.wfile.write(b'{"choices": [')
        handler.close_connection = True

    with serving(hang_up) as endpoint:
        assert failure(endpoint).reason == "connection_closed"

    def drop(handler):
        handler.close_connection = True

    with serving(drop) as endpoint:
        assert failure(endpoint).reason in ("connection_closed", "unreachable")


def test_nobody_listens():
    with serving("hi") as endpoint:
        url = endpoint.url
    chat = OpenAIChat("m", base_url=url)
    with pytest.raises(ChatError) as caught:
        chat.complete(ASKED, max_tokens=8)
    assert caught.value.reason == "unreachable"


def test_odd_replies_come_through_as_text():
    with serving((200, {}, '{"choices": [{"message": {"content": null}}]}')) as endpoint:
        assert OpenAIChat("m", base_url=endpoint.url).complete(ASKED, max_tokens=8)[:2] == (
            "",
            (0, 0),
        )
    half = '{"choices": [{"message": {"content": "\\ud800"}}], "usage": {"prompt_tokens": -1}}'
    with serving((200, {}, half)) as endpoint:
        reply = OpenAIChat("m", base_url=endpoint.url).complete(ASKED, max_tokens=8)
        assert reply[:2] == ("?", (0, 0))
        OpenAIChat("m", base_url=endpoint.url).complete([Message("user", reply.text)], max_tokens=8)


def refusing_schemas(handler):
    """As endpoints do that know no `response_format`, or not this kind of it."""
    refuses = "response_format" in handler.server.requests[-1]
    handler.send(*((400, {}, '{"error": {}}') if refuses else (200, {}, completion("hi"))))


def test_an_endpoint_that_refuses_schemas_is_asked_without(caplog):
    with serving(refusing_schemas) as endpoint:
        chat = OpenAIChat("m", base_url=endpoint.url)
        for _ in range(3):
            assert chat.complete(ASKED, max_tokens=8, schema={"type": "object"}).text == "hi"
        asked = [request.get("response_format") is not None for request in endpoint.requests]
    assert asked == [True, False, False, False]  # remembered
    assert [record.getMessage() for record in caplog.records] == [
        "m@127.0.0.1 refuses schemas of replies (response_format): asked without from here on"
    ]


def test_a_request_that_is_refused_for_another_reason_keeps_its_schema():
    with serving((400, {}, "{}"), (400, {}, "{}"), "hi") as endpoint:
        chat = OpenAIChat("m", base_url=endpoint.url)
        with pytest.raises(ChatError) as caught:
            chat.complete(ASKED, max_tokens=8, schema={"type": "object"})
        assert caught.value.reason == "refused_request"
        chat.complete(ASKED, max_tokens=8, schema={"type": "object"})
        assert "response_format" in endpoint.requests[2]
    with serving((400, {}, "{}"), (500, {}, "{}")) as endpoint:
        chat = OpenAIChat("m", base_url=endpoint.url)
        with pytest.raises(ChatError) as caught:
            chat.complete(ASKED, max_tokens=8, schema={"type": "object"})
        assert caught.value.reason == "server_error"
    with serving((400, {}, "{}")) as endpoint:
        assert failure(endpoint).reason == "refused_request"
        assert len(endpoint.requests) == 1  # there was no schema to leave out


@pytest.mark.parametrize(
    ("body", "text", "finish"),
    [
        (completion("hi"), "hi", "stop"),
        (completion("hi", None), "hi", "stop"),
        (completion('{"a', "length"), '{"a', "length"),
        (completion(None, "length"), "", "length"),
        (completion("", "content_filter"), "", "declined"),
        (completion(None, "stop", refusal="I cannot help with that."), "", "declined"),
        (completion("hi", ["odd"]), "hi", "stop"),
        (
            completion([{"type": "thinking", "thinking": []}, {"type": "text", "text": "hi"}]),
            "hi",
            "stop",
        ),
    ],
)
def test_how_a_reply_ended_is_read(body, text, finish):
    with serving((200, {}, body)) as endpoint:
        reply = OpenAIChat("m", base_url=endpoint.url).complete(ASKED, max_tokens=8)
    assert (reply.text, reply.finish) == (text, finish)


def test_the_key_is_nowhere_to_be_read():
    chat = OpenAIChat("m", base_url="http://somebody:secret@localhost:9/v1")
    assert repr(chat) == "OpenAIChat(model='m', host='localhost')"
    assert chat.name == "m@localhost"
    assert KEY not in str(vars(chat))


def test_settings_come_from_the_environment(monkeypatch):
    monkeypatch.setenv("OPENAI_MODEL", "theirs")
    with serving("hi") as endpoint:
        monkeypatch.setenv("OPENAI_BASE_URL", endpoint.url)
        monkeypatch.delenv("OPENAI_API_KEY")  # an endpoint of one's own wants none
        OpenAIChat().complete(ASKED, max_tokens=8)
        assert endpoint.requests[0]["model"] == "theirs"


@pytest.mark.parametrize(
    ("model", "url", "key", "message"),
    [
        (None, None, KEY, "needs a model: openai:MODEL, or set OPENAI_MODEL"),
        ("m", None, None, "needs a key in OPENAI_API_KEY"),
        ("m", "localhost:8000", KEY, "OPENAI_BASE_URL must begin with http"),
        ("m", "http:///v1", KEY, "name a host"),
    ],
)
def test_what_is_missing_is_named(model, url, key, message, monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY")
    if key:
        monkeypatch.setenv("OPENAI_API_KEY", key)
    with pytest.raises(ValueError, match=message):
        OpenAIChat(model, base_url=url)


def test_a_missing_extra_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "openai", None)
    with pytest.raises(ValueError, match="needs the package openai: pip install openai"):
        OpenAIChat("m")
