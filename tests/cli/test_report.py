"""Numbers and words of ``headstart try`` from made-up runs: no model is needed to get them wrong."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from headstart.cli.advice import advise, caption, table
from headstart.cli.files import check_writable, write_json
from headstart.cli.report import (
    Conditions,
    Row,
    Run,
    acceptance_rate,
    as_json,
    broken,
    by_kind,
    first_difference,
    mean_acceptance_length,
    median_run,
    speedup,
    totals,
)
from headstart.errors import InvalidParameter

CONDITIONS = Conditions(
    model="toy",
    draft_model=None,
    dtype="bfloat16",
    device="cpu",
    exact_rows=True,
    reason=None,
    threads=1,
    depth=4,
    nodes=None,
    max_tokens=96,
    verify="coupled",
    seed=0,
    repeat=1,
    against=None,
    versions={"headstart": "0"},
)


def run(rate: float, tokens: int = 11, drafted: int = 0, accepted: int = 0, **more: Any) -> Run:
    """``rate`` tokens per second after the first, which took one second."""
    seconds = (tokens - 1) / rate
    return Run(
        token_ids=tuple(range(tokens)),
        seconds=seconds + 1,
        decode_seconds=seconds,
        decode_tokens=tokens - 1,
        drafted=drafted,
        accepted=accepted,
        rounds=tokens - 1 - accepted,
        **more,
    )


def pair(number: int, kind: str, plain: float, ngram: float, **more: Any) -> list[Row]:
    accepted, drafted = more.pop("accepted", 5), more.pop("drafted", 10)
    fallbacks = more.pop("fallbacks", {})
    own = {"identical": True, "promised": True, **more}
    name = f"prompt {number}" if kind == "user" else kind
    return [
        Row("plain", None, number, name, kind, 0.0, run(plain)),
        Row("ngram", "plain", number, name, kind, 0.0, run(ngram, 11, drafted, accepted, fallbacks=fallbacks), **own),
    ]


def peer(number: int, kind: str, plain: float, lookup: float, identical: bool | None) -> list[Row]:
    return [
        Row("transformers plain", None, number, kind, kind, 0.0, run(plain)),
        Row(
            "transformers lookup",
            "transformers plain",
            number,
            kind,
            kind,
            0.0,
            run(lookup),
            identical,
            None if identical is not None else "n.a.",
        ),
    ]


def words(rows: list[Row], conditions: Conditions = CONDITIONS) -> str:
    return "\n".join(advise(rows, conditions))


def rendered(rows: list[Row], conditions: Conditions = CONDITIONS, width: int = 80) -> str:
    console = Console(width=width, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    with console.file:
        console.print(table(rows))
        for line in caption(conditions):
            console.print(line)
    return console.export_text()


@pytest.mark.parametrize(
    ("a", "b", "place"),
    [([], [], None), ([1, 2], [1, 2], None), ([1, 2], [1, 3], 1), ([1], [1, 2], 1), ([1, 2], [], 0)],
)
def test_first_difference(a: list[int], b: list[int], place: int | None) -> None:
    assert first_difference(a, b) == first_difference(b, a) == place


def test_the_median_is_a_run_that_happened() -> None:
    runs = [run(rate) for rate in (10, 30, 20)]
    assert median_run(runs) is runs[2]
    assert median_run(runs[:2]) is runs[1]
    assert median_run(runs[:1]) is runs[0]


def test_rates() -> None:
    one = run(20.0, tokens=11, drafted=10, accepted=4)
    assert one.tok_s == pytest.approx(20)
    assert one.tok_s_total == pytest.approx(11 / 1.5)
    assert acceptance_rate(one) == 0.4
    assert mean_acceptance_length(one) == pytest.approx(10 / 6)
    single = Run((1,), 1.0, 0.0, 0, 0, 0, 0)
    assert single.tok_s is None
    assert acceptance_rate(single) is None
    assert mean_acceptance_length(single) is None
    assert acceptance_rate(run(1.0, drafted=5)) == 0.0


def test_totals_are_sums_over_sums() -> None:
    rows = [*pair(0, "edit", 10, 20), *pair(1, "question", 10, 5, accepted=0)]
    plain, ngram = totals(rows)
    assert plain.tok_s == pytest.approx(10)
    assert ngram.tok_s == pytest.approx(20 / 2.5)  # not the mean of 20 and 5
    assert ngram.speedup == pytest.approx(0.8)
    assert ngram.speedup_total == pytest.approx(4 / 4.5)
    assert ngram.acceptance_rate == 0.25
    assert ngram.mean_acceptance_length == pytest.approx(20 / 15)
    assert (ngram.identical, ngram.compared) == (2, 2)
    assert plain.speedup is None
    assert speedup(rows[3], rows) == pytest.approx(0.5)
    assert speedup(rows[0], rows) is None
    assert by_kind(rows, "ngram") == pytest.approx({"edit": 2.0, "question": 0.5})


def test_a_users_prompts_stand_for_themselves() -> None:
    rows = [*pair(0, "user", 10, 20), *pair(1, "user", 10, 5)]
    assert by_kind(rows, "ngram") == pytest.approx({"prompt 0": 2.0, "prompt 1": 0.5})


def test_advice_where_it_pays() -> None:
    text = words([*pair(0, "edit", 10, 20), *pair(1, "question", 10, 10.1), *pair(2, "code", 10, 9)])
    assert text.startswith("Use ngram: ")
    assert "It pays for edit (2.00×)" in text
    assert "It costs time for code (0.90×)" in text
    assert "no clear difference for question (1.01×)" in text
    assert "under load the gain is usually smaller" in text
    assert "accepted only" not in text


def test_advice_where_nothing_pays() -> None:
    text = words([*pair(0, "edit", 10, 10.4), *pair(1, "question", 10, 10.2)])
    assert text.startswith("Nothing beats plain by 5 %")
    assert "leave speculation off" in text
    assert "It pays" not in text
    assert "It pays only for edit (1.20×)" in words([*pair(0, "edit", 10, 12), *pair(1, "question", 10, 7)])


def test_advice_names_the_best_route() -> None:
    rows = pair(0, "edit", 10, 12)
    rows.append(replace(rows[1], route="model", run=run(15, 11, 10, 9)))
    assert words(rows).startswith("Use model: 1.50×")


def test_doubts() -> None:
    assert "accepted only 20% of the time" in words(pair(0, "edit", 10, 12, accepted=2))
    assert "proposed nothing" in words(pair(0, "edit", 10, 10, accepted=0, drafted=0))
    assert "failed in some rounds (raised 3×)" in words(pair(0, "edit", 10, 12, fallbacks={"raised": 3}))
    single = [replace(row, run=Run((1,), 1.0, 0.0, 0, 0, 0, 0)) for row in pair(0, "edit", 10, 12)]
    assert "too short to time" in words(single)
    assert words([]) == "Nothing was measured."


def test_a_broken_promise_comes_first() -> None:
    rows = pair(0, "edit", 10, 12, identical=False, first_difference=7)
    assert len(broken(rows, CONDITIONS)) == 1
    assert words(rows).startswith("BROKEN PROMISE: 1 outputs")
    assert "ngram on edit (token 7)" in words(rows)
    assert "no, token 7" in rendered(rows)


def test_inexact_rows_are_no_broken_promise_but_are_said() -> None:
    inexact = replace(CONDITIONS, exact_rows=False, reason="attention")
    rows = pair(0, "edit", 10, 12, identical=False, first_difference=7, top_two_gap=0.0125)
    assert broken(rows, inexact) == []
    text = words(rows, inexact)
    assert "not bitwise exact on this device in bfloat16" in text
    assert "1 of 1 outputs differ" in text
    assert "0.0125" in text
    assert "BROKEN" not in text
    assert "0 of 1 outputs differ" in words(pair(0, "edit", 10, 12), inexact)


def test_a_rule_that_keeps_the_law_says_so() -> None:
    rows = pair(0, "edit", 10, 12, identical=None, not_compared="law", promised=False)
    assert "Rule block keeps the target's law" in words(rows, replace(CONDITIONS, verify="block"))
    assert "law" in rendered(rows)


def test_the_peer_is_counted_against_itself() -> None:
    rows = [*pair(0, "edit", 10, 20), *peer(0, "edit", 8, 24, False), *pair(1, "code", 10, 20)]
    rows += peer(1, "code", 8, 24, None)
    text = words(rows)
    assert "transformers lookup: output differs from transformers' own plain output on 1 of 1 greedy prompts" in text
    assert (
        "plain 10.0 tok/s here, 8.0 in transformers; fastest route 20.0 here (ngram), 24.0 in transformers (lookup)"
        in text
    )
    assert text.startswith("Use ngram")  # advice is about our own routes
    assert broken(rows, CONDITIONS) == []
    assert "n.a." in rendered(rows, width=100)


def test_the_table_fits_80_columns() -> None:
    text = rendered([*pair(0, "creative", 10, 20), *pair(1, "user", 10, 5)])
    assert "…" not in text
    assert max(len(line.rstrip()) for line in text.splitlines()) <= 80
    for word in ("prompt 1", "2.00×", "50%", "yes", "2 of 2", "bfloat16 on cpu", "decode only"):
        assert word in text


def test_json_is_plain_and_whole(tmp_path: Path) -> None:
    rows = pair(0, "edit", 10, 20)
    file = tmp_path / "out.json"
    write_json(file, as_json(rows, CONDITIONS, ["Use it."], interrupted=False), force=False)
    found = json.loads(file.read_text())
    assert found["results"][1]["speedup"] == pytest.approx(2)
    assert found["results"][1]["token_ids"] == list(range(11))
    assert found["totals"][1]["fallbacks"] == {}
    assert found["advice"] == ["Use it."]
    assert [path.name for path in tmp_path.iterdir()] == ["out.json"]


def test_a_file_is_not_overwritten_unasked(tmp_path: Path) -> None:
    file = tmp_path / "out.json"
    file.write_text("mine")
    for refuse in (lambda: check_writable(file, False), lambda: write_json(file, {}, False)):
        with pytest.raises(InvalidParameter, match="exists"):
            refuse()
    assert file.read_text() == "mine"
    with pytest.raises(ValueError, match="Out of range"):
        write_json(file, {"a": float("nan")}, True)
    assert file.read_text() == "mine"
    write_json(file, {"a": 1}, True)
    assert json.loads(file.read_text()) == {"a": 1}
    with pytest.raises(InvalidParameter, match="folder"):
        check_writable(tmp_path, True)
    with pytest.raises(InvalidParameter, match="does not exist"):
        check_writable(tmp_path / "no" / "out.json", False)
