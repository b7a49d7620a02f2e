"""The page at ``/``: files of this package, served as they are. Knows HTTP; what is on the page is the files' concern.

A strict Content-Security-Policy goes with every file: scripts, styles and requests from this server only, nothing
inline, no frames. Browsers ask each time whether a file has changed, so that a new version is seen at once.
"""

from __future__ import annotations

import hashlib
from importlib.resources import files

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "cache-control": "no-cache",
    "content-security-policy": POLICY,
    "cross-origin-opener-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}


def routes() -> list[Route]:
    """``/`` and one route per other file, under ``/page/``."""
    made = []
    for file in sorted(files("headstart.serve").joinpath("page").iterdir(), key=lambda file: file.name):
        media_type = TYPES.get(file.name[file.name.rfind(".") :])
        if media_type is not None:
            path = "/" if file.name == "index.html" else f"/page/{file.name}"
            made.append(_route(path, file.read_bytes(), media_type))
    return made


def _route(path: str, body: bytes, media_type: str) -> Route:
    tag = f'"{hashlib.sha256(body).hexdigest()[:20]}"'
    headers = {**HEADERS, "etag": tag}

    async def serve(request: Request) -> Response:
        known = request.headers.get("if-none-match", "")
        if tag in (each.strip().removeprefix("W/") for each in known.split(",")):
            return Response(status_code=304, headers=headers)
        return Response(body, headers=headers, media_type=media_type)

    return Route(path, serve, methods=["GET"], include_in_schema=False)
