"""Segments as the kernels' rows."""

from __future__ import annotations

from array import array

from headstart.decode.segment import Segment

FIELDS = ("ids", "positions", "slots", "start", "length", "plain", "extra_at", "extra", "want")
"""Of ``Step``, in the order of ``Rows.packed``."""


class Rows:
    """The rows of one call, and where each finds its keys: the fields of ``Step``."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.positions: list[int] = []
        self.slots: list[int] = []
        self.start: list[int] = []
        self.plain: list[int] = []
        self.extra: list[int] = []
        self.extra_at: list[int] = []
        self.want: list[int] = []
        self.most_keys = 0

    def add(self, segment: Segment) -> None:
        first, count, base, start = len(self.ids), len(segment.tokens), segment.base, segment.extent.start
        self.ids.extend(segment.tokens)
        self.slots.extend(range(start + base, start + base + count))
        self.start.extend([start] * count)
        self.want.extend(range(first + segment.first_logits, first + count))
        self.most_keys = max(self.most_keys, base + count)
        if segment.parents is None:
            self.positions.extend(range(base, base + count))
            self.plain.extend(range(base + 1, base + count + 1))
            self.extra_at.extend([0] * count)
            return
        for row in range(count):
            path = segment.path(row)
            run = sum(1 for i, node in enumerate(path) if node == i)
            self.positions.append(base + len(path) - 1)
            self.plain.append(base + run)
            self.extra_at.append(len(self.extra))
            self.extra.extend(start + base + node for node in path[run:])

    @property
    def length(self) -> list[int]:
        return [position + 1 for position in self.positions]

    def packed(self) -> tuple[array[int], list[int]]:
        """All ``FIELDS`` one after the other, int64, and where each begins."""
        everything: list[int] = []
        begins = []
        for name in FIELDS:
            begins.append(len(everything))
            everything += getattr(self, name)
        return array("q", everything), begins
