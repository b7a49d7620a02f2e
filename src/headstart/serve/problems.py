"""Whatever goes wrong, in OpenAI's error envelope: ``{"error": {message, type, param, code}}``.

Knows status codes and headstart's errors; does not know routes or what a request asked for. Clients decide by status
and code whether to try again, so each case has its own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from headstart.errors import GrammarFailed, InvalidParameter, RequestTooLarge, UserError
from headstart.serve.report import KEY
from headstart.serve.runner import Draining, EngineFailed, QueueFull, TookTooLong

INVALID = "invalid_request_error"
SERVER = "server_error"


class Problem(Exception):
    """An answer that is an error."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        type: str = INVALID,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.type, self.param, self.code = status, message, type, param, code
        self.headers = dict(headers or {})

    def body(self) -> dict[str, Any]:
        """The envelope."""
        return {"error": {"message": self.message, "type": self.type, "param": self.param, "code": self.code}}

    def json_bytes(self) -> bytes:
        # ASCII, since a message may quote input that is not valid Unicode
        return json.dumps(self.body()).encode("ascii")

    def response(self) -> Response:
        return Response(self.json_bytes(), self.status, self.headers, media_type="application/json")


def refused(param: str, message: str, code: str | None = "invalid_value") -> Problem:
    """400 that names a parameter."""
    return Problem(400, f"{param}: {message}", param=param, code=code)


def as_problem(error: Exception, names: Mapping[str, str] | None = None) -> Problem:
    """The answer to an error; ``names`` maps the engine's names of parameters to the request's."""
    names = names or {}
    match error:
        case Problem():
            return error
        case InvalidParameter():
            param = names.get(error.param, error.param)
            message = str(error).removeprefix(f"{error.param}: ")
            return refused(param, message)
        case RequestTooLarge():
            return Problem(400, str(error), param=names.get("prompt", "prompt"), code="context_length_exceeded")
        case GrammarFailed():
            return refused(names.get("grammar", "grammar"), str(error), "grammar_failed")
        case UserError():
            return Problem(400, str(error))
        case QueueFull():
            return Problem(
                429,
                str(error),
                type="rate_limit_error",
                code="rate_limit_exceeded",
                headers={"retry-after": str(error.retry_after)},
            )
        case Draining():
            return draining()
        case TookTooLong():
            return Problem(504, str(error), type=SERVER, code="request_timeout")
        case EngineFailed():
            return Problem(500, str(error), type=SERVER, code="engine_failed")
    return Problem(500, "The server made a mistake; its log has the details.", type=SERVER, code="internal_error")


def draining() -> Problem:
    return Problem(
        503,
        "The server is shutting down; send the request to another one, or again later.",
        type=SERVER,
        code="draining",
        headers={"retry-after": "10", "connection": "close"},
    )


def install(app: FastAPI) -> None:
    """Answer every error of the application in the envelope."""

    async def problem(request: Request, error: Exception) -> Response:
        return _noted(request, as_problem(error))

    async def invalid(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json" and not isinstance(error.body, dict):
            return _noted(request, Problem(415, "Send JSON, as content-type: application/json.", code="not_json"))
        return _noted(request, from_validation(error))

    async def http(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        return _noted(request, from_http(request, error))

    app.add_exception_handler(Problem, problem)
    app.add_exception_handler(UserError, problem)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(HTTPException, http)


def _noted(request: Request, problem: Problem) -> Response:
    """Leave the problem's code where the log line of the request finds it."""
    request.scope[KEY].code = problem.code
    return problem.response()


def from_http(request: Request, error: HTTPException) -> Problem:
    if error.status_code == 404:
        message, code = f"Unknown route: {request.method} {request.url.path}", "unknown_url"
    elif error.status_code == 405:
        message, code = f"Method {request.method} is not allowed for {request.url.path}", "method_not_allowed"
    elif error.status_code == 400:
        message, code = "The body is not JSON that can be read.", "invalid_json"
    else:
        message, code = str(error.detail), None
    return Problem(error.status_code, message, code=code, headers=error.headers)


def from_validation(error: RequestValidationError) -> Problem:
    """The first parameter that is wrong, named as the client wrote it."""
    first, *others = error.errors()
    if first["type"] == "json_invalid":
        return Problem(400, f"The body is not valid JSON: {first['ctx']['error']}.", code="invalid_json")
    param = _param(first, error.body)
    if first["type"] == "missing" and not param:
        return Problem(400, "The request needs a JSON body.", code="missing_body")
    # a field of several types has an error for each: the one that got furthest is the one that was meant
    field = _root(param)
    same = [(_reach(item), _param(item, error.body), item) for item in (first, *others)]
    same = [found for found in same if _root(found[1]) == field]
    reach, param, first = max(same, key=lambda found: found[0])
    if first["type"] == "extra_forbidden":
        return refused(param, "is not a parameter that this server honours; leave it out", "unknown_parameter")
    says = dict.fromkeys(_say(item) for at, name, item in same if at == reach and name == param)
    code = "missing_required_parameter" if first["type"] == "missing" else "invalid_value"
    return refused(param or "body", " or ".join(says), code)


def _root(param: str) -> str:
    return param.partition(".")[0].partition("[")[0]


def _reach(item: Mapping[str, Any]) -> tuple[int, int]:
    """How far into the body an error lies: levels, then the place in the last list."""
    places = [part for part in item["loc"] if isinstance(part, int)]
    return len(places), places[-1] if places else 0


def _say(item: Mapping[str, Any]) -> str:
    if item["type"] == "missing":
        return "is missing"
    message: str = item["msg"]
    message = message.removeprefix("Value error, ")
    return message[:1].lower() + message[1:]


def _param(item: Mapping[str, Any], body: Any) -> str:
    """``messages[0].content``: the part of a location that lies in the body; names of union members do not."""
    out, at = "", body
    parts = [part for part in item["loc"] if part != "body"]
    for part in parts:
        if isinstance(part, int) and isinstance(at, list):
            out += f"[{part}]"
            at = at[part] if part < len(at) else None
        elif isinstance(at, dict) and (part in at or (item["type"] == "missing" and part == parts[-1])):
            out += f".{part}" if out else str(part)
            at = at.get(part)
    return out
