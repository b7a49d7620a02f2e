"""Structured output of a real model in the dtype people serve: valid, and the same with and without speculation."""

from __future__ import annotations

import json
import re
from functools import cache
from typing import Any

import jsonschema
import pytest
import torch

from headstart.control.depth import FixedDepth
from headstart.decode.grammar import Grammar
from headstart.decode.params import SamplingParams
from headstart.decode.sequence import FinishReason
from headstart.draft.ngram import NgramDrafter
from headstart.draft.scripted import OracleDrafter, TreeOracleDrafter
from headstart.engine.engine import Engine
from headstart.target.load import load_target
from headstart.target.model import Target

pytestmark = [pytest.mark.usefixtures("smollm2_installed"), pytest.mark.real_threads]

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 30},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "languages": {"type": "array", "items": {"enum": ["Python", "Rust", "C"]}, "minItems": 1, "maxItems": 3},
        "address": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "maxLength": 20},
                "zip": {"type": "string", "pattern": "^[0-9]{5}$"},
            },
            "required": ["city", "zip"],
            "additionalProperties": False,
        },
    },
    "required": ["name", "age", "languages", "address"],
    "additionalProperties": False,
}
DATE = "(19|20)[0-9]{2}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])"


def chat(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


PROMPTS = [
    chat("Describe a programmer named Ann, 42, from Rome as JSON with name, age, languages and address."),
    chat("Invent a person. Answer in JSON."),
]


@cache
def target() -> Target:
    return load_target("smollm2", dtype="bfloat16", kv_tokens=8192)


def valid(grammar: Grammar, text: str) -> None:
    if grammar.kind == "json_schema":
        jsonschema.validate(json.loads(text), PERSON)
    elif grammar.kind == "json_object":
        assert isinstance(json.loads(text), dict)
    else:
        assert re.fullmatch(DATE, text), text


def check(grammar: Grammar, temperature: float, tokens: int) -> None:
    params = SamplingParams(grammar=grammar, temperature=temperature, max_tokens=tokens, seed=5)
    truth = Engine(target()).generate(PROMPTS, params)
    for out in truth:
        if out.completions[0].finish_reason == FinishReason.STOP:
            valid(grammar, out.text)
    script: dict[tuple[int, ...], Any] = {tuple(o.prompt_token_ids): o.token_ids for o in truth}
    for drafter, nodes in (
        (NgramDrafter(), None),
        (NgramDrafter(), 12),
        (OracleDrafter(script, 0.7), None),
        (TreeOracleDrafter(script, 2, 0.9), 9),
    ):
        engine = Engine(target(), [drafter], controller=FixedDepth(4, nodes))
        got = engine.generate(PROMPTS, params)
        for a, b in zip(truth, got, strict=True):
            assert torch.equal(torch.tensor(a.token_ids), torch.tensor(b.token_ids))
            assert a.text == b.text
            assert a.completions[0].finish_reason == b.completions[0].finish_reason
        assert engine.record.accepted > 0
        assert not engine.record.fallbacks


def test_a_date() -> None:
    check(Grammar.regex(DATE), 0.0, 24)


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_objects_by_schema_and_without(temperature: float) -> None:
    check(Grammar.json_schema(PERSON), temperature, 140)
    check(Grammar.json_object(), temperature, 100)
