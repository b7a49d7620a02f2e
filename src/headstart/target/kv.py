"""The KV pool: fixed capacity, accounted in blocks, one contiguous extent of slots per sequence.

Contiguous extents let attention read keys as a view instead of gathering pages, which on a CPU costs a copy of the
whole context per layer. The price is fragmentation, paid by ``compact``. The pool knows slots and tensors; it does
not know tokens, sequences or models.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers.cache_utils import Cache


@dataclass(frozen=True, slots=True)
class LayerShape:
    """Shape of one layer's cache: heads and the last dimension of keys and values."""

    kv_heads: int
    key_dim: int
    value_dim: int

    def bytes_per_token(self, dtype: torch.dtype) -> int:
        return self.kv_heads * (self.key_dim + self.value_dim) * dtype.itemsize


@dataclass(slots=True, eq=False)
class Extent:
    """A sequence's slots ``[start, start + size)``; ``start`` may change when the pool compacts."""

    start: int
    size: int
    released: bool = field(default=False)


class KVPool:
    """Keys and values of all layers, ``[kv_heads, slots, dim]`` each, with a scratch block for padding rows.

    Memory is taken once, here. ``capacity`` is in tokens and rounded up to whole blocks of ``block`` slots; attention
    pads keys to whole blocks, so every extent covers them. With ``panels`` the keys of each 32 slots lie as
    ``headstart.target.native`` wants them, which moves single rows about but leaves whole blocks where they are.
    """

    def __init__(
        self,
        shapes: Sequence[LayerShape],
        capacity: int,
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
        block: int = 64,
        panels: bool = False,
    ) -> None:
        self.shapes = tuple(shapes)
        self.panels = panels
        self.block = block
        self.capacity = self._whole_blocks(capacity)
        self.scratch = self.capacity
        slots = self.capacity + block
        self.keys = [_zeros((s.kv_heads, slots, s.key_dim), dtype, device) for s in self.shapes]
        self.values = [_zeros((s.kv_heads, slots, s.value_dim), dtype, device) for s in self.shapes]
        self._extents: list[Extent] = []

    @property
    def bytes(self) -> int:
        return sum(t.nbytes for t in (*self.keys, *self.values))

    @property
    def used(self) -> int:
        """Slots reserved by live extents."""
        return sum(e.size for e in self._extents)

    @property
    def free(self) -> int:
        return self.capacity - self.used

    def reserve(self, tokens: int) -> Extent | None:
        """An extent of at least ``tokens`` slots, or ``None`` when the pool has not that much free."""
        size = self._whole_blocks(max(tokens, 1))
        if size > self.free:
            return None
        start = self._hole(size)
        if start is None:
            self.compact()
            start = self._hole(size)
            if start is None:
                return None
        extent = Extent(start, size)
        self._extents.append(extent)
        self._extents.sort(key=lambda e: e.start)
        return extent

    def release(self, extent: Extent) -> None:
        """Give an extent back. Releasing twice is harmless."""
        if not extent.released:
            extent.released = True
            self._extents.remove(extent)

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
        for tensor in self.keys:
            if self.panels:
                by_panel, at = _panel_view(tensor)
                by_panel[at(target)] = by_panel[at(index)]
            else:
                tensor[:, target] = tensor[:, index]
        for tensor in self.values:
            tensor[:, target] = tensor[:, index]

    def copy_prefix(self, source: Extent, target: Extent, tokens: int) -> None:
        """Copy the first ``tokens`` rows of one extent to another, in whole blocks."""
        size = self._whole_blocks(tokens)
        for tensor in (*self.keys, *self.values):
            tensor[:, target.start : target.start + size] = tensor[:, source.start : source.start + size]

    def _whole_blocks(self, tokens: int) -> int:
        return -(-tokens // self.block) * self.block

    def _hole(self, size: int) -> int | None:
        end = 0
        for extent in self._extents:
            if extent.start - end >= size:
                return end
            end = extent.start + extent.size
        return end if self.capacity - end >= size else None


def _panel_view(keys: torch.Tensor) -> tuple[torch.Tensor, Callable[[torch.Tensor], tuple[Any, ...]]]:
    """Keys ``[heads, slots, dim]`` seen as panels of 32 slots, and the index that picks slots out of it (see
    ``native/kernels.c``)."""
    heads, _, dim = keys.shape
    if keys.dtype == torch.float32:
        return keys.view(heads, -1, dim, 32), lambda s: (slice(None), s // 32, slice(None), s % 32)
    return (
        keys.view(heads, -1, dim, 16, 2),
        lambda s: (slice(None), s // 32, slice(None), s % 16, s % 32 // 16),
    )


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
