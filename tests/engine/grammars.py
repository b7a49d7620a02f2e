"""Grammars of every kind for a tiny model that speaks, what it says under them, and drafters for it."""

from __future__ import annotations

import json
import re
from functools import cache
from typing import Any

import jsonschema
from tests import spoken

from headstart.decode.grammar import Grammar
from headstart.decode.params import SamplingParams
from headstart.decode.sequence import FinishReason
from headstart.draft.base import Drafter
from headstart.draft.model import ModelDrafter
from headstart.draft.ngram import NgramDrafter
from headstart.draft.scripted import (
    EosDrafter,
    OracleDrafter,
    RaisingDrafter,
    Scripted,
    TreeOracleDrafter,
    WrongDrafter,
)
from headstart.engine.engine import Engine
from headstart.engine.request import Output
from headstart.target.model import Target

LENGTH = 100
SCHEMA = {
    "type": "object",
    "properties": {
        "colour": {"enum": ["red", "green"]},
        "name": {"type": "string", "maxLength": 8, "pattern": "^[a-z]+$"},
        "xs": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 1100}, "maxItems": 4},
        "inner": {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]},
    },
    "required": ["colour", "name", "xs", "inner"],
    "additionalProperties": False,
}
SCHEMA["properties"]["inner"]["additionalProperties"] = False  # type: ignore[index]
PATTERN = r"(re|red|green){2,5} 1{1,6}(0[a-e]+é?)?"
COMPACT = {**SCHEMA, "x-guidance": {"whitespace_flexible": False}}
SUM = 'start: term ("+" term)*\nterm: /[01]{1,3}/ | "(" start ")"\n'
GBNF = 'root ::= "red" | "green " root2\nroot2 ::= [0-1]+ "e"?\n'
GRAMMARS: dict[str, Grammar] = {
    "schema": Grammar.json_schema(SCHEMA),
    "compact": Grammar.json_schema(COMPACT),
    "regex": Grammar.regex(PATTERN),
    "choice": Grammar.choice(["red", "green", "re", 'en "0"', "größe\n\\"]),
    "lark": Grammar.lark(SUM),
    "ebnf": Grammar.ebnf(GBNF),
}
PROMPTS: list[Any] = ["red green", '{"colour": "red", "name": "en", "xs": [', [1, 2, 3], "0"]


def follows(name: str, text: str) -> bool:
    """Whether a text belongs to the grammar, asked of someone else than the engine."""
    if name in ("schema", "compact"):
        value = json.loads(text)
        jsonschema.validate(value, SCHEMA)
        return name == "schema" or text == json.dumps(value, separators=(",", ":"))
    if name == "regex":
        return re.fullmatch(PATTERN, text) is not None
    if name == "choice":
        return text in json.loads(GRAMMARS["choice"].text)
    if name == "ebnf":
        return re.fullmatch("red|green [01]+e?", text) is not None
    while "(" in text:
        text = re.sub(r"\([01]{1,3}(\+[01]{1,3})*\)", "1", text)
    return re.fullmatch(r"[01]{1,3}(\+[01]{1,3})*", text) is not None


def params(name: str, temperature: float = 0.0, **more: Any) -> SamplingParams:
    more.setdefault("max_tokens", LENGTH)
    return SamplingParams(temperature=temperature, seed=7, grammar=GRAMMARS[name], **more)


@cache
def on() -> Target:
    return spoken.target()


@cache
def plain(name: str, temperature: float) -> list[Output]:
    engine = Engine(on())
    return [engine.generate([prompt], params(name, temperature))[0] for prompt in PROMPTS]


def drafter(kind: str, truth: list[Output]) -> Drafter:
    script = {tuple(o.prompt_token_ids): o.token_ids for o in truth}
    if kind == "ngram":
        return NgramDrafter()
    if kind in ("copy", "other"):
        return ModelDrafter(spoken.target(0 if kind == "copy" else 1, exact=False), on())
    if kind == "oracle":
        return OracleDrafter(script, acceptance=0.7, seed=3)
    if kind == "tree":
        return TreeOracleDrafter(script, width=3, acceptance=0.8, seed=3)
    if kind == "eos":
        return EosDrafter(next(iter(on().eos_ids)))
    if kind == "raising":
        return RaisingDrafter(2, NgramDrafter())
    if kind == "silent":
        return Scripted()
    return WrongDrafter(script)


DRAFTERS = ("ngram", "copy", "other", "oracle", "tree", "wrong", "eos", "raising", "silent")


def check(name: str, truth: list[Output], got: list[Output]) -> None:
    for a, b in zip(truth, got, strict=True):
        for one, two in zip(a.completions, b.completions, strict=True):
            assert one.token_ids == two.token_ids
            assert one.text == two.text
            assert one.finish_reason == two.finish_reason
            assert one.error is None
            if one.finish_reason == FinishReason.STOP:
                assert follows(name, one.text), one.text
