"""Meters and their page: right and consistent under threads, parsed in both formats, apart from other servers'."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator

import pytest
from prometheus_client import REGISTRY
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from headstart.observe import names
from headstart.observe.meters import Meters
from headstart.observe.names import METRICS, label_names
from headstart.observe.prometheus import exposition, make_registry

OPENMETRICS = "application/openmetrics-text; version=1.0.0"


def filled(*, routes: bool = False) -> Meters:
    """Every family with one series."""
    meters = Meters("m", routes=routes)
    with meters:
        for metric in METRICS:
            labels = tuple(f"{name}-1" for name in label_names(metric, routes)[1:])
            if metric.kind == "counter":
                meters.add(metric, labels, 3)
            elif metric.kind == "histogram":
                for value in (metric.buckets[0], metric.buckets[1], 1e9):
                    meters.observe(metric, labels, value)
    meters.pull({metric: lambda: 7.0 for metric in METRICS if metric.kind == "gauge"})
    return meters


@pytest.mark.parametrize("routes", [False, True])
def test_the_text_format_parses_and_has_every_family(routes: bool) -> None:
    body, content_type = exposition(make_registry(filled(routes=routes)))
    assert content_type.startswith("text/plain")
    families = {family.name: family for family in parse_text(body.decode())}
    assert set(families) == {metric.name.removesuffix("_total") for metric in METRICS}
    for metric in METRICS:
        family = families[metric.name.removesuffix("_total")]
        assert family.type == metric.kind
        assert family.documentation == metric.help
        samples = {(s.name, s.labels.get("le")): s for s in family.samples}
        names_of = set(label_names(metric, routes))
        assert all(set(s.labels) - {"le"} == names_of and s.labels["model_name"] == "m" for s in samples.values())
        if metric.kind == "histogram":
            counts = [samples[f"{metric.name}_bucket", str(bound)].value for bound in metric.buckets]
            assert counts == [1.0] + [2.0] * (len(metric.buckets) - 1)  # a bound belongs to its own bucket
            assert samples[f"{metric.name}_bucket", "+Inf"].value == samples[f"{metric.name}_count", None].value == 3
            assert math.isclose(samples[f"{metric.name}_sum", None].value, sum(metric.buckets[:2]) + 1e9)
        else:
            assert samples[metric.name, None].value == (3 if metric.kind == "counter" else 7)


def test_openmetrics_parses() -> None:
    body, content_type = exposition(make_registry(filled()), OPENMETRICS)
    assert content_type.startswith("application/openmetrics-text")
    families = {family.name for family in parse_openmetrics(body.decode())}
    assert families == {metric.name.removesuffix("_total") for metric in METRICS}


def test_values_from_outside_are_escaped() -> None:
    meters = Meters('odd "model"\\\n')
    with meters:
        meters.add(names.DRAFTS, ('a"b',))
    body, _ = exposition(make_registry(meters))
    [sample] = [s for f in parse_text(body.decode()) for s in f.samples if s.name == names.DRAFTS.name]
    assert sample.labels == {"model_name": 'odd "model"\\\n', "drafter": 'a"b'}


def test_servers_in_one_process_do_not_meet() -> None:
    one, two = Meters("one"), Meters("two")
    first, second = make_registry(one), make_registry(two)
    with one:
        one.add(names.DRAFTS, ("ngram",), 5)
    assert b'model_name="one"' in exposition(first)[0]
    assert b"model_name" not in exposition(second)[0]
    assert not [f.name for f in REGISTRY.collect() if f.name.startswith("headstart")]


def test_no_addition_is_lost_and_no_event_is_seen_by_half() -> None:
    meters = Meters("m")
    torn: list[tuple[float, float]] = []
    over = threading.Event()

    def add() -> None:
        for _ in range(2000):
            with meters:
                meters.add(names.DRAFT_TOKENS, ("d",), 4)
                meters.add(names.ACCEPTED, ("d",), 2)

    def look() -> None:
        while not over.is_set():
            snapshot = meters.snapshot()
            pair = snapshot.total(names.DRAFT_TOKENS), snapshot.total(names.ACCEPTED)
            if pair[0] != 2 * pair[1]:
                torn.append(pair)

    reader = threading.Thread(target=look)
    writers = [threading.Thread(target=add) for _ in range(4)]
    for thread in (reader, *writers):
        thread.start()
    for thread in writers:
        thread.join()
    over.set()
    reader.join()
    assert not torn
    assert meters.snapshot().total(names.DRAFT_TOKENS) == 4 * 2000 * 4


def test_sums_by_one_label() -> None:
    meters = Meters("m", routes=True)

    def labels() -> Iterator[tuple[str, str, str]]:
        yield from (("a", "0", "x"), ("a", "1", "x"), ("b", "0", "y"))

    with meters:
        for count, label in enumerate(labels(), start=1):
            meters.add(names.ACCEPTED_AT, label, count)
    snapshot = meters.snapshot()
    assert snapshot.by(names.ACCEPTED_AT, "drafter") == {"a": 3, "b": 3}
    assert snapshot.by(names.ACCEPTED_AT, "position") == {"0": 4, "1": 2}
    assert snapshot.total(names.ACCEPTED_AT) == 6
