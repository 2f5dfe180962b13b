"""The server over real sockets: what clients send, what they get, and what they cost others."""

import asyncio
import concurrent.futures
import functools
import http.client
import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
from typing import ClassVar

import pytest

from jaxagent.models.llm.generate import Generator
from jaxagent.models.llm.load import save_model
from jaxagent.models.llm.sampling import SamplingConfig
from jaxagent.planning.chat import ChatError, Message
from jaxagent.planning.openai_chat import OpenAIChat
from jaxagent.serve.__main__ import main
from jaxagent.serve.engine import STEP_TOKENS, Engine, EngineFailure, QueueFull
from jaxagent.serve.fields import ApiError
from jaxagent.serve.requests import read_chat
from jaxagent.serve.service import Service
from tests.models.llm.random_models import random_model
from tests.serve_client import (
    ENDLESS,
    HELLO,
    LONG,
    SCHEMA,
    Listener,
    asked,
    complete,
    connect,
    events,
    post,
    read_all,
    request,
    serving,
    text_of,
    wait_until,
)

ROOT = pathlib.Path(__file__).parents[1]


@pytest.fixture(scope="module")
def generator():
    return Generator(random_model(max_positions=8192))


@pytest.fixture(scope="module")
def server(generator):
    with serving(generator) as server:
        yield server


def test_a_reply_is_what_the_model_says(server, generator):
    reply = complete(server, temperature=0, max_tokens=12)
    prompt = generator.model.tokenizer.apply_chat_template(
        HELLO, add_generation_prompt=True, tokenize=False
    )
    (alone,) = generator.generate([prompt], SamplingConfig(max_new_tokens=12))
    assert text_of(reply) == alone.text
    assert reply["object"] == "chat.completion"
    assert reply["model"] == "random"
    assert reply["choices"][0]["finish_reason"] == (
        "length" if alone.finish_reason == "length" else "stop"
    )
    usage = reply["usage"]
    assert usage["prompt_tokens"] == len(generator.encode(prompt))
    assert usage["completion_tokens"] == len(alone.tokens)
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    again = complete(server, temperature=0, max_tokens=12)
    assert text_of(again) == text_of(reply)
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] == usage["prompt_tokens"] - 1


def test_seeds_temperatures_and_stops_reach_the_sampler(server):
    warm = {"temperature": 1.5, "max_tokens": 24}
    first = text_of(complete(server, seed=3, **warm))
    assert text_of(complete(server, seed=3, **warm)) == first
    assert len({text_of(complete(server, seed=seed, **warm)) for seed in range(4)}) > 1
    assert len({text_of(complete(server, seed=None, **warm)) for _ in range(4)}) > 1
    assert text_of(complete(server, seed=3, top_p=0.0, **warm)) == text_of(
        complete(server, temperature=0, max_tokens=24)
    )
    stop = first[5:8]
    cut = complete(server, seed=3, stop=[stop], **warm)
    assert text_of(cut) == first[: first.index(stop)]
    assert cut["choices"][0]["finish_reason"] == "stop"


def test_a_schema_is_kept(server):
    form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA}}
    said = {
        text_of(complete(server, response_format=form, max_tokens=60, temperature=2, seed=seed))
        for seed in range(8)
    }
    assert {json.loads(text)["go"] for text in said} <= {"desk", "table", "fridge"}
    assert len(said) > 1


def test_a_schema_that_takes_long_holds_up_nobody_else(generator, monkeypatch):
    form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA}}
    build, begun, go_on = generator.json_schema, [], threading.Event()

    def slow(schema):
        begun.append(schema)
        assert go_on.wait(60)
        return build(schema)

    monkeypatch.setattr(generator, "json_schema", slow)
    with serving(generator) as server, concurrent.futures.ThreadPoolExecutor(2) as pool:
        ask = functools.partial(complete, server, response_format=form, max_tokens=60)
        try:
            waiting = [pool.submit(ask) for _ in range(2)]
            wait_until(lambda: begun)
            assert complete(server)["usage"]["completion_tokens"] > 0
            assert not any(each.done() for each in waiting)
        finally:
            go_on.set()
        assert len({text_of(each.result()) for each in waiting}) == 1
    assert len(begun) == 1  # the second waits for what the first builds


@pytest.mark.parametrize("depth", [300, 900])
def test_a_schema_that_is_too_deep_is_refused(server, depth):
    schema = '{"type": "array", "items": ' * depth + '{"type": "null"}' + "}" * depth
    form = '{"type": "json_schema", "json_schema": {"schema": ' + schema + "}}"
    body = json.dumps(asked(response_format=None)).replace("null", form)
    status, _, reply = post(server, body.encode())
    assert status == 400
    assert "deep" in json.loads(reply)["error"]["message"]


