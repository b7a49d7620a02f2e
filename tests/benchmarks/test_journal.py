"""What a run leaves behind, and how it goes on."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.journal import Journal, JournalError, read

SETTINGS = {"model": "tiny", "ways": ["a", "b"]}


def written(path: Path) -> None:
    journal = Journal(path, SETTINGS, resume=False)
    assert journal.begin(machine={"date": "today"}) == 0
    journal.add("greedy", "qa/1", 0, {"a": {"outputs": []}})
    journal.close()


def test_a_resumed_journal_knows_what_is_done_and_counts_sessions(tmp_path: Path) -> None:
    path = tmp_path / "j.jsonl"
    written(path)
    journal = Journal(path, SETTINGS, resume=True)
    assert journal.done() == {("greedy", "qa/1")}
    assert journal.begin(machine={"date": "tomorrow"}) == 1
    journal.end(1, memory={"a": 5})
    journal.close()
    again = Journal(path, SETTINGS, resume=True)
    assert [session["machine"]["date"] for session in again.sessions] == ["today", "tomorrow"]
    assert "memory" not in again.sessions[0]
    assert again.sessions[1]["memory"] == {"a": 5}
    again.close()


def test_a_line_cut_off_by_a_crash_is_dropped_and_the_rest_kept(tmp_path: Path) -> None:
    path = tmp_path / "j.jsonl"
    written(path)
    with path.open("a") as file:
        file.write('{"kind": "item", "workload": "greedy", "item": "qa/2", "runs": {"a"')
    journal = Journal(path, SETTINGS, resume=True)
    assert journal.done() == {("greedy", "qa/1")}
    journal.add("greedy", "qa/2", 0, {})
    journal.close()
    assert [line["item"] for line in read(path) if line["kind"] == "item"] == ["qa/1", "qa/2"]


def test_a_file_that_is_there_is_not_gone_on_with_unasked(tmp_path: Path) -> None:
    path = tmp_path / "j.jsonl"
    written(path)
    before = path.read_text()
    with pytest.raises(JournalError, match="--resume"):
        Journal(path, SETTINGS, resume=False)
    with pytest.raises(JournalError, match=r"other settings \(ways\)"):
        Journal(path, {**SETTINGS, "ways": ["a"]}, resume=True)
    assert path.read_text() == before
