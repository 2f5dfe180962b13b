"""What hostile clients cost others: each kind by itself, and all of them together."""

import threading
import time

import pytest

from jaxagent.models.llm.generate import Generator
from tests.models.llm.random_models import random_model
from tests.serve_attack import ALLOWED, attack, closing, status_of
from tests.serve_client import (
    ENDLESS,
    SCHEMA,
    asked,
    complete,
    connect,
    head,
    post,
    read_all,
    request,
    serving,
    wait_until,
)

GET = b"GET /v1/models HTTP/1.1\r\nHost: h\r\n\r\n"
SECONDS = 1.0


@pytest.fixture(scope="module")
def generator():
    return Generator(random_model(max_positions=8192))


@pytest.fixture(scope="module")
def server(generator):
    with serving(generator, request_seconds=SECONDS, max_connections=20) as server:
        complete(server)
        yield server


def exchange(server, data, *, half_closed=False):
    with connect(server) as peer:
        peer.sendall(data)
        if half_closed:
            peer.shutdown(1)
        return read_all(peer)


def test_all_together_leave_the_good_ones_alone(generator):
    """`python -m tests.serve_attack` does the same with a thousand, and 500 idle connections."""
    run, threads, memory, left = attack(
        generator, hostile=70, idle=60, good=12, seed=3, request_seconds=1.5, max_connections=100
    )
    assert run.good == [200] * 12
    for kind, counts in run.seen.items():
        assert set(counts) <= ALLOWED[kind], kind
    assert sum(sum(counts.values()) for counts in run.seen.values()) == 70
    assert run.threads <= threads + 2  # one that builds schemas, and the device's own
    assert run.memory < memory + (400 << 20)
    assert left == 0


BODY = request(max_tokens=2).partition(b"\r\n\r\n")[2]
LENGTH = len(BODY)


@pytest.mark.parametrize(
    "lines",
    [
        {"Content_Length": LENGTH, "Transfer_Encoding": "chunked"},
        {"Transfer_Encoding": "chunked", "Content_Length": 5},
        {"Content_Length": f"{LENGTH}\r\nContent-Length: 5"},
        {"Content_Length": f"{LENGTH}, 5"},
        {"Content_Length": f"+{LENGTH}"},
        {"Content_Length": "-1"},
        {"Content_Length": f"{LENGTH}\r\nTransfer-Encoding: chunked"},
        {"Transfer_Encoding": "gzip, chunked"},
        {"Transfer_Encoding": "identity"},
        {"Transfer_Encoding": "chunked\r\nTransfer-Encoding: chunked"},
        {"Transfer_Encoding ": "chunked"},
        {"Content_Length ": LENGTH},
    ],
)
def test_a_request_whose_end_is_in_doubt_is_refused_and_the_rest_not_read(server, lines):
    """RFC 9112, sections 6.1 and 6.3: a request hidden in the body would be answered as another."""
    hidden = b"0\r\n\r\n" + GET
    data = exchange(server, head(**lines) + b"\r\n" + hidden)
    assert status_of(data) in (400, 501), data
    assert b"onnection: close" in data


def test_an_old_request_in_chunks_is_refused(server):
    data = head(Transfer_Encoding="chunked").replace(b"HTTP/1.1", b"HTTP/1.0")
    assert status_of(exchange(server, data + b"\r\n0\r\n\r\n" + GET)) == 400


def test_equal_lengths_and_a_pipeline_are_no_attack(server):
    twice = head(Content_Length=f"{LENGTH}\r\nContent-Length: {LENGTH}") + b"\r\n" + BODY
    data = exchange(server, twice + GET + closing(max_tokens=2))
    assert data.count(b"HTTP/1.1 200") == 3


def test_a_body_may_come_in_chunks(server):
    parts = b"".join(b"%x\r\n%b\r\n" % (1, bytes([byte])) for byte in BODY) + b"0\r\n\r\n"
    lines = {"Transfer_Encoding": "chunked", "Connection": "close"}
    assert status_of(exchange(server, head(**lines) + b"\r\n" + parts)) == 200
    many = (b"10000\r\n" + b" " * 65536 + b"\r\n") * 17
    assert status_of(exchange(server, head(**lines) + b"\r\n" + many)) == 413