def test_a_stream_says_the_same_in_pieces(server):
    whole = complete(server, temperature=1.0, max_tokens=40)
    options = {"stream": True, "stream_options": {"include_usage": True}}
    status, headers, body = post(server, asked(temperature=1.0, max_tokens=40, **options))
    assert status == 200
    assert headers["Content-Type"].startswith("text/event-stream")
    *chunks, done = events(body)
    assert done == "[DONE]"
    chunks = [json.loads(chunk) for chunk in chunks]
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    *spoken, usage = chunks
    pieces = [chunk["choices"][0]["delta"].get("content", "") for chunk in spoken]
    assert "".join(pieces) == text_of(whole)
    assert sum(map(bool, pieces)) > 1
    assert spoken[-1]["choices"][0]["finish_reason"] == whole["choices"][0]["finish_reason"]
    assert usage["choices"] == []
    counted = usage["usage"]
    assert counted["total_tokens"] == whole["usage"]["total_tokens"]
    _, _, body = post(server, asked(stream=True))
    assert '"usage"' not in body.decode()


def test_the_planners_own_client_talks_to_it(server, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "anything")
    chat = OpenAIChat("random", base_url=server.url)
    reply = chat.complete([Message("user", "look")], max_tokens=60, schema=SCHEMA, temperature=1.0)
    assert json.loads(reply.text)["go"] in ("desk", "table", "fridge")
    assert reply.usage.prompt_tokens > 0
    assert reply.usage.completion_tokens > 0
    with pytest.raises(ChatError) as caught:
        chat.complete([Message("user", "look " * 20_000)], max_tokens=8)
    assert caught.value.reason == "refused_request"
    with pytest.raises(ChatError) as caught:
        OpenAIChat("another", base_url=server.url).complete([Message("user", "look")], max_tokens=8)
    assert caught.value.reason == "refused_request"


def test_the_stream_of_openais_client(server):
    openai = pytest.importorskip("openai")
    with openai.OpenAI(api_key="none", base_url=server.url) as client:
        assert [model.id for model in client.models.list()] == ["random"]
        assert client.models.retrieve("random").owned_by == "jaxagent"
        chunks = client.chat.completions.create(
            model="random", messages=HELLO, max_tokens=8, seed=1, stream=True
        )
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
        assert text == text_of(complete(server))
        with pytest.raises(openai.BadRequestError) as caught:
            client.chat.completions.create(model="random", messages=HELLO, n=200)
        assert caught.value.param == "n"


def test_requests_share_their_steps(generator):
    tokens, config = 80, SamplingConfig(max_new_tokens=80, stop_tokens=())
    with Engine(generator, rows=4) as engine:

        def steps_of(count):
            before, listeners = engine.steps, [Listener() for _ in range(count)]
            for n, listener in enumerate(listeners):
                engine.submit([5, 6, 7 + n], config, None, listener.events.put)
            for listener in listeners:
                assert len(listener.completion().tokens) == tokens
            return engine.steps - before

        alone = steps_of(1)
        assert alone >= tokens / STEP_TOKENS - 1
        # One after the other they would take four times as many.
        assert steps_of(4) <= alone + 8
    with pytest.raises(EngineFailure, match="shutting down"):
        engine.submit([5], config, None, print)


def test_two_clients_at_a_time_share_a_batch(server):
    engine = server.service.engine

    def ask(text):
        message = {"role": "user", "content": text}
        reply = complete(server, messages=[message], max_tokens=LONG, temperature=0)
        return reply["usage"]["completion_tokens"]

    before = engine.steps
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        both = list(pool.map(ask, ("look at the desk", "go to table 1")))
    assert both == [LONG, LONG]
    assert engine.steps - before < 0.75 * sum(both) / STEP_TOKENS


def stall(server, stream):
    """A request whose reply takes long, on a socket of its own."""
    peer = connect(server)
    peer.sendall(request(max_tokens=ENDLESS, temperature=0, stream=stream))
    return peer


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_goes_away_frees_its_row(generator, stream):
    with serving(generator, rows=1, queue_length=0) as server:
        engine = server.service.engine
        peer = stall(server, stream)
        wait_until(lambda: engine.steps > 2)
        status, headers, body = post(server, asked())
        assert status == 429
        assert headers["Retry-After"] == "1"
        assert json.loads(body)["error"]["type"] == "rate_limit_error"
        peer.close()
        wait_until(lambda: engine.under_way == 0)
        assert text_of(complete(server)) is not None


