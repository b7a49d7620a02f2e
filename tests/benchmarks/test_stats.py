"""Counting, pairing and intervals."""

from __future__ import annotations

import pytest
from benchmarks.stats import Timed, cut_at_eos, speed, speedup


def test_tokens_behind_the_first_end_of_sequence_do_not_count() -> None:
    assert cut_at_eos([5, 2, 7, 2], [2]) == [5, 2]
    assert cut_at_eos([5, 7], [2]) == [5, 7]
    assert cut_at_eos([], [2]) == []
    assert cut_at_eos([0, 2], [2, 0]) == [0]


def test_speed_is_a_ratio_of_sums_and_not_a_mean_of_ratios() -> None:
    assert speed([Timed(10, 1.0), Timed(90, 2.0)]) == pytest.approx(100 / 3)
    assert speed([]) is None
    assert speed([Timed(0, 0.0)]) is None


def test_a_constant_speedup_has_an_interval_of_no_width() -> None:
    pairs = [(Timed(10, 1.0), Timed(10, 2.0)), (Timed(40, 2.0), Timed(20, 2.0))]
    found = speedup(pairs)
    assert found is not None
    assert (found.median, found.items) == (2.0, 2)
    same = speedup([(Timed(10, 1.0), Timed(10, 2.0))] * 5)
    assert same is not None
    assert (same.ratio, same.low, same.high, same.median) == (2.0, 2.0, 2.0, 2.0)


def test_the_interval_covers_the_spread_of_items_and_can_be_repeated() -> None:
    pairs = [(Timed(10, 1.0), Timed(10, 1.0)), (Timed(30, 1.0), Timed(10, 1.0))] * 10
    found = speedup(pairs)
    assert found is not None
    assert found.ratio == pytest.approx(2.0)
    assert 1.3 < found.low < 2.0 < found.high < 2.7
    assert speedup(pairs) == found


def test_items_without_tokens_or_time_are_left_out_of_pairs() -> None:
    good = (Timed(10, 1.0), Timed(10, 2.0))
    found = speedup([good, (Timed(0, 0.1), Timed(10, 2.0)), (Timed(10, 1.0), Timed(0, 0.0))])
    assert found is not None
    assert found.items == 1
    assert speedup([(Timed(0, 1.0), Timed(1, 1.0))]) is None
