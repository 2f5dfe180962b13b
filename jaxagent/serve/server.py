"""HTTP for one model: /v1/models, /v1/chat/completions, /v1/completions, for OpenAI's clients.

HTTP itself is uvicorn's and Starlette's, which the extra `serve` installs.
"""

import asyncio
import contextlib
import hmac
import logging
import socket
import time
from collections.abc import AsyncIterator, Collection
from typing import Any

from jaxagent.serve.answers import ChatAnswer, Said, TextAnswer, event
from jaxagent.serve.engine import EngineFailure, QueueFull
from jaxagent.serve.fields import ApiError
from jaxagent.serve.requests import ChatRequest, TextRequest, read_chat, read_text
from jaxagent.serve.service import Piece, Service, too_many

try:
    import uvicorn
    from starlette.applications import Starlette
    from starlette.exceptions import HTTPException
    from starlette.middleware import Middleware
    from starlette.requests import ClientDisconnect, Request
    from starlette.responses import JSONResponse, Response
    from starlette.routing import Route
    from starlette.types import ASGIApp, Receive, Scope, Send

    from jaxagent.serve.connection import Connection
except ImportError:
    raise ValueError(
        'jaxagent.serve needs the extra serve: pip install "jaxagent[serve]" (uvicorn, starlette)'
    ) from None

MAX_BODY = 1 << 20  # bytes of a request; a context of 2048 tokens takes some ten thousand
_MAX_HEAD = 1 << 15  # bytes; h11 bounds those alone that come in pieces
_SMALL_BODY = 1 << 16  # bytes; of longer ones only a few are read at a time
_LONG_BODIES = 16
_KEEP_ALIVE = 30  # seconds that a connection may be idle after a reply
_PATIENCE = 5  # seconds that replies may take to end when the server does
_STREAM = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
]
_log = logging.getLogger(__name__)


class ChatServer:
    """One event loop for all connections; all of them ask one engine."""

    def __init__(
        self,
        address: tuple[str, int],
        service: Service,
        *,
        key: str | None = None,
        max_body: int = MAX_BODY,
        request_seconds: float = 30.0,
        max_connections: int = 800,
    ):
        """Bind the address; `serve_forever` answers.

        Args:
            address: host, and port or 0 for a free one.
            service: the model.
            key: that clients must show; None lets everybody in.
            max_body: bytes of a request.
            request_seconds: within which a request must arrive, and a reply be taken.
            max_connections: when there are more, those that have waited longest without a
                request are closed.

        Raises:
            OSError: the address cannot be bound.
        """
        self.service = service
        family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self._socket = socket.create_server(address, family=family, backlog=2048)
        self._socket_name = self._socket.getsockname()

        def connection(**options: Any) -> Connection:
            return Connection(
                seconds=request_seconds,
                max_bytes=16 * max_body,
                max_connections=max_connections,
                **options,
            )

        config = uvicorn.Config(
            make_app(service, key=key, max_body=max_body),
            http=connection,  # type: ignore[arg-type]
            ws="none",
            loop="asyncio",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            log_level="error",
            access_log=False,
            server_header=False,
            timeout_keep_alive=_KEEP_ALIVE,
            timeout_graceful_shutdown=_PATIENCE,
        )
        self._server = uvicorn.Server(config)

    @property
    def server_port(self) -> int:
        """That it listens on."""
        return self._socket_name[1]

    @property
    def url(self) -> str:
        """What clients take for base_url."""
        host, port = self._socket_name[:2]
        return f"http://{f'[{host}]' if ':' in host else host}:{port}/v1"

    @property
    def connections(self) -> Collection[Any]:
        """Those that are open."""
        return self._server.server_state.connections

    def serve_forever(self) -> None:
        """Answer until `shutdown`."""
        self._server.run(sockets=[self._socket])

    def shutdown(self) -> None:
        """Take no more; replies under way fail. From any thread."""
        self.service.engine.close(timeout=0)
        self.service.close()
        self._server.should_exit = True


