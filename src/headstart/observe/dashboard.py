"""A Grafana dashboard of headstart's metrics, as the JSON that Grafana imports. Each panel is an entry of a table."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from headstart.observe import names
from headstart.observe.names import DRAFTER, POSITION, REASON, Metric
from headstart.observe.queries import mean, quantile, rate, ratio, series

WINDOW = "$__rate_interval"
SERVER = 'model_name=~"$model", instance=~"$instance"'
SELECTED = f'{SERVER}, drafter=~"$drafter"'
WIDTH, HEIGHT, ACROSS = 8, 8, 3


@dataclass(frozen=True, slots=True)
class Panel:
    """One graph: ``queries`` are pairs of PromQL and legend, ``unit`` is Grafana's name for it."""

    title: str
    unit: str
    queries: Sequence[tuple[str, str]]
    about: str
    stacked: bool = False
    most: float | None = None


def _rates(metric: Metric, label: str, selector: str = SELECTED) -> list[tuple[str, str]]:
    return [(rate(metric, (label,), WINDOW, selector), f"{{{{{label}}}}}")]


def _quotient(over: Metric, under: Metric, label: str, selector: str = SELECTED) -> list[tuple[str, str]]:
    return [(ratio(over, under, (label,), WINDOW, selector), f"{{{{{label}}}}}")]


def _quantiles(metric: Metric) -> list[tuple[str, str]]:
    return [
        (quantile(q, metric, (DRAFTER,), WINDOW, SELECTED), f"{{{{{DRAFTER}}}}} p{q * 100:.0f}") for q in (0.5, 0.95)
    ]


SECTIONS: tuple[tuple[str, tuple[Panel, ...]], ...] = (
    (
        "Speculation",
        (
            Panel(
                "Mean acceptance length",
                "none",
                _quotient(names.EMITTED, names.ROUNDS, DRAFTER),
                "Tokens per round, rounds without a draft included; plain decoding is 1.",
            ),
            Panel(
                "Acceptance rate",
                "percentunit",
                _quotient(names.ACCEPTED, names.DRAFT_TOKENS, DRAFTER),
                "Accepted over drafted tokens.",
                most=1.0,
            ),
            Panel(
                "System efficiency",
                "percentunit",
                _quotient(names.EMITTED, names.POSSIBLE, DRAFTER),
                "Tokens emitted over the most that the allowed depth could have emitted.",
                most=1.0,
            ),
            Panel(
                "Acceptance by position",
                "percentunit",
                _quotient(names.ACCEPTED_AT, names.DRAFTS_AT, POSITION),
                "Of the drafts that reached a position, the share accepted there.",
                most=1.0,
            ),
            Panel(
                "Depth",
                "none",
                [(mean(names.DEPTH, (DRAFTER,), WINDOW, SELECTED), f"{{{{{DRAFTER}}}}}")],
                "Mean depth of the drafts verified; rounds without one count as 0.",
            ),
            Panel(
                "Why no draft",
                "ops",
                _rates(names.FALLBACKS, REASON),
                "Rounds per second without a draft, by reason.",
                stacked=True,
            ),
        ),
    ),
    (
        "Speed",
        (
            Panel("Tokens", "ops", _rates(names.GENERATION_TOKENS, DRAFTER), "Tokens per second.", stacked=True),
            Panel("Time to first token", "s", _quantiles(names.TTFT), "From submission."),
            Panel("Time per output token", "s", _quantiles(names.TPOT), "Of finished requests, after the first token."),
            Panel("Queue time", "s", _quantiles(names.QUEUE_TIME), "From submission to admission."),
            Panel("Request duration", "s", _quantiles(names.DURATION), "From submission to the last token."),
            Panel(
                "Where rounds spend their time",
                "percentunit",
                [(rate(names.STEP_SECONDS, ("part",), WINDOW, SERVER), "{{part}}")],
                "Seconds per second.",
                stacked=True,
            ),
        ),
    ),
    (
        "Load",
        (
            Panel(
                "Sequences",
                "none",
                [(series(names.RUNNING, SERVER), "running"), (series(names.WAITING, SERVER), "waiting")],
                "Running and waiting.",
            ),
            Panel(
                "KV pool",
                "percentunit",
                [
                    (f"{series(names.KV_USED, SERVER)} / {series(names.KV_CAPACITY, SERVER)}", "used"),
                    (f"{series(names.KV_CACHED, SERVER)} / {series(names.KV_CAPACITY, SERVER)}", "cached"),
                ],
                "Share of slots in use, and kept for the prefix cache.",
                stacked=True,
                most=1.0,
            ),
            Panel(
                "Prefix cache",
                "percentunit",
                [(ratio(names.PREFIX_HITS, names.PREFIX_QUERIES, ("instance",), WINDOW, SERVER), "{{instance}}")],
                "Share of prompt tokens that were found and not computed again.",
                most=1.0,
            ),
            Panel(
                "Rows per round",
                "none",
                [(ratio(names.ROWS, names.STEPS, ("instance",), WINDOW, SERVER), "{{instance}}")],
                "Prompt, last and draft tokens of one forward call.",
            ),
            Panel("Requests ended", "ops", _rates(names.FINISHED, "finish_reason"), "Sequences per second, by reason."),
            Panel("HTTP responses", "ops", _rates(names.RESPONSES, "code", SERVER), "Per second, by status code."),
            Panel(
                "Drafter failures",
                "ops",
                [(rate(names.FAILURES, (DRAFTER, REASON), WINDOW, SELECTED), "{{drafter}}: {{reason}}")],
                "Drafts lost to errors; should be none.",
            ),
        ),
    ),
)


