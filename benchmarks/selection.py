"""Asking a result's rows: speeds, speedups and comparisons by workload, way and group."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from statistics import median
from typing import Any

from benchmarks.results import Row, unpack
from benchmarks.stats import Speedup, Timed, speed, speedup
from headstart.control.cost import CostCurve

Of = Callable[[Row], Timed]


def decoding(row: Row) -> Timed:
    return row.decoding


def whole(row: Row) -> Timed:
    return row.whole


class Selection:
    """A result, ready to be asked. Items that a way failed on are left out of its numbers and counted apart."""

    def __init__(self, result: Mapping[str, Any]) -> None:
        self.result = result
        self.rows = unpack(result)
        self.ways: dict[str, dict[str, Any]] = {way["name"]: way for way in result["ways"]}

    @cached_property
    def _by_place(self) -> dict[tuple[str, str], dict[tuple[str, str], Row]]:
        out: dict[tuple[str, str], dict[tuple[str, str], Row]] = {}
        for row in self.rows:
            out.setdefault((row.workload, row.way), {})[row.group, row.item] = row
        return out

    def workloads(self, kind: str) -> list[dict[str, Any]]:
        """Workloads of a kind that have rows."""
        present = {row.workload for row in self.rows}
        return [w for w in self.result["workloads"] if w["kind"] == kind and w["name"] in present]

    def ways_in(self, workload: str) -> list[str]:
        return [way for way in self.ways if (workload, way) in self._by_place]

    def groups(self, workload: str) -> list[str]:
        return list(dict.fromkeys(row.group for row in self.rows if row.workload == workload))

    def of(self, workload: str, way: str, group: str | None = None) -> list[Row]:
        """Rows without an error."""
        rows = self._by_place.get((workload, way), {}).values()
        return [row for row in rows if row.error is None and group in (None, row.group)]

    def errors(self, workload: str, way: str) -> list[str]:
        rows = self._by_place.get((workload, way), {}).values()
        return [row.error for row in rows if row.error is not None]

    def speed(self, workload: str, way: str, group: str | None = None, of: Of = decoding) -> float | None:
        """Tokens per second."""
        return speed([of(row) for row in self.of(workload, way, group)])

    def speedup(
        self, workload: str, way: str, base: str, group: str | None = None, of: Of = decoding
    ) -> Speedup | None:
        """Of ``way`` over ``base`` on the items that both decoded."""
        against = {(r.group, r.item): r for r in self.of(workload, base, group)}
        return speedup(
            [
                (of(row), of(against[row.group, row.item]))
                for row in self.of(workload, way, group)
                if (row.group, row.item) in against
            ]
        )

    def first_seconds(self, workload: str, way: str, group: str | None = None) -> float | None:
        """Median time to the first token."""
        rows = self.of(workload, way, group)
        return median(row.first_seconds for row in rows) if rows else None

    def total(self, workload: str, way: str, name: str) -> int | None:
        """Sum of a count over all rows; ``None`` where the way does not tell."""
        values = [getattr(row, name) for row in self.of(workload, way)]
        return sum(values) if values and None not in values else None

    def identical(self, workload: str, way: str) -> tuple[int, int] | None:
        """How many outputs equal the way's own plain, of how many compared."""
        told = [row.identical for row in self.of(workload, way) if row.identical is not None]
        return (sum(told), len(told)) if told else None

    def curve(self, way: str) -> CostCurve | None:
        """The cost curve that the way's process calibrated when it started."""
        info = self.result["processes"].get(self.ways[way]["process"], {})
        return CostCurve.from_dict(info["curve"]) if "curve" in info else None

    def best(self, workload: str, ways: list[str], of: Of = decoding) -> str | None:
        """The fastest of ``ways``."""
        told = {way: self.speed(workload, way, of=of) for way in ways}
        known = {way: value for way, value in told.items() if value is not None}
        return max(known, key=lambda way: known[way]) if known else None