def make_app(service: Service, *, key: str | None = None, max_body: int = MAX_BODY) -> Starlette:
    """The application, for any ASGI server.

    Args:
        service: the model.
        key: that clients must show; None lets everybody in.
        max_body: bytes of a request.
    """
    started, long_bodies = int(time.time()), asyncio.Semaphore(_LONG_BODIES)
    model = {"id": service.name, "object": "model", "created": started, "owned_by": "jaxagent"}

    async def chat(request: Request) -> Response:
        return _Reply(service, read_chat(await _body(request, max_body, long_bodies), service.name))

    async def completions(request: Request) -> Response:
        return _Reply(service, read_text(await _body(request, max_body, long_bodies), service.name))

    async def models(request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [model]})

    async def one_model(request: Request) -> Response:
        if request.path_params["name"] != service.name:
            raise HTTPException(404)
        return JSONResponse(model)

    return Starlette(
        routes=[
            Route("/v1/chat/completions", chat, methods=["POST"]),
            Route("/v1/completions", completions, methods=["POST"]),
            Route("/v1/models", models, methods=["GET"]),
            Route("/v1/models/{name:path}", one_model, methods=["GET"]),
        ],
        middleware=[Middleware(_Gate, key=key)],
        exception_handlers={
            ApiError: _refuse,
            HTTPException: _refuse_path,
            ClientDisconnect: _say_nothing,
            Exception: _fail,
        },
    )


class _Gate:
    """Lets in who shows the key, with one request at a time."""

    def __init__(self, app: ASGIApp, key: str | None):
        self._app, self._key = app, key

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        given = {name.lower(): value for name, value in scope["headers"]}
        error = _framing_error(scope, given)
        if error is None and not _is_key(given.get(b"authorization", b""), self._key):
            error = ApiError(
                401,
                "the API key is missing or wrong",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )
        if error is None:
            await self._app(scope, receive, send)
        else:
            await _refusal(error)(scope, receive, send)


def _framing_error(scope: Scope, headers: dict[bytes, bytes]) -> ApiError | None:
    """What h11 lets pass although nobody can tell where such a request ends, or what it is."""
    closing, version = {"Connection": "close"}, scope["http_version"]
    if version not in ("1.0", "1.1"):
        message = f"HTTP/{version} is not spoken here, but HTTP/1.1"
        return ApiError(505, message, headers=closing)
    if sum(len(name) + len(value) for name, value in scope["headers"]) > _MAX_HEAD:
        return ApiError(431, f"the headers are longer than {_MAX_HEAD} bytes", headers=closing)
    if b"transfer-encoding" in headers and (b"content-length" in headers or version == "1.0"):
        # RFC 9112, section 6.1: another reader of these bytes may see two requests.
        message = "Transfer-Encoding must stand without Content-Length, and in HTTP/1.1"
        return ApiError(400, message, headers=closing)
    return None


def _is_key(shown: bytes, key: str | None) -> bool:
    if key is None:
        return True
    scheme, _, given = shown.partition(b" ")
    # The scheme is case-insensitive (RFC 9110, section 11.1).
    return scheme.lower() == b"bearer" and hmac.compare_digest(given.strip(), key.encode())


async def _body(request: Request, max_body: int, long_bodies: asyncio.Semaphore) -> bytes:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    # Browsers ask first before they send this type to another site's address.
    if kind != "application/json":
        raise ApiError(415, f"content-type ({kind[:80]}) must be application/json")
    stated = int(request.headers.get("content-length", "0"))
    if stated > max_body:
        raise ApiError(413, f"the body ({stated} bytes) must not be longer than {max_body}")
    body, stream = bytearray(), request.stream()
    async for piece in stream:
        body += piece
        if len(body) > _SMALL_BODY:
            break
    if len(body) > _SMALL_BODY:
        # What clients send slowly must not fill the memory, many megabytes at a time.
        async with long_bodies:
            async for piece in stream:
                body += piece
                if len(body) > max_body:
                    raise ApiError(413, f"the body must not be longer than {max_body} bytes")
    if len(body) > max_body:
        raise ApiError(413, f"the body must not be longer than {max_body} bytes")
    return bytes(body)


