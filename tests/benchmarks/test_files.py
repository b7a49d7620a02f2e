"""Result files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from benchmarks.files import text_of, write

from headstart.errors import InvalidParameter

RESULT = {"kind": "peers", "columns": ["a", "b"], "rows": [[1, "é"], [2, None]]}


def test_rows_are_lines_and_everything_comes_back() -> None:
    text = text_of(RESULT)
    assert json.loads(text) == RESULT
    assert '[1, "é"],\n[2, null]\n' in text
    assert json.loads(text_of({"kind": "micro", "sections": {}})) == {"kind": "micro", "sections": {}}
    assert json.loads(text_of({**RESULT, "rows": []})) == {**RESULT, "rows": []}


def test_a_file_that_is_there_stays_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    write(path, RESULT)
    with pytest.raises(InvalidParameter, match="exists"):
        write(path, {"kind": "other"})
    assert json.loads(path.read_text()) == RESULT
    assert list(tmp_path.iterdir()) == [path]
