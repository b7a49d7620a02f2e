"""One HTTP request accounted for: what the log line says and observers are told. Holds no prompt and no text.

``Trace`` is filled while a request is served; ``RequestReport`` is what is left of it at the end.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter
from typing import TYPE_CHECKING, Any

from headstart.decode.record import SpecRecord
from headstart.serve.runner import Job

if TYPE_CHECKING:
    from headstart.serve.asked import Asked

Observer = Callable[["RequestReport"], None]
"""Told of every request when it is over, on the event loop; must return at once."""

KEY = "headstart.trace"
CLIENT_GONE = 499
"""nginx's status for a client that closed the connection; it is logged and never sent."""


@dataclass(slots=True)
class Trace:
    """What is known of a request so far; lies in the ASGI scope under ``KEY``."""

    id: str
    method: str
    path: str
    tenant: str | None = None
    route: str | None = None
    """What its metrics are counted under, when the server knows routes."""
    status: int | None = None
    code: str | None = None
    """The error's code."""
    asked: Asked | None = None
    job: Job | None = None
    delivered: int = 0
    """Tokens handed to the client's connection."""
    gone: bool = False
    started: float = field(default_factory=perf_counter)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestReport:
    """A request that is over. Times in seconds; ``None`` where it never came so far.

    ``record`` counts the drafts of all its sequences; ``drafter`` is the one they had.
    """

    id: str
    method: str
    path: str
    status: int
    code: str | None
    tenant: str | None
    seconds: float
    route: str | None = None
    stream: bool | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    queue_seconds: float | None = None
    first_token_seconds: float | None = None
    finish: tuple[str, ...] = ()
    drafter: str | None = None
    record: SpecRecord = field(default_factory=SpecRecord)

    def log_line(self) -> str:
        """JSON on one line."""
        out: dict[str, Any] = {
            "event": "request",
            "id": self.id,
            "method": self.method,
            "path": self.path,
            "status": self.status,
            "code": self.code,
            "tenant": self.tenant,
            "route": self.route,
            "seconds": round(self.seconds, 4),
        }
        if self.prompt_tokens is not None:
            out |= {
                "stream": self.stream,
                "prompt_tokens": self.prompt_tokens,
                "completion_tokens": self.completion_tokens,
                "queue_seconds": _rounded(self.queue_seconds),
                "first_token_seconds": _rounded(self.first_token_seconds),
                "finish": dict(Counter(self.finish)),
                "drafter": self.drafter,
                "rounds": self.record.rounds,
                "drafted": self.record.drafted,
                "accepted": self.record.accepted,
            }
        return json.dumps({key: value for key, value in out.items() if value is not None})


def report(trace: Trace) -> RequestReport:
    """What is left of a request."""
    status = CLIENT_GONE if trace.gone else trace.status if trace.status is not None else 500
    base: dict[str, Any] = {
        "id": trace.id,
        "method": trace.method,
        "path": trace.path,
        "status": status,
        "code": trace.code,
        "tenant": trace.tenant,
        "route": trace.route,
        "seconds": perf_counter() - trace.started,
    }
    if trace.job is None or trace.asked is None or not trace.job.requests:
        return RequestReport(**base)
    requests = trace.job.requests
    branches = [branch for request in requests for branch in request.branches]
    record = SpecRecord()
    for branch in branches:
        record.merge(branch.sequence.record)
    started = [request.started - trace.started for request in requests if request.started is not None]
    first = [request.first_token - trace.started for request in requests if request.first_token is not None]
    return RequestReport(
        **base,
        stream=trace.asked.stream,
        prompt_tokens=sum(len(request.prompt) for request in requests),
        completion_tokens=trace.delivered,
        queue_seconds=min(started, default=None),
        first_token_seconds=min(first, default=None),
        finish=tuple(branch.sequence.finish.value for branch in branches if branch.sequence.finish is not None),
        drafter=branches[0].drafter,
        record=record,
    )


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 4)
