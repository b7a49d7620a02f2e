"""One line in the log every so often: how speculation went since the last one. Says nothing while nothing happens.

Rates are over the interval, not since the start, and count rounds without a draft. Knows meters; not engines.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Mapping
from time import monotonic

from headstart.observe.meters import Meters, Snapshot
from headstart.observe.names import (
    ACCEPTED,
    DRAFT_TOKENS,
    DRAFTER,
    EMITTED,
    GENERATION_TOKENS,
    KV_CAPACITY,
    KV_USED,
    POSSIBLE,
    ROUNDS,
    RUNNING,
    WAITING,
    Metric,
)

log = logging.getLogger(__name__)

_COUNTED = (ACCEPTED, DRAFT_TOKENS, EMITTED, GENERATION_TOKENS, POSSIBLE, ROUNDS)


class IntervalLine:
    """Makes the line from what changed since it was last asked."""

    def __init__(self, meters: Meters, now: float) -> None:
        self._meters = meters
        self._then = now
        self._before = _by_drafter(meters.snapshot())

    def line(self, now: float) -> str | None:
        """The line for the time since the last call, ``now`` on the same clock; ``None`` if no token was emitted."""
        snapshot = self._meters.snapshot()
        after = _by_drafter(snapshot)
        change = {metric: after[metric] - self._before[metric] for metric in _COUNTED}
        seconds = now - self._then
        self._then, self._before = now, after
        tokens = sum(change[GENERATION_TOKENS].values())
        if not tokens:
            return None
        capacity = snapshot.total(KV_CAPACITY)
        parts = [
            _speculation({metric: sum(counts.values()) for metric, counts in change.items()}),
            f"{tokens / seconds:.1f} tok/s" if seconds > 0 else f"{tokens:.0f} tokens",
            f"running {snapshot.total(RUNNING):.0f}",
            f"waiting {snapshot.total(WAITING):.0f}",
        ]
        if capacity:
            parts.append(f"KV {snapshot.total(KV_USED) / capacity:.1%} used")
        drafters = sorted(change[ROUNDS])
        if len(drafters) > 1:
            each = [f"{d}: {_speculation({m: counts[d] for m, counts in change.items()})}" for d in drafters]
            parts.append(f"by drafter ({'; '.join(each)})")
        return ", ".join(parts)


class PeriodicLog:
    """Logs the line every ``interval`` seconds from a thread of its own, until closed.

    Args:
        meters: what is watched.
        interval: seconds between two lines.
    """

    def __init__(self, meters: Meters, interval: float) -> None:
        self._line = IntervalLine(meters, monotonic())
        self._interval = interval
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="headstart-log-line", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop, after a last line for what was not logged yet."""
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        over = False
        while not over:
            over = self._over.wait(self._interval)
            line = self._line.line(monotonic())
            if line is not None:
                log.info("%s", line)


def _by_drafter(snapshot: Snapshot) -> dict[Metric, Counter[str]]:
    return {metric: snapshot.by(metric, DRAFTER) for metric in _COUNTED}


def _speculation(count: Mapping[Metric, float]) -> str:
    """Length, rate and efficiency from sums of counters."""
    parts = []
    if count[ROUNDS]:
        parts.append(f"mean acceptance length {count[EMITTED] / count[ROUNDS]:.2f}")
    if count[DRAFT_TOKENS]:
        parts.append(f"acceptance rate {count[ACCEPTED] / count[DRAFT_TOKENS]:.1%}")
    else:
        parts.append("no drafts")
    if count[POSSIBLE]:
        parts.append(f"system efficiency {count[EMITTED] / count[POSSIBLE]:.1%}")
    return ", ".join(parts)
