"""A whole run on fake peers: order, failures, interruption, resumption, and the tables of what came out."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from benchmarks.journal import Journal
from benchmarks.prompts import Prompt
from benchmarks.results import report, unpack
from benchmarks.session import Session
from benchmarks.ways import Line, Way
from benchmarks.workloads import Item, Workload
from tests.benchmarks.fake_peer import EOS

from benchmarks import tables


@dataclass(frozen=True)
class FakeProcess:
    name: str
    config: dict[str, Any]

    def command(self) -> list[str]:
        return [sys.executable, "-m", "tests.benchmarks.fake_peer", json.dumps(self.config)]


def way(name: str, process: str, mode: str) -> Way:
    return Way(name, process, mode, "bf16", f"{name.split()[0]} plain", ("tasks", "batches"), False)


LINE = Line(
    [
        way("headstart plain", "ours", "plain"),
        way("headstart ngram tree", "ours", "plain"),
        way("other plain", "other", "wrong"),
        way("other lookup", "other", "raises"),
        way("broken plain", "broken", "plain"),
    ],
    {name: FakeProcess(name, {"broken": name == "broken"}) for name in ("ours", "other", "broken")},  # type: ignore[misc]
    {"absent": "not installed"},
)
PROMPTS = [Prompt(group, str(i), (3, i)) for i in range(2) for group in ("qa", "rag")]
WORKLOADS = [
    Workload("greedy 128", "tasks", 0.0, 12, tuple(Item(p.group, p.name, (p,)) for p in PROMPTS)),
    Workload("concurrency", "batches", 0.0, 3, (Item("4 at once", "0", tuple(PROMPTS)),)),
]
SETTINGS = {"model": "tiny", "threads": 1, "eos": [EOS]}
MACHINE = {
    **{"processor": "P", "instructions": [], "cores": 1, "memory_gib": 1, "system": "S", "date": "D", "load": 0.0},
    "versions": {},
}


def run(path: Path, *, resume: bool = False, stop_after: int | None = None) -> Journal:
    journal = Journal(path, SETTINGS, resume=resume)
    lines: list[str] = []

    def say(text: str) -> None:
        lines.append(text)
        if stop_after is not None and sum(line.startswith("[") for line in lines) == stop_after:
            raise KeyboardInterrupt

    session = Session(LINE, WORKLOADS, journal, 60, path.parent, say)
    try:
        session.run(MACHINE, "the command")
    except KeyboardInterrupt:
        pass
    finally:
        session.close()
        journal.close()
    return journal


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> Journal:
    """A run interrupted after one item and gone on with."""
    path = tmp_path_factory.mktemp("run") / "j.jsonl"
    first = run(path, stop_after=1)
    assert len(first.items) == 1
    return run(path, resume=True)


def test_a_resumed_run_has_every_item_once_and_says_which_session(journal: Journal) -> None:
    assert [(line["workload"], line["session"]) for line in journal.items] == [
        ("greedy 128", 0),
        *[("greedy 128", 1)] * 3,
        ("concurrency", 1),
    ]
    assert [session["resumed"] for session in journal.sessions] == [False, True]
    assert len({line["item"] for line in journal.items if line["workload"] == "greedy 128"}) == 4


def test_rows_count_ids_up_to_the_end_of_sequence(journal: Journal) -> None:
    rows = {(row.way, row.item, row.group): row for row in unpack(report(journal, LINE, WORKLOADS))}
    ours = rows["headstart plain", "1", "qa"]  # the prompt ends with 1, so 2, 3, …, 9
    assert (ours.tokens, ours.first_tokens, ours.prompt_tokens, ours.error) == (8, 1, 2, None)
    assert ours.decoding.tokens == 7
    assert ours.decoding.seconds == pytest.approx(0.4)
    batch = rows["headstart plain", "0", "4 at once"]
    assert (batch.tokens, batch.seconds) == (12, 0.6)
    assert (batch.drafted, batch.accepted) == (16, 8)
    assert rows["headstart ngram tree", "1", "qa"].identical is True
    assert ours.identical is None


def test_failures_are_told_and_do_not_stop_the_run(journal: Journal) -> None:
    result = report(journal, LINE, WORKLOADS)
    assert result["missing"] == {"absent": "not installed", "broken": "RuntimeError: no such model"}
    errors = {row.way: row.error for row in unpack(result) if row.error}
    assert errors == {"other lookup": "ValueError: not this one", "broken plain": "RuntimeError: no such model"}


def test_the_tables_say_it_all(journal: Journal) -> None:
    result = json.loads(json.dumps(report(journal, LINE, WORKLOADS)))
    text = tables.everything(result)
    assert "2 sessions, 1 of them resumed" in text
    assert "| headstart ngram tree | bf16 | 18.8 |" in text
    assert "4 of 4" in text
    assert "| other plain | bf16 | 20 |" in text
    assert "- broken: RuntimeError: no such model" in text
    assert "- other lookup, greedy 128: 4 items failed (ValueError: not this one)" in text
    assert "| headstart's outputs equal to its plain ones | all | 5 of 5 | met |" in text
    for line in text.splitlines():
        if line.startswith("|"):
            assert line.endswith("|")


def test_another_order_each_time(journal: Journal, tmp_path: Path) -> None:
    session = Session(LINE, WORKLOADS, journal, 60, tmp_path, lambda _: None)
    asked: list[str] = []
    session.ask = lambda way, request: asked.append(way.name) or "asked"  # type: ignore[method-assign, func-returns-value]
    session.running = dict.fromkeys(LINE.processes)  # type: ignore[arg-type]
    for turn in range(3):
        session.item(WORKLOADS[0], WORKLOADS[0].items[0], turn)
    firsts = asked[:: len(LINE.ways)]
    assert firsts == [way.name for way in LINE.ways[:3]]


def test_theory_gets_the_truth_it_was_not_told_before(tmp_path: Path) -> None:
    ways = [replace(LINE.ways[0], kinds=("theory",)), replace(LINE.ways[1], mode="truth", kinds=("theory",))]
    theory = Workload("theory", "theory", 0.0, 12, WORKLOADS[0].items[:1])
    journal = Journal(tmp_path / "j.jsonl", SETTINGS, resume=False)
    session = Session(Line(ways, LINE.processes, {}), [theory], journal, 60, tmp_path, lambda _: None)
    try:
        session.run(MACHINE, "")
    finally:
        session.close()
        journal.close()
    runs = journal.items[0]["runs"]
    assert runs["headstart ngram tree"]["outputs"][0]["ids"] == [1, 2, 3, 4, 5, 6, 7, 8, 9]
