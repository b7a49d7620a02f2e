"""Spans: names, parents and times as configured; a real collector gets them, an absent one does no harm."""

from __future__ import annotations

import gzip
import logging
import socket
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from headstart.errors import InvalidParameter
from headstart.observe import traces as module
from headstart.observe.otlp import open_traces, traces_endpoint
from headstart.observe.traces import Traces

PARENT = {"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "tracestate": "vendor=x"}
UNSAMPLED = {"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00"}


class Collector:
    """A small OTLP receiver: keeps what it is sent."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, dict[str, str], ExportTraceServiceRequest]] = []
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                if self.headers.get("content-encoding") == "gzip":
                    body = gzip.decompress(body)
                sent = ExportTraceServiceRequest.FromString(body)
                collector.requests.append((self.path, {k.lower(): v for k, v in self.headers.items()}, sent))
                self.send_response(200)
                self.send_header("content-type", "application/x-protobuf")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def spans(self) -> list[Any]:
        return [
            span
            for _, _, sent in self.requests
            for resource in sent.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]


@pytest.fixture
def collector() -> Iterator[Collector]:
    made = Collector()
    yield made
    made.close()


def in_memory(**options: Any) -> tuple[Traces, InMemorySpanExporter]:
    exporter, provider = InMemorySpanExporter(), TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return Traces(provider, model="m", **options), exporter


def one(exporter: InMemorySpanExporter) -> ReadableSpan:
    [span] = exporter.get_finished_spans()
    return span


def test_a_span_has_the_conventions_names_and_our_times() -> None:
    traces, exporter = in_memory(version="1.2.3")
    before = time.time_ns()
    traces.begin(7, "chat", PARENT, {"gen_ai.request.temperature": 0.5, "gen_ai.request.seed": None})
    traces.first_token(7, 0.25)
    assert traces.recording(7)
    assert not exporter.get_finished_spans()
    traces.end(7, 2.0, {"gen_ai.usage.output_tokens": 3}, {"acceptance_rate": 0.75, "accepted_per_position": [2, 1]})
    assert not traces.recording(7)
    span = one(exporter)
    assert span.name == "chat m"
    assert span.kind is SpanKind.SERVER
    assert span.context is not None
    assert span.parent is not None
    assert f"{span.context.trace_id:032x}" == "4bf92f3577b34da6a3ce929d0e0e4736"
    assert f"{span.parent.span_id:016x}" == "00f067aa0ba902b7"
    assert span.context.trace_state.get("vendor") == "x"
    assert span.start_time is not None
    assert span.end_time is not None
    assert before <= span.start_time <= time.time_ns()
    assert span.end_time - span.start_time == 2_000_000_000
    [event] = span.events
    assert (event.name, event.timestamp - span.start_time) == ("gen_ai.first_token", 250_000_000)
    assert span.attributes is not None
    assert dict(span.attributes) == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "headstart",
        "gen_ai.request.model": "m",
        "gen_ai.request.temperature": 0.5,
        "gen_ai.response.model": "m",
        "gen_ai.usage.output_tokens": 3,
        "headstart.time_to_first_token": 0.25,
        "headstart.spec_decode.acceptance_rate": 0.75,
        "headstart.spec_decode.accepted_per_position": (2, 1),
    }
    assert span.instrumentation_scope is not None
    assert (span.instrumentation_scope.name, span.instrumentation_scope.version) == ("headstart", "1.2.3")
    assert span.status.status_code is StatusCode.UNSET


def test_no_parent_and_a_broken_one_begin_a_trace() -> None:
    traces, exporter = in_memory()
    for key, headers in enumerate(({}, {"traceparent": "nonsense"}, {"traceparent": "00-" + "0" * 32 + "-1-01"})):
        traces.begin(key, "chat", headers, {})
        traces.end(key, 1.0, {}, {})
    spans = exporter.get_finished_spans()
    assert all(span.parent is None for span in spans)
    assert len({span.context.trace_id for span in spans if span.context}) == 3


def test_a_client_that_does_not_sample_is_followed() -> None:
    traces, exporter = in_memory()
    traces.begin(1, "chat", UNSAMPLED, {})
    assert not traces.recording(1)
    traces.first_token(1, 0.1)
    traces.end(1, 1.0, {}, {})
    assert not exporter.get_finished_spans()


def test_errors_are_marked() -> None:
    traces, exporter = in_memory()
    traces.begin(1, "text_completion", {}, {})
    traces.end(1, 1.0, {}, {}, error="ValueError: no law")
    span = one(exporter)
    assert span.attributes is not None
    assert span.attributes["error.type"] == "ValueError"
    assert span.status.status_code is StatusCode.ERROR
    assert span.status.description == "ValueError: no law"


def test_langfuse_finds_values_where_it_looks() -> None:
    traces, exporter = in_memory(langfuse=True)
    traces.begin(1, "chat", {}, {})
    traces.first_token(1, 0.5)
    traces.end(1, 1.0, {"gen_ai.output.messages": "[]"}, {"acceptance_rate": 0.5})
    span = one(exporter)
    assert span.attributes is not None
    assert span.attributes["langfuse.observation.type"] == "generation"
    assert span.attributes["langfuse.observation.metadata.acceptance_rate"] == 0.5
    assert span.attributes["langfuse.observation.output"] == "[]"
    assert "langfuse.observation.input" not in span.attributes
    assert str(span.attributes["langfuse.observation.completion_start_time"]).endswith("+00:00")
    assert not [key for key in span.attributes if key.startswith("gen_ai.usage")]


def test_nothing_global_is_set(collector: Collector) -> None:
    open_traces(collector.url, model="m", version="1").close()
    assert not isinstance(trace.get_tracer_provider(), TracerProvider)


def test_a_collector_gets_spans_with_headers_and_resource(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "Authorization=Basic%20cGs6c2s=,x-langfuse-ingestion-version=4")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=staging")
    endpoint = traces_endpoint(None, {"OTEL_EXPORTER_OTLP_ENDPOINT": f"{collector.url}/api/public/otel"})
    assert endpoint is not None
    traces = open_traces(endpoint, model="m", version="9.9")
    traces.begin("a", "chat", PARENT, {})
    traces.end("a", 1.0, {}, {"num_drafts": 3})
    traces.close()
    [(path, headers, sent)] = collector.requests
    assert path == "/api/public/otel/v1/traces"
    assert headers["authorization"] == "Basic cGs6c2s="
    assert headers["x-langfuse-ingestion-version"] == "4"
    resource = {a.key: a.value.string_value for a in sent.resource_spans[0].resource.attributes}
    assert resource["service.name"] == "headstart"
    assert resource["service.version"] == "9.9"
    assert resource["deployment.environment.name"] == "staging"
    [span] = collector.spans()
    assert span.name == "chat m"
    assert span.trace_id.hex() == "4bf92f3577b34da6a3ce929d0e0e4736"
    attributes = {a.key: a.value for a in span.attributes}
    assert attributes["headstart.spec_decode.num_drafts"].int_value == 3
    assert attributes["langfuse.observation.metadata.num_drafts"].int_value == 3


def test_the_service_can_be_named(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SERVICE_NAME", "chat-eu")
    traces = open_traces(f"{collector.url}/v1/traces", model="m", version="1")
    traces.begin("a", "chat", {}, {})
    traces.end("a", 1.0, {}, {})
    traces.close()
    resource = {a.key: a.value.string_value for a in collector.requests[0][2].resource_spans[0].resource.attributes}
    assert resource["service.name"] == "chat-eu"


def test_a_collector_that_hangs_does_not_hold_up_a_close(monkeypatch: pytest.MonkeyPatch) -> None:
    logging.getLogger("opentelemetry").addHandler(logging.NullHandler())  # it goes on complaining after the test
    monkeypatch.setattr(module, "CLOSE_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        traces = open_traces(f"http://127.0.0.1:{silent.getsockname()[1]}/v1/traces", model="m", version="1")
        traces.begin("a", "chat", {}, {})
        traces.end("a", 1.0, {}, {})
        traces.close()
        assert any(thread.name == "headstart-traces" for thread in threading.enumerate())  # left to itself


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(InvalidParameter, match=r"pip install 'headstart\[otel\]'"):
        open_traces("http://127.0.0.1:9/v1/traces", model="m", version="1")


@pytest.mark.parametrize(
    ("flag", "environ", "endpoint"),
    [
        (None, {}, None),
        (None, {"OTEL_SERVICE_NAME": "x"}, None),
        ("http://c:4318", {}, "http://c:4318/v1/traces"),
        ("http://c:4318/v1/traces/", {}, "http://c:4318/v1/traces"),
        ("http://c:4318", {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://other"}, "http://c:4318/v1/traces"),
        ("http://c:4318", {"OTEL_SDK_DISABLED": "true"}, None),
        (None, {"OTEL_EXPORTER_OTLP_ENDPOINT": "https://l/api/public/otel/"}, "https://l/api/public/otel/v1/traces"),
        (None, {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "https://l/exactly"}, "https://l/exactly"),
        (None, {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c", "OTEL_TRACES_EXPORTER": "none"}, None),
        (None, {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c", "OTEL_TRACES_EXPORTER": "otlp"}, "http://c/v1/traces"),
    ],
)
def test_off_unless_an_endpoint_is_named(flag: str | None, environ: dict[str, str], endpoint: str | None) -> None:
    assert traces_endpoint(flag, environ) == endpoint


@pytest.mark.parametrize(
    ("flag", "environ", "named"),
    [
        ("collector:4318", {}, "--otlp-endpoint"),
        (None, {"OTEL_EXPORTER_OTLP_ENDPOINT": "localhost"}, "OTEL_EXPORTER_OTLP_ENDPOINT"),
        (None, {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c", "OTEL_TRACES_EXPORTER": "zipkin"}, "OTEL_TRACES_EXPORTER"),
        (
            None,
            {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4317", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"},
            "OTEL_EXPORTER_OTLP_PROTOCOL",
        ),
    ],
)
def test_what_is_not_spoken_is_refused(flag: str | None, environ: dict[str, str], named: str) -> None:
    with pytest.raises(InvalidParameter, match=named):
        traces_endpoint(flag, environ)
