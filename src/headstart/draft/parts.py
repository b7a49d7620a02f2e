"""What the n-gram drafter is made of: indexes, tables of opinions, and growth over them.

There are two makers of such parts, one in Python (`grow.py`) and one compiled (`compiled/`), which draft the same to
the bit. Parts of one maker do not fit the other's. Knows neither.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from headstart.draft.calibration import Calibration, Cell

MOST_NODES = 64
"""Nodes of the largest tree."""

STORE_CONTEXT = 16
"""Most recent tokens matched against the store."""

Row = tuple[tuple[int, ...], tuple[int, ...]]
"""The last tokens before a position, and the target's best there."""


class Index(Protocol):
    """What followed what in texts that grow."""

    @property
    def size(self) -> int:
        """Tokens indexed."""
        ...

    def extend(self, tokens: Iterable[int]) -> None:
        """The current text goes on."""
        ...

    def separate(self) -> None:
        """Another text begins: no context spans the two."""
        ...


class Table(Protocol):
    """The target's latest rankings by context, of one or two tokens."""

    def __len__(self) -> int:
        """Contexts."""
        ...

    def hear(self, rows: Iterable[Row], most: int) -> None:
        """Take in the ``most`` best tokens of each row, for every context that ends the row's."""
        ...

    def drop_oldest(self) -> None:
        """Forget the context heard least recently."""
        ...


@dataclass(frozen=True, slots=True)
class Shape:
    """Bounds of a draft: ``nodes`` of a tree up to ``depth``, at most ``width`` to a parent; 0 nodes are a chain.

    Paths end before a token whose path is less likely than ``min_path``; in a tree all tokens but the first need be as
    likely as ``least`` too. ``match_cap`` bounds the depth by one and so many times the length of the longest match.
    """

    depth: int
    nodes: int = 0
    width: int = 1
    min_path: float = 0.0
    least: float = 0.0
    match_cap: float | None = None


@dataclass(slots=True)
class Growth:
    """A draft that was grown, one entry per node. The first ``shown`` nodes are the draft; a chain may have one more,
    the one it stopped at."""

    tokens: list[int]
    parents: list[int]
    cells: list[Cell]
    confidence: list[float]
    shown: int


class Parts(Protocol):
    """A maker of parts."""

    def index(self, tokens: Iterable[int] = ()) -> Index: ...

    def table(self) -> Table: ...

    def grow(
        self,
        history: Sequence[int],
        indexes: Sequence[Index],
        calibration: Calibration,
        recycled: Table | None,
        shape: Shape,
    ) -> Growth:
        """A draft after ``history``, which the first of ``indexes`` has read; the others are a store's, two at most."""
        ...


def best_parts() -> Parts:
    """Compiled ones where there is a compiler."""
    from headstart.draft.compiled.parts import compiled_parts
    from headstart.draft.grow import PYTHON

    return compiled_parts() or PYTHON
