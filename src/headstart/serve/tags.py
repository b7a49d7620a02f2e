"""What the server wants to be told with each request's events: its route, and what a trace of it needs.

The engine carries the tag and does not look into it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from starlette.requests import Request as HttpRequest

from headstart.engine.request import Prompt
from headstart.observe.labels import NONE
from headstart.serve.report import Trace

_CONTEXT = ("traceparent", "tracestate")


@dataclass(frozen=True, slots=True)
class RequestTag:
    """``operation`` is the GenAI conventions' name of the endpoint, ``context`` the client's W3C trace headers."""

    request_id: str
    route: str
    operation: str
    stream: bool
    prompt: Prompt
    context: Mapping[str, str] = field(default_factory=dict)


def tag(http: HttpRequest, trace: Trace, stream: bool, prompt: Prompt) -> RequestTag:
    """The tag of one engine request of an HTTP request."""
    return RequestTag(
        request_id=trace.id,
        route=trace.route or NONE,
        operation="chat" if http.url.path.endswith("/chat/completions") else "text_completion",
        stream=stream,
        prompt=prompt,
        context={name: value for name in _CONTEXT if (value := http.headers.get(name)) is not None},
    )
