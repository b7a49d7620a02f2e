"""How much faster than plain decoding each sequence has been going: the rate that a round's time could earn elsewhere.

A draft that costs time is compared with what that time brings on average, not with what plain decoding would bring: a
round of few tokens in little time is worth less than one of many in more, if rounds usually do better. Over a long run
that maximises tokens per second (a semi-Markov decision process under the average criterion, Howard 1971; the round's
own ratio would do so only if all rounds were alike). Knows counts; not drafts.
"""

from __future__ import annotations

from collections.abc import Iterable

MEMORY = 0.95
"""What is kept of older rounds with each new one."""

PRIOR = 8.0
"""Tokens of plain decoding that a sequence starts with: as if it had gone at the pace of plain decoding."""

MOST = 8.0
"""A gain beyond this is an accident of the clock."""


class Gains:
    """Running ratio of tokens emitted to tokens that plain decoding would have emitted meanwhile, by sequence."""

    def __init__(self) -> None:
        self._counts: dict[int, list[float]] = {}

    def learn(self, sequence_id: int, emitted: float, plain: float) -> None:
        """A round emitted so many tokens for the sequence, in the time of ``plain`` tokens of plain decoding."""
        counts = self._counts.setdefault(sequence_id, [PRIOR, PRIOR])
        for i, count in enumerate((emitted, plain)):
            counts[i] = MEMORY * counts[i] + count

    def mean(self, sequences: Iterable[int]) -> float:
        """Of sequences decoded together; 1 for those that nothing is known of, and never below: who goes slower than
        plain decoding can always go plain."""
        gains = [min(max(counts[0] / counts[1], 1.0), MOST) for s in sequences if (counts := self._counts.get(s))]
        return sum(gains) / len(gains) if gains else 1.0

    def forget(self, sequence_id: int) -> None:
        """The sequence is over."""
        self._counts.pop(sequence_id, None)
