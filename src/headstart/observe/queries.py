"""PromQL over headstart's metrics, in pieces that the rules and the dashboard share. Knows names and strings only."""

from __future__ import annotations

from collections.abc import Sequence

from headstart.observe.names import Metric

INSTANCE = ("job", "instance", "model_name")
"""Labels that tell servers apart."""


def series(metric: Metric | str, selector: str = "") -> str:
    """A metric with a selector in braces."""
    name = metric if isinstance(metric, str) else metric.name
    return f"{name}{{{selector}}}" if selector else name


def rate(metric: Metric | str, by: Sequence[str], window: str, selector: str = "") -> str:
    """Increase per second, summed."""
    return f"sum by ({', '.join(by)}) (rate({series(metric, selector)}[{window}]))"


def ratio(
    over: Metric | str, under: Metric | str, by: Sequence[str], window: str, selector: str = "", *, plus: str = ""
) -> str:
    """Quotient of two rates; no result, rather than a division by zero, where nothing happens."""
    return f"{plus}{rate(over, by, window, selector)} / ({rate(under, by, window, selector)} > 0)"


def quantile(q: float, metric: Metric, by: Sequence[str], window: str, selector: str = "") -> str:
    """Of a histogram."""
    return f"histogram_quantile({q}, {rate(metric.name + '_bucket', (*by, 'le'), window, selector)})"


def mean(metric: Metric, by: Sequence[str], window: str, selector: str = "") -> str:
    """Of a histogram."""
    return ratio(f"{metric.name}_sum", f"{metric.name}_count", by, window, selector)