def dashboard_json() -> str:
    """The dashboard, for Grafana's import."""
    panels: list[dict[str, Any]] = []
    y = 0
    for section, members in SECTIONS:
        panels.append(_row(section, y, len(panels) + 1))
        y += 1
        for i, panel in enumerate(members):
            place = {"x": i % ACROSS * WIDTH, "y": y + i // ACROSS * HEIGHT, "w": WIDTH, "h": HEIGHT}
            panels.append(_graph(panel, place, len(panels) + 1))
        y += -(-len(members) // ACROSS) * HEIGHT
    return (
        json.dumps(
            {
                "title": "headstart",
                "uid": "headstart",
                "description": "Made by `python -m headstart.observe.generate`.",
                "tags": ["headstart", "speculative decoding"],
                "schemaVersion": 39,
                "editable": True,
                "refresh": "10s",
                "time": {"from": "now-1h", "to": "now"},
                "templating": {"list": _variables()},
                "panels": panels,
            },
            indent=1,
        )
        + "\n"
    )


def _variables() -> list[dict[str, Any]]:
    source = {"name": "source", "label": "Data source", "type": "datasource", "query": "prometheus"}
    metrics = {"model": "model_name", "instance": "instance", "drafter": DRAFTER}
    return [source] + [
        {
            "name": name,
            "label": name.capitalize(),
            "type": "query",
            "datasource": _SOURCE,
            "query": f"label_values({names.ROUNDS.name}, {label})",
            "refresh": 2,
            "multi": True,
            "includeAll": True,
            "allValue": ".*",
            "current": {"text": "All", "value": "$__all"},
        }
        for name, label in metrics.items()
    ]


_SOURCE = {"type": "prometheus", "uid": "${source}"}


def _row(title: str, y: int, number: int) -> dict[str, Any]:
    place = {"x": 0, "y": y, "w": WIDTH * ACROSS, "h": 1}
    return {"id": number, "type": "row", "title": title, "collapsed": False, "panels": [], "gridPos": place}


def _graph(panel: Panel, place: dict[str, int], number: int) -> dict[str, Any]:
    custom: dict[str, Any] = {"fillOpacity": 20 if panel.stacked else 0}
    if panel.stacked:
        custom["stacking"] = {"mode": "normal", "group": "A"}
    defaults: dict[str, Any] = {"unit": panel.unit, "min": 0, "custom": custom}
    if panel.most is not None:
        defaults["max"] = panel.most
    return {
        "id": number,
        "type": "timeseries",
        "title": panel.title,
        "description": panel.about,
        "datasource": _SOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
        "targets": [
            {"refId": chr(ord("A") + i), "datasource": _SOURCE, "expr": query, "legendFormat": legend}
            for i, (query, legend) in enumerate(panel.queries)
        ],
    }
