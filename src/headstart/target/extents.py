"""Which slots of a pool belong to whom: one contiguous extent each, some kept only until their room is needed.

Pure arithmetic. It moves no rows and knows no tensors, tokens or sequences.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count


@dataclass(slots=True, eq=False)
class Extent:
    """Slots ``[start, start + size)``; ``start`` may change when the pool compacts."""

    start: int
    size: int
    released: bool = field(default=False)
    age: int = field(default=0)
    """0 while somebody uses it; once it is only kept, when that was, counting up."""
    evicted: Callable[[], None] | None = field(default=None)
    """Called when a kept extent is given up for its room."""

    @property
    def end(self) -> int:
        return self.start + self.size


class Extents:
    """The extents of ``capacity`` slots, in order of their place."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._all: list[Extent] = []
        self._clock = count(1)

    def __iter__(self) -> Iterator[Extent]:
        return iter(self._all)

    @property
    def used(self) -> int:
        """Slots that somebody uses."""
        return sum(e.size for e in self._all if not e.age)

    @property
    def kept(self) -> int:
        """Slots that are kept and given up when their room is needed."""
        return sum(e.size for e in self._all if e.age)

    @property
    def free(self) -> int:
        """Slots of no extent."""
        return self.capacity - sum(e.size for e in self._all)

    def add(self, extent: Extent) -> None:
        self._all.append(extent)
        self._all.sort(key=lambda e: e.start)

    def remove(self, extent: Extent) -> None:
        self._all.remove(extent)

    def keep(self, extent: Extent, evicted: Callable[[], None]) -> None:
        """From now on nobody uses the extent; it was used last of all."""
        extent.age, extent.evicted = next(self._clock), evicted

    def take(self, extent: Extent) -> None:
        """Somebody uses the extent again."""
        extent.age, extent.evicted = 0, None

    def empty(self, start: int, size: int) -> bool:
        """Whether the slots from ``start`` on are there and of no extent."""
        end = start + size
        return end <= self.capacity and all(e.end <= start or e.start >= end for e in self._all)

    def hole(self, size: int, age: int = 0) -> int | None:
        """The first place for ``size`` slots, if extents kept no later than ``age`` were not there."""
        end = 0
        for extent in self._all:
            if 0 < extent.age <= age:
                continue
            if extent.start - end >= size:
                return end
            end = extent.end
        return end if self.capacity - end >= size else None

    def clear(self, size: int) -> int | None:
        """Give up kept extents so that ``size`` slots in a row are free, the latest of them as old as can be; returns
        their place, or ``None`` when extents in use leave no such row."""
        ages = [0, *sorted(e.age for e in self._all if e.age)]
        best = bisect_left(ages, True, key=lambda age: self.hole(size, age) is not None)
        if best == len(ages):
            return None
        start = self.hole(size, ages[best])
        assert start is not None
        for extent in [e for e in self._all if e.start < start + size and e.end > start]:
            self._evict(extent)
        return start

    def evict_until(self, free: int) -> None:
        """Give up the oldest kept extents until ``free`` slots are free, wherever they lie, or none is kept."""
        for extent in sorted((e for e in self._all if e.age), key=lambda e: e.age):
            if self.free >= free:
                return
            self._evict(extent)

    def moved_by_compacting(self) -> int:
        """Slots that would move if all extents were slid to the front."""
        end = moved = 0
        for extent in self._all:
            moved += extent.size if extent.start != end else 0
            end += extent.size
        return moved

    def _evict(self, extent: Extent) -> None:
        self._all.remove(extent)
        extent.released = True
        evicted = extent.evicted
        self.take(extent)
        if evicted is not None:
            evicted()
