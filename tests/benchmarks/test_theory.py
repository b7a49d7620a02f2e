"""Predicted speedups against sums done by hand, and the targets made of them."""

from __future__ import annotations

import pytest
from benchmarks.theory import MOST_DEPTH, best_depth, expected_tokens, predicted

from headstart.control.cost import GRID, CostCurve


def test_expected_tokens_are_a_geometric_sum() -> None:
    assert expected_tokens(0.5, 3) == pytest.approx(1 + 0.5 + 0.25 + 0.125)
    assert expected_tokens(0.0, 5) == 1
    assert expected_tokens(1.0, 5) == 6


def test_free_rows_and_rows_that_cost_a_whole_step() -> None:
    free = CostCurve([1.0] * len(GRID), 0.0)
    assert predicted(free, 0.7, 4, 100) == pytest.approx(expected_tokens(0.7, 4))
    assert best_depth(free, 0.7) == MOST_DEPTH
    dear = CostCurve([float(rows) for rows in GRID], 0.0)
    assert predicted(dear, 0.7, 4, 100) == pytest.approx(expected_tokens(0.7, 4) / 5)
    assert best_depth(dear, 0.7) == 1


def test_keys_count_for_every_row() -> None:
    curve = CostCurve([1.0] * len(GRID), 0.01)
    assert predicted(curve, 1.0, 1, 100) == pytest.approx(2 / ((1 + 2) / (1 + 1)))
