"""Metrics and traces of a real engine and a real server: equal to the records, apart from each other, bounded."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text
from tests.serve.harness import Running, chat, completion, events, running, wait_for

from headstart.control.depth import FixedDepth
from headstart.decode.params import SamplingParams
from headstart.decode.record import SpecRecord
from headstart.decode.sampling import TokenLaw
from headstart.draft.base import Drafter
from headstart.draft.ngram import NgramDrafter
from headstart.draft.scripted import OracleDrafter, RaisingDrafter, Scripted, TreeOracleDrafter
from headstart.engine.engine import Engine
from headstart.engine.request import Speculation
from headstart.errors import InvalidParameter
from headstart.observe import names
from headstart.observe.meters import Snapshot
from headstart.observe.read import read
from headstart.observe.traces import Traces
from headstart.serve.metrics import EngineMetrics
from headstart.serve.settings import Settings
from headstart.serve.telemetry import Telemetry, configured_traces
from headstart.target.model import Target

PROMPTS = ["tell me", "the quick brown fox jumps over the quick brown", "a", "abcabcabcabcabc"]
SEVERAL = "scripted+oracle"
PARAMS = SamplingParams(max_tokens=24, temperature=0.8, seed=2)


def drafters(target: Target) -> list[Drafter]:
    """Of every kind of success and failure."""
    with Engine(target) as engine:
        outputs = engine.generate(PROMPTS, PARAMS)
    truth = {tuple(o.prompt_token_ids): o.token_ids for o in outputs}
    tree = TreeOracleDrafter(truth, acceptance=0.8)
    oracle = OracleDrafter(truth, 0.7)
    return [NgramDrafter(), tree, oracle, RaisingDrafter(every=3, inner=OracleDrafter(truth, 0.5)), Scripted()]


def watched(engine: Engine, **settings: Any) -> Telemetry:
    return Telemetry(engine, Settings(model_name="tiny", log_interval=0, **settings))


def check(snapshot: Snapshot, record: SpecRecord) -> None:
    """The counters are the record."""
    total = snapshot.total
    assert total(names.DRAFTS) == record.drafted_rounds
    assert total(names.DRAFT_TOKENS) == record.drafted
    assert total(names.ACCEPTED) == record.accepted
    assert total(names.EMITTED) == record.emitted
    assert total(names.POSSIBLE) == record.room
    assert total(names.ROUNDS) == record.rounds
    kinds = snapshot.by(names.ROUNDS, "kind")
    assert kinds["drafted"] == record.drafted_rounds
    assert kinds["plain"] == total(names.FALLBACKS) == record.rounds - record.drafted_rounds
    for metric, counts in ((names.ACCEPTED_AT, record.accepted_at), (names.DRAFTS_AT, record.drafted_at)):
        by = snapshot.by(metric, "position")
        assert [by[str(i)] for i in range(len(counts))] == counts
        assert sum(by.values()) == sum(counts)
    assert total(names.FAILURES) == sum(record.fallbacks.values())
    depths = snapshot.histograms[names.DEPTH].values()
    assert sum(b.total for b in depths) == record.rounds
    assert sum(b.sum for b in depths) == sum(record.drafted_at)


def test_counters_are_the_records_at_every_moment(target: Target) -> None:
    made = drafters(target)
    engine = Engine(target, made, controller=FixedDepth(4, 8), max_sequences=3)
    telemetry = watched(engine)
    asked = [Speculation(drafter=name) for name in (*(d.name for d in made), "none", SEVERAL)]
    asked.append(Speculation(depth=0))
    handles = [
        engine.submit(prompt, SamplingParams(max_tokens=16 + i, temperature=0.8, seed=2, n=1 + i % 2), spec)
        for i, (prompt, spec) in enumerate((p, s) for s in asked for p in PROMPTS)
    ]
    steps = 0
    while engine.has_work:
        engine.step()
        steps += 1
        if steps % 7 == 0:
            check(telemetry.meters.snapshot(), engine.record)
        if steps == 20:
            engine.cancel(handles[3])
    snapshot = telemetry.meters.snapshot()
    check(snapshot, engine.record)
    assert snapshot.total(names.STEPS) == steps
    outputs = [handle.output() for handle in handles]
    assert snapshot.total(names.GENERATION_TOKENS) == sum(len(c.token_ids) for o in outputs for c in o.completions)
    assert snapshot.total(names.FINISHED) == sum(len(o.completions) for o in outputs)
    assert snapshot.by(names.FINISHED, "finish_reason")["cancelled"] >= 1
    started = [o for o in outputs if o.first_token_seconds is not None]
    assert snapshot.total(names.PROMPT_TOKENS) == sum(len(o.prompt_token_ids) for o in started)
    counted = {metric: sum(b.total for b in family.values()) for metric, family in snapshot.histograms.items()}
    assert counted[names.TTFT] == len(started)
    assert counted[names.QUEUE_TIME] >= len(started)
    whole = [o for o in outputs if all(c.finish_reason in ("stop", "length") for c in o.completions)]
    assert counted[names.DURATION] == len(whole)
    assert counted[names.CHUNK_GAP] == snapshot.total(names.ROUNDS)
    assert counted[names.REQUEST_ACCEPTANCE] == sum(1 for o in outputs for c in o.completions if c.record.drafted)
    assert set(snapshot.by(names.ROUNDS, "drafter")) == {*(d.name for d in made), "none", SEVERAL}
    assert snapshot.by(names.FAILURES, "reason")["raised"] > 0
    for drafter, own in engine.record.by_drafter.items():
        assert snapshot.by(names.DRAFTS, "drafter")[drafter] == own.drafts
        assert snapshot.by(names.DRAFT_TOKENS, "drafter")[drafter] == own.drafted
        assert snapshot.by(names.ACCEPTED, "drafter")[drafter] == own.accepted
    assert engine.observing.errors == 0
    assert snapshot.total(names.KV_USED) == snapshot.total(names.RUNNING) == 0


def test_two_engines_in_one_process_count_apart(target: Target) -> None:
    one, two = (Engine(target, [NgramDrafter()]) for _ in range(2))
    first, second = watched(one), watched(two)
    one.generate(PROMPTS, PARAMS)
    check(first.meters.snapshot(), one.record)
    assert second.meters.snapshot().total(names.ROUNDS) == 0
    two.generate(PROMPTS[:1], PARAMS)
    check(second.meters.snapshot(), two.record)
    check(first.meters.snapshot(), one.record)


def test_series_are_there_from_the_start(target: Target) -> None:
    telemetry = watched(Engine(target, [NgramDrafter()]))
    page = telemetry.page("")[0].decode()
    samples = {(s.name, s.labels.get("drafter")): s.value for f in parse_text(page) for s in f.samples}
    for metric in (names.DRAFTS, names.DRAFT_TOKENS, names.ACCEPTED, names.EMITTED, names.ROUNDS):
        assert samples[metric.name, "ngram"] == samples[metric.name, "none"] == 0
    assert samples[names.STEPS.name, None] == 0
    assert samples[names.KV_CAPACITY.name, None] == 8192


def test_names_that_parts_make_up_are_bounded(target: Target) -> None:
    class Talker(FixedDepth):
        calls = 0

        def allow(self, queries: Sequence[Any], load: Any) -> Any:
            self.calls += 1
            self.why = {query.sequence_id: f"reason {self.calls}" for query in queries}
            return [type(a)(0, 0) for a in super().allow(queries, load)]

    engine = Engine(target, [NgramDrafter()], controller=Talker())
    telemetry = watched(engine)
    engine.generate(PROMPTS, SamplingParams(max_tokens=64, ignore_eos=True))
    assert len(telemetry.meters.snapshot().by(names.FALLBACKS, "reason")) <= 22
    metrics = EngineMetrics(telemetry.meters, ["ngram"])
    for i in range(100):
        metrics.drafter_failed(f"drafter {i}", "raised")
    assert len(telemetry.meters.snapshot().by(names.FAILURES, "drafter")) <= 22


# -- over HTTP --------------------------------------------------------------------------------------------------------


def values(up: Running, metric: names.Metric) -> dict[tuple[str, ...], float]:
    """A family's values by its labels after the model's name."""
    page = up.get("/metrics")
    assert page.headers["content-type"].startswith("text/plain; version=")
    return {
        tuple(value for name, value in s.labels.items() if name != names.MODEL): s.value
        for family in parse_text(page.text)
        for s in family.samples
        if s.name == metric.name
    }


@pytest.fixture
def engine_of_server(target: Target) -> Iterator[Engine]:
    with Engine(target, [NgramDrafter()], controller=FixedDepth(4), max_sequences=4) as made:
        yield made


def test_the_page_of_a_busy_server(engine_of_server: Engine) -> None:
    with running(engine_of_server) as up:

        def work(i: int) -> int:
            body = chat(PROMPTS[i % len(PROMPTS)], max_completion_tokens=16, seed=i, stream=i % 2 == 0)
            up.get("/metrics")
            return up.post("/v1/chat/completions", body).status_code

        with ThreadPoolExecutor(8) as pool:
            assert set(pool.map(work, range(24))) == {200}
        assert up.post("/v1/chat/completions", {**chat("x"), "nonsense": 1}).status_code == 400
        assert up.get("/v1/nowhere").status_code == 404
        up.idle()
        wait_for(lambda: sum(values(up, names.RESPONSES).values()) == 26)
        assert values(up, names.RESPONSES) == {("200",): 24, ("400",): 1, ("404",): 1}
        assert sum(values(up, names.FINISHED).values()) == 24
        check(up.server.service.telemetry.meters.snapshot(), engine_of_server.record)
        found = read(up.get("/metrics").text, model="tiny")
        assert found is not None
        assert (found.drafts, found.accepted) == (
            engine_of_server.record.drafted_rounds,
            engine_of_server.record.accepted,
        )
        assert found.mean_acceptance_length == engine_of_server.record.mean_acceptance_length
        accept = {"accept": "application/openmetrics-text;version=1.0.0"}
        families = {family.name for family in parse_openmetrics(up.get("/metrics", headers=accept).text)}
        assert families == {metric.name.removesuffix("_total") for metric in names.METRICS}


def test_what_the_prefix_cache_found_is_shown(engine_of_server: Engine) -> None:
    with running(engine_of_server) as up:
        for _ in range(2):
            up.post("/v1/completions", completion("the same long prompt " * 4, max_tokens=4))
        up.idle()
        record = engine_of_server.prefix_record
        assert record.hit_tokens > 0
        assert values(up, names.PREFIX_HITS) == {(): record.hit_tokens}
        assert values(up, names.PREFIX_QUERIES) == {(): record.queried_tokens}
        assert values(up, names.KV_CACHED) == {(): record.kept_slots}


def test_routes_are_told_apart_and_bounded(engine_of_server: Engine) -> None:
    settings = {"route_header": "X-Route", "known_routes": ("vip",), "max_routes": 2}
    with running(engine_of_server, keys=["long-enough"], **settings) as up:

        def ask(route: str | None, key: str = "long-enough") -> int:
            headers = {"authorization": f"Bearer {key}"} | ({} if route is None else {"X-Route": route})
            return up.post("/v1/completions", completion("ab", max_tokens=4), headers=headers).status_code

        assert ask("stranger", key="wrong") == 401
        assert [ask(r) for r in ("chat", "search", "third", "fourth", "vip", None, 'bad"} 1')] == [200] * 7
        up.idle()
        wait_for(lambda: sum(values(up, names.RESPONSES).values()) == 8)
        assert values(up, names.RESPONSES) == {
            ("401", "none"): 1,
            ("200", "chat"): 1,
            ("200", "search"): 1,
            ("200", "other"): 3,
            ("200", "vip"): 1,
            ("200", "none"): 1,
        }
        routes = {labels[-1] for labels in values(up, names.ROUNDS)}
        assert routes == {"chat", "search", "other", "vip", "none"}
        prompt = values(up, names.PROMPT_TOKENS)
        assert prompt["ngram", "other"] == 3 * prompt["ngram", "chat"]


def test_the_log_line_of_a_server(engine_of_server: Engine, caplog: pytest.LogCaptureFixture) -> None:
    with (
        caplog.at_level(logging.INFO, logger="headstart.observe.logline"),
        running(engine_of_server, log_interval=3600.0) as up,
    ):
        up.post("/v1/completions", completion("abcabcabc", max_tokens=16, ignore_eos=True))
        up.idle()
    [line] = [r.getMessage() for r in caplog.records if r.name == "headstart.observe.logline"]
    assert line.startswith("mean acceptance length ")
    assert "tok/s, running 0, waiting 0, KV 0.0% used" in line


def test_probes_and_scrapes_do_not_fill_the_log(engine_of_server: Engine, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="headstart.serve.requests"), running(engine_of_server) as up:
        for path in ("/health", "/metrics", "/v1/models", "/nowhere"):
            up.get(path)
    lines = [json.loads(r.getMessage()) for r in caplog.records if r.name == "headstart.serve.requests"]
    assert [line["path"] for line in lines] == ["/v1/models", "/nowhere"]


# -- traces -----------------------------------------------------------------------------------------------------------

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def spans_of(engine: Engine, ask: Any, *, content: bool = False) -> list[ReadableSpan]:
    """What ``ask`` leaves in the traces of a server."""
    exporter, provider = InMemorySpanExporter(), TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    with running(engine, traces=Traces(provider, model="tiny", content=content)) as up:
        ask(up)
        up.idle()
    return list(exporter.get_finished_spans())


def test_a_trace_continues_the_clients(engine_of_server: Engine) -> None:
    def ask(up: Running) -> None:
        body = chat("abcabcabcabc", max_completion_tokens=24, temperature=0.5, seed=3, stream=True, top_p=0.9)
        events(up.post("/v1/chat/completions", body, headers={"traceparent": PARENT, "x-request-id": "r-1"}))

    [span] = spans_of(engine_of_server, ask)
    record = engine_of_server.record
    assert span.name == "chat tiny"
    assert span.context is not None
    assert f"{span.context.trace_id:032x}" in PARENT
    assert span.attributes is not None
    found = dict(span.attributes)
    assert found["gen_ai.operation.name"] == "chat"
    assert found["gen_ai.request.temperature"] == 0.5
    assert found["gen_ai.request.top_p"] == 0.9
    assert found["gen_ai.request.max_tokens"] == 24
    assert found["gen_ai.request.seed"] == 3
    assert found["gen_ai.request.stream"] is True
    assert found["gen_ai.usage.output_tokens"] == record.emitted + 1
    assert found["gen_ai.response.finish_reasons"] in (("length",), ("stop",))
    assert found["gen_ai.response.time_to_first_chunk"] == found["headstart.time_to_first_token"]
    assert found["headstart.request_id"] == "r-1"
    assert found["headstart.spec_decode.drafter"] == "ngram"
    assert found["headstart.spec_decode.rounds"] == record.rounds
    assert found["headstart.spec_decode.num_accepted_tokens"] == record.accepted
    assert found.get("headstart.spec_decode.mean_acceptance_length") == record.mean_acceptance_length
    assert [event.name for event in span.events] == ["gen_ai.first_token"]
    assert not {key for key in found if "messages" in key or "langfuse" in key}
    assert span.status.status_code is StatusCode.UNSET


def test_content_is_traced_only_when_asked_for(engine_of_server: Engine) -> None:
    said: list[str] = []

    def ask(up: Running) -> None:
        reply = up.post("/v1/chat/completions", chat("my secret", max_completion_tokens=8, stop=["secret stop"]))
        said.append(reply.json()["choices"][0]["message"]["content"])
        up.post("/v1/completions", completion("my secret", max_tokens=8))
        up.post("/v1/completions", completion(list(b"my secret"), max_tokens=8))

    silent = spans_of(engine_of_server, ask)
    assert len(silent) == 3
    assert not any("secret" in str(value) for span in silent for value in (span.attributes or {}).values())
    talking = spans_of(engine_of_server, ask, content=True)
    asked = [span.attributes["gen_ai.input.messages"] for span in talking[:2] if span.attributes]
    message = [{"role": "user", "parts": [{"type": "text", "content": "my secret"}]}]
    assert [json.loads(str(text)) for text in asked] == [message, message]
    assert talking[2].attributes is not None
    assert "gen_ai.input.messages" not in talking[2].attributes
    assert talking[0].attributes is not None
    [answer] = json.loads(str(talking[0].attributes["gen_ai.output.messages"]))
    assert answer["parts"] == [{"type": "text", "content": said[1]}]
    assert answer["finish_reason"] in ("length", "stop")


def test_calls_of_functions_are_content_too(engine_of_server: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    template = "{{ tools | tojson }}{% for m in messages %}{{ m.content }}{{ m.tool_calls | default('') }}{% endfor %}"
    monkeypatch.setattr(engine_of_server.target.tokenizer, "chat_template", template)
    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "red"}'}}
    body = chat("red?", max_completion_tokens=8)
    body["messages"] += [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "sunny"},
    ]
    body["tools"] = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]

    def ask(up: Running) -> None:
        assert up.post("/v1/chat/completions", body).status_code == 200

    [silent] = spans_of(engine_of_server, ask)
    assert "sunny" not in str(dict(silent.attributes or {}))
    [span] = spans_of(engine_of_server, ask, content=True)
    assert span.attributes is not None
    messages = json.loads(str(span.attributes["gen_ai.input.messages"]))
    assert [message["parts"] for message in messages[1:]] == [
        [{"type": "tool_call", "id": "c1", "name": "weather", "arguments": {"city": "red"}}],
        [{"type": "tool_call_response", "id": "c1", "response": "sunny"}],
    ]
    assert json.loads(str(span.attributes["gen_ai.tool.definitions"])) == [
        {"type": "function", "name": "weather", "parameters": {"type": "object"}}
    ]


def test_requests_that_fail_or_leave_end_their_spans(engine_of_server: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise ArithmeticError("no law")

    def ask(up: Running) -> None:
        with up.client() as client:
            body = completion("ab", max_tokens=500, stream=True, ignore_eos=True, temperature=0)
            with client.stream("POST", "/v1/completions", json=body) as stream:
                next(stream.iter_lines())
        up.idle()
        monkeypatch.setattr(TokenLaw, "choose", broken)
        up.post("/v1/completions", completion("ab", max_tokens=4, temperature=0.9))

    left, failed = spans_of(engine_of_server, ask)
    assert left.attributes is not None
    assert left.attributes["gen_ai.response.finish_reasons"] == ("cancelled",)
    assert left.status.status_code is StatusCode.UNSET
    assert failed.attributes is not None
    assert failed.attributes["gen_ai.response.finish_reasons"] == ("error",)
    assert failed.attributes["error.type"] == "ArithmeticError"
    assert failed.status.status_code is StatusCode.ERROR


def test_traces_are_off_unless_configured() -> None:
    settings = Settings(model_name="m")
    assert configured_traces(settings, None, {}, content=False) is None
    with pytest.raises(InvalidParameter, match="--trace-content"):
        configured_traces(settings, None, {}, content=True)
    on = configured_traces(settings, None, {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}, content=True)
    assert on is not None
    assert on.content
    on.close()


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"log_interval": -1.0}, "log_interval"),
        ({"log_interval": float("nan")}, "log_interval"),
        ({"route_header": "no header"}, "route_header"),
        ({"route_header": ""}, "route_header"),
        ({"max_routes": -1}, "max_routes"),
    ],
)
def test_settings_are_checked(settings: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidParameter, match=named):
        Settings(model_name="m", **settings)