def test_the_end_of_the_server_ends_what_is_under_way(generator):
    with serving(generator, rows=1) as server:
        peer = stall(server, stream=True)
        wait_until(lambda: server.service.engine.steps > 2)
    data = read_all(peer)
    assert b"shutting down" in data
    assert b"server_error" in data
    peer.close()


@pytest.mark.parametrize("error", [MemoryError, SystemExit, KeyError])
def test_a_step_that_fails_is_one_requests_trouble(server, monkeypatch, caplog, error):
    engine = server.service.engine
    complete(server)

    def fail(steps):
        raise error

    monkeypatch.setattr(engine._batcher, "step", fail)
    status, _, body = post(server, asked())
    assert status == 500
    assert json.loads(body)["error"]["message"] == f"the model failed ({error.__name__})"
    assert "a batch failed" in caplog.text
    assert complete(server)["usage"]["completion_tokens"] > 0


def test_a_batch_that_cannot_be_made_is_made_with_the_next_request(server, monkeypatch):
    """As when memory has run out: the step fails, and so does the batch that is to follow."""
    engine, left = server.service.engine, [3]
    complete(server)
    make = engine._generator.batcher

    def fail(steps):
        raise MemoryError

    def make_or_fail(rows):
        left[0] -= 1
        if left[0] >= 0:
            raise MemoryError
        return make(rows)

    monkeypatch.setattr(engine._generator, "batcher", make_or_fail)
    monkeypatch.setattr(engine._batcher, "step", fail)
    for _ in range(4):
        assert post(server, asked())[0] == 500
    assert complete(server)["usage"]["completion_tokens"] > 0
    wait_until(lambda: engine.under_way == 0)


@pytest.mark.parametrize("method", ["submit", "cancel"])
def test_whatever_fails_in_the_engine_it_goes_on(server, monkeypatch, method):
    engine = server.service.engine
    complete(server)

    def fail(*arguments):
        raise RuntimeError

    monkeypatch.setattr(engine._batcher, method, fail)
    if method == "submit":
        assert post(server, asked())[0] == 500
    else:
        peer, steps = stall(server, stream=True), engine.steps
        wait_until(lambda: engine.steps > steps + 2)
        peer.close()
        wait_until(lambda: engine._batcher is None)
    assert complete(server)["usage"]["completion_tokens"] > 0


@pytest.mark.parametrize(
    ("fields", "status", "message"),
    [
        ({"model": "gpt-4"}, 404, 'the model "gpt-4" does not exist; this server has random'),
        ({"messages": []}, 400, "messages must be a list of at least one"),
        ({"messages": "hi"}, 400, "messages must be a list of at least one"),
        ({"messages": [3]}, 400, "messages[0] must be an object"),
        ({"messages": [{"role": "actor", "content": ""}]}, 400, "messages[0].role must be one of"),
        ({"messages": [{"role": "user"}]}, 400, "messages[0].content must be text"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            400,
            "only parts of type text",
        ),
        ({"messages": [{"role": "user", "content": "\ud800"}]}, 400, "half of a surrogate pair"),
        ({"max_tokens": 0}, 400, "max_tokens must be a whole number of at least 1"),
        ({"max_tokens": True}, 400, "max_tokens must be a whole number of at least 1"),
        ({"max_tokens": 9000}, 400, "the context is 8192 tokens"),
        ({"messages": [{"role": "user", "content": "x " * 20_000}]}, 400, "the context is 8192"),
        ({"temperature": 3}, 400, "temperature must lie between 0 and 2"),
        ({"temperature": "hot"}, 400, "temperature must lie between 0 and 2"),
        ({"top_p": -0.1}, 400, "top_p must lie between 0 and 1"),
        ({"seed": 1.5}, 400, "seed must be a whole number"),
        ({"stop": [""]}, 400, "stop must be text, or a list"),
        ({"stop": ["a"] * 5}, 400, "at most 4 texts"),
        ({"stream": "yes"}, 400, "stream must be true or false"),
        ({"n": 0}, 400, "n must be a whole number from 1 to 128"),
        ({"n": 5}, 400, "n (5 replies) must be at most 4"),
        ({"top_logprobs": 2}, 400, "top_logprobs needs logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, 400, "top_logprobs must be a whole number from 0"),
        ({"presence_penalty": 0.5}, 400, "presence_penalty is not supported"),
        ({"temprature": 0.5}, 400, "unknown field 'temprature'"),
        ({"response_format": {"type": "json"}}, 400, "response_format must be"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "x"}}}},
            400,
            "schema: type ('x') must be one of",
        ),
        (
            {
                "response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}},
                "max_tokens": 2,
            },
            400,
            "max_new_tokens (2) must be at least",
        ),
    ],
)
def test_what_cannot_be_answered_is_named(server, fields, status, message):
    found, _, body = post(server, asked(**fields))
    error = json.loads(body)["error"]
    assert found == status
    assert message in error["message"]
    assert error["type"] == "invalid_request_error"
    assert set(error) == {"message", "type", "param", "code"}


