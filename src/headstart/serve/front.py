"""What every HTTP request passes before a route sees it: its id, its key, its body within bounds; its log line after.

Pure ASGI, so that nothing is buffered on the way out. Knows HTTP; not models, parameters or the engine.
"""

from __future__ import annotations

import asyncio
import logging
import re
import uuid
from collections.abc import Callable, Sequence

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headstart.serve.keys import ApiKeys
from headstart.serve.problems import Problem, as_problem, draining
from headstart.serve.report import KEY, Observer, Trace, report
from headstart.serve.runner import Runner
from headstart.serve.settings import Settings

log = logging.getLogger(__name__)
requests_log = logging.getLogger("headstart.serve.requests")

PROTECTED = "/v1/"
_ID = re.compile(r"[A-Za-z0-9._:\-]{1,128}")
_DISCARD = 16
"""A body that is too large is read up to so many times the limit and thrown away, so that the client, still writing,
gets to read the answer."""


class Front:
    """The outermost layer of the application.

    Args:
        observers: told of every request when it is over.
        route: finds what the metrics of a request are counted under.
    """

    def __init__(
        self,
        app: ASGIApp,
        runner: Runner,
        settings: Settings,
        keys: ApiKeys,
        observers: Sequence[Observer],
        route: Callable[[Headers], str | None],
    ) -> None:
        self._app, self._runner, self._settings, self._keys = app, runner, settings, keys
        self._observers, self._route = observers, route

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        given = headers.get("x-request-id")
        valid = given is not None and _ID.fullmatch(given) is not None
        trace = Trace(given if valid and given is not None else uuid.uuid4().hex, scope["method"], scope["path"])
        scope[KEY] = trace

        async def noted(message: Message) -> None:
            if message["type"] == "http.response.start":
                trace.status = message["status"]
                MutableHeaders(scope=message)["x-request-id"] = trace.id
            await send(message)

        try:
            if given is not None and not valid:
                text = "x-request-id: must be 1 to 128 letters, digits or one of . _ : -"
                raise Problem(400, text, param="x-request-id", code="invalid_value")
            await self._app(scope, await self._admit(scope, headers, receive, trace), noted)
        except Exception as error:
            problem = as_problem(error)
            if not isinstance(error, Problem):
                log.exception("request %s raised", trace.id)
            trace.code = problem.code
            if trace.status is not None:
                raise
            await problem.response()(scope, receive, noted)
        finally:
            self._tell(trace)

    async def _admit(self, scope: Scope, headers: Headers, receive: Receive, trace: Trace) -> Receive:
        """Check the key, then take in the body; returns a ``receive`` that gives the body again."""
        if not scope["path"].startswith(PROTECTED):
            return receive
        try:
            trace.tenant = self._keys.tenant(headers.get("authorization"))
        except PermissionError:
            message = "No valid API key was given; send it as: Authorization: Bearer KEY"
            raise Problem(401, message, code="invalid_api_key", headers={"www-authenticate": "Bearer"}) from None
        trace.route = self._route(headers)
        if scope["method"] != "POST":
            return receive
        if self._runner.draining:
            raise draining()
        body = await self._body(headers, receive)
        rest = [{"type": "http.request", "body": body, "more_body": False}]

        async def again() -> Message:
            return rest.pop() if rest else await receive()

        return again

    async def _body(self, headers: Headers, receive: Receive) -> bytes:
        limit = self._settings.max_body
        declared = headers.get("content-length", "")
        oversized = declared.isdecimal() and int(declared) > limit
        parts: list[bytes] = []
        size, more = 0, True
        try:
            async with asyncio.timeout(self._settings.receive_timeout):
                while more and size <= _DISCARD * limit:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise Problem(400, "The body ended early.", code="incomplete_body")
                    size += len(message.get("body", b""))
                    more = message.get("more_body", False)
                    oversized = oversized or size > limit
                    if oversized:
                        parts.clear()
                    else:
                        parts.append(message.get("body", b""))
        except TimeoutError:
            raise Problem(408, "The body did not arrive in time.", code="receive_timeout") from None
        if oversized:
            raise Problem(413, f"The body has more than the {limit} bytes allowed.", code="body_too_large")
        return b"".join(parts)

    def _tell(self, trace: Trace) -> None:
        done = report(trace)
        quiet = done.status < 400 and not done.path.startswith(PROTECTED)  # probes and scrapes come every few seconds
        requests_log.log(logging.DEBUG if quiet else logging.INFO, "%s", done.log_line())
        for observer in self._observers:
            try:
                observer(done)
            except Exception:
                log.exception("an observer of requests raised")