def test_whoever_has_closed_its_side_gets_its_answer(server):
    whole = exchange(server, request(max_tokens=4), half_closed=True)
    assert status_of(whole) == 200
    assert b'"usage"' in whole
    assert b"[DONE]" in exchange(server, request(stream=True), half_closed=True)
    both = exchange(server, request(max_tokens=2) + GET, half_closed=True)
    assert both.count(b"HTTP/1.1 200") == 2
    assert exchange(server, head(Content_Length=100) + b"\r\n{", half_closed=True) == b""


@pytest.mark.parametrize(
    "beginning",
    [b"", b"POST /v1", head(), head(Content_Length=1000) + b"\r\n{", GET + b"GET /v1/mod"],
)
def test_what_does_not_arrive_in_time_is_given_up(server, beginning):
    """Each byte is in time, the whole is not."""
    begin, data = time.monotonic(), b""
    with connect(server) as peer:
        peer.sendall(beginning)
        peer.settimeout(0.1)
        while time.monotonic() < begin + 20:
            try:
                piece = peer.recv(1 << 16)
            except TimeoutError:
                if beginning:
                    peer.sendall(b"x")
                continue
            except ConnectionResetError:
                break
            data += piece
            if not piece:
                break
    assert SECONDS <= time.monotonic() - begin < SECONDS + 10
    assert status_of(data.rpartition(b"HTTP/1.1 200")[2]) in (
        (408, "closed") if beginning else ("closed",)
    )


def test_a_reply_that_nobody_reads_frees_its_place(server):
    engine = server.service.engine
    with connect(server) as peer:
        # More replies than the sockets hold, none of which is read.
        with pytest.raises(ConnectionResetError):
            peer.sendall(GET * 1_000_000)
        wait_until(lambda: not server.connections)
    assert engine.under_way == 0


def test_more_connections_than_there_may_be_close_the_idlest(server):
    before = threading.active_count()
    answering = connect(server)
    answering.sendall(closing(max_tokens=2000, temperature=0))
    wait_until(lambda: server.service.engine.under_way == 1)
    idle = [connect(server) for _ in range(60)]
    assert complete(server)["usage"]["completion_tokens"] > 0
    assert len(server.connections) <= 20
    assert threading.active_count() == before
    assert status_of(read_all(answering)) == 200  # it was not idle
    for peer in [answering, *idle]:
        peer.close()


def test_schemas_that_are_being_built_count_and_leave_room(generator, monkeypatch):
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}
    build, go_on = generator.json_schema, threading.Event()

    def slow(schema):
        assert go_on.wait(60)
        return build(schema)

    monkeypatch.setattr(generator, "json_schema", slow)
    with serving(generator, rows=1, queue_length=1) as server:
        peers = [connect(server) for _ in range(2)]
        for peer in peers:
            peer.sendall(closing(response_format=form, max_tokens=60))
        wait_until(lambda: server.service.engine.under_way == 2)
        status, headers, _ = post(server, asked())
        assert (status, headers["Retry-After"]) == (429, "1")
        go_on.set()
        assert [status_of(read_all(peer)) for peer in peers] == [200, 200]
    go_on.clear()
    with serving(generator, rows=2, queue_length=20) as server:
        others = []
        for number in range(6):
            schema = {"type": "string", "maxLength": number + 1}
            other = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
            others.append(connect(server))
            others[-1].sendall(closing(response_format=other, max_tokens=60))
        # Two of six are told to come again, and a request without a schema has a place.
        wait_until(lambda: server.service.engine.under_way == 4)
        assert complete(server)["usage"]["completion_tokens"] > 0
        go_on.set()
        assert sorted(status_of(read_all(peer)) for peer in others) == [200] * 4 + [429] * 2
        for peer in [*peers, *others]:
            peer.close()


def test_a_client_that_is_gone_after_it_closed_its_side_frees_its_row(server):
    engine = server.service.engine
    with connect(server) as peer:
        peer.sendall(request(max_tokens=ENDLESS, temperature=0))
        wait_until(lambda: engine.under_way == 1)
    wait_until(lambda: engine.under_way == 0, seconds=10)
