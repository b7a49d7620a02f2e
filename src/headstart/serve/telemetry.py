"""All that a server shows of itself, in one place: meters, the page of metrics, the log line, traces.

Listens to an engine and to HTTP requests that are over. Turning it off changes nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from starlette.datastructures import Headers

from headstart import __version__
from headstart.engine.engine import Engine
from headstart.engine.events import RequestEvent, RoundEvent
from headstart.errors import InvalidParameter
from headstart.observe import names
from headstart.observe.labels import NONE, Bounded
from headstart.observe.logline import PeriodicLog
from headstart.observe.meters import Meters
from headstart.observe.otlp import open_traces, traces_endpoint
from headstart.observe.prometheus import exposition, make_registry
from headstart.serve.metrics import EngineMetrics
from headstart.serve.report import RequestReport
from headstart.serve.settings import Settings
from headstart.serve.tracing import RequestTraces

if TYPE_CHECKING:
    from headstart.observe.traces import Traces

API = "/v1/"
"""Paths whose responses are counted; scrapes and probes are not."""


def configured_traces(
    settings: Settings, endpoint: str | None, environ: Mapping[str, str], *, content: bool
) -> Traces | None:
    """Where traces go, or ``None`` when they are off; ``endpoint`` and ``content`` are the operator's options.

    Raises:
        InvalidParameter: the endpoint is not one, the extra is missing, or content is wanted of no traces.
    """
    address = traces_endpoint(endpoint, environ)
    if address is not None:
        return open_traces(address, model=settings.model_name, version=__version__, content=content)
    if content:
        raise InvalidParameter("--trace-content", "there are no traces; name a collector with --otlp-endpoint")
    return None


class Telemetry:
    """Observes ``engine`` from now on.

    Args:
        traces: where spans go; closed with this.
    """

    def __init__(self, engine: Engine, settings: Settings, traces: Traces | None = None) -> None:
        self.meters = Meters(settings.model_name, routes=settings.route_header is not None)
        self.registry = make_registry(self.meters)
        self._header = settings.route_header
        self._routes = Bounded(settings.max_routes, settings.known_routes)
        self._metrics = EngineMetrics(self.meters, engine.info["drafters"])
        self._traces = traces
        self._spans = None if traces is None else RequestTraces(traces)
        self._interval = settings.log_interval
        self._log: PeriodicLog | None = None
        self.meters.pull(
            {
                names.RUNNING: lambda: engine.status.running,
                names.WAITING: lambda: engine.status.waiting,
                names.KV_USED: lambda: engine.status.kv_used,
                names.KV_CAPACITY: lambda: engine.status.kv_capacity,
                names.KV_CACHED: lambda: engine.prefix_record.kept_slots,
                names.PREFIX_QUERIES: lambda: engine.prefix_record.queried_tokens,
                names.PREFIX_HITS: lambda: engine.prefix_record.hit_tokens,
                names.PREFIX_EVICTIONS: lambda: engine.prefix_record.evictions,
                names.OBSERVER_ERRORS: lambda: engine.observing.errors,
            }
        )
        engine.observing.observer = self

    def start(self) -> None:
        """Begin with the log line."""
        if self._interval:
            self._log = PeriodicLog(self.meters, self._interval)

    def page(self, accept: str) -> tuple[bytes, str]:
        """The page of metrics and its content type."""
        return exposition(self.registry, accept)

    def route(self, headers: Headers) -> str | None:
        """The route of a request whose key is valid, from the configured header; ``None`` without one. Clients choose
        the value, so it is cleaned and bounded."""
        return None if self._header is None else self._routes(headers.get(self._header))

    def responded(self, report: RequestReport) -> None:
        """An HTTP request is over."""
        if report.path.startswith(API):
            route = (report.route or NONE,) if self.meters.routes else ()
            with self.meters as meters:
                meters.add(names.RESPONSES, (str(report.status), *route))

    def close(self) -> None:
        """Stop: the last log line, and what is left of traces."""
        if self._log is not None:
            self._log.close()
        if self._traces is not None:
            self._traces.close()

    # -- as an observer of the engine -------------------------------------------------------------------------------

    def round(self, event: RoundEvent) -> None:
        """A round was played."""
        self._metrics.round(event)

    def request(self, event: RequestEvent) -> None:
        """A request came to a stage."""
        self._metrics.request(event)
        if self._spans is not None:
            self._spans.request(event)

    def drafter_failed(self, drafter: str, reason: str) -> None:
        """A drafter broke its contract."""
        self._metrics.drafter_failed(drafter, reason)
