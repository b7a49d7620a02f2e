"""A server process: a socket, uvicorn, and what signals do. Knows processes; not routes.

The first SIGTERM or SIGINT drains: ``/health`` says so, new requests get 503, those under way may finish for a while.
The second ends the process as soon as the present round is over.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import signal
import socket
from collections.abc import Callable
from time import perf_counter
from types import FrameType

import uvicorn
from fastapi import FastAPI

from headstart.errors import InvalidParameter
from headstart.serve.app import Service, create_app
from headstart.serve.protocol import bounded_protocol

log = logging.getLogger(__name__)

GRACE = 2
"""Seconds for answers that are whole to leave, after the last request has ended."""


def bind(host: str, port: int) -> socket.socket:
    """A socket bound to the address, before anything slow is done. Port 0 takes a free one.

    Raises:
        InvalidParameter: the address is taken, or none of this machine's.
    """
    if not 0 <= port <= 65535:  # getaddrinfo takes larger ones modulo 65536
        raise InvalidParameter("--port", f"must be from 0 to 65535, got {port}")
    try:
        [(family, _, _, _, address), *_] = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        bound = socket.socket(family, socket.SOCK_STREAM)
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind(address)
        except OSError:
            bound.close()
            raise
        return bound
    except (OSError, UnicodeError) as error:
        raise InvalidParameter("--port", f"{host}:{port} cannot be listened on ({error}); choose another") from error


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Server(uvicorn.Server):
    """uvicorn's server with a drain before its shutdown.

    Args:
        on_ready: called once connections are taken, with the port.
    """

    def __init__(self, service: Service, on_ready: Callable[[int], None] = lambda port: None) -> None:
        self.service = service
        self.app: FastAPI = create_app(service)
        self.clean = True
        """Whether every request could finish."""
        self._on_ready = on_ready
        self._draining: asyncio.Task[None] | None = None
        self._signals = 0
        self.loop: asyncio.AbstractEventLoop | None = None
        config = uvicorn.Config(
            self.app,
            http=bounded_protocol(service.settings),
            ws="none",
            lifespan="on",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=GRACE,
        )
        super().__init__(config)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self.loop = asyncio.get_running_loop()
        await super().startup(sockets)
        if self.started:
            self._on_ready(self.servers[0].sockets[0].getsockname()[1])

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """A signal arrived; runs in the main thread, between two steps of the event loop."""
        self._signals += 1
        if self.loop is None:
            self.should_exit = True
            return
        self.loop.call_soon_threadsafe(self.stop, self._signals > 1)
        if self._signals > 1:
            signal.signal(sig, signal.SIG_DFL)  # a third one does not ask

    def stop(self, now: bool = False) -> None:
        """Drain and shut down; ``now`` leaves the drain out. To be called on the loop's thread."""
        runner = self.service.runner
        if now:
            self.clean = self.clean and not runner.claimed
            runner.cancel_all()
            self.should_exit = True
        elif self._draining is None:
            runner.draining = True
            self._draining = asyncio.ensure_future(self._drain())

    async def _drain(self) -> None:
        runner, timeout = self.service.runner, self.service.settings.drain_timeout
        if runner.claimed:
            log.warning(
                "draining: %d sequences under way, %g s at most; a second signal ends them", runner.claimed, timeout
            )
        until = perf_counter() + timeout
        # tasks: an answer may be whole and still on its way to a slow reader
        while (runner.claimed or self.server_state.tasks) and perf_counter() < until and not self.should_exit:
            await asyncio.sleep(0.02)
        if runner.claimed and not self.should_exit:
            log.warning("%d sequences did not end in time and are cancelled", runner.claimed)
            self.clean = False
            runner.cancel_all()
        self.should_exit = True
