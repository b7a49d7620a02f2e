"""How far to trust a match: estimated probabilities turned into observed ones, learned while decoding.

A table over (length of the match, estimated probability). Each cell starts from a prior that says the estimate is
right, and moves with what verification accepted. Knows nothing of tokens, drafts or sequences.
"""

from __future__ import annotations

from array import array
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

    __slots__ = ("_memory", "hits", "prior", "trials")

    def __init__(self, prior: float = 16.0, memory: float = 1024.0) -> None:
        cells = LENGTH_BUCKETS * PROBABILITY_BUCKETS
        self.hits = array("d", bytes(8 * cells))
        self.trials = array("d", bytes(8 * cells))
        self.prior = prior
        self._memory = memory

    def confidence(self, where: Cell, estimate: float) -> float:
        """The probability that a token is the target's choice, given its cell and the estimate that led there."""
        return (self.hits[where] + self.prior * estimate) / (self.trials[where] + self.prior)

    def learn(self, where: Cell, hit: bool) -> None:
        """One token of that cell was verified, and was (``hit``) or was not the target's choice."""
        self.hits[where] += hit
        self.trials[where] += 1.0
        if self.trials[where] > self._memory:
            self.hits[where] *= 0.5
            self.trials[where] *= 0.5

    @property
    def observations(self) -> float:
        """How many observations are remembered, over all cells."""
        return sum(self.trials)
