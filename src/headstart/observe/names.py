"""Every metric headstart exports: name, kind, labels, buckets, meaning. The only place that has them.

The documentation, the dashboard and the alert rules are made from this table. Names that end alike mean the same as
vLLM's ``vllm:spec_decode_…``. Knows nothing of how values come about or where they go.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["counter", "gauge", "histogram"]

MODEL, DRAFTER, ROUTE, POSITION, REASON = "model_name", "drafter", "route", "position", "reason"

MOST_POSITIONS = 32
"""Draft positions that have series of their own; deeper ones are in the totals only."""

SECONDS_TO_FIRST_TOKEN = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
)  # fmt: skip
SECONDS_PER_TOKEN = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
SECONDS_OF_REQUEST = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 640.0)
DEPTHS = (0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 12.0, 16.0, 32.0)
SHARES = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)


@dataclass(frozen=True, slots=True, eq=False)
class Metric:
    """One family. ``labels`` come after ``model_name``, which every family has; ``routed`` families also have
    ``route``, last, on servers that know routes. ``buckets`` are a histogram's upper bounds, without infinity."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    routed: bool = False
    buckets: tuple[float, ...] = ()


METRICS: list[Metric] = []
"""All families, in order."""


def _add(metric: Metric) -> Metric:
    METRICS.append(metric)
    return metric


def _counter(name: str, help: str, *labels: str, routed: bool = False) -> Metric:
    return _add(Metric(f"headstart_{name}_total", "counter", help, labels, routed))


def _gauge(name: str, help: str) -> Metric:
    return _add(Metric(f"headstart_{name}", "gauge", help))


def _histogram(name: str, help: str, buckets: tuple[float, ...]) -> Metric:
    return _add(Metric(f"headstart_{name}", "histogram", help, (DRAFTER,), True, buckets))


# A "round" of the families below is one sequence's part in one, as in SpecRecord.

DRAFTS = _counter("spec_decode_num_drafts", "Rounds with a draft.", DRAFTER, routed=True)
DRAFT_TOKENS = _counter("spec_decode_num_draft_tokens", "Draft tokens verified.", DRAFTER, routed=True)
ACCEPTED = _counter("spec_decode_num_accepted_tokens", "Draft tokens accepted and handed out.", DRAFTER, routed=True)
ACCEPTED_AT = _counter(
    "spec_decode_num_accepted_tokens_per_pos",
    f"Draft tokens accepted at each position of the draft, from 0 (the first {MOST_POSITIONS} positions).",
    DRAFTER,
    POSITION,
    routed=True,
)
DRAFTS_AT = _counter(
    "spec_decode_num_drafts_per_pos",
    "Rounds whose draft reached each position: the denominator of acceptance by position where depth varies.",
    DRAFTER,
    POSITION,
    routed=True,
)
ROUNDS = _counter(
    "spec_decode_rounds",
    "Rounds with a draft (kind drafted) and without (kind plain); the denominator of mean acceptance length.",
    DRAFTER,
    "kind",
    routed=True,
)
EMITTED = _counter("spec_decode_num_emitted_tokens", "Tokens emitted by rounds.", DRAFTER, routed=True)
POSSIBLE = _counter(
    "spec_decode_num_possible_tokens",
    "Tokens that rounds could have emitted at the depth allowed: the denominator of system efficiency.",
    DRAFTER,
    routed=True,
)
FALLBACKS = _counter(
    "spec_decode_fallbacks",
    'Rounds without a draft, by reason; "not wanted" are requests that asked for none.',
    DRAFTER,
    REASON,
    routed=True,
)
DEPTH = _histogram("spec_decode_depth", "Depth of the draft verified in a round; 0 is none.", DEPTHS)
REQUEST_ACCEPTANCE = _histogram(
    "spec_decode_request_acceptance_rate",
    "Acceptance rate of each finished sequence that drafted at all.",
    SHARES,
)
FAILURES = _counter(
    "drafter_failures", "Times a drafter raised or proposed nonsense; decoding went on without it.", DRAFTER, REASON
)

PROMPT_TOKENS = _counter("prompt_tokens", "Prompt tokens of requests that got a first token.", DRAFTER, routed=True)
GENERATION_TOKENS = _counter(
    "generation_tokens", "Tokens emitted, the first one of each sequence included.", DRAFTER, routed=True
)
FINISHED = _counter("requests_finished", "Sequences ended, by reason.", DRAFTER, "finish_reason", routed=True)
RESPONSES = _counter("http_responses", "HTTP responses by status code.", "code", routed=True)

TTFT = _histogram(
    "time_to_first_token_seconds", "Seconds from submission to a request's first token.", SECONDS_TO_FIRST_TOKEN
)
TPOT = _histogram(
    "time_per_output_token_seconds",
    "Seconds per token after the first, of finished requests (cancelled and failed ones left out).",
    SECONDS_PER_TOKEN,
)
CHUNK_GAP = _histogram(
    "chunk_gap_seconds",
    "Seconds between two chunks of a sequence. A chunk may hold several tokens: this is not time per token.",
    SECONDS_PER_TOKEN,
)
QUEUE_TIME = _histogram(
    "queue_time_seconds",
    "Seconds from submission until a request's first sequence was admitted.",
    SECONDS_TO_FIRST_TOKEN,
)
DURATION = _histogram(
    "request_duration_seconds",
    "Seconds from submission to the end of finished requests (cancelled and failed ones left out).",
    SECONDS_OF_REQUEST,
)

RUNNING = _gauge("sequences_running", "Sequences being decoded or prefilled.")
WAITING = _gauge("sequences_waiting", "Sequences that wait for a place or for KV slots.")
KV_USED = _gauge("kv_slots_used", "Slots of the KV pool reserved by running sequences.")
KV_CACHED = _gauge("kv_slots_cached", "Slots kept for the prefix cache; they are given up when their room is needed.")
KV_CAPACITY = _gauge("kv_slots_capacity", "Slots of the KV pool.")
PREFIX_QUERIES = _counter("prefix_cache_queries", "Prompt tokens looked up in the prefix cache.")
PREFIX_HITS = _counter("prefix_cache_hits", "Prompt tokens found there, and not computed again.")
PREFIX_EVICTIONS = _counter("prefix_cache_evictions", "Kept sequences that made room for others.")
STEPS = _counter("engine_rounds", "Rounds of the engine: forward calls of the target for all sequences together.")
ROWS = _counter("engine_rows", "Rows of those calls: prompt, last and draft tokens.")
STEP_SECONDS = _counter("engine_seconds", "Seconds spent in rounds, by part: draft, forward, verify, rest.", "part")
OBSERVER_ERRORS = _counter("observer_errors", "Times the collection of these metrics raised; 0 unless it has a bug.")


def label_names(metric: Metric, routes: bool) -> tuple[str, ...]:
    """All labels of a family, in order; ``routes`` says whether the server knows routes."""
    return (MODEL, *metric.labels, *((ROUTE,) if routes and metric.routed else ()))
