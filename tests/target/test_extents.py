"""Kept extents: given up for room, oldest first, never in anybody's way, and whole until then."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headstart.target.extents import Extent
from headstart.target.kv import KVPool, LayerShape, Layout

BLOCK = 64
BLOCKS = 8


def pool(layout: Layout = "rows") -> KVPool:
    if layout == "tiles":
        return KVPool([LayerShape(2, 32, 32), LayerShape(1, 64, 64)], BLOCKS * BLOCK, torch.bfloat16, layout=layout)
    return KVPool([LayerShape(2, 4, 4), LayerShape(1, 8, 6)], BLOCKS * BLOCK, torch.float32, layout=layout)


def fill(p: KVPool, extent: Extent, mark: float) -> None:
    for tensor in (*p.keys, *p.values):
        tensor[:, extent.start : extent.end] = mark


def holds(p: KVPool, extent: Extent, rows: int, mark: float) -> bool:
    return all(bool((t[:, extent.start : extent.start + rows] == mark).all()) for t in (*p.keys, *p.values))


def kept(p: KVPool, blocks: int, gone: list[int], mark: int) -> Extent:
    extent = p.reserve(blocks * BLOCK)
    assert extent is not None
    fill(p, extent, mark)
    p.keep(extent, extent.size, lambda: gone.append(mark))
    return extent


def test_keeping_gives_the_unused_end_back() -> None:
    p = pool()
    extent = p.reserve(5 * BLOCK)
    assert extent is not None
    p.keep(extent, BLOCK + 1, lambda: None)
    assert (p.used, p.kept, p.free) == (0, 2 * BLOCK, 6 * BLOCK)
    p.release(extent)
    p.release(extent)
    assert (p.used, p.kept, p.free) == (0, 0, 8 * BLOCK)


def test_the_oldest_go_first_and_no_more_than_needed() -> None:
    p, gone = pool(), []
    extents = [kept(p, 2, gone, i) for i in range(4)]
    p.take(extents[0])
    p.keep(extents[0], 2 * BLOCK, lambda: gone.append(0))  # used again: the youngest now
    new = p.reserve(2 * BLOCK)
    assert gone == [1]
    assert new is not None
    assert extents[1].released
    wide = p.reserve(3 * BLOCK)
    assert wide is not None
    assert gone == [1, 2, 3]
    assert holds(p, extents[0], 2 * BLOCK, 0)


def test_neighbours_of_the_old_rather_than_the_youngest() -> None:
    """Room in a row is found where the youngest that must go is oldest."""
    p, gone = pool(), []
    extents = [kept(p, 1, gone, i) for i in range(BLOCKS)]
    for i in (0, 2, 4, 5, 6):
        p.take(extents[i])
        p.keep(extents[i], BLOCK, lambda i=i: gone.append(i))
    p.reserve(2 * BLOCK)  # 1, 3 and 7 are oldest; then 0, 2
    assert sorted(gone) == [0, 1]


def test_extents_in_use_are_never_given_up() -> None:
    p, gone = pool(), []
    live = p.reserve(3 * BLOCK)
    assert live is not None
    fill(p, live, 9)
    kept(p, 5, gone, 1)
    assert p.reserve(5 * BLOCK + 1) is None
    assert gone == []
    assert p.reserve(5 * BLOCK) is not None
    assert gone == [1]
    assert holds(p, live, 3 * BLOCK, 9)


def test_extending_in_place_moves_nothing() -> None:
    p, gone = pool(), []
    first = kept(p, 2, gone, 1)
    assert p.extend(first, 4 * BLOCK, 2 * BLOCK)
    assert (first.start, first.size) == (0, 4 * BLOCK)
    assert (p.used, p.kept) == (4 * BLOCK, 0)


def test_extending_moves_when_it_must() -> None:
    p, gone = pool(), []
    first = kept(p, 2, gone, 1)
    wall = p.reserve(BLOCK)
    assert wall is not None
    assert p.extend(first, 5 * BLOCK, BLOCK + 3)
    assert (first.start, first.size) == (3 * BLOCK, 5 * BLOCK)
    assert holds(p, first, BLOCK + 3, 1)
    p.release(first)
    assert p.used == BLOCK


def test_extending_compacts_when_only_that_helps() -> None:
    p, gone = pool(), []
    holes = [p.reserve(BLOCK) for _ in range(BLOCKS)]
    for i in (1, 3, 5, 7):
        release = holes[i]
        assert release is not None
        p.release(release)
    middle = holes[4]
    assert middle is not None
    fill(p, middle, 5)
    for i in (0, 2, 6):
        extent = holes[i]
        assert extent is not None
        fill(p, extent, 10 + i)
    p.keep(middle, BLOCK, lambda: gone.append(5))
    assert not p.extend(middle, 6 * BLOCK, BLOCK)
    assert p.extend(middle, 5 * BLOCK, BLOCK)
    assert holds(p, middle, BLOCK, 5)
    for i in (0, 2, 6):
        extent = holes[i]
        assert extent is not None
        assert holds(p, extent, BLOCK, 10 + i)
    assert p.free == 0
    assert gone == []


def test_an_extension_that_fails_leaves_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    p, gone = pool(), []
    first = kept(p, 2, gone, 1)
    p.reserve(BLOCK)

    def broken(*_: object) -> int:
        raise MemoryError

    monkeypatch.setattr(p, "_place", broken)
    with pytest.raises(MemoryError):
        p.extend(first, 5 * BLOCK, 2 * BLOCK)
    assert (p.used, p.kept, p.free) == (BLOCK, 2 * BLOCK, 5 * BLOCK)
    assert holds(p, first, 2 * BLOCK, 1)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(1, 4 * BLOCK), st.integers(0, 99)), max_size=50),
    st.sampled_from(["rows", "panels", "tiles"]),
)
def test_whatever_is_done_rows_stay_and_sums_add_up(steps: list[tuple[int, int, int]], layout: Layout) -> None:
    p = pool(layout)
    live: dict[Extent, tuple[int, float]] = {}
    idle: dict[Extent, tuple[int, float]] = {}
    for number, (what, size, which) in enumerate(steps):
        if what <= 1 or not (live or idle):
            fits = -(-size // BLOCK) * BLOCK <= p.capacity - p.used
            extent = p.reserve(size)
            assert (extent is not None) == fits
            if extent is not None:
                fill(p, extent, number)
                live[extent] = (size, number)
        elif what == 2 and live:
            extent = [*live][which % len(live)]
            rows, mark = live.pop(extent)
            rows = min(rows, size)
            idle[extent] = (rows, mark)
            p.keep(extent, rows, lambda extent=extent: idle.pop(extent))
        elif what == 3 and idle:
            extent = [*idle][which % len(idle)]
            rows, mark = idle[extent]
            wanted = rows + size
            fits = -(-wanted // BLOCK) * BLOCK <= p.capacity - p.used
            assert p.extend(extent, wanted, rows) == fits
            if fits:
                live[extent] = idle.pop(extent)
        else:
            held = live if live and (which % 2 or not idle) else idle
            extent = [*held][which % len(held)]
            held.pop(extent)
            p.release(extent)
        spans = sorted((e.start, e.end) for e in (*live, *idle))
        assert all(a[1] <= b[0] for a, b in pairwise(spans))
        assert all(a >= 0 and b <= p.capacity for a, b in spans)
        assert p.used == sum(e.size for e in live)
        assert p.kept == sum(e.size for e in idle)
        assert p.used + p.kept + p.free == p.capacity
        for extent, (rows, mark) in (live | idle).items():
            assert holds(p, extent, rows, mark)
    for extent in (*live, *idle):
        p.release(extent)
    assert p.free == p.capacity
