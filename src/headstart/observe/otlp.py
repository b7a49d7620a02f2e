"""Whether traces are wanted, and the way to the collector: flags first, then OpenTelemetry's own variables.

Off unless an endpoint is named. Loads OpenTelemetry only when it is on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from headstart.errors import InvalidParameter

if TYPE_CHECKING:
    from headstart.observe.traces import Traces

TRACES_PATH = "/v1/traces"
LANGFUSE_PATH = "/api/public/otel"


def traces_endpoint(flag: str | None, environ: Mapping[str, str]) -> str | None:
    """Where traces go, or ``None`` when they are off.

    Args:
        flag: base address of an OTLP collector over HTTP, as given on the command line; it wins.
        environ: looked at for ``OTEL_EXPORTER_OTLP_ENDPOINT``, ``OTEL_EXPORTER_OTLP_TRACES_ENDPOINT``,
            ``OTEL_SDK_DISABLED``, ``OTEL_TRACES_EXPORTER`` and the protocol.

    Raises:
        InvalidParameter: the address is not one, or the variables ask for what is not spoken here.
    """
    if environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return None
    if flag is not None:
        return _with_path(_checked("--otlp-endpoint", flag))
    exporter = environ.get("OTEL_TRACES_EXPORTER", "otlp").strip()
    if exporter == "none":
        return None
    if full := environ.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"):
        found = _checked("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", full)
    elif base := environ.get("OTEL_EXPORTER_OTLP_ENDPOINT"):
        found = _with_path(_checked("OTEL_EXPORTER_OTLP_ENDPOINT", base))
    else:
        return None
    if exporter != "otlp":
        raise InvalidParameter("OTEL_TRACES_EXPORTER", f"must be otlp or none, got {exporter!r}")
    for name in ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"):
        if (protocol := environ.get(name, "http/protobuf").strip()) != "http/protobuf":
            raise InvalidParameter(
                name, f"{protocol!r} is not spoken; set http/protobuf, and the collector's HTTP port"
            )
    return found


def open_traces(endpoint: str, *, model: str, version: str, content: bool = False) -> Traces:
    """Traces that go to ``endpoint`` in batches. Headers, timeouts, sampling and resource attributes are read from
    OpenTelemetry's variables by its SDK.

    Raises:
        InvalidParameter: the extra ``otel`` is not installed.
    """
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        from headstart.observe.traces import Traces
    except ImportError as error:
        message = f"traces need OpenTelemetry ({error}): pip install 'headstart[otel]'"
        raise InvalidParameter("--otlp-endpoint", message) from error
    # the SDK's own detector puts OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES on top of these
    detected = Resource.create()
    service = detected.attributes.get("service.name", "")
    named = {} if not str(service).startswith("unknown_service") else {"service.name": "headstart"}
    resource = detected.merge(Resource({"service.version": version, **named}))
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint)))
    return Traces(
        provider, model=model, content=content, langfuse=LANGFUSE_PATH in urlsplit(endpoint).path, version=version
    )


def _checked(param: str, address: str) -> str:
    parts = urlsplit(address.strip())
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InvalidParameter(param, f"must be an http:// or https:// address, got {address!r}")
    return address.strip()


def _with_path(address: str) -> str:
    bare = address.rstrip("/")
    return bare if bare.endswith(TRACES_PATH) else bare + TRACES_PATH
