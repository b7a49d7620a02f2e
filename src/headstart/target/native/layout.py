"""How weights lie in memory for the kernels: panels of 32 outputs, and int8 with one scale per output."""

from __future__ import annotations

import torch

PANEL = 32
LANES = 16
KINDS = {torch.float32: 0, torch.bfloat16: 1, torch.int8: 2}


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


def interleave(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """Rows of two ``[n, k]`` weights in turns of 16, so that each panel holds 16 gates and their ups."""
    n, k = gate.shape
    return torch.stack([gate.view(-1, LANES, k), up.view(-1, LANES, k)], dim=1).reshape(2 * n, k)


def quantise(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Symmetric int8 with one float32 scale per output row: ``weight ≈ int8 * scale[:, None]``."""
    w = weight.float()
    scale = w.abs().amax(dim=1).clamp_min(1e-12) / 127.0
    return (w / scale[:, None]).round().clamp_(-127, 127).to(torch.int8), scale
