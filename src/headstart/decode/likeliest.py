"""The two best tokens of a row of logits."""

from __future__ import annotations

from typing import NamedTuple


class Likeliest(NamedTuple):
    """``ids`` are the likeliest token and the next, the lower id first on ties; ``probabilities`` are theirs."""

    ids: tuple[int, int]
    probabilities: tuple[float, float]
