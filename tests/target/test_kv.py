"""The KV pool: whole blocks, no overlap, nothing lost."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests import tiny

from headstart.target.kv import KVPool, LayerShape, Layout

BLOCK = 64
SHAPES = [LayerShape(2, 4, 4), LayerShape(1, 8, 6)]


def pool(blocks: int = 8) -> KVPool:
    return KVPool(SHAPES, blocks * BLOCK, torch.float32)


def test_capacity_is_whole_blocks_and_accounted() -> None:
    small = KVPool(SHAPES, 100, torch.bfloat16)
    assert small.capacity == 2 * BLOCK
    assert small.bytes == (small.capacity + BLOCK) * sum(s.bytes_per_token(torch.bfloat16) for s in SHAPES)


def test_reserve_refuses_what_does_not_fit_and_release_gives_it_back() -> None:
    p = pool(4)
    a = p.reserve(3 * BLOCK)
    assert a is not None
    assert p.reserve(BLOCK + 1) is None
    p.release(a)
    p.release(a)
    assert p.free == p.capacity
    assert p.reserve(4 * BLOCK) is not None


def test_a_fragmented_pool_compacts_and_keeps_contents() -> None:
    p = pool(4)
    extents = [p.reserve(BLOCK) for _ in range(4)]
    for i, extent in enumerate(extents):
        for tensor in (*p.keys, *p.values):
            tensor[:, extent.start : extent.start + BLOCK] = i
    p.release(extents[0])
    p.release(extents[2])
    wide = p.reserve(2 * BLOCK)
    assert wide is not None
    for i in (1, 3):
        for tensor in (*p.keys, *p.values):
            assert bool((tensor[:, extents[i].start : extents[i].start + BLOCK] == i).all())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("layout", ["panels", "tiles"])
def test_layouts_move_what_one_slot_holds_and_nothing_else(layout: Layout, dtype: torch.dtype) -> None:
    """Where a slot's elements lie is ``key_at`` and ``value_at`` of the kernels' sources, written once more."""
    dim, slots = 64, 128
    p = KVPool([LayerShape(2, dim, dim)], slots - BLOCK, dtype, layout=layout)

    def key_at(slot: int, i: int) -> int:
        if layout == "tiles":
            within = slot % 32 // 16 * 512 + i % 32 // 2 * 32 + slot % 16 * 2 + i % 2
            return slot // 32 * 32 * dim + i // 32 * 1024 + within
        place = slot % 32 if dtype == torch.float32 else slot % 16 * 2 + slot % 32 // 16
        return slot // 32 * 32 * dim + i * 32 + place

    def value_at(slot: int, i: int) -> int:
        if layout == "tiles":
            within = i % 32 // 16 * 512 + slot % 32 // 2 * 32 + i % 16 * 2 + slot % 2
            return slot // 32 * 32 * dim + i // 32 * 1024 + within
        return slot * dim + i

    extent = p.reserve(BLOCK)
    assert extent is not None
    places = [torch.tensor([[at(s, i) for i in range(dim)] for s in range(slots)]) for at in (key_at, value_at)]
    tensors = [p.keys[0], p.values[0]]
    for tensor, place in zip(tensors, places, strict=True):
        assert place.flatten().unique().numel() == slots * dim
        for head in tensor:
            head.view(-1)[place] = torch.arange(float(slots)).to(dtype)[:, None].expand(-1, dim)
    p.move(extent, [7, 33, 50], 5)
    expected = torch.arange(float(slots))
    expected[5:8] = torch.tensor([7.0, 33.0, 50.0])
    for tensor, place in zip(tensors, places, strict=True):
        for head in tensor:
            assert torch.equal(head.view(-1)[place].float(), expected[:, None].expand(-1, dim))


def test_move_reorders_rows() -> None:
    p = pool(2)
    p.reserve(BLOCK)
    extent = p.reserve(BLOCK)
    for tensor in (*p.keys, *p.values):
        tensor[0, extent.start : extent.start + BLOCK, 0] = torch.arange(BLOCK).float()
    p.move(extent, [5, 7, 9], 5)
    for tensor in (*p.keys, *p.values):
        assert tensor[0, extent.start + 5 : extent.start + 8, 0].tolist() == [5.0, 7.0, 9.0]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(1, 3 * BLOCK)), max_size=40))
def test_extents_never_overlap(steps: list[tuple[bool, int]]) -> None:
    p = pool(8)
    live: list[tuple[object, int]] = []
    for take, size in steps:
        if take or not live:
            extent = p.reserve(size)
            if extent is not None:
                live.append((extent, size))
        else:
            p.release(live.pop(size % len(live))[0])
        spans = sorted((e.start, e.start + e.size) for e, _ in live)
        assert all(a[1] <= b[0] for a, b in pairwise(spans))
        assert all(a >= 0 and b <= p.capacity for a, b in spans)
        assert p.used == sum(b - a for a, b in spans)
    for extent, _ in live:
        p.release(extent)
    assert p.used == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_compiled_code_moves_what_the_pool_would(dtype: torch.dtype) -> None:
    target = tiny.target("llama", dtype)
    pool = target.pool
    extents = [pool.reserve(128) for _ in range(2)]
    for tensor in (*pool.keys, *pool.values):
        for extent in extents:
            torch.manual_seed(7)
            tensor[:, extent.start : extent.end] = torch.randn(tensor.shape[0], extent.size, tensor.shape[2]).to(dtype)
    path = [0, 1, 4, 9, 40]
    target.commit(extents[0], 29, path)
    pool.move(extents[1], [29 + row for row in path], 29)
    for tensor in (*pool.keys, *pool.values):
        one, two = (tensor[:, extent.start : extent.end] for extent in extents)
        assert torch.equal(one, two)
