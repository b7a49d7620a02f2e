"""uvicorn's HTTP protocol with bounds on what a connection may cost: how many there are, how long a head may take to
arrive, how long a client may take nothing. Knows bytes and timers; not requests.

uvicorn's own bound on concurrency counts requests and answers in plain text; it has none for slow heads and slow
readers.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from headstart.serve.problems import INVALID, SERVER, Problem
from headstart.serve.settings import Settings


def bounded_protocol(settings: Settings) -> type[asyncio.Protocol]:
    """A protocol class that keeps to ``settings``."""

    class BoundedProtocol(H11Protocol):
        _head_timer: asyncio.TimerHandle | None = None
        _send_timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
            super().connection_made(transport)
            if len(self.connections) > settings.max_connections:
                message = "Too many connections are open; try again later."
                problem = Problem(503, message, type=SERVER, code="too_many_connections", headers={"retry-after": "5"})
                transport.write(_raw(problem, b"503 Service Unavailable"))
                transport.close()
                return
            self._expect_head()

        def connection_lost(self, exc: Exception | None) -> None:
            _cancel(self._head_timer)
            _cancel(self._send_timer)
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            if self._head_timer is None and self._idle():
                self._expect_head()
            super().data_received(data)

        def handle_events(self) -> None:
            before = self.cycle
            super().handle_events()
            if self.cycle is not before:
                _cancel(self._head_timer)
                self._head_timer = None

        def on_response_complete(self) -> None:
            super().on_response_complete()
            if self.transport.get_write_buffer_size():
                self._expect_reader()

        def pause_writing(self) -> None:
            self._expect_reader()
            super().pause_writing()

        def resume_writing(self) -> None:
            _cancel(self._send_timer)
            self._send_timer = None
            super().resume_writing()

        def send_400_response(self, msg: str) -> None:
            self.transport.write(_raw(Problem(400, msg, type=INVALID, code="invalid_http"), b"400 Bad Request"))
            self.transport.close()

        def _expect_head(self) -> None:
            self._head_timer = self.loop.call_later(settings.receive_timeout, self._head_is_late)

        def _head_is_late(self) -> None:
            if self._idle():
                self.transport.abort()

        def _idle(self) -> bool:
            """Whether no request is being served on this connection."""
            return self.cycle is None or self.cycle.response_complete

        def _expect_reader(self) -> None:
            if self._send_timer is None:
                self._send_timer = self.loop.call_later(settings.send_timeout, self.transport.abort)

    return BoundedProtocol


def _cancel(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()


def _raw(problem: Problem, status: bytes) -> bytes:
    body = problem.json_bytes()
    head: dict[str, Any] = {
        **problem.headers,
        "content-type": "application/json",
        "content-length": len(body),
        "connection": "close",
    }
    lines = b"".join(f"{name}: {value}\r\n".encode() for name, value in head.items())
    return b"HTTP/1.1 " + status + b"\r\n" + lines + b"\r\n" + body
