"""Calls over HTTP that the model makes of its own accord, and what joins calls with other things."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from tests import spoken
from tests.cli.tiny import CHAT as PLAIN_TEMPLATE
from tests.serve.harness import Running, chat, events, problem, running

from headstart.engine.engine import Engine
from headstart.target.model import Target

PATH = "/v1/chat/completions"
CITY: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"enum": ["red", "green"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
WEATHER = {"type": "function", "function": {"name": "weather", "description": "Of a city.", "parameters": CITY}}
NOW = {"type": "function", "function": {"name": "now"}}
TOOLS = [WEATHER, NOW]
SAID = 'Let me see.\n<tool_call>\n{"name": "weather", "arguments": {"city": "red", "days": 3}}\n</tool_call>'


@pytest.fixture(scope="module")
def target() -> Target:
    return spoken.target()


def forced(text: str) -> dict[str, Any]:
    """Make the model say ``text`` and no more."""
    own = spoken.tokenizer()
    ids = [*own(text, add_special_tokens=False)["input_ids"], own.eos_token_id]
    return {"forced_tokens": ids, "max_tokens": len(ids)}


def joined(items: list[dict[str, Any]], index: int = 0) -> tuple[str, list[dict[str, str]], str | None]:
    """Content, calls and finish reason of a stream's choice."""
    text, calls, finish = "", list[dict[str, str]](), None
    for item in items:
        for choice in item["choices"]:
            if choice["index"] != index:
                continue
            delta = choice["delta"]
            text += delta.get("content") or ""
            finish = choice["finish_reason"] or finish
            for one in delta.get("tool_calls", []):
                if one["index"] == len(calls):
                    assert one["type"] == "function"
                    calls.append({"id": one["id"], "name": one["function"]["name"], "arguments": ""})
                else:
                    assert "id" not in one
                    assert "name" not in one["function"]
                calls[one["index"]]["arguments"] += one["function"]["arguments"]
    return text, calls, finish


def test_a_call_is_read_out_of_the_text(up: Running) -> None:
    body = chat("red", tools=TOOLS, **forced(SAID))
    [choice] = up.post(PATH, body).json()["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] == "Let me see."
    [call] = choice["message"]["tool_calls"]
    assert call["type"] == "function"
    assert call["id"].startswith("call_")
    assert call["function"] == {"name": "weather", "arguments": '{"city": "red", "days": 3}'}

    streamed = events(up.post(PATH, {**body, "stream": True}))
    text, calls, finish = joined(streamed)
    assert (text, finish) == ("Let me see.", "tool_calls")
    assert [(c["name"], c["arguments"]) for c in calls] == [("weather", '{"city": "red", "days": 3}')]
    pieces = [c for e in streamed for c in e["choices"][0]["delta"].get("tool_calls", [])]
    assert len(pieces) > 3, "arguments arrive as they are written"


def test_text_stays_text_where_nothing_is_called(up: Running) -> None:
    for tools in ({"tools": TOOLS}, {"tools": TOOLS, "tool_choice": "auto"}):
        [choice] = up.post(PATH, chat("red", **tools, **forced("red <b> 00"))).json()["choices"]
        assert choice["message"] == {"role": "assistant", "content": "red <b> 00", "refusal": None}
        assert choice["finish_reason"] == "stop"
    broken = '<tool_call>{"name": "weather", "arguments": oops}</tool_call>'
    body = chat("red", tools=TOOLS, **forced(broken))
    assert up.post(PATH, body).json()["choices"][0]["message"]["content"] == broken
    assert joined(events(up.post(PATH, {**body, "stream": True})))[:2] == (broken, [])
    for without in ({}, {"tools": TOOLS, "tool_choice": "none"}):
        [choice] = up.post(PATH, chat("red", **without, **forced(SAID))).json()["choices"]
        assert choice["message"]["content"] == SAID
        assert "tool_calls" not in choice["message"]


def test_a_call_that_is_cut_off_is_one(up: Running) -> None:
    body = chat("red", tools=TOOLS, **{**forced(SAID), "max_tokens": len(forced(SAID)["forced_tokens"]) - 22})
    [choice] = up.post(PATH, body).json()["choices"]
    assert choice["finish_reason"] == "length"
    [call] = choice["message"]["tool_calls"]
    assert '{"city": "red", "days": 3}'.startswith(call["function"]["arguments"])
    _, [streamed], finish = joined(events(up.post(PATH, {**body, "stream": True})))
    assert (streamed["arguments"], finish) == (call["function"]["arguments"], "length")


def test_an_answer_of_a_schema_or_a_call(up: Running) -> None:
    answer = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"], "additionalProperties": False}
    shape = {"type": "json_schema", "json_schema": {"name": "x", "schema": answer}}
    body = chat("red", tools=TOOLS, response_format=shape, parallel_tool_calls=False, n=3, seed=1, max_tokens=300)
    for first, finish in (("{", "stop"), ("<", "tool_calls")):
        [token] = spoken.tokenizer().convert_tokens_to_ids([first])
        for choice in up.post(PATH, {**body, "forced_tokens": [token]}).json()["choices"]:
            assert choice["finish_reason"] == finish
            if finish == "stop":
                jsonschema.validate(json.loads(choice["message"]["content"]), answer)
            else:
                [call] = choice["message"]["tool_calls"]
                assert call["function"]["name"] in ("weather", "now")


def test_strict_functions_are_enforced_where_they_are_called(up: Running) -> None:
    strict = [{"type": "function", "function": {**WEATHER["function"], "strict": True}}]  # type: ignore[dict-item]
    begun = "Hm. <tool_call>"
    ids = spoken.tokenizer()(begun, add_special_tokens=False)["input_ids"]
    body = chat("red", tools=strict, forced_tokens=ids, max_tokens=250, seed=3)
    [choice] = up.post(PATH, body).json()["choices"]
    assert choice["message"]["content"].startswith("Hm.")
    jsonschema.validate(json.loads(choice["message"]["tool_calls"][0]["function"]["arguments"]), CITY)


def test_the_template_is_told(up: Running) -> None:
    def tokens(**more: Any) -> int:
        return int(up.post(PATH, chat("red", max_tokens=1, **more)).json()["usage"]["prompt_tokens"])

    assert tokens(tools=TOOLS) > tokens() + 100
    assert tokens(tools=TOOLS, tool_choice="none") == tokens()


def test_a_model_that_knows_no_tools_is_not_asked_for_calls() -> None:
    on = spoken.target()
    on.tokenizer.chat_template = PLAIN_TEMPLATE  # type: ignore[union-attr]
    with Engine(on) as engine, running(engine) as up:
        assert "does not know tools" in problem(up.post(PATH, chat("red", tools=TOOLS)), 400, "tools")
        call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
        earlier = [
            {"role": "user", "content": "x"},
            {"role": "assistant", "tool_calls": [call]},
            {"role": "tool", "content": "1", "tool_call_id": "c"},
        ]
        assert "leaves out tool_calls" in problem(up.post(PATH, {"messages": earlier}), 400, "messages")


def test_a_form_that_could_never_be_is_refused(up: Running) -> None:
    for choice in ("required", {"type": "function", "function": {"name": "now"}}):
        body = chat("red", tools=TOOLS, tool_choice=choice, response_format={"type": "json_object"})
        assert "tool_choice requires a call" in problem(up.post(PATH, body), 400, "response_format")
