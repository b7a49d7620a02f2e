"""How weights lie in memory for the kernels: panels of 32 outputs, in floating point or in fewer bits."""

from __future__ import annotations

import torch

PANEL = 32
LANES = 16
KINDS = {torch.float32: 0, torch.bfloat16: 1, torch.int8: 2}
INT4 = 3
"""The kind of panels of 4-bit weights, which torch has no type for."""

TILES = 4
"""The kind of panels of bfloat16 weights for the processor's matrix unit."""

GROUP = 32
"""Columns that share a step and a minimum in 4 bits; the last group may be shorter."""


def pack(weight: torch.Tensor) -> torch.Tensor:
    """``[n, k]`` float32, bfloat16 or int8 to panels ``[n / 32, k, 32]``; n is filled up with zero rows.

    In bfloat16 panels the two halves of 16 outputs are interleaved, so that one 32-bit lane holds one of each. int8
    becomes uint8 ``w + 128``, four columns of an output together: ``[n / 32, k / 4, 32, 4]``.
    """
    n, k = weight.shape
    fill = -n % PANEL
    if fill:
        weight = torch.cat([weight, weight.new_zeros(fill, k)])
    if weight.dtype == torch.bfloat16:
        return weight.view(-1, 2, LANES, k).permute(0, 3, 2, 1).reshape(-1, k, PANEL).contiguous()
    if weight.dtype == torch.int8:
        unsigned = (weight.to(torch.int16) + 128).to(torch.uint8)
        return unsigned.view(-1, PANEL, k // 4, 4).transpose(1, 2).contiguous()
    return weight.view(-1, PANEL, k).transpose(1, 2).contiguous()


def pack_tiles(weight: torch.Tensor) -> torch.Tensor:
    """``[n, k]`` bfloat16 to panels of tiles ``[n / 32, k / 32, 2, 16, 16, 2]``, see ``tiles.h``; n and k are
    filled up with zeros."""
    n, k = weight.shape
    weight = torch.nn.functional.pad(weight, (0, -k % PANEL, 0, -n % PANEL))
    return weight.view(-1, 2, LANES, weight.shape[1] // PANEL, LANES, 2).permute(0, 3, 1, 4, 2, 5).contiguous()


def interleave(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """Rows of two ``[n, k]`` weights in turns of 16, so that each panel holds 16 gates and their ups."""
    n, k = gate.shape
    return torch.stack([gate.view(-1, LANES, k), up.view(-1, LANES, k)], dim=1).reshape(2 * n, k)


def quantise(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Symmetric int8 with one float32 scale per output row: ``weight ≈ int8 * scale[:, None]``."""
    w = weight.float()
    scale = w.abs().amax(dim=1).clamp_min(1e-12) / 127.0
    return (w / scale[:, None]).round().clamp_(-127, 127).to(torch.int8), scale


def quantise4(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """4 bits between the least and the largest weight of every ``GROUP`` columns of a row: uint8 ``q [n, k]`` up to 15,
    bfloat16 ``step`` and ``minimum [n, groups]``, with ``weight ≈ minimum + step * q``."""
    n, k = weight.shape
    fill = -k % GROUP
    w = weight.float()
    if fill:
        w = torch.cat([w, w[:, -1:].expand(n, fill)], dim=1)
    w = w.view(n, -1, GROUP)
    minimum = w.amin(dim=2).bfloat16()
    step = ((w.amax(dim=2) - minimum.float()) / 15.0).clamp_min(1e-12).bfloat16()
    q = ((w - minimum.float()[..., None]) / step.float()[..., None]).round().clamp_(0, 15)
    return q.view(n, -1)[:, :k].to(torch.uint8), step, minimum


def pack4(q: torch.Tensor, step: torch.Tensor, minimum: torch.Tensor) -> torch.Tensor:
    """What ``quantise4`` returns as panels ``[n / 32, bytes]``, see ``int4.h``; n is filled up with zeros."""
    n, k = q.shape
    fill = -n % PANEL
    if fill:
        q, step, minimum = (torch.cat([x, x.new_zeros(fill, x.shape[1])]) for x in (q, step, minimum))
    halves = q.view(-1, 2, LANES, k // 4, 4).transpose(2, 3)
    quads = (halves[:, 0] | halves[:, 1] << 4).reshape(-1, k // 4 * PANEL * 2)
    upper, lower = (x.view(torch.int16).to(torch.int32) for x in (step, minimum))
    pairs = (upper << 16 | lower & 0xFFFF).view(-1, PANEL, step.shape[1]).transpose(1, 2).contiguous().view(torch.uint8)
    size = GROUP // 4 * PANEL * 2
    parts = [part for g in range(step.shape[1]) for part in (quads[:, g * size : (g + 1) * size], pairs[:, g])]
    return torch.cat(parts, dim=1).contiguous()
