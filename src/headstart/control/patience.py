"""Whether asking a drafter for a sequence has been worth it, and how long it may rest if not.

Worth is in tokens of plain decoding: what a draft was expected to bring, less the time spent on it. Rests grow while
asking stays in vain and are bounded, so that a drafter comes back. Knows numbers; not what a draft is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

WORTH_SMOOTHING = 0.1
PATIENCE, LITTLE_PATIENCE = 8, 3
"""Times in a row that asking for a new sequence may be in vain before the drafter rests. There is little patience
beside other sequences, if asking has been in vain for those."""

MOST_LOST = 0.3
"""Tokens that may be lost by it meanwhile beside other sequences: all of them wait for the drafter."""

LONGER, LONGER_BESIDE = 2, 4
"""How much longer every rest is than the one before, alone and beside others. A sequence that is alone has most to win
from a drafter that comes back."""

NEGLIGIBLE = 0.01
"""Tokens lost by asking that are no reason to rest: whoever costs next to nothing may be asked every time."""

WORTHWHILE, WORTHWHILE_BESIDE = 0.03, 0.06
"""Tokens that asking must bring otherwise, alone and beside others: what it costs is never all accounted for."""

LONGEST_NAP = 32
"""Rounds a sequence's drafter may go unasked at most: probing is bounded, and so is not probing."""

LITTLE = 0.005
"""Tokens a round that may be lost by asking in vain: a rest is no longer than it must be to lose no more."""


@dataclass(slots=True)
class _Mood:
    worth: float = 0.0
    """Running mean."""
    barren: int = 0
    """Times in a row that asking was not worth it."""
    lost: float = 0.0
    """Tokens lost by them."""
    rests: int = 0
    """Rests in a row that did not help."""
    nap: int = 0
    """Rounds still to rest."""


class Patience:
    """Running worth and rests, by sequence and drafter."""

    def __init__(self) -> None:
        self._moods: dict[int, dict[str, _Mood]] = {}
        self._worth: dict[str, float] = {}
        """Running mean by drafter, over all sequences."""

    def rests(self, sequence_id: int, drafter: str) -> bool:
        """Whether the drafter rests in this round, which then counts as one."""
        mood = self._moods.get(sequence_id, {}).get(drafter)
        if mood is None or mood.nap == 0:
            return False
        mood.nap -= 1
        return True

    def worth(self, sequence_id: int, drafter: str) -> float:
        """What asking is expected to bring: as it was for this sequence, or for others before there is anything."""
        mood = self._moods.get(sequence_id, {}).get(drafter)
        return self._worth.get(drafter, 0.0) if mood is None else mood.worth

    def learn(self, sequence_id: int, drafter: str, worth: float, *, alone: bool = True) -> None:
        """The drafter was asked, and it was worth that much; ``alone``: no other sequence is being decoded."""
        moods = self._moods.setdefault(sequence_id, {})
        mood = moods.get(drafter)
        if mood is None:
            mood = moods[drafter] = _Mood()
            if not alone and self._worth.get(drafter, 1.0) <= 0.0:
                mood.barren, mood.rests = PATIENCE - LITTLE_PATIENCE, 1
        mood.worth += WORTH_SMOOTHING * (worth - mood.worth)
        mean = self._worth.setdefault(drafter, worth)
        self._worth[drafter] = mean + WORTH_SMOOTHING * (worth - mean)
        if mood.worth > (WORTHWHILE if alone else WORTHWHILE_BESIDE) or (-NEGLIGIBLE < worth <= 0.0):
            mood.barren, mood.lost, mood.rests = 0, 0.0, 0
            return
        mood.barren += 1
        mood.lost -= min(worth, 0.0)
        if mood.barren >= PATIENCE or (not alone and mood.lost >= MOST_LOST):
            longer = LONGER if alone else LONGER_BESIDE
            mood.nap = min(LONGEST_NAP, longer ** min(mood.rests, 10), math.ceil(max(0.0, -worth) / LITTLE))
            mood.rests += 1

    def forget(self, sequence_id: int) -> None:
        """The sequence is over."""
        self._moods.pop(sequence_id, None)
