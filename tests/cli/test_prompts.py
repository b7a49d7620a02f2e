"""The built-in prompts are what they claim; a prompt file is read whole or refused with the place of the fault."""

from __future__ import annotations

import ast
import json
from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Any

import pytest

from headstart.cli.prompts import BUILT_IN, KINDS, TryPrompt, read_prompts
from headstart.errors import UserError


def write(folder: Path, content: str | bytes, name: str = "prompts") -> Path:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_every_kind_is_built_in() -> None:
    assert len(BUILT_IN) >= 6
    assert {prompt.kind for prompt in BUILT_IN} == set(KINDS) - {"user"}
    assert len({prompt.name for prompt in BUILT_IN}) == len(BUILT_IN)
    for prompt in BUILT_IN:
        assert prompt.temperature == (0.9 if prompt.kind == "creative" else 0.0)


def test_a_prompt_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        BUILT_IN[0].text = "other"  # type: ignore[misc]


def test_the_summary_has_something_to_quote() -> None:
    (summary,) = (prompt for prompt in BUILT_IN if prompt.kind == "summary")
    article = summary.text.partition("\n\n")[2]
    assert "\n" not in article.replace("\n\n", "")
    assert 250 <= len(article.split()) <= 400
    assert article.count('"') >= 12


def test_the_code_is_python_with_the_variable_to_rename() -> None:
    (code,) = (prompt for prompt in BUILT_IN if prompt.kind == "code")
    source = code.text.partition("```python\n")[2].partition("\n```")[0]
    names = {node.id for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Name)}
    assert "tmp" in names
    assert "by_customer" not in names


def test_one_prompt_per_line(tmp_path: Path) -> None:
    path = write(tmp_path, "\ufeffWhat is it?\n\n  Why {this}?  \r\n")
    assert read_prompts(path) == [
        TryPrompt("prompt 1", "user", "What is it?"),
        TryPrompt("prompt 2", "user", "Why {this}?"),
    ]
    assert read_prompts(str(path)) == read_prompts(path)


def test_a_json_list_of_strings_and_objects(tmp_path: Path) -> None:
    entries = ["one\ntwo", {"text": "three", "name": "third"}, {"prompt": "four", "temperature": 1}]
    assert read_prompts(write(tmp_path, json.dumps(entries, indent=1))) == [
        TryPrompt("prompt 1", "user", "one\ntwo"),
        TryPrompt("third", "user", "three"),
        TryPrompt("prompt 3", "user", "four", 1.0),
    ]


def test_spec_bench_lines(tmp_path: Path) -> None:
    lines = [
        {"question_id": 81, "category": "writing", "turns": ["Write\u2028this.", "Now again."]},
        {"question_id": 82, "category": "rag", "turns": ["Find it."]},
    ]
    content = "\n".join(json.dumps(line, ensure_ascii=False) for line in lines) + "\n\n"
    assert read_prompts(write(tmp_path, content)) == [
        TryPrompt("81", "user", "Write\u2028this."),
        TryPrompt("82", "user", "Find it."),
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "holds no prompts"),
        (" \n\n", "holds no prompts"),
        ("[]", "holds no prompts"),
        ('[\n"a",\n]', r"line 3: bad JSON"),
        ('{"prompt": "a"}\n\n{"prompt": }\n', r"line 3: bad JSON: .* \(column 12\)"),
        ('{"prompt": "a"}\n"b"\n', r"line 2: expected a JSON object, found str"),
        ('{"prompt": "a"}\n{"question": "b"}\n', r"line 2: needs one of the keys prompt, text, turns; found question"),
        ('["a", 3]', r"entry 2: expected a string or an object, found int"),
        ('["a", " "]', r"entry 2: the prompt is empty"),
        ('{"prompt": ""}', r"line 1: prompt must be a string that is not empty"),
        ('{"turns": []}', r"line 1: turns must be a list of strings"),
        ('{"turns": [1]}', r"line 1: turns must be a list of strings"),
        ('{"text": "a", "temperature": "hot"}', r"line 1: temperature must be a number in \[0, 100\], got 'hot'"),
        ('{"text": "a", "temperature": NaN}', r"line 1: temperature must be"),
        (b"caf\xe9", r"not UTF-8 text \(byte 3\)"),
    ],
)
def test_faults_are_placed(tmp_path: Path, content: Any, message: str) -> None:
    path = write(tmp_path, content)
    with pytest.raises(UserError, match=message) as caught:
        read_prompts(path)
    assert str(caught.value).startswith(str(path))


def test_a_missing_file_and_a_folder(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such file"):
        read_prompts(tmp_path / "nowhere.txt")
    with pytest.raises(UserError, match="cannot be read"):
        read_prompts(tmp_path)
