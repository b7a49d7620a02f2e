"""Names of several drafters."""

from __future__ import annotations

import pytest

from headstart.draft.ensemble import check_names, members
from headstart.errors import InvalidParameter


def test_names_are_taken_apart_in_order() -> None:
    assert members("none") == ()
    assert members("ngram") == ("ngram",)
    assert members("ngram+model") == ("ngram", "model")
    assert members("b+a+c") == ("b", "a", "c")


@pytest.mark.parametrize("name", ["", "+", "ngram+", "+model", "a++b", "ngram+none", "none+ngram", "a+b+a"])
def test_what_is_no_set_is_refused(name: str) -> None:
    with pytest.raises(InvalidParameter, match="drafter"):
        members(name)


def test_drafters_can_be_told_apart() -> None:
    check_names(["a", "b"])
    for names in (["a", "a"], ["none"], [""], ["a+b"]):
        with pytest.raises(InvalidParameter, match="drafters"):
            check_names(names)
