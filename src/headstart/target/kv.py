"""The KV pool: fixed capacity, accounted in blocks, one contiguous extent of slots per sequence.

Contiguous extents let attention read keys as a view instead of gathering pages, which on a CPU costs a copy of the
whole context per layer. The price is fragmentation, paid by ``compact``. An extent that nobody uses any more may be
kept for what its rows hold; it is given up when its room is needed. The pool knows slots and tensors; it does not
know tokens, sequences or models.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from transformers.cache_utils import Cache

from headstart.target.extents import Extent, Extents

Layout = Literal["rows", "panels", "tiles"]
"""How keys and values lie: row by row, or as the kernels read them, with or without a matrix unit."""

COMPACT = 8
"""Most slots moved, for each one asked for, rather than give up kept rows: copying a row takes about a hundredth of
computing it."""


@dataclass(frozen=True, slots=True)
class LayerShape:
    """Shape of one layer's cache: heads and the last dimension of keys and values."""

    kv_heads: int
    key_dim: int
    value_dim: int

    def bytes_per_token(self, dtype: torch.dtype) -> int:
        return self.kv_heads * (self.key_dim + self.value_dim) * dtype.itemsize


class KVPool:
    """Keys and values of all layers, ``[kv_heads, slots, dim]`` each, with a scratch block for padding rows.

    Memory is taken once, here. ``capacity`` is in tokens and rounded up to whole blocks of ``block`` slots; attention
    pads keys to whole blocks, so every extent covers them. In a ``layout`` of ``headstart.target.native`` what each 32
    slots hold lies mixed (see ``_mixed``): single rows are scattered, whole blocks are where they are otherwise.
    """

    def __init__(
        self,
        shapes: Sequence[LayerShape],
        capacity: int,
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
        block: int = 64,
        layout: Layout = "rows",
    ) -> None:
        self.shapes = tuple(shapes)
        self.layout = layout
        self.block = block
        self.capacity = self._whole_blocks(capacity)
        self.scratch = self.capacity
        slots = self.capacity + block
        self.keys = [_zeros((s.kv_heads, slots, s.key_dim), dtype, device) for s in self.shapes]
        self.values = [_zeros((s.kv_heads, slots, s.value_dim), dtype, device) for s in self.shapes]
        self._extents = Extents(self.capacity)

    @property
    def bytes(self) -> int:
        return sum(t.nbytes for t in (*self.keys, *self.values))

    @property
    def used(self) -> int:
        """Slots reserved by extents in use."""
        return self._extents.used

    @property
    def kept(self) -> int:
        """Slots of extents that nobody uses; they are given up when their room is needed."""
        return self._extents.kept

    @property
    def free(self) -> int:
        """Slots that hold nothing; ``used + kept + free`` is the capacity."""
        return self._extents.free

    def reserve(self, tokens: int) -> Extent | None:
        """An extent of at least ``tokens`` slots, or ``None`` when extents in use leave too little."""
        size = self._whole_blocks(max(tokens, 1))
        if size > self.free + self.kept:
            return None
        start = self._place(size)
        extent = Extent(start if start is not None else self._make_room(size), size)
        self._extents.add(extent)
        return extent

    def release(self, extent: Extent) -> None:
        """Give an extent back, in use or kept. Releasing twice is harmless."""
        if not extent.released:
            extent.released = True
            self._extents.remove(extent)

    def keep(self, extent: Extent, tokens: int, evicted: Callable[[], None]) -> None:
        """Nobody uses the extent any more, but its first ``tokens`` rows are worth keeping, the rest of it is not.
        ``evicted`` is called when they are given up after all, those first that were kept first."""
        extent.size = min(extent.size, self._whole_blocks(tokens))
        self._extents.keep(extent, evicted)

    def take(self, extent: Extent) -> None:
        """Use a kept extent again, as it is."""
        self._extents.take(extent)

    def extend(self, extent: Extent, tokens: int, rows: int) -> bool:
        """Use a kept extent again with at least ``tokens`` slots; its first ``rows`` rows stay, wherever it moves.

        Returns ``False``, and leaves everything as it was, when extents in use leave too little room.
        """
        size = self._whole_blocks(max(tokens, 1))
        if size > self.free + self.kept:
            return False
        before, saved = extent.start, self._whole_blocks(rows)
        tensors = (*self.keys, *self.values)
        self._extents.remove(extent)
        try:
            start = before if self._extents.empty(before, size) else self._place(size)
            if start is None:  # others will move over these rows
                held = [tensor[:, before : before + saved].clone() for tensor in tensors]
                start = self._make_room(size)
                for tensor, own in zip(tensors, held, strict=True):
                    tensor[:, start : start + saved] = own
            elif start != before:
                for tensor in tensors:
                    # clone: source and destination may overlap
                    tensor[:, start : start + saved] = tensor[:, before : before + saved].clone()
        except BaseException:
            self._extents.add(extent)
            raise
        extent.start, extent.size = start, size
        self._extents.take(extent)
        self._extents.add(extent)
        return True

    def compact(self) -> None:
        """Slide all extents to the front, so that all free slots form one hole."""
        end = 0
        for extent in self._extents:
            if extent.start != end:
                for tensor in (*self.keys, *self.values):
                    # clone: source and destination may overlap
                    tensor[:, end : end + extent.size] = tensor[:, extent.start : extent.start + extent.size].clone()
                extent.start = end
            end += extent.size

    def move(self, extent: Extent, source: Sequence[int], destination: int) -> None:
        """Copy the rows at offsets ``source`` of the extent to consecutive offsets from ``destination`` on."""
        if all(s == destination + i for i, s in enumerate(source)):
            return
        device = self.keys[0].device
        index = torch.tensor([extent.start + s for s in source], device=device)
        first = extent.start + destination
        target = torch.arange(first, first + len(source), device=device)
        for view, at in self.by_slots():
            view[at(target)] = view[at(index)]

    def by_slots(self) -> list[tuple[torch.Tensor, Callable[[torch.Tensor], tuple[Any, ...]]]]:
        """Every layer's keys, then every layer's values, each with what makes slots an index into it."""
        keys = [_mixed(tensor, self.layout, "keys") for tensor in self.keys]
        return keys + [_mixed(tensor, self.layout, "values") for tensor in self.values]

    def copy_prefix(self, source: Extent, target: Extent, tokens: int) -> None:
        """Copy the first ``tokens`` rows of one extent to another, in whole blocks."""
        size = self._whole_blocks(tokens)
        for tensor in (*self.keys, *self.values):
            tensor[:, target.start : target.start + size] = tensor[:, source.start : source.start + size]

    def _whole_blocks(self, tokens: int) -> int:
        return -(-tokens // self.block) * self.block

    def _place(self, size: int) -> int | None:
        """A place for ``size`` slots that can be had without moving anything far: a hole, or the room of old kept
        extents."""
        start = self._extents.hole(size)
        if start is None and size <= self.free and self._extents.moved_by_compacting() <= COMPACT * size:
            return None
        return start if start is not None else self._extents.clear(size)

    def _make_room(self, size: int) -> int:
        """A place for ``size`` slots, by giving up old kept extents and compacting; there must be that much."""
        self._extents.evict_until(size)
        self.compact()
        start = self._extents.hole(size)
        assert start is not None
        return start


def _mixed(
    tensor: torch.Tensor, layout: Layout, kind: str
) -> tuple[torch.Tensor, Callable[[torch.Tensor], tuple[Any, ...]]]:
    """``keys`` or ``values [heads, slots, dim]`` seen as they lie, and the index that picks slots out of that (see
    ``native/attention.h`` and ``native/attention_tiles.h``)."""
    heads, _, dim = tensor.shape
    everything = slice(None)
    if layout == "tiles":
        view = tensor.view(heads, -1, dim // 32, 2, 16, 16, 2)
        if kind == "keys":
            return view, lambda s: (everything, s // 32, everything, s % 32 // 16, everything, s % 16)
        return view, lambda s: (everything, s // 32, everything, everything, s % 32 // 2, everything, s % 2)
    if layout == "rows" or kind == "values":
        return tensor, lambda s: (everything, s)
    if tensor.dtype == torch.float32:
        return tensor.view(heads, -1, dim, 32), lambda s: (everything, s // 32, everything, s % 32)
    return tensor.view(heads, -1, dim, 16, 2), lambda s: (everything, s // 32, everything, s % 16, s % 32 // 16)


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device | str) -> torch.Tensor:
    """Zeros, not garbage: padded keys are read and masked, and 0 * NaN would be NaN.

    On a CPU they are anonymous pages that the system fills when first touched, so a large pool costs no time at load.
    """
    if torch.device(device).type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    pages = mmap.mmap(-1, math.prod(shape) * dtype.itemsize)
    return torch.frombuffer(pages, dtype=dtype).view(shape)


class PoolCache(Cache):
    """The cache object transformers sees: ``update`` scatters a step's rows into the pool.

    It returns whole pool tensors ``[kv_heads, slots, dim]``; only the attention function registered by
    ``headstart.target.attention`` knows how to read them.
    """

    def __init__(self, pool: KVPool, slots: torch.Tensor, run: tuple[int, int] | None) -> None:
        super().__init__(layers=[])
        self.pool = pool
        self.slots = slots
        self.run = run
        """First and last+1 slot when the rows' slots are one ascending run: a slice is cheaper than a scatter."""

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        keys, values = self.pool.keys[layer_idx], self.pool.values[layer_idx]
        if self.run is not None:
            first, last = self.run
            rows = last - first
            keys[:, first:last] = key_states[0, :, :rows]
            values[:, first:last] = value_states[0, :, :rows]
        else:
            keys.index_copy_(1, self.slots, key_states[0])
            values.index_copy_(1, self.slots, value_states[0])
        return keys, values

    def get_seq_length(self, layer_idx: int = 0) -> int:  # noqa: ARG002
        return 0


class ShapeProbe(Cache):
    """A cache that keeps nothing and notes the shapes each layer writes; one row through the model is enough."""

    def __init__(self) -> None:
        super().__init__(layers=[])
        self.shapes: dict[int, LayerShape] = {}

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        self.shapes[layer_idx] = LayerShape(key_states.shape[1], key_states.shape[-1], value_states.shape[-1])
        return key_states, value_states

    def get_seq_length(self, layer_idx: int = 0) -> int:  # noqa: ARG002
        return 0
