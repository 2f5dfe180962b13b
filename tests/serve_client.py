"""A server over a small random model, and what clients do to it."""

import contextlib
import http.client
import json
import queue
import socket
import threading
import time

from jaxagent.serve.engine import Engine, EngineFailure
from jaxagent.serve.server import ChatServer
from jaxagent.serve.service import Service

HELLO = [{"role": "user", "content": "look at the desk"}]
SCHEMA = {
    "type": "object",
    "properties": {"go": {"enum": ["desk", "table", "fridge"]}},
    "required": ["go"],
    "additionalProperties": False,
}
# Tokens of greedy replies, which random weights never end: some to share, more than anyone awaits.
LONG, ENDLESS = 120, 8000


@contextlib.contextmanager
def serving(generator, *, rows=2, queue_length=2, context=8192, **options):
    with Engine(generator, rows=rows, queue_length=queue_length) as engine:
        server = ChatServer(("127.0.0.1", 0), Service(generator, engine, context), **options)
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join(30)
            assert not thread.is_alive()


def asked(**fields):
    return {"model": "random", "messages": HELLO, "max_tokens": 8, "seed": 1} | fields


def post(server, body, path="/v1/chat/completions", method="POST", **headers):
    """Status, headers and body of one exchange."""
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=300)
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"} | {
        name.replace("_", "-"): value for name, value in headers.items()
    }
    try:
        connection.request(method, path, data or None, headers)
        reply = connection.getresponse()
        # Names as they were written before servers had one way to write them.
        return reply.status, {k.title(): v for k, v in reply.getheaders()}, reply.read()
    finally:
        connection.close()


def complete(server, **fields):
    status, _, body = post(server, asked(**fields))
    assert status == 200, body
    return json.loads(body)


def complete_text(server, **fields):
    body = {"model": "random", "prompt": "look at", "max_tokens": 8, "seed": 1} | fields
    status, _, reply = post(server, body, path="/v1/completions")
    assert status == 200, reply
    return json.loads(reply)


def text_of(reply):
    return reply["choices"][0]["message"]["content"]


def events(body):
    lines = [line for line in body.decode().split("\n\n") if line]
    assert all(line.startswith("data: ") for line in lines)
    return [line.removeprefix("data: ") for line in lines]


def wait_until(condition, seconds=30.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.01)


def connect(server):
    return socket.create_connection(("127.0.0.1", server.server_port), timeout=60)


def head(**headers):
    """The head of a request for a chat completion, without its empty line."""
    lines = {"Host": "h", "Content-Type": "application/json"} | headers
    shown = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in lines.items())
    return f"POST /v1/chat/completions HTTP/1.1\r\n{shown}".encode()


def request(**fields):
    body = json.dumps(asked(**fields)).encode()
    return head(Content_Length=len(body)) + b"\r\n" + body


def read_all(peer):
    data = b""
    with contextlib.suppress(ConnectionResetError):
        while piece := peer.recv(1 << 16):
            data += piece
    return data


class Listener:
    """Takes what the engine reports."""

    def __init__(self):
        self.events = queue.SimpleQueue()

    def next(self, seconds=30.0):
        event = self.events.get(timeout=seconds)
        if isinstance(event, EngineFailure):
            raise event
        return event

    def completion(self):
        piece = self.next()
        while piece.completion is None:
            piece = self.next()
        return piece.completion
