"""Attention for flat rows, registered with transformers under the name ``headstart``.

Each tile of rows attends to its own sequence's extent of the KV pool. A row's result does not depend on its neighbours:
keys are padded to whole blocks and query rows kept within one equality class of the kernel (``numerics`` finds it).
Query heads that share a key head are folded into the rows of one call, so that keys are never repeated in memory.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from headstart.errors import UnsupportedModel
from headstart.target.batch import FlatBatch
from headstart.target.numerics import RowClass

NAME = "headstart"
EXPLICIT_ROWS, EXPLICIT_KEYS = 32, 256


def flat_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,  # noqa: ARG001 - always None, the tiles carry the masks
    *,
    flat_batch: FlatBatch | None = None,
    row_class: RowClass | None = None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Attend; ``query`` ``[1, heads, rows, dim]``, ``key``/``value`` whole pool layers ``[kv_heads, slots, dim]``.

    Returns ``[1, rows, heads, value_dim]``. Without ``flat_batch`` (the load-time shape probe) key and value are the
    rows' own ``[1, kv_heads, rows, dim]`` and attention is plainly causal.
    """
    scale = scaling if scaling is not None else query.shape[-1] ** -0.5
    if flat_batch is None or row_class is None:
        if key.dim() == 3:
            raise UnsupportedModel(
                f"{type(module).__name__} hands no keyword arguments to its attention, so rows cannot be told apart"
            )
        out = F.scaled_dot_product_attention(query, key, value, is_causal=True, scale=scale, enable_gqa=True)
        return out.transpose(1, 2), None
    heads, rows, dim = query.shape[1:]
    kv_heads, value_dim = key.shape[0], value.shape[-1]
    group = heads // kv_heads
    query = query[0].view(kv_heads, group, rows, dim)
    # rows beyond the batch are filler; zeros keep them finite
    out = (
        query.new_zeros(rows, kv_heads, group, value_dim)
        if rows > flat_batch.rows
        else query.new_empty(rows, kv_heads, group, value_dim)
    )
    least = row_class.low
    for tile in flat_batch.tiles(sliding_window, max(1, row_class.high // group)):
        mask = tile.mask_for(group, least)
        count = tile.mask.shape[0]
        if isinstance(tile.rows, tuple):
            first, last = tile.rows
            q = query[:, :, first:last]
        else:
            q = query[:, :, tile.rows]
        q = q.reshape(1, kv_heads, group * count, dim)
        if group * count < least:
            q = torch.cat([q, q[:, :, :1].expand(-1, -1, least - group * count, -1)], dim=2)
        if isinstance(tile.keys, tuple):
            begin, end = tile.keys
            k, v = key[:, begin:end].unsqueeze(0), value[:, begin:end].unsqueeze(0)
        else:
            k, v = key.index_select(1, tile.keys).unsqueeze(0), value.index_select(1, tile.keys).unsqueeze(0)
        if softcap is None and s_aux is None:
            o = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale)
        else:
            o = _explicit(q, k, v, mask, scale, softcap, s_aux, group, count)
        o = o[0, :, : group * count].view(kv_heads, group, count, value_dim).permute(2, 0, 1, 3)
        if isinstance(tile.rows, tuple):
            out[first:last] = o
        else:
            out[tile.rows] = o
    return out.view(1, rows, heads, value_dim), None


def _explicit(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: torch.Tensor,
    scale: float,
    softcap: float | None,
    sinks: torch.Tensor | None,
    group: int,
    count: int,
) -> torch.Tensor:
    """Attention in separate steps, for what the fused kernel lacks: soft-capped scores and attention sinks.

    Every matrix product has one shape, 32 rows by 256 keys, whatever the batch: that keeps it in one equality class.
    """
    rows, keys, kv_heads = q.shape[2], k.shape[2], q.shape[1]
    fill = -rows % EXPLICIT_ROWS
    if fill:
        q = torch.cat([q, q[:, :, :1].expand(-1, -1, fill, -1)], dim=2)
        mask = torch.cat([mask, mask[:1].expand(fill, -1)])
    sink = None
    if sinks is not None:
        sink = sinks.float().view(1, kv_heads, group, 1).expand(-1, -1, -1, count).reshape(1, kv_heads, -1, 1)
        sink = torch.cat([sink, sink[:, :, :1].expand(-1, -1, q.shape[2] - sink.shape[2], -1)], dim=2)
    out = []
    for first in range(0, q.shape[2], EXPLICIT_ROWS):
        part = slice(first, first + EXPLICIT_ROWS)
        queries = q[:, :, part].float()
        blocks = range(0, keys, EXPLICIT_KEYS)
        scores = [queries @ k[:, :, b : b + EXPLICIT_KEYS].float().transpose(-1, -2) for b in blocks]
        capped = torch.cat(scores, dim=-1) * scale
        if softcap is not None:
            capped = torch.tanh(capped / softcap) * softcap
        capped = capped + mask[part]
        if sink is not None:
            capped = torch.cat([capped, sink[:, :, part]], dim=-1)
        weights = torch.softmax(capped, dim=-1)
        total = weights.new_zeros(1)
        for b in blocks:
            total = total + weights[..., b : min(b + EXPLICIT_KEYS, keys)] @ v[:, :, b : b + EXPLICIT_KEYS].float()
        out.append(total)
    return torch.cat(out, dim=2)[:, :, :rows].to(v.dtype)


def register() -> None:
    """Make the function known to transformers; calling twice is harmless."""
    ALL_ATTENTION_FUNCTIONS.register(NAME, flat_attention)
