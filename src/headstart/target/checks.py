"""What every model is held to when it is loaded: its own forward, and rows that do not depend on their neighbours.

Knows a forward call, a pool and numbers; not which kernels are behind them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from transformers import PreTrainedModel

from headstart.decode.segment import Segment
from headstart.errors import InvalidParameter
from headstart.target.kv import KVPool
from headstart.target.support import widest_window

FlatForward = Callable[[Sequence[Segment]], torch.Tensor]
"""Segments in, logits of the wanted rows out."""

SAMPLE = 40
LONGEST_WINDOW = 256
"""A sliding window up to this length is crossed by the sample."""

WIDTHS = (2, 3, 5, 8, 9)


def own_logits(model: PreTrainedModel, vocab_size: int, longest: int) -> tuple[list[int], torch.Tensor]:
    """Random token ids and the logits ``[ids, width]`` of transformers' own forward, before anything is replaced."""
    window = widest_window(model.config.get_text_config())
    length = SAMPLE if window is None or window > LONGEST_WINDOW else max(SAMPLE, window + 16)
    length = min(length, longest)
    ids = torch.randint(0, vocab_size, (1, length), generator=torch.Generator().manual_seed(5))
    with torch.inference_mode():
        own = model(input_ids=ids.to(model.device), use_cache=False).logits[0]
    return ids[0].tolist(), own


def relative_difference(forward: FlatForward, pool: KVPool, sample: list[int], own: torch.Tensor) -> float:
    """Size of the difference between ``forward``'s logits and ``own``, relative to the latter; infinite if not a
    number."""
    extent = pool.reserve(len(sample))
    if extent is None:
        raise InvalidParameter("kv_tokens", f"must be at least {len(sample)} to check the model, got less")
    try:
        found = forward([Segment(extent, 0, sample)]).float()
    finally:
        pool.release(extent)
    difference = float((found - own.float()).norm() / own.float().norm())
    return difference if difference == difference else float("inf")


def rows_differ(forward: FlatForward, pool: KVPool, vocab_size: int, longest: int, length: int = 24) -> str | None:
    """Decode ``length`` tokens one row at a time, then in blocks of several widths, and compare every logit bit; says
    in words where they differ.

    They lie across the end of the first block of keys, so that rows of one call differ in padded width.
    """
    length = min(length, longest)
    start = max(0, min(pool.block - length // 2, longest - length))
    extent = pool.reserve(start + length)
    if extent is None:
        return "the KV pool is too small for the check"
    try:
        generator = torch.Generator().manual_seed(7)
        ids = torch.randint(0, vocab_size, (start + length,), generator=generator).tolist()
        for first in range(0, start, 64):
            chunk = ids[first : min(first + 64, start)]
            forward([Segment(extent, first, chunk, first_logits=len(chunk))])
        rows = range(start, start + length)
        single = torch.cat([forward([Segment(extent, i, ids[i : i + 1])]) for i in rows])
        for width in (*WIDTHS, length):
            blocks = [forward([Segment(extent, i, ids[i : min(i + width, start + length)])]) for i in rows[::width]]
            different = (torch.cat(blocks) != single).any(dim=-1).sum().item()
            if different:
                return f"{different} of {length} logit rows differ in blocks of {width}"
        return None
    finally:
        pool.release(extent)
