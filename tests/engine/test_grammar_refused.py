"""Grammars that cannot be enforced, and grammars that mean harm: refused by name, or ended alone."""

from __future__ import annotations

import re
import sys
from contextlib import suppress
from typing import Any

import pytest
from tests import tiny
from tests.engine.grammars import (
    GRAMMARS,
    LENGTH,
    PROMPTS,
    check,
    follows,
    on,
    params,
    plain,
)

from headstart.decode.draft import Draft
from headstart.decode.grammar import MOST_CHARACTERS, Grammar
from headstart.decode.params import SamplingParams
from headstart.decode.sequence import FinishReason
from headstart.draft.base import DraftRequest
from headstart.draft.ngram import NgramDrafter
from headstart.draft.scripted import (
    Scripted,
)
from headstart.engine.constraint import MatcherConstraint
from headstart.engine.engine import Engine
from headstart.errors import InvalidParameter


def test_forced_tokens_of_the_request_must_fit_the_grammar() -> None:
    engine = Engine(on(), [NgramDrafter()])
    ids = on().tokenizer("red", add_special_tokens=False)["input_ids"]  # type: ignore[misc]
    out = engine.generate(["x"], params("regex", forced_tokens=tuple(ids)))[0]
    assert out.text.startswith("red")
    assert follows("regex", out.text)
    with pytest.raises(InvalidParameter, match=r"^forced_tokens: token \d+ breaks the grammar"):
        engine.submit("x", params("lark", forced_tokens=tuple(ids)))


class Deep(Scripted):
    """Drafts along a path that no parser likes."""

    name = "deep"

    def draft(self, request: DraftRequest) -> Draft:
        ids = on().tokenizer("ab" * 40, add_special_tokens=False)["input_ids"]  # type: ignore[misc]
        return Draft(tuple(ids[: request.depth]))


def test_an_exception_over_a_draft_ends_no_request(monkeypatch: pytest.MonkeyPatch) -> None:
    truth = plain("regex", 0.0)

    def broken(*_: object) -> int:
        raise ValueError("too many states")

    monkeypatch.setattr(MatcherConstraint, "admits", broken)
    engine = Engine(on(), [Deep()])
    check(
        "regex", truth, engine.generate(PROMPTS, SamplingParams(grammar=GRAMMARS["regex"], max_tokens=LENGTH, seed=7))
    )
    assert engine.record.fallbacks["grammar"] > 0


def test_a_grammar_that_grows_too_complex_ends_its_own_request_only() -> None:
    engine = Engine(on())
    hostile = SamplingParams(grammar=Grammar.regex("(.*a.{100}b.{200}|.*c.{300}d.*)e"), temperature=2.0, max_tokens=300)
    mate = engine.submit(PROMPTS[0], params("schema"))
    bad = engine.submit(PROMPTS[0], hostile)
    while engine.has_work:
        engine.step()
    assert mate.output().token_ids == plain("schema", 0.0)[0].token_ids
    done = bad.output().completions[0]
    if done.finish_reason == FinishReason.ERROR:
        assert "the grammar cannot be followed any further" in (done.error or "")
    assert on().pool.used == 0


MANY = {"anyOf": [{"properties": {f"a{i}": {"type": "string"}}} for i in range(9)]}
DEEP: dict[str, Any] = {"type": "string"}
for _ in range(2000):
    DEEP = {"type": "array", "items": DEEP}


