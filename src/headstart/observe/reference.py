"""The reference of all metrics, as Markdown."""

from __future__ import annotations

from headstart.observe import names
from headstart.observe.names import METRICS, MODEL, ROUTE, Metric

GROUPS: tuple[tuple[str, Metric, str], ...] = (
    (
        "Speculation",
        names.DRAFTS,
        "A round is one sequence's part in a round here. Tokens behind a stop are in none of these counters, so they "
        "match the text that was delivered.",
    ),
    ("Requests", names.PROMPT_TOKENS, "A request with `n` answers counts `n` sequences."),
    ("Latency", names.TTFT, "Seconds, measured in the server; the network is not in them."),
    ("Engine", names.RUNNING, "One forward call carries all sequences."),
)
"""Heading, first metric and introduction of each group; a group goes up to the next."""


def reference_markdown() -> str:
    """All metrics in tables."""
    out = [
        "# Metrics",
        "",
        "<!-- Made by `python -m headstart.observe.generate`; change src/headstart/observe/names.py instead. -->",
        "",
        "What `/metrics` of `headstart serve` exports. How to use it: [observability.md](observability.md).",
        "",
        f"Every series has the label `{MODEL}`, the served name. Those marked *route* also have `{ROUTE}` when the "
        "server was told which header to take it from.",
    ]
    starts = {metric.name: (heading, introduction) for heading, metric, introduction in GROUPS}
    for metric in METRICS:
        if metric.name in starts:
            heading, introduction = starts[metric.name]
            out += ["", f"## {heading}", "", introduction, ""]
            out += ["| name | kind | labels | meaning |", "|---|---|---|---|"]
        labels = [f"`{label}`" for label in metric.labels] + ["*route*"] * metric.routed
        out.append(f"| `{metric.name}` | {metric.kind} | {', '.join(labels) or '–'} | {metric.help} |")
    out += ["", "## Buckets", "", "| histogram | upper bounds |", "|---|---|"]
    for metric in METRICS:
        if metric.kind == "histogram":
            out.append(f"| `{metric.name}` | {', '.join(f'{bound:g}' for bound in metric.buckets)}, +Inf |")
    return "\n".join(out) + "\n"
