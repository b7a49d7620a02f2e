"""What one sequence contributes to a flat step: its rows, where they go, and which logits are wanted.

The extent is opaque here; only the target that handed it out can read it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch


@dataclass(slots=True)
class Segment:
    """Rows of one sequence in one step.

    ``tokens`` go to positions ``base`` onwards, where ``base`` counts the tokens already in the KV pool. With
    ``parents`` (row indices within the segment, -1 for row 0 only) the rows form a tree: row 0 is its root and a row's
    position is ``base`` plus its depth. ``first_logits`` is the first row whose logits are wanted (all rows after it
    are wanted too); ``len(tokens)`` wants none.
    """

    extent: Any
    base: int
    tokens: Sequence[int]
    parents: tuple[int, ...] | None = None
    first_logits: int = 0

    def path(self, row: int) -> list[int]:
        """Rows from the root down to ``row``, both included; for segments with ``parents``."""
        if self.parents is None:
            return list(range(row + 1))
        up = [row]
        while self.parents[up[-1]] >= 0:
            up.append(self.parents[up[-1]])
        return up[::-1]


class Forward(Protocol):
    """The part of a target that a round needs."""

    @property
    def vocab_size(self) -> int:
        """Number of ids that are tokens; logits may be wider."""
        ...

    def forward(self, segments: Sequence[Segment], best: int = 0) -> torch.Tensor:
        """Logits of the wanted rows, ``[wanted, width]``, segment by segment. ``best`` is the count that ``top`` will
        be asked for, 0 if it will not."""
        ...

    def top(self, logits: torch.Tensor, count: int) -> list[list[int]]:
        """The ``count`` best tokens of every row of ``logits``, best first, the lower id first on ties."""
        ...

    def commit(self, extent: Any, base: int, path: Sequence[int]) -> None:
        """Keep rows ``path`` of the segment at ``base``, in this order, as positions ``base`` onwards."""
        ...
