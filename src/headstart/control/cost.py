"""What a forward call costs: measured seconds against rows in the call and keys they attend to.

A curve is calibrated once per model and machine and corrected while running. Knows seconds and counts; whoever measures
passes a function.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from statistics import mean, median
from typing import Any

GRID = (1, 2, 3, 4, 6, 8, 12, 16, 17, 24, 32, 33, 64)
"""Row counts that are measured; between them the curve is linear. 17 and 33: a matrix unit takes 16 rows at a time."""

HALF = GRID.index(GRID[-1] // 2)
"""Beyond the grid a curve goes on as it rose over its second half: its last step may be a flat one."""

SHORT, LONG = 64, 768
"""Context lengths measured: the difference gives the price of a key."""

REPEATS = (3, 15)
"""Fewest and most times the grid is measured."""

STEADY = 1.2
"""Median over smallest time, on average over the grid, beyond which something else was at work."""

FALL = 0.95
"""How much less than fewer rows more may seem to take: below that, something else was at work."""

IN_A_ROW = 3
ENOUGH, MOST = 2.5, 7.5
"""Seconds of measuring after which the fewest repeats will do, and after which there are no more however unsteady."""

DRIFT = 0.05
"""Weight of the newest observation in the running corrections."""

BEND = 0.02
"""The same for single row counts: slower, so that a machine that changes its pace is not taken for another shape."""

MOST_BENT = 2.0
"""How far one row count may drift from the measured shape."""


class CostCurve:
    """Seconds of one forward call.

    ``seconds[i]`` is the time of ``GRID[i]`` rows with hardly any context; ``per_key`` the time added by one key that
    one row attends to. Times are made non-decreasing in rows: a row more is never cheaper, noise is.
    """

    def __init__(self, seconds: Sequence[float], per_key: float) -> None:
        if len(seconds) != len(GRID):
            raise ValueError(f"{len(seconds)} times for {len(GRID)} row counts")
        self.seconds = _non_decreasing(seconds)
        self.per_key = max(0.0, per_key)
        self.steady = True
        """Whether nothing else seemed to be at work while it was measured."""
        self.scale = 1.0
        """Running ratio of observed to predicted time: the machine as it is now."""
        self._bent = {kind: [1.0] * len(GRID) for kind in (False, True)}
        """The same by row count, beyond ``scale``, of calls without and with drafts in them: when neighbours take
        arithmetic away, many rows suffer more than one, and drafting leaves other things in the caches."""
        self._now = {kind: list(self.seconds) for kind in (False, True)}
        """Seconds of the grid as they have bent, still never falling."""

    def predict(self, rows: int, keys: int, *, drafted: bool = False) -> float:
        """Seconds of a call with ``rows`` rows that attend to ``keys`` keys in all; whether drafts are among them."""
        return self.scale * (self._rows(rows, drafted) + self.per_key * keys)

    def observe(self, rows: int, keys: int, seconds: float, *, drafted: bool = False) -> None:
        """Correct the curve by one measured call. Outliers, such as a paused machine, count for little."""
        ratio = min(max(seconds / self.predict(rows, keys, drafted=drafted), 0.5), 2.0)
        self.scale *= 1.0 + DRIFT * (ratio - 1.0)
        at, share = _between(rows)
        all_bent = self._bent[drafted]
        for i, weight in ((at, 1.0 - share), (at + 1, share)):
            bent = all_bent[i] * (1.0 + BEND * min(max(weight, 0.0), 1.0) * (ratio - 1.0))
            all_bent[i] = min(max(bent, 1.0 / MOST_BENT), MOST_BENT)
        self._now[drafted] = list(accumulate((t * b for t, b in zip(self.seconds, all_bent, strict=True)), max))

    def _rows(self, rows: int, drafted: bool) -> float:
        if rows > GRID[-1]:
            half, whole = self._now[drafted][HALF], self._now[drafted][-1]
            return whole + (whole - half) * (rows - GRID[-1]) / (GRID[-1] - GRID[HALF])
        at, share = _between(rows)
        low, high = self._now[drafted][at], self._now[drafted][at + 1]
        return low + (high - low) * max(share, 0.0)

    def as_dict(self) -> dict[str, Any]:
        return {"grid": list(GRID), "seconds": self.seconds, "per_key": self.per_key}

    @classmethod
    def from_dict(cls, saved: dict[str, Any]) -> CostCurve:
        """Raises ``ValueError`` or ``KeyError`` for a curve over another grid."""
        if tuple(saved["grid"]) != GRID:
            raise ValueError("another grid")
        return cls([float(s) for s in saved["seconds"]], float(saved["per_key"]))


def _between(rows: int) -> tuple[int, float]:
    """The grid point below, and how far towards the next; beyond the last, more than all the way."""
    at = min(max(bisect_right(GRID, rows) - 1, 0), len(GRID) - 2)
    return at, (rows - GRID[at]) / (GRID[at + 1] - GRID[at])


def _non_decreasing(times: Sequence[float]) -> list[float]:
    """The nearest times in the mean square that never fall: neighbours that do share their mean (Ayer et al. 1955)."""
    pools: list[list[float]] = []
    for time in times:
        pools.append([time])
        while len(pools) > 1 and mean(pools[-2]) > mean(pools[-1]):
            pools[-2:] = [pools[-2] + pools[-1]]
    return [mean(pool) for pool in pools for _ in pool]


def _steady(times: Mapping[int, Sequence[float]]) -> bool:
    usual = [median(of) for of in times.values()]
    rises = all(time > FALL * most for time, most in zip(usual, accumulate(usual, max), strict=True))
    return rises and mean(median(of) / min(of) for of in times.values()) < STEADY


def calibrate(measure: Callable[[int, int], float], longest: int) -> CostCurve:
    """A curve from ``measure(rows, context) -> seconds``; ``longest`` bounds rows plus context.

    ``measure`` is called a few times in a row, and the last time counts: the caches are then as in decoding, where the
    last call was much the same. Repeats go over the whole grid in turn, and the median of each count is kept. The
    smallest would flatter many rows: a shared machine takes arithmetic away most of the time, and seldom memory.
    """
    grid = [rows for rows in GRID if rows + SHORT <= longest] or [1]
    many = min(8, grid[-1])
    times: dict[int, list[float]] = {rows: [] for rows in grid}
    spent = 0.0

    def settled(rows: int, context: int) -> float:
        nonlocal spent
        seconds = [measure(rows, context) for _ in range(IN_A_ROW)]
        spent += sum(seconds)
        return seconds[-1]

    longer: list[float] = []  # what a longer context adds, each beside its short one: machines drift meanwhile
    for done in range(REPEATS[1]):
        if done >= REPEATS[0] and (spent > MOST or (spent > ENOUGH and _steady(times))):
            break
        for rows in grid:
            times[rows].append(settled(rows, SHORT))
            if rows == many and rows + LONG <= longest:
                longer.append(settled(rows, LONG) - times[rows][-1])
    seconds = [median(times[rows]) for rows in grid]
    while len(seconds) < len(GRID):  # beyond what fits: as steep as the last step
        step = seconds[-1] - seconds[-2] if len(seconds) > 1 else 0.0
        seconds.append(seconds[-1] + step)
    per_key = median(longer) / (many * (LONG - SHORT)) if longer else 0.0
    curve = CostCurve(seconds, per_key)
    curve.steady = _steady(times)
    return curve
