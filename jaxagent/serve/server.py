"""HTTP for one model: /v1/models and /v1/chat/completions, as OpenAI's clients speak it."""

import hmac
import json
import logging
import queue
import selectors
import socket
import threading
import time
import urllib.parse
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from jaxagent.models.llm.batching import Progress
from jaxagent.models.llm.constrain import Automaton
from jaxagent.models.llm.generate import Generator
from jaxagent.models.llm.generate_reply import Completion
from jaxagent.models.llm.sampling import SamplingConfig
from jaxagent.models.llm.tokenizer import encode_chat
from jaxagent.serve.chat_api import Answer, ApiError, ChatRequest, read_request
from jaxagent.serve.engine import Engine, EngineFailure, QueueFull, Ticket

MAX_BODY = 1 << 20  # bytes of a request; a context of 2048 tokens takes some ten thousand
_SILENCE = 30.0  # seconds that a client may take between two bytes
_LOOK = 0.2  # seconds between two looks at whether the client is still there
_KEPT_SCHEMAS = 16
_log = logging.getLogger(__name__)


class ClientGone(Exception):
    """Nobody waits for the reply any more."""


class Service:
    """A model's replies to chat requests, without HTTP."""

    def __init__(self, generator: Generator, engine: Engine, context: int):
        """Bind model and engine.

        Args:
            generator: the model; its tokeniser has a chat template.
            engine: answers.
            context: tokens that prompt and reply may fill together.

        Raises:
            ValueError: no chat template, or a context that the model does not have.
        """
        self.name = generator.model.name
        limit = generator.model.config.max_positions
        if not getattr(generator.model.tokenizer, "chat_template", None):
            raise ValueError(f"the tokeniser of {self.name} has no chat template")
        if not 2 <= context <= limit:
            raise ValueError(f"context ({context}) must lie in [2, {limit}] for {self.name}")
        self.engine, self._generator, self._context = engine, generator, context
        self._schemas: OrderedDict[str, Automaton] = OrderedDict()
        # Tokenisers and the table of schemas are not made for several threads at once. An
        # automaton takes seconds and hundreds of megabytes: one at a time, while others go on.
        self._lock, self._building = threading.Lock(), threading.Lock()

    def ask(self, request: ChatRequest) -> Ticket:
        """Put a request to the engine.

        Args:
            request: as it was read.

        Raises:
            ApiError: 400 for what cannot be answered, 429 while too many are under way, 503.
        """
        with self._lock:
            prompt = self._encode(request.messages)
        room = self._context - len(prompt)
        if (request.max_tokens or 1) > room:
            raise ApiError(
                400,
                f"the context is {self._context} tokens; the messages take {len(prompt)}, and "
                f"{request.max_tokens or 1} are to follow",
                param="messages",
                code="context_length_exceeded",
            )
        try:
            sampling = SamplingConfig(
                max_new_tokens=request.max_tokens or room,
                temperature=request.temperature,
                top_p=max(request.top_p, 1e-6),  # 0 is the likeliest token alone
                seed=request.seed,
                stop_strings=request.stop,
            )
            constraint = None if request.schema is None else self._constraint(request.schema)
            return self.engine.submit(prompt, sampling, constraint)
        except ValueError as error:
            raise ApiError(400, str(error)) from None
        except RecursionError:
            message = "the schema is nested too deeply"
            raise ApiError(400, message, param="response_format") from None
        except QueueFull as error:
            raise ApiError(
                429, str(error), code="rate_limit_exceeded", headers={"Retry-After": "1"}
            ) from None
        except EngineFailure as error:
            raise ApiError(503, str(error)) from None

    def _encode(self, messages: list[dict[str, str]]) -> list[int]:
        try:
            tokens = encode_chat(self._generator.model.tokenizer, messages)
        # Templates raise what they like, of jinja's own, for orders of roles they do not know.
        except Exception as error:
            message = f"the chat template refuses the messages: {error}"
            raise ApiError(400, message, param="messages") from None
        return self._generator.encode(tokens)

    def _constraint(self, schema: Mapping[str, Any]) -> Automaton:
        key = json.dumps(schema)
        if (found := self._built(key)) is not None:
            return found
        with self._building:
            # Another request may have built it meanwhile.
            if (found := self._built(key)) is not None:
                return found
            made = self._generator.json_schema(schema)
            with self._lock:
                self._schemas[key] = made
                while len(self._schemas) > _KEPT_SCHEMAS:
                    self._schemas.popitem(last=False)
            return made

    def _built(self, key: str) -> Automaton | None:
        with self._lock:
            _ = self._generator.token_bytes  # the tokeniser is read under the lock, once
            if key in self._schemas:
                self._schemas.move_to_end(key)
            return self._schemas.get(key)