@pytest.mark.parametrize(
    ("grammar", "says"),
    [
        (lambda: Grammar.json_schema({"type": "array", "uniqueItems": True}), "uniqueItems"),
        (lambda: Grammar.json_schema({"if": {"type": "string"}, "then": {}}), '"if", "then"'),
        (lambda: Grammar.json_schema({"oneOf": [{"minLength": 1}, {"maxLength": 3}]}), "oneOf"),
        (lambda: Grammar.json_schema({"not": {}, "x-guidance": {"lenient": True}}), "not"),
        (lambda: Grammar.json_schema({"type": "strin"}), "Invalid type: strin"),
        (lambda: Grammar.json_schema({"type": "string", "format": "colour"}), "Unknown format: colour"),
        (lambda: Grammar.json_schema({"$ref": "http://127.0.0.1:1/schema"}), "127.0.0.1"),
        (lambda: Grammar.json_schema({"$ref": "#"}), "json_schema"),
        (lambda: Grammar.json_schema({"type": "string", "pattern": "(?=a)b"}), "look-around"),
        (lambda: Grammar.json_schema({"enum": []}), "Unsatisfiable"),
        (lambda: Grammar.json_schema({"allOf": [{"type": "string"}, {"type": "integer"}]}), "Unsatisfiable"),
        (lambda: Grammar.json_schema(False), "a schema is an object or true, not false"),
        (lambda: Grammar.json_schema("[]"), "a schema is an object or true"),
        (lambda: Grammar.json_schema("{"), "json_schema"),
        (lambda: Grammar.json_schema({"a": {1, 2}}), "cannot be written as JSON"),
        (lambda: Grammar.json_schema(DEEP), "recursion"),
        (lambda: Grammar.regex("(a"), "unclosed group"),
        (lambda: Grammar.regex(r"(a)\1"), "backreferences are not supported"),
        (lambda: Grammar.regex(r"\bfoo"), "lookarounds"),
        (lambda: Grammar.regex(""), "allows no text but the empty one"),
        (lambda: Grammar.json_schema({"allOf": [MANY] * 9}), "schema too large"),
        (lambda: Grammar.regex("a" * (MOST_CHARACTERS + 1)), f"at most {MOST_CHARACTERS} characters"),
        (lambda: Grammar.regex(3), "must be text"),  # type: ignore[arg-type]
        (lambda: Grammar.choice("abc"), "list of non-empty strings"),
        (lambda: Grammar.choice([]), "choice"),
        (lambda: Grammar.choice(["a", ""]), "list of non-empty strings"),
        (lambda: Grammar.lark("start: foo"), "unknown name"),
        (lambda: Grammar.lark("begin: /a/"), "start"),
        (lambda: Grammar.ebnf('root ::= "a" other'), "other"),
        (lambda: Grammar.ebnf("root ::= " + "(" * 20000), "ebnf"),
        (lambda: Grammar("yaml", ""), "kind must be one of"),  # type: ignore[arg-type]
    ],
)
def test_what_cannot_be_enforced_is_refused_by_name(grammar: Any, says: str) -> None:
    with pytest.raises(
        InvalidParameter, match=f"(?s)^grammar: .*{re.escape(says) if '.' not in says else says}"
    ) as caught:
        Engine(on()).submit("x", SamplingParams(grammar=grammar()))
    assert len(str(caught.value)) < 600
    assert "\n" not in str(caught.value)


HOSTILE = [
    Grammar.json_schema({"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(2500)}}),
    Grammar.json_schema({"anyOf": [{"properties": {f"a{i}": {"type": "string"}}} for i in range(1500)]}),
    Grammar.json_schema({"allOf": [{"anyOf": [{"required": [f"{i}{j}"]} for j in range(9)]} for i in range(9)]}),
    Grammar.json_schema({"type": "array", "minItems": 10**9, "items": {"type": "integer"}}),
    Grammar.regex("((a{1,1000}){1,1000}){1,1000}"),
    Grammar.regex("(a?){500}a{500}"),
    Grammar.regex("(.*a){50}(.*b){50}.{0,5000}(x+x+)+y"),
    Grammar.lark('start: x{1,300}\nx: "a" | "aa" | x x | ""'),
    Grammar.lark('start: s\ns: s s s | s s | "a" | "b" | ""'),
]


@pytest.mark.parametrize("grammar", HOSTILE, ids=range(len(HOSTILE)))
def test_a_hostile_grammar_ends_in_some_way(grammar: Grammar) -> None:
    """Refused, or followed, or ended with an error: never a hang, never a crash, and the engine goes on."""
    engine = Engine(on(), [NgramDrafter()])
    mate = engine.submit(PROMPTS[0], params("schema"))
    with suppress(InvalidParameter):
        engine.submit("a", SamplingParams(grammar=grammar, max_tokens=40, temperature=1.0, seed=1))
    while engine.has_work:
        engine.step()
    assert mate.output().token_ids == plain("schema", 0.0)[0].token_ids


def test_models_and_installations_that_cannot() -> None:
    with pytest.raises(InvalidParameter, match=r"^grammar: this model has no tokenizer"):
        Engine(tiny.target()).submit([1], SamplingParams(grammar=Grammar.json_object()))
    with pytest.raises(InvalidParameter, match=r"^grammar: must be a Grammar"):
        SamplingParams(grammar="a+")  # type: ignore[arg-type]
    from tests.draft.test_model import WORDS, sized

    with pytest.raises(InvalidParameter, match=r"^grammar: this model's tokenizer is of a kind"):
        Engine(sized(64, WORDS)).submit([1], SamplingParams(grammar=Grammar.json_object()))


def test_without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(InvalidParameter, match=r"^grammar: needs llguidance.*pip install 'headstart\[structured\]'"):
        Engine(on()).submit("x", SamplingParams(grammar=Grammar.json_object()))
