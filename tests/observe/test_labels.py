"""Label values that clients choose: clean, short, few."""

from __future__ import annotations

import threading

import pytest

from headstart.observe.labels import MOST_CHARACTERS, NONE, OTHER, Bounded, clean


@pytest.mark.parametrize(
    ("value", "label"),
    [
        ("checkout", "checkout"),
        ("team-a/v1.2:x@y", "team-a/v1.2:x@y"),
        ("not wanted", "not wanted"),
        ("  padded ", "padded"),
        (None, NONE),
        ("", NONE),
        ("\x00\n\t", NONE),
        ('a"} 1\nevil{b="', "a_ 1_evil_b"),
        ("ü", NONE),
        ("a" * 1000, "a" * MOST_CHARACTERS),
    ],
)
def test_values_are_cleaned(value: str | None, label: str) -> None:
    assert clean(value) == label


def test_the_first_values_have_a_place_and_later_ones_share_one() -> None:
    bounded = Bounded(limit=3)
    assert [bounded(v) for v in ("a", "b", "a", "c", "d", "e", "b")] == ["a", "b", "a", "c", OTHER, OTHER, "b"]
    assert bounded(None) == NONE
    assert bounded("d") == OTHER


def test_known_values_cannot_be_crowded_out() -> None:
    bounded = Bounded(limit=0, known=("checkout", "search"))
    assert [bounded(v) for v in ("junk", "checkout", "more junk", "search", None)] == [
        OTHER,
        "checkout",
        OTHER,
        "search",
        NONE,
    ]


def test_many_threads_do_not_get_past_the_limit() -> None:
    bounded = Bounded(limit=5)
    seen: set[str] = set()
    lock = threading.Lock()

    def work(k: int) -> None:
        for i in range(200):
            label = bounded(f"r{k}-{i}")
            with lock:
                seen.add(label)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen - {OTHER}) == 5
