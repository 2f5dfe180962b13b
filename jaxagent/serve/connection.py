"""One client's connection: uvicorn's, with bounds on how long everything may take.

uvicorn bounds neither the time in which a request arrives nor that in which a reply is taken, and
hangs up on a client that has closed its sending side and waits for the reply.
"""

import asyncio
import json
import socket
import sys
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import STATUS_PHRASES, H11Protocol

from jaxagent.serve.fields import ApiError

_LOOK = 1.0  # seconds between two looks at a connection


class Connection(H11Protocol):
    """A connection whose requests must arrive, and whose replies must be taken, in time."""

    def __init__(self, *, seconds: float, max_bytes: int, max_connections: int, **options: Any):
        """Take the bounds.

        Args:
            seconds: for a whole request to arrive, and for what was written to be read.
            max_bytes: that one request may send, those of a refused body included.
            max_connections: of the server.
            options: uvicorn's.
        """
        super().__init__(**options)
        self._seconds, self._max_bytes, self._most = seconds, max_bytes, max_connections
        self._received = 0
        self._waiting_since: float | None = None  # for the rest of a request, or for the first
        self._unread_since: float | None = None
        self._is_half_closed = False
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to watch; where there are too many connections, the idlest of them makes room."""
        super().connection_made(transport)
        self._waiting_since = self.loop.time()
        self._timer = self.loop.call_later(_LOOK, self._look)
        if len(self.connections) > self._most:
            since = {each: getattr(each, "_waiting_since", None) for each in self.connections}
            idle = {
                each: begin
                for each, begin in since.items()
                if begin is not None and not each.transport.is_closing()
            }
            min(idle, key=idle.__getitem__).transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Watch no more."""
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Count, and take note of whether the request is whole."""
        self._received += len(data)
        super().data_received(data)
        self._take_note()
        if self._received > self._max_bytes:
            self.transport.abort()

    def on_response_complete(self) -> None:
        """Whoever has closed its side, and has no further request in the buffer, is done."""
        super().on_response_complete()
        self._take_note()
        if self._is_half_closed and (self.cycle is None or self.cycle.response_complete):
            self.transport.close()

    def _take_note(self) -> None:
        state = self.conn.their_state
        is_partial = state is h11.SEND_BODY or (
            state is h11.IDLE and bool(self.conn.trailing_data[0])
        )
        if not is_partial:
            self._received = 0
            is_new = self.cycle is None
            self._waiting_since = self._waiting_since if is_new else None
            if state is h11.IDLE and not is_new:
                self._waiting_since = self.loop.time()
        elif self._waiting_since is None:
            self._waiting_since = self.loop.time()

    def eof_received(self) -> bool:  # type: ignore[override]
        """The client sends no more; whether it still waits for a reply."""
        cycle = self.cycle
        if cycle is None or cycle.response_complete or cycle.more_body:
            return False
        self._is_half_closed = True
        if not cycle.response_started and cycle.scope["http_version"] == "1.1":
            # Clients read any number of these. One that is gone resets the connection instead,
            # and its place is free.
            interim = h11.InformationalResponse(status_code=100, headers=[], reason=b"Continue")
            self.transport.write(self.conn.send(interim) or b"")
        return True

    def _look(self) -> None:
        """Once a second: hang up on what takes too long."""
        now = self.loop.time()
        self._timer = self.loop.call_later(_LOOK, self._look)
        if not self.transport.get_write_buffer_size():
            self._unread_since = None
        elif self._unread_since is None:
            self._unread_since = now
        elif now - self._unread_since > self._seconds:
            self.transport.abort()
            return
        peer = self.transport.get_extra_info("socket")
        if self._is_half_closed and peer.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self.transport.abort()
            return
        if self._waiting_since is not None and now - self._waiting_since > self._seconds:
            self._give_up()

    def _give_up(self) -> None:
        is_begun = self.cycle is not None and self.cycle.more_body
        if self.conn.trailing_data[0] or (is_begun and not self.cycle.response_started):
            message = f"the request took longer than {self._seconds:g} seconds to arrive"
            self._send_error(ApiError(408, message))
        else:
            self.transport.close()

    def send_400_response(self, msg: str) -> None:
        """What is no request is refused in the same form as the rest."""
        error = sys.exception()
        status = getattr(error, "error_status_hint", 400)
        self._send_error(ApiError(status, f"the request cannot be read: {error or msg}"[:300]))

    def _send_error(self, error: ApiError) -> None:
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            body = json.dumps(error.body()).encode()
            headers = [
                ("content-type", "application/json"),
                ("content-length", str(len(body))),
                ("connection", "close"),
            ]
            reason = STATUS_PHRASES[error.status]
            response = h11.Response(status_code=error.status, headers=headers, reason=reason)
            for event in (response, h11.Data(data=body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()
