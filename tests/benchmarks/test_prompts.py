"""Prompts: groups, samples, and exact lengths."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from benchmarks.prompts import GROUPS, long_prompts, questions, sample
from benchmarks.workloads import workloads


@pytest.fixture
def path(tmp_path: Path) -> Path:
    rows = []
    for number in range(40):
        group = (*GROUPS[1:], "writing", "math")[number % 7]
        text = f"question {number} " + "word " * (10 + number)
        rows.append({"question_id": number, "category": group, "turns": [text, "and then?"]})
    file = tmp_path / "question.jsonl"
    file.write_text("\n".join(json.dumps(row) for row in rows) + "\n")
    return file


def encode(text: str) -> list[int]:
    return [1, *(len(word) for word in text.split()), 2]


def test_conversation_categories_are_one_group(path: Path) -> None:
    groups = questions(path)
    assert list(groups) == list(GROUPS)
    assert {row["category"] for row in groups["mt_bench"]} == {"writing", "math"}
    assert sum(map(len, groups.values())) == 40


def test_a_sample_takes_as_many_of_every_group_and_they_take_turns(path: Path) -> None:
    found = sample(path, 3, encode)
    assert [prompt.group for prompt in found] == list(GROUPS) * 3
    assert len({prompt.name for prompt in found}) == 18
    assert len(sample(path, 100, encode)) == 40


def test_long_prompts_are_exactly_as_long_as_asked_and_keep_both_ends(path: Path) -> None:
    for prompt in long_prompts(path, [50, 200], 2, encode):
        assert len(prompt.ids) == int(prompt.group.split()[0])
        assert prompt.ids[0] == 1
        assert prompt.ids[-3:] == (len("important"), len("ones."), 2)
    with pytest.raises(ValueError, match="do not fill 100000"):
        long_prompts(path, [100_000], 1, encode)


def test_every_workload_has_items_of_different_names(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.workloads.LENGTHS", (60, 120))
    made = workloads(path, 2, encode)
    assert len({workload.name for workload in made}) == len(made)
    for workload in made:
        assert len({(item.group, item.name) for item in workload.items}) == len(workload.items) > 0
    concurrency = next(workload for workload in made if workload.name == "concurrency")
    assert {len(item.prompts) for item in concurrency.items} == {1, 2, 4, 8, 16}
