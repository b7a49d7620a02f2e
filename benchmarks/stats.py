"""Sums, pairs and intervals over what was measured. Numbers in, numbers out.

Speed is the sum of tokens over the sum of seconds. A speedup compares the same items on two ways; its interval is a
percentile bootstrap over items (Efron 1979), since prompts are what a reader would draw anew.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

ROUNDS = 2000


def cut_at_eos(ids: Sequence[int], eos: Sequence[int]) -> list[int]:
    """``ids`` up to and including the first end-of-sequence token."""
    stop = next((i + 1 for i, token in enumerate(ids) if token in eos), len(ids))
    return list(ids[:stop])


@dataclass(frozen=True)
class Timed:
    """Tokens that took a time."""

    tokens: int
    seconds: float


def speed(runs: Sequence[Timed]) -> float | None:
    """Tokens per second over all runs; ``None`` where no time passed."""
    seconds = sum(run.seconds for run in runs)
    return sum(run.tokens for run in runs) / seconds if seconds > 0 else None


@dataclass(frozen=True)
class Speedup:
    """``ratio`` of the summed speeds, its 95 % interval, the median of the ratios of single items, and their number."""

    ratio: float
    low: float
    high: float
    median: float
    items: int


def speedup(pairs: Sequence[tuple[Timed, Timed]]) -> Speedup | None:
    """Of the first over the second of every pair. Pairs in which one side has no tokens or no time say nothing."""
    told = [(a, b) for a, b in pairs if min(a.tokens, b.tokens) > 0 and min(a.seconds, b.seconds) > 0]
    if not told:
        return None
    low, high = interval(told, _ratio)
    single = median(a.tokens / a.seconds * b.seconds / b.tokens for a, b in told)
    return Speedup(_ratio(told), low, high, single, len(told))


def _ratio(pairs: Sequence[tuple[Timed, Timed]]) -> float:
    top = sum(a.tokens for a, _ in pairs) / sum(a.seconds for a, _ in pairs)
    return top / (sum(b.tokens for _, b in pairs) / sum(b.seconds for _, b in pairs))


def interval(
    items: Sequence[tuple[Timed, Timed]], statistic: Callable[[Sequence[tuple[Timed, Timed]]], float]
) -> tuple[float, float]:
    """95 % percentile interval of ``statistic`` over resampled items; the same every time it is asked."""
    generator = random.Random(0)
    values = sorted(statistic(generator.choices(items, k=len(items))) for _ in range(ROUNDS))
    return values[int(0.025 * ROUNDS)], values[int(0.975 * ROUNDS)]
