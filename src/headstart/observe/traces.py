"""One OpenTelemetry span per request, under the GenAI conventions' names, with what speculation did in it.

Spans go to a provider that the caller made: nothing global is set, and prompts or answers are never in a span unless
``content`` says so. Needs the extra ``otel``. Knows plain values; not engines or HTTP.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import Span, SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

Value = str | bool | int | float | Sequence[str] | Sequence[int]

PROVIDER = "headstart"
FIRST_TOKEN = "gen_ai.first_token"
SPECULATION = "headstart.spec_decode."
LANGFUSE = "langfuse.observation."

CLOSE_SECONDS = 5.0
"""How long a close waits for the collector to take what is left."""


@dataclass(slots=True)
class _Open:
    span: Span
    started: int
    """Nanoseconds since the epoch."""


class Traces:
    """Spans of requests that are under way.

    Args:
        provider: where spans go; closed with this.
        model: the served model's name.
        content: whether spans may carry prompts and answers.
        langfuse: repeat some values where Langfuse looks for them (see docs/observability.md).
        version: of headstart, as the instrumentation's version.
    """

    def __init__(
        self,
        provider: TracerProvider,
        *,
        model: str,
        content: bool = False,
        langfuse: bool = False,
        version: str | None = None,
    ) -> None:
        self.content = content
        self._provider = provider
        self._tracer = provider.get_tracer("headstart", version)
        self._propagator = TraceContextTextMapPropagator()
        self._model = model
        self._langfuse = langfuse
        self._open: dict[Hashable, _Open] = {}

    def begin(
        self, key: Hashable, operation: str, headers: Mapping[str, str], attributes: Mapping[str, Value | None]
    ) -> None:
        """Open the span of request ``key``.

        Args:
            operation: ``chat`` or ``text_completion``.
            headers: of the HTTP request, names in lower case; a W3C ``traceparent`` among them becomes the parent.
            attributes: more of them; ``None`` values are left out.
        """
        started = time.time_ns()
        span = self._tracer.start_span(
            f"{operation} {self._model}",
            context=self._propagator.extract(headers),
            kind=SpanKind.SERVER,
            attributes={
                "gen_ai.operation.name": operation,
                "gen_ai.provider.name": PROVIDER,
                "gen_ai.request.model": self._model,
                **_present(attributes),
            },
            start_time=started,
        )
        if span.is_recording():
            self._open[key] = _Open(span, started)

    def first_token(self, key: Hashable, seconds: float) -> None:
        """Request ``key`` got its first token, ``seconds`` after its begin."""
        if (found := self._open.get(key)) is not None:
            at = found.started + int(seconds * 1e9)
            found.span.add_event(FIRST_TOKEN, timestamp=at)
            found.span.set_attribute("headstart.time_to_first_token", seconds)
            if self._langfuse:
                moment = datetime.fromtimestamp(at / 1e9, UTC).isoformat(timespec="milliseconds")
                found.span.set_attribute(f"{LANGFUSE}completion_start_time", moment)

    def recording(self, key: Hashable) -> bool:
        """Whether the span of ``key`` is open and wanted, so that attributes are worth collecting."""
        return key in self._open

    def end(
        self,
        key: Hashable,
        seconds: float,
        attributes: Mapping[str, Value | None],
        speculation: Mapping[str, Value | None],
        error: str | None = None,
    ) -> None:
        """Close the span of ``key``, ``seconds`` after its begin. ``error`` marks it failed, with that description."""
        found = self._open.pop(key, None)
        if found is None:
            return
        span = found.span
        span.set_attributes({"gen_ai.response.model": self._model, **_present(attributes)})
        span.set_attributes({SPECULATION + name: value for name, value in _present(speculation).items()})
        if self._langfuse:
            span.set_attribute(f"{LANGFUSE}type", "generation")
            # only keys at the top of the metadata can be filtered by
            for name, value in _present(speculation).items():
                span.set_attribute(f"{LANGFUSE}metadata.{name}", value)
            for ours, theirs in (("gen_ai.input.messages", "input"), ("gen_ai.output.messages", "output")):
                if (text := attributes.get(ours)) is not None:
                    span.set_attribute(f"{LANGFUSE}{theirs}", text)
        if error is not None:
            span.set_attribute("error.type", error.partition(":")[0])
            span.set_status(Status(StatusCode.ERROR, error))
        span.end(found.started + int(seconds * 1e9))

    def close(self) -> None:
        """Send what is left, for a few seconds at most: a collector that is away must not hold a server up."""
        closing = threading.Thread(target=self._provider.shutdown, name="headstart-traces", daemon=True)
        closing.start()
        closing.join(CLOSE_SECONDS)


def _present(attributes: Mapping[str, Value | None]) -> dict[str, Value]:
    return {name: value for name, value in attributes.items() if value is not None}
