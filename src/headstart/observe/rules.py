"""Prometheus rules: recording rules that bring every engine to the same series, and alerts on them.

Written out as YAML by hand, since the comments are for whoever adapts them.
"""

from __future__ import annotations

from dataclasses import dataclass

from headstart.observe.names import (
    ACCEPTED,
    DRAFT_TOKENS,
    DRAFTER,
    DRAFTS,
    EMITTED,
    FAILURES,
    FALLBACKS,
    FINISHED,
    KV_CAPACITY,
    KV_USED,
    OBSERVER_ERRORS,
    REASON,
    ROUNDS,
    WAITING,
)
from headstart.observe.queries import INSTANCE, rate, ratio, series

RATE = "spec_decode:acceptance_rate:rate5m"
LENGTH = "spec_decode:mean_acceptance_length:rate5m"


def _foreign(prefix: str) -> tuple[str, str]:
    """Rate and length from counters named like vLLM's."""
    accepted = f"{prefix}:spec_decode_num_accepted_tokens_total"
    return (
        ratio(accepted, f"{prefix}:spec_decode_num_draft_tokens_total", INSTANCE, "5m"),
        ratio(accepted, f"{prefix}:spec_decode_num_drafts_total", INSTANCE, "5m", plus="1 + "),
    )


def recordings() -> list[tuple[str, str, str]]:
    """Name, engine and expression of each recording rule."""
    drafting = f'{DRAFTER}!="none"'  # requests that asked for plain decoding say nothing about speculation
    own = (ratio(ACCEPTED, DRAFT_TOKENS, INSTANCE, "5m"), ratio(EMITTED, ROUNDS, INSTANCE, "5m", drafting))
    gauges = (
        f'avg by ({", ".join(INSTANCE)}) (sglang:spec_accept_rate{{engine_type!="draft"}})',
        f'avg by ({", ".join(INSTANCE)}) (sglang:spec_accept_length{{engine_type!="draft"}})',
    )
    engines = {
        "headstart": own,
        "vllm": _foreign("vllm"),
        "llamacpp": _foreign("llamacpp"),
        "sglang": gauges,
    }
    return [(name, engine, pair[i]) for i, name in enumerate((RATE, LENGTH)) for engine, pair in engines.items()]


@dataclass(frozen=True, slots=True)
class Alert:
    """``expression`` true for ``lasting`` raises it."""

    name: str
    expression: str
    lasting: str
    severity: str
    summary: str


_WANTED = f'{REASON}!="not wanted"'
_FAILED = 'finish_reason="error"'
_FAILING = f"sum by ({', '.join((*INSTANCE, DRAFTER, REASON))}) (increase({series(FAILURES)}[15m])) > 0"

ALERTS: tuple[Alert, ...] = (
    Alert(
        "SpeculationAcceptanceLow",
        f"{RATE} < 0.4",
        "15m",
        "warning",
        "Acceptance on {{ $labels.instance }} is {{ $value | humanizePercentage }}: drafting costs more than it brings "
        "in most settings. headstart drafts less by itself; elsewhere turn speculation off or change the drafter.",
    ),
    Alert(
        "SpeculationBelowBreakEven",
        f"{LENGTH} < 1.2",
        "15m",
        "warning",
        "{{ $labels.instance }} emits {{ $value | humanize }} tokens per round. Set the threshold to the break-even "
        "length of your machine.",
    ),
    Alert(
        "SpeculationIdle",
        f"{rate(FALLBACKS, INSTANCE, '15m', _WANTED)} > 0\nunless {rate(DRAFTS, INSTANCE, '15m')} > 0",
        "15m",
        "info",
        "{{ $labels.instance }} decodes plain for every request that wanted drafts; the reasons are in "
        f"{FALLBACKS.name}.",
    ),
    Alert(
        "DrafterFailing",
        _FAILING,
        "5m",
        "warning",
        "Drafter {{ $labels.drafter }} on {{ $labels.instance }} fails ({{ $labels.reason }}). Text is not affected; "
        "speed is.",
    ),
    Alert(
        "HeadstartDown",
        'up{job="headstart"} == 0 or absent(up{job="headstart"})',
        "5m",
        "critical",
        "No metrics from {{ $labels.instance }}. The rule expects the scrape job to be called headstart.",
    ),
    Alert(
        "HeadstartMemoryTight",
        f"{series(KV_USED)} / {series(KV_CAPACITY)} > 0.95 and {series(WAITING)} > 0",
        "15m",
        "warning",
        "The KV pool of {{ $labels.instance }} is full and requests wait. Give it more, or shorten the context.",
    ),
    Alert(
        "HeadstartRequestsFail",
        f"{rate(FINISHED, INSTANCE, '5m', _FAILED)} > 0",
        "5m",
        "critical",
        "Requests on {{ $labels.instance }} end with an error; its log has the traceback.",
    ),
    Alert(
        "HeadstartMetricsBroken",
        f"increase({series(OBSERVER_ERRORS)}[15m]) > 0",
        "0m",
        "warning",
        "The metrics of {{ $labels.instance }} are incomplete: counting raised. Decoding is not affected.",
    ),
)


def rules_yaml() -> str:
    """A rule file for Prometheus."""
    out = [
        "# Made by `python -m headstart.observe.generate`; thresholds are meant to be adapted in a copy.",
        "# The lengths of vLLM, llama.cpp and SGLang leave out rounds without a draft, headstart's has them.",
        "groups:",
        "  - name: speculation",
        "    rules:",
    ]
    for name, engine, expression in recordings():
        out += [f"      - record: {name}", f"        expr: {expression}", "        labels:"]
        out += [f"          engine_kind: {engine}"]
    out += ["  - name: speculation alerts", "    rules:"]
    for alert in ALERTS:
        out += [f"      - alert: {alert.name}", "        expr: |"]
        out += [f"          {line}" for line in alert.expression.splitlines()]
        out += [f"        for: {alert.lasting}", "        labels:", f"          severity: {alert.severity}"]
        out += ["        annotations:", f"          summary: {_quoted(alert.summary)}"]
    return "\n".join(out) + "\n"


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
