"""The two best tokens of a row of logits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Likeliest(NamedTuple):
    """``ids`` are the likeliest token and the next, the lower id first on ties; ``probabilities`` are theirs."""

    ids: tuple[int, int]
    probabilities: tuple[float, float]

    @classmethod
    def of_rows(cls, ids: Sequence[Sequence[int]], probabilities: Sequence[Sequence[float]]) -> list[Likeliest]:
        """One for each row of two ids and their probabilities."""
        return [cls((i, j), (p, q)) for (i, j), (p, q) in zip(ids, probabilities, strict=True)]
