"""Functions of a request: what is refused, what the template is told, and what the grammar enforces."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests import spoken
from tokenizers import AddedToken

from headstart.decode.grammar import Grammar
from headstart.decode.params import SamplingParams
from headstart.engine.grammar import Grammars
from headstart.errors import InvalidParameter
from headstart.serve.tools import Function, Tools, as_template_message

CITY = {
    "type": "object",
    "properties": {"city": {"$ref": "#/$defs/name"}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["city", "days"],
    "additionalProperties": False,
    "$defs": {"name": {"enum": ["red", "green"]}},
}
WEATHER = Function("weather", "Looks out of the window.", CITY)
NOW = Function("now")
STRICT = Function("weather", None, CITY, strict=True)


def call(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


GOOD = call("weather", '{"city": "red", "days": 3}')
ALSO = call("now", "{}")
BAD = call("weather", '{"city": "blue", "days": 3}')
UNKNOWN = call("rain", "{}")


def allows(grammar: Grammar | None, text: str, *, token: bool = False) -> bool:
    """Whether the whole text belongs to the grammar; ``token``: the tags are tokens of the vocabulary."""
    assert grammar is not None
    own = spoken.tokenizer()
    if token:
        own.add_tokens([AddedToken(tag, normalized=False) for tag in ("<tool_call>", "</tool_call>")])
    here = Grammars(own, len(own), [own.eos_token_id]).constraint(SamplingParams(grammar=grammar))
    assert here is not None
    ids: list[int] = own(text, add_special_tokens=False)["input_ids"]
    for one in ids:
        if here.complete or not here.allowed()[one]:
            return False
        here.append(one)
    return here.complete or bool(here.allowed()[own.eos_token_id])


@pytest.mark.parametrize("token", [False, True])
def test_what_each_choice_allows(token: bool) -> None:
    both = (WEATHER, NOW)
    answer = Grammar.json_schema({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]})
    texts = ["Hi", GOOD, ALSO, f"{GOOD}\n{ALSO}", f"{GOOD}{GOOD}", BAD, UNKNOWN, f"Hi {GOOD} and so on", '{"a": 1}']
    free = {"Hi", GOOD, ALSO, f"{GOOD}\n{ALSO}", f"{GOOD}{GOOD}", f"Hi {GOOD} and so on", '{"a": 1}'}
    for tools, given, allowed in (
        (Tools(both, "required"), None, {GOOD, ALSO, f"{GOOD}\n{ALSO}", f"{GOOD}{GOOD}"}),
        (Tools(both, "required", parallel=False), None, {GOOD, ALSO}),
        (Tools(both, named="weather"), None, {GOOD}),
        (Tools(both, named="now"), None, {ALSO}),
        (Tools(both), answer, {GOOD, ALSO, f"{GOOD}\n{ALSO}", f"{GOOD}{GOOD}", '{"a": 1}'}),
        (Tools((STRICT, NOW)), None, free),
        (Tools(both, parallel=False), None, {"Hi", GOOD, ALSO, BAD, '{"a": 1}'}),
    ):
        grammar = tools.grammar(given)
        assert {text for text in texts if allows(grammar, text, token=token)} == allowed, (tools, grammar)


def test_where_anything_goes_there_is_no_grammar() -> None:
    assert Tools((WEATHER,)).grammar() is None
    assert Tools((STRICT,), "none").grammar() is None
    answer = Grammar.json_object()
    assert Tools((STRICT,), "none").grammar(answer) is answer


def test_schemas_are_enforced_as_written() -> None:
    compact = {**CITY, "x-guidance": {"whitespace_flexible": False, "lenient": True}}
    tools = Tools((Function("weather", None, compact),), "required")
    assert allows(tools.grammar(), call("weather", '{"city":"red","days":3}'))
    assert not allows(tools.grammar(), call("weather", '{"city": "red", "days": 3}'))
    unsupported = {"type": "object", "properties": {"a": {"uniqueItems": True}}, "x-guidance": {"lenient": True}}
    with pytest.raises(InvalidParameter, match="uniqueItems"):
        allows(Tools((Function("f", None, unsupported),), "required").grammar(), "")


def test_the_template_is_told_of_functions_unless_none_may_be_called() -> None:
    told = Tools((WEATHER, NOW)).described()
    assert told[0] == {
        "type": "function",
        "function": {"name": "weather", "description": "Looks out of the window.", "parameters": CITY},
    }
    assert told[1]["function"]["parameters"]["properties"] == {}
    assert Tools((WEATHER,), "none").described() == []


@pytest.mark.parametrize(
    ("make", "param", "says"),
    [
        (lambda: Function("a b"), "tools", "'a b' must be 1 to 64 letters"),
        (lambda: Function(""), "tools", "must be 1 to 64 letters"),
        (lambda: Function("f", None, {"type": "array"}), "tools", "parameters of f must be a schema of an object"),
        (lambda: Tools((NOW, NOW)), "tools", "two functions are called 'now'"),
        (lambda: Tools((NOW,), named="then"), "tool_choice", "'then' is none of the functions"),
        (lambda: Tools((Function("f", "x", {"enum": ["y" * 99_999]}),), "required").grammar(), "grammar", "characters"),
    ],
)
def test_what_is_refused(make: Any, param: str, says: str) -> None:
    with pytest.raises(InvalidParameter) as caught:
        make()
    assert caught.value.param == param
    assert says in str(caught.value)


def test_earlier_calls_are_given_to_templates_as_objects() -> None:
    function = {"name": "f", "arguments": '{"a": 1}'}
    message = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "1", "type": "function", "function": function}],
    }
    made = as_template_message(message)
    assert made["tool_calls"][0]["function"] == {"name": "f", "arguments": {"a": 1}}
    assert json.loads(function["arguments"]) == {"a": 1}, "the request itself is left alone"
    function["arguments"] = "{"
    with pytest.raises(InvalidParameter, match=r"^tool_calls\[0\].function.arguments"):
        as_template_message(message)
    assert as_template_message({"role": "user", "content": "x"}) == {"role": "user", "content": "x"}
