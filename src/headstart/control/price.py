"""What asking a drafter costs, measured: per sequence asked, per token drafted, per token it has to catch up with.

A drafter that was not asked for a while must first take in what it missed: a draft model computes it, an n-gram index
reads it. That time is kept apart, so that one long prompt does not make every later draft look dear. Also keeps what
may be spent on trying a drafter that does not look worth it. Knows names, counts and seconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median

from headstart.control.depth import RoundCost
from headstart.control.limits import MAX_DEPTH

SMOOTHING = 0.05

FIRST = 5
"""Times needed before a price is known. It starts at their median: a single one may have been an accident."""

CLIP = 2.0
"""How far a new time may be from what was expected; a paused machine counts for no more."""

USUAL_LAG = MAX_DEPTH + 1
"""Tokens a drafter that is asked in every round may have missed: the last round's."""

PROBE_SHARE = 0.01
"""Share of a plain step's time, per round, that is saved up for asking a drafter that is not expected to pay."""

PROBE_EVERY = 16
"""Rounds between such probes, at least."""


@dataclass(slots=True)
class _Price:
    """Seconds as they usually are; ``None`` until it is known."""

    seconds: float | None = None
    _first: list[float] = field(default_factory=list)

    def add(self, seconds: float) -> None:
        if self.seconds is None:
            self._first.append(seconds)
            if len(self._first) == FIRST:
                self.seconds = median(self._first)
        else:
            near = min(max(seconds, self.seconds / CLIP), self.seconds * CLIP)
            self.seconds += SMOOTHING * (near - self.seconds)


class Prices:
    """Running means of every drafter's costs, and what is saved up for probing each.

    ``pace`` is how slow the machine is now, in the unit that a round's own pace is given in. Prices are kept for pace
    1, so that drafting and verifying are compared as of the same moment.
    """

    def __init__(self) -> None:
        self.pace = 1.0
        self._ask: dict[str, _Price] = {}
        self._token: dict[str, _Price] = {}
        self._missed: dict[str, _Price] = {}
        self._saved: dict[str, float] = {}
        self._asked_at: dict[int, dict[str, int]] = {}
        """Tokens of each sequence when each drafter was last asked for it."""
        self._lag: dict[str, int] = {}
        """Missed tokens that each drafter must take in this round, where they are more than usual."""

    def begin(self) -> None:
        """Another round."""
        self._lag.clear()

    def asked(self, sequence_id: int, drafter: str, context: int) -> None:
        """``drafter`` is asked in this round for a sequence of ``context`` tokens."""
        lag = self.lag(sequence_id, drafter, context)
        if lag > USUAL_LAG:
            self._lag[drafter] = self._lag.get(drafter, 0) + lag
        self._asked_at.setdefault(sequence_id, {})[drafter] = context

    def lag(self, sequence_id: int, drafter: str, context: int) -> int:
        """Tokens that ``drafter`` has missed of a sequence; all of them if it was never asked."""
        return context - self._asked_at.get(sequence_id, {}).get(drafter, 0)

    def ask(self, drafter: str) -> float:
        """Seconds per sequence asked, catching up not counted; 0 while unknown."""
        return self._now(self._ask, drafter) or 0.0

    def token(self, drafter: str) -> float | None:
        """Seconds per token drafted, catching up not counted; ``None`` while unknown."""
        return self._now(self._token, drafter)

    def catch_up(self, drafter: str, lag: int) -> float:
        """Seconds to take in ``lag`` missed tokens; 0 while unknown, or if they are no more than usual."""
        price = self._now(self._missed, drafter)
        return price * lag if price is not None and lag > USUAL_LAG else 0.0

    def probe(self, drafter: str, cost: float, plain: float) -> bool:
        """Whether ``cost`` seconds may be spent on trying a drafter against expectation; saves up if not yet.
        ``plain`` is this sequence's part of a plain step's seconds."""
        saved = self._saved.get(drafter, 0.0) + PROBE_SHARE * plain
        affordable = saved >= max(cost, PROBE_EVERY * PROBE_SHARE * plain)
        self._saved[drafter] = 0.0 if affordable else saved
        return affordable

    def observe(self, cost: RoundCost, pace: float = 1.0) -> None:
        """Learn from a round's seconds, with the machine at ``pace``. One in which a drafter had to catch up teaches
        only what that costs."""
        for name, seconds in cost.draft_seconds.items():
            asks, drafted, lag = cost.asks.get(name, 0), cost.drafted.get(name, 0), self._lag.get(name, 0)
            usual = seconds / pace
            if not lag:
                if asks:
                    self._ask.setdefault(name, _Price()).add(usual / asks)
                if drafted:
                    self._token.setdefault(name, _Price()).add(usual / drafted)
            elif (ask := self._ask.get(name)) is not None and ask.seconds is not None:
                extra = max(0.0, usual - asks * ask.seconds) / lag
                # known at once: it is rare, and only has to keep a hopeless way from being taken
                self._missed.setdefault(name, _Price(extra)).add(extra)

    def forget(self, sequence_id: int) -> None:
        """The sequence is over."""
        self._asked_at.pop(sequence_id, None)

    def _now(self, prices: dict[str, _Price], drafter: str) -> float | None:
        price = prices.get(drafter)
        return None if price is None or price.seconds is None else price.seconds * self.pace
