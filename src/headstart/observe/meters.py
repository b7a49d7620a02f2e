"""Counters and histograms of one server, as plain numbers under one lock.

Everything that one event adds becomes visible at once, so ratios of counters read together are right. Two servers in
one process have a ``Meters`` each. Knows the table of names; not who adds, nor the format it is shown in.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from headstart.observe.names import METRICS, Metric

Labels = tuple[str, ...]
"""Values of a metric's labels after ``model_name``, in order; the route last, where there is one."""


@dataclass(slots=True)
class Cell:
    """One series of a counter."""

    value: float = 0


@dataclass(slots=True)
class Buckets:
    """One series of a histogram: ``counts[i]`` values above bound ``i - 1`` and up to bound ``i``, the last without
    bound."""

    bounds: tuple[float, ...]
    counts: list[int]
    sum: float = 0.0

    def observe(self, value: float) -> None:
        """Add a value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    @property
    def total(self) -> int:
        return sum(self.counts)


@dataclass(slots=True)
class Snapshot:
    """All values at one moment."""

    values: dict[Metric, dict[Labels, float]] = field(default_factory=dict)
    histograms: dict[Metric, dict[Labels, Buckets]] = field(default_factory=dict)

    def by(self, metric: Metric, label: str) -> Counter[str]:
        """A counter's values summed over all labels but one."""
        at = metric.labels.index(label)
        out: Counter[str] = Counter()
        for labels, value in self.values.get(metric, {}).items():
            out[labels[at]] += value  # type: ignore[assignment]
        return out

    def total(self, metric: Metric) -> float:
        """A counter's or gauge's sum over all labels."""
        return sum(self.values.get(metric, {}).values())


class Meters:
    """Where a server counts.

    Args:
        model: value of the label ``model_name``.
        routes: whether families that are ``routed`` carry a route; labels must then end with it.

    Use it as a context manager around the additions of one event::

        with meters:
            meters.add(DRAFTS, ("ngram",), 1)

    Whoever adds to the same series all the time keeps its ``Cell`` or ``Buckets``, and changes it inside such a block.
    """

    def __init__(self, model: str, *, routes: bool = False) -> None:
        self.model = model
        self.routes = routes
        self._lock = threading.Lock()
        self._counters: dict[Metric, dict[Labels, Cell]] = {m: {} for m in METRICS if m.kind == "counter"}
        self._histograms: dict[Metric, dict[Labels, Buckets]] = {m: {} for m in METRICS if m.kind == "histogram"}
        self._pulled: dict[Metric, Callable[[], float]] = {}

    def __enter__(self) -> Meters:
        self._lock.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def counter(self, metric: Metric, labels: Labels) -> Cell:
        """A counter's series; it is shown from now on."""
        family = self._counters[metric]
        if (cell := family.get(labels)) is None:
            cell = family[labels] = Cell()
        return cell

    def histogram(self, metric: Metric, labels: Labels) -> Buckets:
        """A histogram's series; it is shown from now on."""
        family = self._histograms[metric]
        if (buckets := family.get(labels)) is None:
            buckets = family[labels] = Buckets(metric.buckets, [0] * (len(metric.buckets) + 1))
        return buckets

    def add(self, metric: Metric, labels: Labels, value: float = 1) -> None:
        """Add to a counter."""
        self.counter(metric, labels).value += value

    def observe(self, metric: Metric, labels: Labels, value: float) -> None:
        """Add a value to a histogram."""
        self.histogram(metric, labels).observe(value)

    def pull(self, readers: Mapping[Metric, Callable[[], float]]) -> None:
        """Read these families, which have no labels of their own, when somebody looks."""
        self._pulled.update(readers)

    def snapshot(self) -> Snapshot:
        """A copy of all values."""
        pulled: dict[Metric, dict[Labels, float]] = {
            metric: {(): float(read())} for metric, read in self._pulled.items()
        }
        with self._lock:
            values = {
                metric: {labels: cell.value for labels, cell in family.items()}
                for metric, family in self._counters.items()
                if family
            }
            histograms = {
                metric: {labels: Buckets(b.bounds, list(b.counts), b.sum) for labels, b in family.items()}
                for metric, family in self._histograms.items()
                if family
            }
        return Snapshot({**values, **pulled}, histograms)