class ChatServer(ThreadingHTTPServer):
    """One thread a connection; all of them ask one engine."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(
        self,
        address: tuple[str, int],
        service: Service,
        *,
        key: str | None = None,
        max_body: int = MAX_BODY,
    ):
        """Bind the address; `serve_forever` answers.

        Args:
            address: host, and port or 0 for a free one.
            service: the model.
            key: that clients must show; None lets everybody in.
            max_body: bytes of a request.

        Raises:
            OSError: the address cannot be bound.
        """
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__(address, _Handler)
        self.service, self.key, self.max_body = service, key, max_body
        self.started = int(time.time())

    @property
    def url(self) -> str:
        """What clients take for base_url."""
        host = self.server_address[0]
        host = host.decode() if isinstance(host, bytes | bytearray) else host
        return f"http://{f'[{host}]' if ':' in host else host}:{self.server_port}/v1"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A line in the log instead of a traceback on the terminal."""
        _log.debug("a connection from %s broke", client_address, exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    server_version, sys_version = "jaxagent", ""
    timeout = _SILENCE
    server: ChatServer

    def _handle(self) -> None:
        self._body_read = self._begun = False
        try:
            self._answer()
        except ApiError as error:
            self._refuse(error)
        except (ClientGone, OSError):
            self.close_connection = True
        # The client is to hear of a fault of ours too, and the server to go on.
        except Exception as error:
            _log.exception("a request failed")
            self._refuse(ApiError(500, f"internal error ({type(error).__name__})"))

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = do_HEAD = do_OPTIONS = _handle

    def log_message(self, format: str, *args: Any) -> None:
        """Requests are no news."""
        _log.debug(format, *args)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """What the standard library refuses by itself, in the same form as the rest."""
        self.close_connection, self._body_read, self._begun = True, True, False
        self._refuse(ApiError(code, message or "the request cannot be read"))

    def _answer(self) -> None:
        self._require_key()
        path = urllib.parse.unquote(urllib.parse.urlsplit(self.path).path)
        service = self.server.service
        if path == "/v1/chat/completions":
            self._require_method("POST")
            self._complete(read_request(self._read_body(), service.name))
        elif path == "/v1/models":
            self._require_method("GET")
            self._send_json(200, {"object": "list", "data": [self._model()]})
        elif path == f"/v1/models/{service.name}":
            self._require_method("GET")
            self._send_json(200, self._model())
        else:
            raise ApiError(404, f"there is nothing at {path[:200]}")

    def _model(self) -> dict[str, Any]:
        name, created = self.server.service.name, self.server.started
        return {"id": name, "object": "model", "created": created, "owned_by": "jaxagent"}

    def _require_key(self) -> None:
        key = self.server.key
        shown = self.headers.get("Authorization", "").removeprefix("Bearer ")
        # Headers come as Latin-1, whatever their bytes were meant to be.
        given = shown.encode("latin-1", "replace")
        if key is not None and not hmac.compare_digest(given, key.encode()):
            raise ApiError(
                401,
                "the API key is missing or wrong",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )

    def _require_method(self, method: str) -> None:
        if self.command != method:
            message = f"this path takes {method}, not {self.command}"
            raise ApiError(405, message, headers={"Allow": method})

    def _read_body(self) -> bytes:
        kind = self.headers.get_content_type()
        # Browsers ask first before they send this type to another site's address.
        if kind != "application/json":
            raise ApiError(415, f"content-type ({kind}) must be application/json")
        stated = self.headers.get("Content-Length", "")
        if not stated.isdecimal():
            raise ApiError(411, "the request must state its Content-Length")
        length, most = int(stated), self.server.max_body
        if length > most:
            raise ApiError(413, f"the body ({length} bytes) must not be longer than {most}")
        body = self.rfile.read(length)
        self._body_read = True
        if len(body) < length:
            raise ClientGone
        return body

    def _complete(self, request: ChatRequest) -> None:
        service = self.server.service
        ticket, answer = service.ask(request), Answer(service.name)
        try:
            if request.stream:
                self._stream(request, ticket, answer)
                return
            said = None
            for piece in self._pieces(ticket):
                said = piece.completion
            if said is not None:
                self._send_json(200, answer.whole(said))
        except EngineFailure as error:
            raise ApiError(500, str(error)) from None
        finally:
            service.engine.cancel(ticket)

    def _pieces(self, ticket: Ticket) -> Iterator[Progress]:
        """What comes until the reply is complete.

        Raises:
            ClientGone: the client has closed the connection.
            EngineFailure: nothing more will come.
        """
        while True:
            if self._peer_left():
                raise ClientGone
            try:
                piece = ticket.get(_LOOK)
            except queue.Empty:
                continue
            yield piece
            if piece.completion is not None:
                return

    def _peer_left(self) -> bool:
        with selectors.DefaultSelector() as selector:
            selector.register(self.connection, selectors.EVENT_READ)
            # Readable without bytes is the end; bytes are the next request of a pipeline.
            return bool(selector.select(0)) and not self.connection.recv(1, socket.MSG_PEEK)

    def _stream(self, request: ChatRequest, ticket: Ticket, answer: Answer) -> None:
        self._begin_stream()
        self._send_event(answer.begin())
        try:
            for piece in self._pieces(ticket):
                if piece.text:
                    self._send_event(answer.more(piece.text))
                if piece.completion is not None:
                    self._end_stream(answer, piece.completion, request.include_usage)
        except EngineFailure as error:
            self._send_event(ApiError(500, str(error)).body())
        self._send_chunk(b"")

    def _begin_stream(self) -> None:
        self._begun = True
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Cache-Control", "no-cache")
        if self._in_chunks:
            self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

    def _end_stream(self, answer: Answer, said: Completion, with_usage: bool) -> None:
        self._send_event(answer.end(said))
        if with_usage:
            self._send_event(answer.usage(said))
        self._send_chunk(b"data: [DONE]\n\n")

    def _send_event(self, value: Mapping[str, Any]) -> None:
        self._send_chunk(f"data: {json.dumps(value)}\n\n".encode())

    @property
    def _in_chunks(self) -> bool:
        """Older clients know no chunks: for them the end of the connection is that of the reply."""
        return self.request_version != "HTTP/1.0"

    def _send_chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data) if self._in_chunks else data)
        self.wfile.flush()

    def _send_json(
        self, status: int, value: Mapping[str, Any], headers: Mapping[str, str] | None = None
    ) -> None:
        data = json.dumps(value).encode()
        self._begun = True
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        for name, content in (headers or {}).items():
            self.send_header(name, content)
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def _refuse(self, error: ApiError) -> None:
        if self._begun:  # a second status line would be read as part of the first reply
            self.close_connection = True
            return
        if not self._body_read:
            self._discard_body()
        try:
            self._send_json(error.status, error.body(), error.headers)
        except OSError:
            self.close_connection = True

    def _discard_body(self) -> None:
        """Read what is still to come of a refused request, within bounds, and then hang up.

        A connection that is closed over unread bytes is reset, and the refusal with it.
        """
        self.close_connection = True
        stated = self.headers.get("Content-Length", "") if hasattr(self, "headers") else ""
        left = min(int(stated), 16 * self.server.max_body) if stated.isdecimal() else 0
        try:
            while left > 0 and (piece := self.rfile.read(min(left, 1 << 16))):
                left -= len(piece)
        except OSError:
            return
