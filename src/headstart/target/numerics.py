"""Which shapes give a row the same bits: equality classes of linear layers and attention, found by a probe.

A kernel picks its order of summation by shape, so a row's result may differ in the last bit between a call with 1 row
and one with 8. Within a *class*, an interval of row counts, rows are bitwise equal whatever their neighbours. The
probe finds the class on the device, dtype and thread count at hand; ``RowTiledLinear`` then keeps every call inside it.
A probe is evidence from this machine's own kernels on random data, not a proof; the whole-model check in
``headstart.target.checks`` confirms it end to end at every load.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F

COUNTS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 15, 16, 17, 20, 24, 31, 32, 33, 48, 63, 64, 65, 96, 127, 128, 192, 256)
"""Row counts probed: the small ones rounds use, and both sides of the powers of two where kernels switch."""

ENOUGH = 8
"""A class must reach this many rows to verify a typical draft in one call."""


@dataclass(frozen=True, slots=True)
class RowClass:
    """Row counts ``low … high`` (inclusive) within which rows are bitwise equal. ``exact`` is false where no class of
    at least two row counts was found, so that every row would have to be computed alone."""

    low: int
    high: int
    exact: bool = True

    def splits(self, rows: int) -> list[int]:
        """Sizes of calls that cover ``rows``, each at most ``high`` and, where possible, at least ``low``."""
        parts = -(-rows // self.high)
        size, extra = divmod(rows, parts)
        return [size + 1] * extra + [size] * (parts - extra)


def find_class(run: Callable[[int, int], torch.Tensor | None], total: int, counts: Sequence[int] = COUNTS) -> RowClass:
    """The class to use, from ``run(first, count) -> [count, ...]``: one call with rows ``first … first + count`` of
    ``total`` fixed random rows; ``None`` says that such a call is not consistent with itself.

    Two counts belong together when every row comes out bitwise equal. Of all maximal intervals, the one with the
    smallest ``low`` that reaches ``ENOUGH`` rows wins: plain decoding pays for ``low`` rows.
    """
    intervals: list[list[int]] = []
    previous: torch.Tensor | None = None
    for count in counts:
        rows: torch.Tensor | None = None
        stable = True
        for first in [*range(0, total - count, count), total - count]:
            result = run(first, count)
            if result is None:
                stable = False
                break
            if rows is None:
                rows = result.new_empty(total, *result.shape[1:])
            fresh = first % count  # not 0 in the last call only, which overlaps the one before it:
            if fresh:  # the same rows at two positions of a call
                stable &= torch.equal(rows[first : first + count - fresh], result[: count - fresh])
            rows[first : first + count] = result
        if stable and previous is not None and rows is not None and torch.equal(rows, previous):
            intervals[-1].append(count)
        else:
            intervals.append([count])
        previous = rows if stable else None
    usable = [i for i in intervals if i[-1] >= min(ENOUGH, max(counts)) and len(i) > 1]
    if usable:
        best = min(usable, key=lambda i: i[0])
        return RowClass(best[0], best[-1])
    widest = max(intervals, key=lambda i: i[-1] - i[0])
    return RowClass(widest[0], widest[-1], exact=len(widest) > 1)


def cancelling(rows: int, weight: torch.Tensor, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """``(x [rows, in], w [out, in])``, in shape, dtype and device like ``weight [out, in]``, for which every sum of
    ``x @ w.T`` is zero but for what rounding left.

    Two orders of summation in float32 agree on other sums once they are rounded to bfloat16, but for one element of
    ten thousand or of a hundred thousand; here most elements tell them apart.
    """
    terms = weight.shape[1]
    # scattered: terms that cancel must not meet in the same place of two equal steps of a kernel
    first, second = torch.randperm(terms, generator=generator)[: terms // 2 * 2].view(2, -1)
    x, w = torch.zeros(rows, terms).to(weight), torch.zeros_like(weight)
    x[:, first] = x[:, second] = torch.randn(rows, len(first), generator=generator).to(weight)
    w[:, first] = weight[:, first]
    w[:, second] = -weight[:, first]
    return x, w


def probe_linear(weight: torch.Tensor, bias: torch.Tensor | None) -> RowClass:
    """Equality class of ``x @ weight.T + bias`` for one ``[out, in]`` weight, on its own device and dtype.

    Two products of each shape are compared: one with the weight itself, where it lies, and one whose sums cancel.
    """
    # fewer rows for very large weights keep the probe within seconds
    largest = 256 if weight.numel() < 4_000_000 else 64
    generator = torch.Generator().manual_seed(0x5EED)
    x = torch.randn(largest, weight.shape[1], generator=generator).to(weight)
    pairs, opposed = cancelling(largest, weight.detach(), generator)

    def run(first: int, count: int) -> torch.Tensor:
        rows = slice(first, first + count)
        return torch.cat([F.linear(x[rows], weight, bias), F.linear(pairs[rows], opposed)], dim=1)

    with torch.inference_mode():
        return find_class(run, largest, tuple(c for c in COUNTS if c <= largest))


KEY_MULTIPLES = (256, 512)
"""Paddings of the key length that are tried. torch's CPU kernel works in blocks of 512 keys; shorter paddings than 256
pass the probe in some shapes and fail in others of the same kernel, so they are not trusted."""


@dataclass(frozen=True, slots=True)
class AttentionClass:
    """Shapes of attention calls that keep a row's bits: query rows within ``rows``, keys padded to multiples of
    ``keys``."""

    rows: RowClass
    keys: int


def probe_attention(
    kv_heads: int, key_dim: int, value_dim: int, dtype: torch.dtype, device: torch.device
) -> AttentionClass:
    """Equality class of attention over query rows (heads of a group folded in), with the least padding of keys.

    A row must also keep its bits when masked keys are appended, since all rows of a draft share the width of the
    longest: kernels block the sum over keys as well, and not all widths alike.
    """
    generator = torch.Generator().manual_seed(0xA77E)
    heads, total, longest = min(kv_heads, 2), 64, 1280
    q = torch.randn(1, heads, total, key_dim, generator=generator).to(device, dtype)
    k = torch.randn(1, heads, longest, key_dim, generator=generator).to(device, dtype)
    v = torch.randn(1, heads, longest, value_dim, generator=generator).to(device, dtype)
    seen = torch.randint(1, 1024, (total,), generator=generator)
    seen[::4] = torch.randint(1, 320, (total // 4,), generator=generator)
    mask = torch.zeros(total, longest, dtype=dtype)
    mask[torch.arange(longest) >= seen[:, None]] = float("-inf")
    mask = mask.to(device)

    def attend(first: int, count: int, width: int) -> torch.Tensor:
        rows = slice(first, first + count)
        queries, hidden = q[:, :, rows].contiguous(), mask[rows, :width].contiguous()
        out = F.scaled_dot_product_attention(queries, k[:, :, :width], v[:, :, :width], attn_mask=hidden)
        return out[0].transpose(0, 1).contiguous()

    def run(first: int, count: int, multiple: int) -> torch.Tensor | None:
        widest = longest // multiple * multiple
        full = attend(first, count, widest)
        lengths = seen[first : first + count]
        for width in range(multiple, widest, multiple):
            whole = lengths <= width
            if whole.any() and not torch.equal(attend(first, count, width)[whole], full[whole]):
                return None
        return full

    counts = tuple(c for c in COUNTS if c <= total)
    found = RowClass(1, 1, exact=False)
    with torch.inference_mode():
        for multiple in KEY_MULTIPLES:
            found = find_class(partial(run, multiple=multiple), total, counts)
            if found.exact and found.high >= ENOUGH:
                return AttentionClass(found, multiple)
    return AttentionClass(found, KEY_MULTIPLES[-1])


class RowTiledLinear(torch.nn.Module):
    """A linear layer that computes every row within one equality class: fewer rows are filled up, more are tiled.

    Shares the wrapped layer's parameters; ``[..., rows, in] -> [..., rows, out]``.
    """

    def __init__(self, linear: torch.nn.Linear, row_class: RowClass) -> None:
        super().__init__()
        self.weight = linear.weight
        self.bias = linear.bias
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.row_class = row_class

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[-2] <= self.row_class.high:
            return self._one(x)
        return torch.cat(
            [self._one(part) for part in torch.split(x, self.row_class.splits(x.shape[-2]), dim=-2)], dim=-2
        )

    def _one(self, x: torch.Tensor) -> torch.Tensor:
        rows, low = x.shape[-2], self.row_class.low
        if rows >= low:
            return F.linear(x, self.weight, self.bias)
        filled = torch.cat([x, x.new_zeros(*x.shape[:-2], low - rows, x.shape[-1])], dim=-2)
        return F.linear(filled, self.weight, self.bias)[..., :rows, :]


def tile_linears(model: torch.nn.Module) -> dict[str, RowClass]:
    """Replace every ``nn.Linear`` of ``model`` by a ``RowTiledLinear``; returns the classes by weight shape.

    Weights that are not plain ``nn.Linear`` (quantised, expert tensors) stay as they are; the whole-model check then
    tells whether rows are exact.
    """
    classes: dict[tuple[torch.Size, bool, torch.dtype], RowClass] = {}
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is not torch.nn.Linear:
                continue
            key = (child.weight.shape, child.bias is not None, child.weight.dtype)
            if key not in classes:
                classes[key] = probe_linear(child.weight, child.bias)
            setattr(parent, name, RowTiledLinear(child, classes[key]))
    return {f"{tuple(shape)}{'+bias' if bias else ''}": found for (shape, bias, _), found in classes.items()}


def raise_lows(model: torch.nn.Module, least: int) -> None:
    """Make every tiled layer use at least ``least`` rows a call: the way out where the probe found too wide a class."""
    for module in model.modules():
        if isinstance(module, RowTiledLinear):
            found = module.row_class
            module.row_class = RowClass(max(found.low, least), max(found.high, least), found.exact)
