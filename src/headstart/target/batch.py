"""The flat row of one step: prefill chunks, decode tokens and drafts of all sequences side by side, without padding.

``FlatBatch`` lays the sequences' segments out as rows and says, for each tile of rows, which keys it may see. It
knows positions, parents and slots; not models, not tokens' meaning.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from headstart.decode.segment import Segment


@dataclass(slots=True)
class Tile:
    """A block of rows that attends together, and the keys it reads.

    ``rows``/``keys`` are ``(first, last + 1)`` or index tensors; ``mask`` is additive ``[rows, keys]`` in the model's
    dtype.
    """

    rows: tuple[int, int] | torch.Tensor
    keys: tuple[int, int] | torch.Tensor
    mask: torch.Tensor
    _expanded: dict[tuple[int, int], torch.Tensor] = field(default_factory=dict)

    def mask_for(self, group: int, least: int) -> torch.Tensor:
        """The mask for ``group`` query heads folded into rows, padded to at least ``least`` rows."""
        key = (group, least)
        if key not in self._expanded:
            mask = self.mask.repeat(group, 1) if group > 1 else self.mask
            if mask.shape[0] < least:
                # the filler repeats a real row: an all-masked row would be NaN
                mask = torch.cat([mask, mask[:1].expand(least - mask.shape[0], -1)])
            self._expanded[key] = mask
        return self._expanded[key]


class FlatBatch:
    """Input tensors and attention tiles of one step.

    ``input_ids``, ``position_ids``: int64 ``[1, rows]``; ``slots``: int64 ``[rows]`` in the pool; ``logits_index``:
    int64 rows whose logits are wanted, segment by segment. Rows are filled up to ``least_rows`` with copies that
    write to the slots from ``scratch`` on. Keys are padded to multiples of ``block``.
    """

    def __init__(
        self,
        segments: Sequence[Segment],
        *,
        scratch: int,
        block: int,
        dtype: torch.dtype,
        device: torch.device,
        least_rows: int = 1,
    ) -> None:
        self.segments = segments
        self.block = block
        self.dtype, self.device = dtype, device
        self._tiles: dict[tuple[int | None, int], list[Tile]] = {}
        ids: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        wanted: list[int] = []
        self.offsets: list[int] = []
        for segment in segments:
            first = len(ids)
            self.offsets.append(first)
            count = len(segment.tokens)
            ids.extend(segment.tokens)
            if segment.parents is None:
                positions.extend(range(segment.base, segment.base + count))
            else:
                depths: list[int] = []
                for parent in segment.parents:
                    depths.append(0 if parent < 0 else depths[parent] + 1)
                positions.extend(segment.base + d for d in depths)
            start = segment.extent.start + segment.base
            slots.extend(range(start, start + count))
            wanted.extend(range(first + segment.first_logits, first + count))
        self.rows = len(ids)
        one_run = len(segments) == 1
        self.run = (slots[0], slots[-1] + 1) if one_run else None
        for i in range(least_rows - self.rows):
            ids.append(ids[0])
            positions.append(positions[0])
            slots.append(scratch + i)
        self.input_ids = torch.tensor([ids], dtype=torch.long, device=device)
        self.position_ids = torch.tensor([positions], dtype=torch.long, device=device)
        self.slots = torch.tensor(slots, dtype=torch.long, device=device)
        self.logits_index = torch.tensor(wanted, dtype=torch.long, device=device)

    @property
    def windows(self) -> set[int | None]:
        """Sliding windows the attention layers asked for."""
        return {window for window, _ in self._tiles}

    def tiles(self, window: int | None, most_rows: int) -> list[Tile]:
        """Attention tiles of at most ``most_rows`` rows under a sliding ``window`` (``None``: full attention)."""
        key = (window, most_rows)
        if key not in self._tiles:
            out: list[Tile] = []
            for segment, first in zip(self.segments, self.offsets, strict=True):
                chain = len(segment.tokens) if segment.parents is None else _chain_length(segment.parents)
                out.extend(self._chain_tiles(segment, first, chain, window, most_rows))
                if segment.parents is not None and chain < len(segment.tokens):
                    out.extend(self._branch_tiles(segment, first, chain, window, most_rows))
            self._tiles[key] = out
        return self._tiles[key]

    def _chain_tiles(self, segment: Segment, first: int, count: int, window: int | None, most_rows: int) -> list[Tile]:
        out = []
        for low in range(0, count, most_rows):
            high = min(low + most_rows, count)
            keys = self._padded(segment.base + high)
            position = torch.arange(segment.base + low, segment.base + high, device=self.device)
            mask = self._mask(position, keys, window)
            start = segment.extent.start
            out.append(Tile((first + low, first + high), (start, start + keys), mask))
        return out

    def _branch_tiles(self, segment: Segment, first: int, chain: int, window: int | None, most_rows: int) -> list[Tile]:
        """Tiles of rows off the leading chain.

        Keys are gathered in order of position along each branch, so that a row sums over the same keys in the same
        order as when the branch is decoded as a plain chain; that keeps its bits.
        """
        assert segment.parents is not None
        parents = segment.parents
        has_child = set(parents)
        covered = set(range(chain))
        out = []
        for leaf in range(chain, len(parents)):
            if leaf in has_child:
                continue
            path = segment.path(leaf)
            fresh = [i for i, row in enumerate(path) if row not in covered]
            covered.update(path)
            start, length = segment.extent.start, segment.base + len(path)
            slots = torch.arange(start, start + self._padded(length), device=self.device)
            slots[segment.base : length] = torch.tensor(path, device=self.device) + (start + segment.base)
            for low in range(0, len(fresh), most_rows):
                part = fresh[low : low + most_rows]
                rows = torch.tensor([first + path[i] for i in part], device=self.device)
                position = torch.tensor([segment.base + i for i in part], device=self.device)
                out.append(Tile(rows, slots, self._mask(position, slots.numel(), window)))
        return out

    def _padded(self, keys: int) -> int:
        return -(-keys // self.block) * self.block

    def _mask(self, position: torch.Tensor, keys: int, window: int | None) -> torch.Tensor:
        key = torch.arange(keys, device=self.device)
        hidden = key > position[:, None]
        if window is not None:
            hidden |= key <= position[:, None] - window
        return torch.zeros(hidden.shape, dtype=self.dtype, device=self.device).masked_fill_(hidden, float("-inf"))


def _chain_length(parents: tuple[int, ...]) -> int:
    """How many leading rows form a chain from the root."""
    length = 1
    while length < len(parents) and parents[length] == length - 1:
        length += 1
    return length
