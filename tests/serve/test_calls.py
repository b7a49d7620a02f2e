"""Calls read out of text: cut anywhere, several, malformed, cut off. Nothing is lost, nothing depends on the cuts."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headstart.serve.calls import CallPiece, CallReader, Piece

Found = tuple[str, list[tuple[str, str]]]
"""Content, and calls as (name, arguments)."""


def read(parts: Sequence[str]) -> tuple[Found, list[Piece]]:
    ids = count()
    reader = CallReader(lambda: f"call_{next(ids)}")
    pieces = [piece for part in parts for piece in reader.feed(part)] + reader.finish()
    content = "".join(piece for piece in pieces if isinstance(piece, str))
    calls: list[tuple[str, str]] = []
    for piece in pieces:
        if isinstance(piece, CallPiece):
            if piece.id is not None:
                assert piece.id == f"call_{len(calls)}"
                assert piece.name is not None
                calls.append((piece.name, piece.arguments))
            else:
                name, arguments = calls[piece.index]
                calls[piece.index] = (name, arguments + piece.arguments)
                assert piece.index == len(calls) - 1
    assert reader.calls == len(calls)
    return (content, calls), pieces


F = '<tool_call>\n{"name": "f", "arguments": {"a": [1, {"b": "}\\"<tool_call>"}]}}\n</tool_call>'
G = '<tool_call>{"arguments":{},"name":"g_2"}</tool_call>'
F_ARGUMENTS = '{"a": [1, {"b": "}\\"<tool_call>"}]}'

CASES: dict[str, tuple[str, Found]] = {
    "plain": ("Hello, <b>world</b> < tool\n", ("Hello, <b>world</b> < tool\n", [])),
    "one": (F, ("", [("f", F_ARGUMENTS)])),
    "two": (f"{F}\n{G}", ("", [("f", F_ARGUMENTS), ("g_2", "{}")])),
    "content before": (f"Let me see.\n\n{F}", ("Let me see.", [("f", F_ARGUMENTS)])),
    "content around": (f" a {G}\n\n b {F} c ", (" a\n\n b c ", [("g_2", "{}"), ("f", F_ARGUMENTS)])),
    "no closing tag": (F.removesuffix("</tool_call>"), ("", [("f", F_ARGUMENTS)])),
    "no closing tag between": (F.removesuffix("</tool_call>") + G, ("", [("f", F_ARGUMENTS), ("g_2", "{}")])),
    "no arguments": ('<tool_call>{"name": "f"}</tool_call>', ("", [("f", "{}")])),
    "a brace too few": ('<tool_call>{"name": "f", "arguments": {}\n</tool_call>', ("", [("f", "{}")])),
    "parameters": ('<tool_call>{"name": "f", "parameters": {"x":1}}', ("", [("f", '{"x":1}')])),
    "escaped name": ('<tool_call>{"name": "\\u0066", "arguments": {}}', ("", [("f", "{}")])),
    "not JSON": ("<tool_call>f(1)</tool_call>", ("<tool_call>f(1)</tool_call>", [])),
    "a list": ("x <tool_call>[1]</tool_call> y", ("x<tool_call>[1]</tool_call> y", [])),
    "another key": ('<tool_call>{"id": 3}</tool_call>', ('<tool_call>{"id": 3}</tool_call>', [])),
    "arguments as text": ('<tool_call>{"name":"f","arguments":"{}"}', ('<tool_call>{"name":"f","arguments":"{}"}', [])),
    "no name": ('<tool_call>{"arguments": {}}</tool_call>', ('<tool_call>{"arguments": {}}</tool_call>', [])),
    "bad, then good": (f"<tool_call>oops {G}", ("<tool_call>oops", [("g_2", "{}")])),
    "a tag in a tag": (f"<tool_call><tool_call>{G}", ("<tool_call><tool_call>", [("g_2", "{}")])),
    "a tag alone": ("so <tool_call>", ("so<tool_call>", [])),
    "half a tag": ("so <tool_ca", ("so <tool_ca", [])),
    "too many braces": ('<tool_call>{"name":"f","arguments":{}}}</tool_call>', ("}</tool_call>", [("f", "{}")])),
    "half a closing tag": ('<tool_call>{"name":"f","arguments":{}}</tool', ("", [("f", "{}")])),
    "only a closing tag": ("a </tool_call> b", ("a </tool_call> b", [])),
    "a bad escape in a name": (
        '<tool_call>{"name":"\\x","arguments":{}}',
        ('<tool_call>{"name":"\\x","arguments":{}}', []),
    ),
    "name cut off": ('<tool_call>{"name": "f', ('<tool_call>{"name": "f', [])),
}


@pytest.mark.parametrize("case", CASES)
def test_text_in_any_pieces(case: str) -> None:
    text, expected = CASES[case]
    assert read([text])[0] == expected
    assert read(list(text))[0] == expected
    rng = random.Random(case)
    for _ in range(50):
        places = sorted(rng.sample(range(len(text) + 1), min(4, len(text))))
        parts = [text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True)]
        assert read(parts)[0] == expected


def test_the_name_comes_first_and_arguments_as_they_arrive() -> None:
    (_, pieces) = read(["<tool_call>", '{"name": "f", "argu', 'ments": {"a"', ": 1", "}}", "</tool_call>"])
    assert pieces == [
        CallPiece(0, "call_0", "f", '{"a"'),
        CallPiece(0, arguments=": 1"),
        CallPiece(0, arguments="}"),
    ]


def test_content_is_not_held_back_for_long() -> None:
    reader = CallReader(lambda: "x")
    assert reader.feed("Hello") == ["Hello"]
    assert reader.feed(" ") == []
    assert reader.feed("world <") == [" world"]
    assert reader.feed("b>") == [" <b>"]


def test_a_call_that_has_begun_stays_one() -> None:
    """Cut off, no JSON, or followed by what does not belong: what was told is told, and the rest is not lost."""
    begun = 'x <tool_call>{"name": "f", "arguments": {"a": "b'
    assert read([begun])[0] == ("x", [("f", '{"a": "b')])
    wrong = '<tool_call>{"name": "f", "arguments": {"a": oops}}</tool_call>'
    assert read([wrong])[0] == ("", [("f", '{"a": oops}')])
    after = '<tool_call>{"name": "f", "arguments": {"a": 1}; x'
    assert read([after])[0] == ("; x", [("f", '{"a": 1}')])


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.lists(st.dictionaries(st.text(max_size=5), JSON, max_size=3), max_size=3), st.data())
def test_any_arguments_in_any_pieces(calls: list[dict[str, object]], data: st.DataObject) -> None:
    texts = [json.dumps(arguments, ensure_ascii=False) for arguments in calls]
    text = "\n".join(f'<tool_call>\n{{"name": "f", "arguments": {a}}}\n</tool_call>' for a in texts)
    places = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    parts = [text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True)]
    assert read(parts)[0] == ("", [("f", a) for a in texts])


@given(st.text('<tool_cal>{}"name:arguments,[] \\/1f\n', max_size=80))
def test_nothing_is_lost_and_nothing_raises(text: str) -> None:
    found, _ = read([text])
    assert read(list(text))[0] == found
    if not found[1]:
        assert found[0].replace(" ", "").replace("\n", "") == text.replace(" ", "").replace("\n", "")