@pytest.mark.parametrize(
    ("body", "options", "status", "message"),
    [
        (b"{", {}, 400, "the body is not JSON"),
        (b"[" * 100_000, {}, 400, "the body is not JSON"),
        (b'{"seed": NaN}', {}, 400, "the body is not JSON"),
        (b"[]", {}, 400, "the body must be a JSON object"),
        (b"", {"method": "GET"}, 405, "this path takes POST, not GET"),
        (b"", {"method": "DELETE", "path": "/v1/models"}, 405, "this path takes GET"),
        (b"", {"method": "BREW"}, 405, "this path takes POST, not BREW"),
        (b"{}", {"path": "/v1/embeddings"}, 404, "there is nothing at /v1/embeddings"),
        (b"", {"method": "GET", "path": "/v1/models/gpt"}, 404, "there is nothing at"),
        (b"x" * (3 << 20), {}, 413, "must not be longer than 1048576"),
        (b"{}", {"Content_Type": "text/plain"}, 415, "must be application/json"),
        (b"{}", {"Content_Length": "many"}, 400, "bad Content-Length"),
        (b"", {}, 400, "the body is not JSON"),
    ],
)
def test_requests_that_are_none(server, body, options, status, message):
    found, headers, reply = post(server, body, **options)
    assert found == status
    assert message in json.loads(reply)["error"]["message"]
    if status == 405:
        assert set(headers["Allow"].split(", ")) <= {"GET", "HEAD", "POST"}


@pytest.mark.parametrize(
    ("request_line", "status", "message"),
    [
        (b"garbage", 400, "the request cannot be read: illegal request line"),
        (b"GET / HTTP/9.9", 505, "HTTP/9.9"),
        (b"GET /v1/models HTTP/1.1", 400, "Missing mandatory Host"),
        (b"GET /v1/models HTTP/1.1\r\nHost: h\r\nX: " + b"x" * 40_000, 431, "the headers"),
        (b"GET /v1/models HTTP/1.1\r\nHost: h\r\nX: " + b"x" * 900_000, 431, "too long"),
        (b"\x16\x03\x01\x02\x00\x01\x00", 400, "the request cannot be read"),
    ],
)
def test_what_is_no_request_is_refused_in_the_same_form(server, request_line, status, message):
    with connect(server) as peer:
        peer.sendall(request_line + b"\r\n\r\n")
        data = read_all(peer)
    assert data.startswith(b"HTTP/1.1 %d " % status), data
    assert message in json.loads(data[data.index(b"{") :])["error"]["message"]


def test_an_old_client_gets_its_stream_without_chunks(server):
    with connect(server) as peer:
        peer.sendall(request(stream=True).replace(b"HTTP/1.1", b"HTTP/1.0", 1))
        data = read_all(peer)
    head, _, stream = data.partition(b"\r\n\r\n")
    assert b"chunked" not in head
    assert events(stream)[-1] == "[DONE]"


def test_a_key_is_asked_for(generator):
    with serving(generator, key="sésame") as server:
        wrong = ("Bearer wrong", "Bearer", "Basic sésame".encode().decode("latin-1"), "sesame")
        for shown in ({}, *({"Authorization": value} for value in wrong)):
            status, headers, body = post(server, asked(), **shown)
            assert status == 401
            assert headers["Www-Authenticate"] == "Bearer"
            assert json.loads(body)["error"]["code"] == "invalid_api_key"
            assert "sésame" not in body.decode()
        for scheme in ("Bearer", "bearer", "BEARER"):  # RFC 9110, section 11.1
            right = f"{scheme} sésame".encode().decode("latin-1")
            assert post(server, asked(), Authorization=right)[0] == 200


def test_one_connection_serves_many_requests(server):
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=60)
    connection.connect()
    peer = connection.sock
    for fields, status in (({}, 200), ({"stream": True}, 200), ({"n": 0}, 400), ({}, 200)):
        headers = {"Content-Type": "application/json"}
        connection.request("POST", "/v1/chat/completions", json.dumps(asked(**fields)), headers)
        reply = connection.getresponse()
        assert reply.status == status
        reply.read()
        assert connection.sock is peer  # it was not closed and opened anew
    connection.close()


