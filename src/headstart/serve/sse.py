"""Server-sent events, and responses that notice when the client is gone. Knows ASGI; not what is sent.

Starlette's own streaming response leaves its generator suspended when a client goes while a chunk is being sent; here
the generator is closed before the response returns, so that whatever it holds is given back at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

T = TypeVar("T")

DONE = b"data: [DONE]\n\n"
PING = b": waiting\n\n"
"""A comment, which clients skip: it keeps proxies from closing a stream that waits in the queue."""


def event(data: bytes) -> bytes:
    """One event; ``data`` has no line break."""
    return b"data: " + data + b"\n\n"


class ClientGone(Exception):
    """The client closed the connection."""


async def until_gone(receive: Receive) -> None:
    """Return when the client has closed the connection; the body must have been read."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def unless_gone(work: Coroutine[Any, Any, T], receive: Receive) -> T:
    """The result of ``work``, which is cancelled when the client goes.

    Raises:
        ClientGone
    """
    doing = asyncio.ensure_future(work)
    watch = asyncio.ensure_future(until_gone(receive))
    try:
        await asyncio.wait({doing, watch}, return_when=asyncio.FIRST_COMPLETED)
        if doing.done():
            return doing.result()
        raise ClientGone
    finally:
        await _end(doing)
        await _end(watch)


async def _end(task: asyncio.Future[Any]) -> None:
    if not task.done():
        task.cancel()
        with suppress(asyncio.CancelledError, Exception):
            await task


class EventStream(Response):
    """A stream of events.

    Args:
        events: closed in any case before the response returns.
        on_gone: called when the client went before the end.
    """

    media_type = "text/event-stream"

    def __init__(self, events: AsyncGenerator[bytes, None], on_gone: Callable[[], None]) -> None:
        self.status_code = 200
        self.background = None
        self.init_headers({"cache-control": "no-cache", "x-accel-buffering": "no"})
        self._events, self._on_gone = events, on_gone

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await unless_gone(self._send(send), receive)
        except ClientGone:
            self._on_gone()
        finally:
            await self._events.aclose()

    async def _send(self, send: Callable[[Any], Awaitable[None]]) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async for data in self._events:
            await send({"type": "http.response.body", "body": data, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
