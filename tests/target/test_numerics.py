"""The probe finds equality classes that are there, and does not find those that are not."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from headstart.target import numerics
from headstart.target.numerics import RowClass, RowTiledLinear, find_class, probe_attention, probe_linear

COUNTS = (1, 2, 3, 4, 8, 9, 16, 17, 32)


def kernel(edges: tuple[int, ...]):
    """A made-up kernel whose result depends on the class of the row count: ``edges`` start new classes."""

    def run(first: int, count: int) -> torch.Tensor:
        flavour = sum(count >= edge for edge in edges)
        return torch.arange(first, first + count).float()[:, None] + flavour

    return run


@pytest.mark.parametrize(
    ("edges", "expected"),
    [
        ((), (1, 32)),
        ((2,), (2, 32)),
        ((2, 4), (4, 32)),
        ((2, 16), (2, 9)),
        ((9,), (1, 8)),
        ((2, 3, 4, 8, 9, 16, 17), (17, 32)),
    ],
)
def test_find_class(edges: tuple[int, ...], expected: tuple[int, int]) -> None:
    found = find_class(kernel(edges), 32, COUNTS)
    assert (found.low, found.high) == expected
    assert found.exact


def test_no_class_is_reported_as_inexact() -> None:
    found = find_class(kernel(tuple(range(2, 33))), 32, COUNTS)
    assert not found.exact
    assert found.low == found.high


def test_a_result_that_depends_on_the_position_in_the_call_is_seen() -> None:
    def run(first: int, count: int) -> torch.Tensor:
        rows = torch.arange(first, first + count).float()
        if count > 4:
            rows[-1] += 1  # the tail of wide calls is computed differently
        return rows[:, None]

    found = find_class(run, 32, COUNTS)
    assert (found.low, found.high) == (1, 4)


@given(st.integers(1, 300), st.integers(1, 20), st.integers(0, 60))
def test_splits_cover_and_stay_in_the_class(rows: int, low: int, extra: int) -> None:
    row_class = RowClass(low, low + extra)
    parts = row_class.splits(rows)
    assert sum(parts) == rows
    assert max(parts) <= row_class.high
    assert max(parts) - min(parts) <= 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("shape", [(96, 64), (64, 96), (300, 128)])
def test_tiled_rows_are_bitwise_equal_for_every_count(shape: tuple[int, int], dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    linear = torch.nn.Linear(shape[1], shape[0], bias=True, dtype=dtype)
    tiled = RowTiledLinear(linear, probe_linear(linear.weight, linear.bias))
    x = torch.randn(80, shape[1], dtype=dtype)
    with torch.inference_mode():
        alone = torch.cat([tiled(x[i : i + 1]) for i in range(80)])
        for count in range(1, 81):
            assert torch.equal(tiled(x[:count]), alone[:count]), count
        torch.testing.assert_close(alone, F.linear(x, linear.weight, linear.bias))


def test_tiling_is_what_makes_rows_equal() -> None:
    """Control: without tiling this machine's float32 kernels do differ, else the test above shows nothing."""
    torch.manual_seed(0)
    linear = torch.nn.Linear(576, 1536, bias=False)
    x = torch.randn(64, 576)
    with torch.inference_mode():
        alone = torch.cat([linear(x[i : i + 1]) for i in range(64)])
        different = [n for n in range(2, 65) if not torch.equal(linear(x[:n]), alone[:n])]
    found = probe_linear(linear.weight, None)
    assert bool(different) == (found.low > 1 or found.high < 64)


def test_attention_class_is_found_and_used() -> None:
    found = probe_attention(2, 16, 16, torch.float32, torch.device("cpu"))
    assert found.rows.exact
    assert found.rows.high >= numerics.ENOUGH
    assert found.keys in numerics.KEY_MULTIPLES
