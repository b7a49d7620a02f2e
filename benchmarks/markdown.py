"""Markdown tables whose source lines up too, and numbers as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.stats import Speedup

NONE = "–"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table; the first column is text, the others are numbers."""
    lines = [list(head), ["---", *["---:"] * (len(head) - 1)], *[list(row) for row in rows]]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def measured_on(machine: Mapping[str, Any]) -> str:
    """The line that says where and when, of what ``benchmarks.machine`` tells."""
    where = f"{machine['processor']}, {machine['cores']} cores"
    return f"- Machine: {where}; {machine['date']}; load before: {machine['load']}"


def number(value: float | None, digits: int = 1) -> str:
    return NONE if value is None else f"{value:.{digits}f}"


def ratio(value: Speedup | None) -> str:
    """``1.31 (1.22–1.51)``: the ratio of sums and its interval."""
    return NONE if value is None else f"{value.ratio:.2f} ({value.low:.2f}–{value.high:.2f})"


def share(part: int | None, whole: int | None) -> str:
    return NONE if part is None or not whole else f"{part / whole:.0%}"
