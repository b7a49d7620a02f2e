"""How likely a draft token is to be accepted, given that the one before it was.

Learned per drafter, by the drafter's own confidence where it has one and by depth where it has none, with a factor per
sequence and drafter. Old observations fade. Knows counts; not tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

BUCKETS = 12
MEMORY = 200.0
"""Observations a cell remembers; older ones fade."""

FADED = 24.0
"""Observations a cell keeps when its drafter is tried again after a time of disuse: what was learned long ago must not
outweigh what is learned now."""

PRIOR = 6.0
"""How many observations the drafter's own confidence counts for."""

UNKNOWN = 0.6
"""Assumed acceptance of a drafter that states no confidence and has not been seen."""

SEQUENCE_PRIOR = 3.0
"""Expected acceptances before a sequence's own luck counts as much as everyone's."""


@dataclass(slots=True)
class _Cell:
    """Fading counts."""

    hits: float = 0.0
    tries: float = 0.0

    def add(self, hit: float) -> None:
        if self.tries >= MEMORY:
            self.hits *= 1.0 - 1.0 / MEMORY
            self.tries *= 1.0 - 1.0 / MEMORY
        self.hits += hit
        self.tries += 1.0

    def rate(self, prior: float, strength: float) -> float:
        return (self.hits + prior * strength) / (self.tries + strength)


class Acceptance:
    """Conditional acceptance by drafter, confidence or depth, and sequence."""

    def __init__(self) -> None:
        self._cells: dict[tuple[str, str, int], _Cell] = {}
        self._sequences: dict[int, dict[str, list[float]]] = {}

    def conditional(self, sequence_id: int, drafter: str, depth: int, confidence: float | None) -> float:
        """Probability that a node at ``depth`` (1 is the first) is accepted if its parent was."""
        rate = UNKNOWN
        if confidence is None:  # what is known of a depth is what to expect of the next, until that is known
            for level in range(1, min(depth, BUCKETS) + 1):
                rate = self._rate(_key(drafter, level, None), rate)
        else:
            rate = self._rate(_key(drafter, depth, confidence), confidence)
        hits, expected = self._sequences.get(sequence_id, {}).get(drafter, (0.0, 0.0))
        factor = (hits + SEQUENCE_PRIOR) / (expected + SEQUENCE_PRIOR)
        return min(max(rate * factor, 0.0), 0.999)

    def learn(self, sequence_id: int, drafter: str, depth: int, confidence: float | None, hit: bool) -> None:
        """One node whose parent was accepted, and whether it was. Its depth learns too where confidence decides: a
        drafter whose tokens are dear is judged before it states any."""
        cell = self._cells.setdefault(_key(drafter, depth, confidence), _Cell())
        expected = cell.rate(UNKNOWN if confidence is None else confidence, PRIOR)
        cell.add(float(hit))
        if confidence is not None:
            self._cells.setdefault(_key(drafter, depth, None), _Cell()).add(float(hit))
        counts = self._sequences.setdefault(sequence_id, {}).setdefault(drafter, [0.0, 0.0])
        for i, value in enumerate((float(hit), expected)):
            counts[i] = counts[i] * (1.0 - 1.0 / MEMORY) + value

    def _rate(self, key: tuple[str, str, int], prior: float) -> float:
        cell = self._cells.get(key)
        return prior if cell is None else cell.rate(prior, PRIOR)

    def fade(self, drafter: str) -> None:
        """The drafter has not been asked for long: what is known of it counts for less."""
        for (name, _, _), cell in self._cells.items():
            if name == drafter and cell.tries > FADED:
                cell.hits *= FADED / cell.tries
                cell.tries = FADED

    def forget(self, sequence_id: int) -> None:
        """The sequence is over."""
        self._sequences.pop(sequence_id, None)


def _key(drafter: str, depth: int, confidence: float | None) -> tuple[str, str, int]:
    if confidence is None:
        return drafter, "depth", min(depth, BUCKETS)
    return drafter, "confidence", min(int(max(confidence, 0.0) * BUCKETS), BUCKETS - 1)
