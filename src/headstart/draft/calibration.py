"""How far to trust a match: estimated probabilities turned into observed ones, learned while decoding.

A table over (length of the match, estimated probability). Each cell starts from a prior that says the estimate is
right, and moves with what verification accepted. Knows nothing of tokens, drafts or sequences.
"""

from __future__ import annotations

from math import log2

LENGTH_BUCKETS = 8
PROBABILITY_BUCKETS = 20

_BY_LENGTH = (0, 1, 2, 3, 4, 5, 5, 5) + (6,) * 8
_LOW = 0.125
"""Below this, buckets are powers of two; above, a sixteenth wide."""

Cell = int
"""Index of a cell of the table, from :func:`cell`."""


def cell(length: int, probability: float) -> Cell:
    """The cell for a match of ``length`` tokens whose continuation is given ``probability``."""
    if probability >= _LOW:
        column = min(PROBABILITY_BUCKETS - 1, 4 + int(probability * 16))
    else:
        column = max(0, 6 + int(log2(probability + 1e-9) + 2.0))
    row = _BY_LENGTH[length] if length < 16 else LENGTH_BUCKETS - 1
    return row * PROBABILITY_BUCKETS + column


class Calibration:
    """Acceptance of one tenant's drafts by cell.

    ``prior`` is the number of observations the estimate itself is worth; ``memory`` bounds how many a cell remembers,
    so that it follows a change of traffic: beyond it, both counts are halved.
    """

    __slots__ = ("_hits", "_memory", "_prior", "_trials")

    def __init__(self, prior: float = 16.0, memory: float = 1024.0) -> None:
        cells = LENGTH_BUCKETS * PROBABILITY_BUCKETS
        self._hits = [0.0] * cells
        self._trials = [0.0] * cells
        self._prior = prior
        self._memory = memory

    def confidence(self, where: Cell, estimate: float) -> float:
        """The probability that a token is the target's choice, given its cell and the estimate that led there."""
        return (self._hits[where] + self._prior * estimate) / (self._trials[where] + self._prior)

    def learn(self, where: Cell, hit: bool) -> None:
        """One token of that cell was verified, and was (``hit``) or was not the target's choice."""
        self._hits[where] += hit
        self._trials[where] += 1.0
        if self._trials[where] > self._memory:
            self._hits[where] *= 0.5
            self._trials[where] *= 0.5

    @property
    def observations(self) -> float:
        """How many observations are remembered, over all cells."""
        return sum(self._trials)