def test_an_address_that_is_taken_is_named(server, tmp_path, capsys):
    save_model(tmp_path / "small", random_model())
    with pytest.raises(SystemExit) as left:
        main([str(tmp_path / "small"), "--port", str(server.server_port)])
    assert left.value.code == 2
    assert f"127.0.0.1:{server.server_port} cannot be listened on" in capsys.readouterr().err


def test_a_model_that_cannot_chat_and_bounds_that_leave_no_room_are_refused(generator):
    bare = Generator(generator.model._replace(tokenizer=_Bare()))
    with Engine(generator) as engine:
        with pytest.raises(ValueError, match="the tokeniser of random has no chat template"):
            Service(bare, engine, 100)
        with pytest.raises(ValueError, match=r"context \(9000\) must lie in \[2, 8192\]"):
            Service(generator, engine, 9000)
    with pytest.raises(ValueError, match=r"rows \(0\) must be at least 1"):
        Engine(generator, rows=0)


class _Bare:
    chat_template = None


def test_a_template_that_refuses_is_the_clients_trouble(generator):
    class Picky(_Bare):
        chat_template = "picky"
        added_tokens_decoder: ClassVar = {}

        def apply_chat_template(self, *arguments, **options):
            raise RuntimeError("roles must alternate")

    with Engine(generator) as engine:
        service = Service(Generator(generator.model._replace(tokenizer=Picky())), engine, 100)
        with pytest.raises(ApiError, match="roles must alternate") as caught:
            asyncio.run(service.chat(read_chat(json.dumps(asked()).encode(), "random")))
        assert caught.value.status == 400


def test_a_full_queue_takes_no_more(generator):
    config = SamplingConfig(max_new_tokens=ENDLESS, stop_tokens=())
    with Engine(generator, rows=1, queue_length=1) as engine, engine.places(1):
        with engine.places(1), pytest.raises(QueueFull, match="2 requests are under way"):
            engine.places(1).__enter__()
        listeners = [Listener(), Listener()]
        tickets = [engine.submit([5, 6], config, None, each.events.put) for each in listeners]
        engine.cancel(tickets[0])
        assert engine.under_way == 1
        listeners[1].next()  # it has the row now


def run(*arguments, **environment):
    return subprocess.Popen(
        [sys.executable, "-m", "jaxagent.serve", *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT,
        env=os.environ | environment,
    )  # fmt: skip


def test_the_command_serves_until_ctrl_c(tmp_path, monkeypatch):
    save_model(tmp_path / "small", random_model(max_positions=8192))
    with run(
        str(tmp_path / "small"), "--port", "0", "--api-key-env", "SECRET", SECRET="open"
    ) as process:
        line = process.stdout.readline()
        assert line.startswith("serving small at http://127.0.0.1:"), process.stderr.read()
        monkeypatch.setenv("OPENAI_API_KEY", "open")
        chat = OpenAIChat("small", base_url=line.split()[3].rstrip(";"))
        said = chat.complete([Message("user", "look")], max_tokens=60, schema=SCHEMA)
        assert json.loads(said.text)["go"] in ("desk", "table", "fridge")
        process.send_signal(signal.SIGINT)
        rest, complaints = process.communicate(timeout=60)
    assert (process.returncode, rest) == (0, "stopped\n")
    assert "Traceback" not in complaints


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "the following arguments are required: MODEL"),
        (("nowhere",), "unknown model 'nowhere'"),
        (("nowhere", "--context", "0"), "context (0) must be at least 2"),
        (("nowhere", "--port", "70000"), "port (70000) must lie in [0, 65535]"),
        (("nowhere", "--api-key-env", "NO_SUCH_KEY"), "api-key-env (NO_SUCH_KEY): there is no"),
    ],
)
def test_a_mistake_is_one_line(arguments, message, capsys):
    with pytest.raises(SystemExit) as left:
        main([str(argument) for argument in arguments])
    assert left.value.code == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1


def test_a_missing_extra_is_named(monkeypatch, capsys):
    import jaxagent.serve

    monkeypatch.setitem(sys.modules, "uvicorn", None)
    monkeypatch.delitem(sys.modules, "jaxagent.serve.server")
    monkeypatch.delattr(jaxagent.serve, "server")
    with pytest.raises(SystemExit):
        main(["nowhere"])
    assert capsys.readouterr().err == (
        'error: jaxagent.serve needs the extra serve: pip install "jaxagent[serve]" '
        "(uvicorn, starlette)\n"
    )
