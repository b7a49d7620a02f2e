"""``structured_outputs`` over HTTP: JSON as text, compact JSON, and a grammar that fails on the way."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from tests import spoken
from tests.serve.harness import Running, chat, completion, events, problem, running

from headstart.draft.ngram import NgramDrafter
from headstart.engine import grammar
from headstart.engine.engine import Engine
from headstart.target.model import Target

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"colour": {"enum": ["red", "green"]}, "n": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["colour", "n"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def target() -> Target:
    return spoken.target()


@pytest.mark.parametrize("form", [{"json": SCHEMA}, {"json": json.dumps(SCHEMA)}, {"json_object": True}])
@pytest.mark.parametrize("compact", [False, True])
def test_json_with_and_without_white_space(up: Running, form: dict[str, Any], compact: bool) -> None:
    more = {"structured_outputs": {**form, "disable_any_whitespace": compact}, "max_tokens": 150, "seed": 3, "n": 4}
    for reply, text in (
        (up.post(CHAT, chat("red", **more)), lambda c: c["message"]["content"]),
        (up.post(COMPLETIONS, completion("red", **more)), lambda c: c["text"]),
    ):
        assert reply.status_code == 200, reply.text
        for choice in reply.json()["choices"]:
            if choice["finish_reason"] == "stop":
                value = json.loads(text(choice))
                jsonschema.validate(value, {"type": "object"} if "json_object" in form else SCHEMA)
            if compact and "json" in form:
                assert not set(text(choice)) & set(" \n\r\t")


@pytest.mark.parametrize(
    ("form", "param", "says"),
    [
        ({"json": "{"}, "structured_outputs", "cannot be compiled"),
        ({"json": "{", "disable_any_whitespace": True}, "structured_outputs", "json is no JSON"),
        ({"json": "3", "disable_any_whitespace": True}, "structured_outputs", "json must be an object"),
        (
            {"regex": "a", "disable_any_whitespace": True},
            "structured_outputs.disable_any_whitespace",
            "and this is a regex",
        ),
    ],
)
def test_what_is_refused(up: Running, form: dict[str, Any], param: str, says: str) -> None:
    for path, body in ((CHAT, chat("red")), (COMPLETIONS, completion("red"))):
        assert says in problem(up.post(path, {**body, "structured_outputs": form}), 400, param)


def test_a_grammar_that_fails_on_the_way_is_the_clients_problem(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grammar, "MOST_LEXER_STATES", 60)
    own = spoken.tokenizer()("ab" * 60, add_special_tokens=False)["input_ids"]
    asked = {"structured_outputs": {"regex": "(.*a.{30}b|.*c.{20}d.*)e"}, "logit_bias": {}, "max_tokens": 300}
    asked["logit_bias"] = {str(token): 60 for token in set(own)}
    with Engine(target, [NgramDrafter()]) as engine, running(engine) as up:
        reply = up.post(CHAT, chat("red", **asked))
        assert "cannot be followed any further" in problem(reply, 400, "structured_outputs", "grammar_failed")
        *_, last = events(up.post(CHAT, chat("red", **asked, stream=True)))
        assert last["error"]["code"] == "grammar_failed"
        assert up.post(CHAT, chat("red", max_tokens=5)).status_code == 200
        up.idle()
