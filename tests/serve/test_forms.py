"""Structured output and calls of functions over HTTP, through the official client."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai import OpenAI
from tests import spoken
from tests.serve.harness import MODEL, Running, problem, running

from headstart.control.depth import FixedDepth
from headstart.draft.ngram import NgramDrafter
from headstart.engine.engine import Engine

pytest.importorskip("llguidance")

TEMPLATE = (
    "{% if tools %}{{ tools | tojson }}{% endif %}"
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}"
    "{% for c in m.tool_calls or [] %}{{ c.function.name }}{{ c.function.arguments | tojson }}{% endfor %}{% endfor %}"
    "<assistant>"
)
SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["red", "green"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": "weather", "description": "Looks outside.", "parameters": SCHEMA}},
    {"type": "function", "function": {"name": "now"}},
]
MESSAGES: list[Any] = [{"role": "user", "content": "red or green?"}]
CHAT = "/v1/chat/completions"


@pytest.fixture(scope="module")
def up() -> Iterator[Running]:
    target = spoken.target()
    target.tokenizer.chat_template = TEMPLATE
    with Engine(target, [NgramDrafter()], controller=FixedDepth(4)) as engine, running(engine) as server:
        yield server


@pytest.fixture(scope="module")
def client(up: Running) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{up.url}/v1", api_key="-", max_retries=0) as made:
        yield made


def ask(client: OpenAI, **more: Any) -> Any:
    asked = {"model": MODEL, "messages": MESSAGES, "seed": 1, "max_tokens": 200, **more}
    return client.chat.completions.create(**asked)


FORMATS = [
    {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, "strict": True}}},
    {"extra_body": {"structured_outputs": {"json": SCHEMA}}},
]


@pytest.mark.parametrize("more", FORMATS)
@pytest.mark.parametrize("seed", range(4))
def test_a_schema_is_followed_drafted_or_not(client: OpenAI, more: dict[str, Any], seed: int) -> None:
    reply = ask(client, **more, seed=seed)
    found = json.loads(reply.choices[0].message.content)
    assert found["city"] in ("red", "green")
    assert 1 <= found["days"] <= 9
    assert reply.choices[0].finish_reason == "stop"
    extra = {**more.get("extra_body", {}), "speculation": {"depth": 0}}
    plain = ask(client, **{**more, "extra_body": extra}, seed=seed)
    assert plain.choices[0].message.content == reply.choices[0].message.content
    parts = [chunk.choices[0].delta.content or "" for chunk in ask(client, **more, seed=seed, stream=True)]
    assert "".join(parts) == reply.choices[0].message.content


def test_the_clients_own_parser(client: OpenAI) -> None:
    from typing import Literal

    from pydantic import BaseModel

    class Answer(BaseModel):
        city: Literal["red", "green"]
        sure: bool

    parsed = client.chat.completions.parse(
        model=MODEL, messages=MESSAGES, seed=1, max_tokens=200, response_format=Answer
    )
    assert isinstance(parsed.choices[0].message.parsed, Answer)


@pytest.mark.parametrize(
    ("form", "pattern"),
    [
        ({"regex": "[01]{3}-red"}, "[01]{3}-red"),
        ({"choice": ["red", "green"]}, "red|green"),
        ({"grammar": 'root ::= "re" ("d" | "en")'}, "red|reen"),
        ({"grammar": 'start: "gr" /[01]+/ "x"'}, "gr[01]+x"),
    ],
)
def test_other_forms_on_both_endpoints(client: OpenAI, form: dict[str, Any], pattern: str) -> None:
    more = {"extra_body": {"structured_outputs": form}, "max_tokens": 60, "temperature": 0.5}
    assert re.fullmatch(pattern, ask(client, **more).choices[0].message.content)
    reply = client.completions.create(model=MODEL, prompt="x", seed=2, **more)
    assert re.fullmatch(pattern, reply.choices[0].text)


def test_text_is_a_format_too(client: OpenAI) -> None:
    assert ask(client, response_format={"type": "text"}, max_tokens=3).choices[0].message.content


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "weather"}}])
def test_calls_whole_and_streamed(client: OpenAI, choice: Any) -> None:
    for seed in range(4):
        asked = {"tools": TOOLS, "tool_choice": choice, "seed": seed, "parallel_tool_calls": False}
        whole = ask(client, **asked)
        [call] = whole.choices[0].message.tool_calls
        assert whole.choices[0].message.content is None
        assert whole.choices[0].finish_reason == "tool_calls"
        arguments = json.loads(call.function.arguments)
        if call.function.name == "weather":
            assert arguments["city"] in ("red", "green")
        else:
            assert (call.function.name, arguments, choice) == ("now", {}, "required")
        name, text, finish = None, "", None
        for chunk in ask(client, **asked, stream=True):
            finish = chunk.choices[0].finish_reason or finish
            for part in chunk.choices[0].delta.tool_calls or []:
                assert part.index == 0
                assert (part.id is None) == (name is not None)
                name = name or part.function.name
                text += part.function.arguments
            assert not chunk.choices[0].delta.content
        assert (name, text, finish) == (call.function.name, call.function.arguments, "tool_calls")


def test_the_helper_of_the_client_joins_calls(client: OpenAI) -> None:
    with client.chat.completions.stream(
        model=MODEL, messages=MESSAGES, tools=TOOLS, tool_choice="required", seed=3, max_tokens=200
    ) as stream:
        for _ in stream:
            pass
        final = stream.get_final_completion()
    again = ask(client, tools=TOOLS, tool_choice="required", seed=3)
    told = [(call.function.name, call.function.arguments) for call in again.choices[0].message.tool_calls]
    assert [(c.function.name, c.function.arguments) for c in final.choices[0].message.tool_calls] == told


def test_a_model_that_need_not_call_just_talks(client: OpenAI) -> None:
    reply = ask(client, tools=TOOLS, max_tokens=20)
    assert reply.choices[0].message.tool_calls is None
    assert reply.choices[0].message.content
    none = ask(client, tools=TOOLS, tool_choice="none", max_tokens=20)
    assert none.choices[0].message.content == ask(client, max_tokens=20).choices[0].message.content


def test_a_call_and_its_answer_go_back_in(client: OpenAI) -> None:
    first = ask(client, tools=TOOLS, tool_choice="required", parallel_tool_calls=False)
    message = first.choices[0].message
    more = [
        *MESSAGES,
        message.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "sunny"},
    ]
    reply = ask(client, messages=more, tools=TOOLS, max_tokens=5)
    assert reply.usage.prompt_tokens > first.usage.prompt_tokens


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"tools": []}, "tools"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools"),
        ({"tools": [TOOLS[0], TOOLS[0]]}, "tools"),
        ({"tools": [{"type": "function", "function": {"name": "f", "speed": 1}}]}, "tools[0].function.speed"),
        ({"tools": [{"type": "custom", "custom": {"name": "f"}}]}, "tools[0].type"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "rain"}}}, "tool_choice"),
        (
            {
                "tools": [
                    {"type": "function", "function": {"name": "f", "parameters": {"properties": {"a": {"not": {}}}}}}
                ],
                "tool_choice": "required",
            },
            "tools",
        ),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"response_format": {"type": "xml"}}, "response_format"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"not": {}}}}},
            "response_format",
        ),
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs"),
        ({"structured_outputs": {"regex": "("}}, "structured_outputs"),
        ({"structured_outputs": {"grammar": "nonsense"}}, "structured_outputs"),
        ({"structured_outputs": {"json": {"enum": ["\ud800"]}}}, "structured_outputs"),
        ({"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}}, "structured_outputs"),
        ({"structured_outputs": {"regex": "a"}, "tools": TOOLS}, "structured_outputs"),
        (
            {
                "messages": [
                    {
                        "role": "assistant",
                        "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{"}}],
                    }
                ]
            },
            "messages[0].tool_calls[0].function.arguments",
        ),
    ],
)
def test_what_is_refused(up: Running, more: dict[str, Any], param: str) -> None:
    body = {"messages": MESSAGES, "max_tokens": 5, **more}
    with up.client() as sender:
        reply = sender.post(CHAT, content=json.dumps(body), headers={"content-type": "application/json"})
    problem(reply, 400, param)
    up.idle()


def test_a_template_that_knows_no_tools_is_an_error(up: Running, client: OpenAI) -> None:
    tokenizer = up.engine.target.tokenizer
    tokenizer.chat_template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    try:
        with pytest.raises(openai.BadRequestError) as refused:
            ask(client, tools=TOOLS)
        assert refused.value.param == "tools"
    finally:
        tokenizer.chat_template = TEMPLATE