class _Reply(Response):
    """The reply to one request, made while it is sent; it ends when the client goes."""

    def __init__(self, service: Service, request: ChatRequest | TextRequest):
        super().__init__()
        self._service, self._request, self._wanted = service, request, request.wanted

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answering = asyncio.create_task(self._answer(scope, receive, send))
        gone = asyncio.create_task(_disconnected(receive))
        try:
            await asyncio.wait({answering, gone}, return_when=asyncio.FIRST_COMPLETED)
            if answering.done():
                answering.result()
        finally:
            for task in (answering, gone):
                task.cancel()
            await asyncio.gather(answering, gone, return_exceptions=True)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        request, engine = self._request, self._service.engine
        is_chat = isinstance(request, ChatRequest)
        prompts = 1 if isinstance(request, ChatRequest) else len(request.prompts)
        count = prompts * self._wanted.choices
        if count > engine.most:
            message = f"n ({count} replies) must be at most {engine.most} on this server"
            raise ApiError(400, message, param="n")
        make_answer = ChatAnswer if is_chat else TextAnswer
        answer = make_answer(self._service.name, self._wanted.choices)
        try:
            # From here on it counts, also while its schema is being built.
            with engine.places(count):
                if isinstance(request, ChatRequest):
                    choices = await self._service.chat(request)
                else:
                    choices = await self._service.text(request)
                async with contextlib.aclosing(self._service.pieces(choices)) as pieces:
                    if self._wanted.stream:
                        await self._stream(len(choices), pieces, answer, send)
                        return
                    said = {piece.index: piece.said async for piece in pieces if piece.said}
        except QueueFull as error:
            raise too_many(str(error)) from None
        except EngineFailure as error:
            status = 503 if engine.is_closed else 500
            raise ApiError(status, str(error), headers={"Retry-After": "1"}) from None
        whole = answer.whole([said[index] for index in range(len(choices))])
        await JSONResponse(whole)(scope, receive, send)

    async def _stream(
        self, count: int, pieces: AsyncIterator[Piece], answer: ChatAnswer, send: Send
    ) -> None:
        async def tell(*events: dict[str, Any] | None) -> None:
            for each in events:
                await send({"type": "http.response.body", "body": event(each), "more_body": True})

        await send({"type": "http.response.start", "status": 200, "headers": _STREAM})
        said: dict[int, Said] = {}
        with_logs = self._wanted.logprobs is not None
        try:
            for index in range(count):
                await tell(*answer.begin(index))
            async for index, text, ended in pieces:
                if text and not with_logs:
                    await tell(answer.more(index, text))
                if ended is not None:
                    said[index] = ended
                    if with_logs:  # they are known at the end alone: all comes at once
                        await tell(answer.more(index, ended.text, ended.logs))
                    await tell(*answer.end(index, ended))
            if self._wanted.include_usage:
                await tell(answer.usage([said[index] for index in range(count)]))
            await tell(None)
        except EngineFailure as error:
            await tell(ApiError(500, str(error)).body())
        # The reply has begun: all that is left is to say that it broke off.
        except Exception as error:
            _log.exception("a reply broke off")
            await tell(ApiError(500, f"internal error ({type(error).__name__})").body())
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _refusal(error: ApiError) -> Response:
    return JSONResponse(error.body(), error.status, error.headers)


# Starlette runs handlers that are no coroutines on threads, dozens of them.


async def _refuse(request: Request, error: Exception) -> Response:
    if not isinstance(error, ApiError):
        raise error
    return _refusal(error)


async def _refuse_path(request: Request, error: Exception) -> Response:
    if not isinstance(error, HTTPException):
        raise error
    if error.status_code == 405:
        allowed = dict(error.headers or {})
        methods = sorted({*allowed.get("Allow", "").split(", ")} - {"HEAD"})
        message = f"this path takes {', '.join(methods)}, not {request.method}"
        return _refusal(ApiError(405, message, headers=allowed))
    return _refusal(ApiError(404, f"there is nothing at {request.url.path[:200]}"))


async def _say_nothing(request: Request, error: Exception) -> Response:
    """The client has gone in the middle of its request: nobody reads this."""
    return Response(status_code=400)


async def _fail(request: Request, error: Exception) -> Response:
    """A fault of ours: the client is to hear of it, the log holds where it was."""
    return _refusal(ApiError(500, f"internal error ({type(error).__name__})"))
