"""A server's numbers in the formats Prometheus reads, from a registry of its own.

Never touches prometheus_client's global registry, so several servers in one process do not meet.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from headstart.observe.meters import Buckets, Meters, Snapshot
from headstart.observe.names import METRICS, Metric, label_names


class MetersCollector(Collector):
    """Shows ``Meters`` to a registry."""

    def __init__(self, meters: Meters) -> None:
        self._meters = meters

    def collect(self) -> Iterable[Family]:
        snapshot = self._meters.snapshot()
        for metric in METRICS:
            names = label_names(metric, self._meters.routes)
            if metric.kind == "histogram":
                yield self._histogram(metric, names, snapshot)
            else:
                make = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
                family = make(metric.name, metric.help, labels=names)
                for labels, value in snapshot.values.get(metric, {}).items():
                    family.add_metric((self._meters.model, *labels), value)
                yield family

    def _histogram(self, metric: Metric, names: tuple[str, ...], snapshot: Snapshot) -> Family:
        family = HistogramMetricFamily(metric.name, metric.help, labels=names)
        for labels, buckets in snapshot.histograms.get(metric, {}).items():
            family.add_metric((self._meters.model, *labels), _cumulative(metric, buckets), buckets.sum)
        return family


def make_registry(meters: Meters) -> CollectorRegistry:
    """A registry with these meters alone."""
    registry = CollectorRegistry()
    registry.register(MetersCollector(meters))
    return registry


def exposition(registry: CollectorRegistry, accept: str = "") -> tuple[bytes, str]:
    """Body and content type of a scrape, in the format that the ``Accept`` header asks for."""
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type


def _cumulative(metric: Metric, buckets: Buckets) -> list[tuple[str, float]]:
    bounds = [*map(str, metric.buckets), "+Inf"]
    return list(zip(bounds, accumulate(buckets.counts), strict=True))
