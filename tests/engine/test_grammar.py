"""Structured output: always a text of the grammar, and the same text whatever drafts.

Here with tiny random models, which have every reason to break out; tests/real has one that means it.
"""

from __future__ import annotations

import json
import random
import re
import sys
from contextlib import suppress
from functools import cache
from typing import Any

import jsonschema
import numpy as np
import pytest
from tests import spoken, tiny
from tokenizers import AddedToken

from headstart.control.adaptive import AdaptiveDepth
from headstart.control.cost import GRID, CostCurve
from headstart.control.depth import FixedDepth
from headstart.decode.admit import FORCED
from headstart.decode.draft import EMPTY, Draft
from headstart.decode.grammar import MOST_CHARACTERS, Constraint, Grammar
from headstart.decode.params import SamplingParams
from headstart.decode.sequence import FinishReason
from headstart.draft import ensemble
from headstart.draft.base import Drafter, DraftRequest
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
from headstart.engine import grammar as grammar_module
from headstart.engine.constraint import MatcherConstraint
from headstart.engine.engine import Engine
from headstart.engine.grammar import MOST_COMPILED, Grammars
from headstart.engine.request import Output, Speculation
from headstart.errors import InvalidParameter
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


@pytest.mark.parametrize("name", GRAMMARS)
def test_the_output_follows_the_grammar(name: str) -> None:
    ended = 0
    for temperature in (0.0, 0.9, 2.0):
        outputs = plain(name, temperature)
        check(name, outputs, outputs)
        ended += sum(o.completions[0].finish_reason == FinishReason.STOP for o in outputs)
    assert ended >= 6


@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("kind", DRAFTERS)
def test_the_same_text_with_every_drafter(kind: str, temperature: float) -> None:
    for name in GRAMMARS:
        truth = plain(name, temperature)
        engine = Engine(on(), [drafter(kind, truth)], controller=FixedDepth(4, 12 if kind == "tree" else None))
        for depth in (None, 7):
            check(name, truth, engine.generate(PROMPTS, params(name, temperature), Speculation(depth=depth)))
        assert engine.record.fallbacks.keys() <= {"raised"}
    assert on().pool.used == 0


def test_with_adaptive_depth_beside_free_requests_and_with_joins() -> None:
    truth = {name: plain(name, 0.9) for name in GRAMMARS}
    free = SamplingParams(max_tokens=40, temperature=0.9, seed=3)
    alone = Engine(on()).generate(PROMPTS, free)
    adaptive = AdaptiveDepth(CostCurve([1e-3] * len(GRID), 0.0), tree=True)
    engine = Engine(on(), [NgramDrafter()], controller=adaptive, max_sequences=5, prefill_chunk=7)
    handles = []
    for i, prompt in enumerate(PROMPTS):
        for name in GRAMMARS:
            handles.append((truth[name][i], engine.submit(prompt, params(name, 0.9))))
            engine.step()
        handles.append((alone[i], engine.submit(prompt, free)))
    while engine.has_work:
        engine.step()
    for expected, handle in handles:
        assert handle.output().token_ids == expected.token_ids


MORE: list[dict[str, Any]] = [
    {"repetition_penalty": 1.3, "logprobs": 3},
    {"presence_penalty": 1.5, "frequency_penalty": 0.7, "logprobs": 2, "logprobs_mode": "processed"},
    {"top_k": 3, "top_p": 0.9, "min_tokens": 30},
    {"min_p": 0.05, "logit_bias": {5: 30.0, 9: -100.0}, "n": 3},
    {"stop": ("0",), "include_stop": True},
    {"max_tokens": 5},
    {"ignore_eos": True, "stop_token_ids": (on().tokenizer.pad_token_id,)},  # type: ignore[union-attr]
]


@pytest.mark.parametrize("more", MORE, ids=lambda more: next(iter(more)))
def test_every_parameter_beside_a_grammar(more: dict[str, Any]) -> None:
    for name in ("schema", "regex", "lark"):
        for temperature in (0.0, 0.9):
            p = params(name, temperature, **{"max_tokens": 60, **more})
            truth = Engine(on()).generate(PROMPTS, p)
            script = {tuple(o.prompt_token_ids): o.token_ids for o in truth}
            for who, nodes in (
                (OracleDrafter(script, 0.75), None),
                (TreeOracleDrafter(script), 9),
                (NgramDrafter(), None),
                (ModelDrafter(spoken.target(1, exact=False), on()), None),
            ):
                got = Engine(on(), [who], controller=FixedDepth(5, nodes)).generate(PROMPTS, p)
                for a, b in zip(truth, got, strict=True):
                    for one, two in zip(a.completions, b.completions, strict=True):
                        assert one.token_ids == two.token_ids
                        assert one.logprobs == two.logprobs
                        assert one.finish_reason == two.finish_reason
                        if "stop" not in more and one.finish_reason == FinishReason.STOP:
                            assert follows(name, one.text), one.text
                        if "ignore_eos" in more:
                            assert not on().eos_ids & set(one.token_ids)


@pytest.mark.parametrize("verify", ["rejection", "block"])
@pytest.mark.parametrize("kind", ["copy", "other", "ngram", "eos"])
def test_the_sampling_rules_follow_the_grammar_too(verify: str, kind: str) -> None:
    for name in GRAMMARS:
        engine = Engine(on(), [drafter(kind, [])])
        check(name, plain(name, 0.0), engine.generate(PROMPTS, params(name, 0.0, verify=verify)))
        first, second = (
            Engine(on(), [drafter(kind, [])]).generate(PROMPTS, params(name, 0.9, verify=verify)) for _ in range(2)
        )
        check(name, first, second)
        assert not engine.record.fallbacks
        if kind == "copy":
            rate = engine.record.acceptance_rate
            assert rate is not None
            assert rate > 0.95


class Peek(Scripted):
    """Draws from a law that knows nothing of the grammar, and says so."""

    name = "peek"

    def draft(self, request: DraftRequest) -> Draft:
        import torch

        law = torch.zeros(len(spoken.tokenizer()))
        law[:256] = 1 / 256
        drawn = random.Random(len(request.tokens)).choices(range(256), k=request.depth)
        return Draft(tuple(drawn), q=law.repeat(request.depth, 1) if request.with_q else None, source=self.name)


@pytest.mark.parametrize("verify", ["coupled", "rejection", "block"])
def test_a_drafter_that_knows_no_grammar_costs_nothing_but_speed(verify: str) -> None:
    for name in GRAMMARS:
        p = params(name, 0.9, verify=verify)
        engine = Engine(on(), [Peek()])
        got = engine.generate(PROMPTS, p)
        check(name, got, got)
        if verify == "coupled":
            check(name, plain(name, 0.9), got)
        assert not engine.record.fallbacks


def test_forced_tokens_are_drafted_for_free() -> None:
    """A drafter with nothing to say; in compact JSON much is certain."""
    engine = Engine(on(), [silent := Scripted()])
    check("compact", plain("compact", 0.0), engine.generate(PROMPTS, params("compact")))
    record = engine.record
    assert record.drafted > 20
    assert record.acceptance_rate == 1.0
    assert silent.observed == [], "what it did not draft is not put down to it"
    assert Engine(on()).generate(PROMPTS, params("compact"))[0].completions[0].record.drafted == 0


def test_text_that_is_whole_ends_by_itself_and_at_no_other_place() -> None:
    ended = [o.completions[0] for o in plain("schema", 0.9) if o.completions[0].finish_reason == FinishReason.STOP]
    assert ended
    for done in ended:
        assert done.stopped_by is None
        assert done.text.endswith("}")
    bound = (
        Engine(on()).generate(["x"], SamplingParams(grammar=Grammar.regex("[01]{4}"), max_tokens=4))[0].completions[0]
    )
    assert re.fullmatch("[01]{4}", bound.text)
    assert bound.finish_reason == FinishReason.STOP
    cut = Engine(on()).generate(["x"], params("schema", max_tokens=3))[0].completions[0]
    assert cut.finish_reason == FinishReason.LENGTH
    assert len(cut.token_ids) == 3


def test_streams_hold_the_same_text() -> None:
    engine = Engine(on(), [NgramDrafter()])
    for i, prompt in enumerate(PROMPTS):
        stream = engine.stream(prompt, params("schema", 0.9))
        assert "".join(chunk.text for chunk in stream) == plain("schema", 0.9)[i].text


def test_forced_tokens_of_the_request_must_fit_the_grammar() -> None:
    engine = Engine(on(), [NgramDrafter()])
    ids = on().tokenizer("red", add_special_tokens=False)["input_ids"]  # type: ignore[misc]
    out = engine.generate(["x"], params("regex", forced_tokens=tuple(ids)))[0]
    assert out.text.startswith("red")
    assert follows("regex", out.text)
    with pytest.raises(InvalidParameter, match=r"^forced_tokens: token \d+ breaks the grammar"):
        engine.submit("x", params("lark", forced_tokens=tuple(ids)))


def state(grammar: Grammar, **more: Any) -> Constraint:
    made = Grammars(on().tokenizer, on().vocab_size, on().eos_ids).constraint(SamplingParams(grammar=grammar, **more))
    assert made is not None
    return made


def test_masks_depend_on_the_tokens_and_on_nothing_else() -> None:
    """Wander through drafts, good and bad, ask this and that, and compare with a state that walked straight there."""
    rng = random.Random(1)
    for name, grammar in GRAMMARS.items():
        first = state(grammar)
        for _ in range(3):
            wanders, output = first.fresh(), list[int]()
            while len(output) < 40 and not wanders.complete:
                for _ in range(rng.randrange(4)):
                    path: tuple[int, ...] = ()
                    for _ in range(rng.randrange(5)):
                        ids = np.flatnonzero(wanders.allowed(path)).tolist()
                        path += (rng.choice(ids) if rng.random() < 0.8 else rng.randrange(on().vocab_size),)
                        wanders.admits(path[rng.randrange(len(path)) :])
                        wanders.forced(path)
                straight = first.fresh()
                for token in output:
                    straight.append(token)
                mask = straight.allowed()
                assert np.array_equal(mask, wanders.allowed()), (name, output)
                assert straight.complete == wanders.complete
                forced = straight.forced()
                assert forced == wanders.forced()
                assert straight.admits(forced) == len(forced)
                token = rng.choice(np.flatnonzero(mask).tolist())
                assert wanders.admits([token]) == 1
                assert len(forced) == 0 or token == forced[0]
                output.append(token)
                wanders.append(token)
            assert wanders.admits([1]) == 0 or not wanders.complete


def test_ends_are_allowed_where_the_text_is_whole() -> None:
    (eos,), pad = on().eos_ids, on().tokenizer.pad_token_id  # type: ignore[union-attr]
    digits = on().tokenizer("01", add_special_tokens=False)["input_ids"]  # type: ignore[misc]
    for more, ends in (({}, {eos}), ({"stop_token_ids": (pad,)}, {eos, pad}), ({"ignore_eos": True}, set())):
        here = state(Grammar.regex("[01]{1,2}"), **more)
        assert not here.allowed()[[eos, pad]].any()
        assert here.admits([eos]) == 0
        assert set(np.flatnonzero(here.allowed(digits[:1]))) & {eos, pad} == ends
        assert here.admits([digits[0], eos, eos]) == 1 + (eos in ends)
        # nothing else is left here: a law must exist, though the engine asks for none
        assert set(np.flatnonzero(here.allowed(digits))) == (ends or {eos})
        here.append(digits[0])
        assert not here.complete
        after = here.fresh()
        after.append(digits[0])
        after.append(eos)
        assert after.complete
        here.append(digits[1])
        assert here.complete


def test_a_draft_that_breaks_the_parser_breaks_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """The lexer runs out of states along a draft; the committed text is still good, and so is another draft."""
    monkeypatch.setattr(grammar_module, "MOST_LEXER_STATES", 60)
    letters = [on().tokenizer(c, add_special_tokens=False)["input_ids"][0] for c in "abcde"]  # type: ignore[misc]
    here = state(Grammar.regex("e|.*a.{30}b"))
    rng = random.Random(2)
    here.append(letters[0])
    failed = False
    for _ in range(10):
        path = [rng.choice(letters) for _ in range(60)]
        try:
            failed |= here.admits(path) < len(path)
            here.allowed(path)
        except ValueError as error:
            failed = True
            assert "cannot be followed any further" in str(error)  # noqa: PT017
        assert here.allowed()[letters[1]]
    assert failed
    here.append(letters[1])
    assert here.allowed()[letters[0]]


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


def test_grammars_are_compiled_once() -> None:
    grammars = Grammars(on().tokenizer, on().vocab_size, on().eos_ids)
    first = grammars.constraint(SamplingParams(grammar=Grammar.regex("a+")))
    again = grammars.constraint(SamplingParams(grammar=Grammar.regex("a+"), temperature=1.0))
    assert first is not again
    assert len(grammars._compiled) == 1
    for i in range(80):
        grammars.constraint(SamplingParams(grammar=Grammar.regex(f"a{{{i + 1}}}")))
    assert len(grammars._compiled) == MOST_COMPILED


def test_an_empty_draft_stays_empty_without_a_grammar() -> None:
    engine = Engine(on(), [Scripted()])
    engine.generate(PROMPTS[:1], SamplingParams(max_tokens=8))
    assert engine.record.drafted == 0
    assert len(EMPTY) == 0


def says(grammars: Grammars, tokenizer: Any, grammar: Grammar, ids: list[int]) -> bool:
    """Whether the grammar allows these tokens one after another and then the end."""
    here = grammars.constraint(SamplingParams(grammar=grammar))
    assert here is not None
    for token in ids:
        if not here.allowed()[token]:
            return False
        here.append(token)
    return here.complete or bool(here.allowed()[tokenizer.eos_token_id])


@pytest.mark.parametrize("special", [False, True])
def test_an_added_token_is_text_where_the_engine_delivers_it_as_text(special: bool) -> None:
    own = spoken.tokenizer()
    own.add_tokens([AddedToken("<tag>", special=special, normalized=False)], special_tokens=special)
    [tag], pieces = own.convert_tokens_to_ids(["<tag>"]), own.convert_tokens_to_ids(list("<tag>"))
    red = own("red", add_special_tokens=False)["input_ids"]
    assert (own.decode([tag], skip_special_tokens=True) == "") == special
    grammars = Grammars(own, len(own), [own.eos_token_id])
    for grammar in (Grammar.regex("<tag>red"), Grammar.lark('start: "<tag>red"'), Grammar.choice(["<tag>red"])):
        assert says(grammars, own, grammar, [tag, *red]) != special
        assert says(grammars, own, grammar, [*pieces, *red]) == special
    by_name = Grammar.lark('start: <tag> "red"')
    if special:
        assert says(grammars, own, by_name, [tag, *red])
    else:
        with pytest.raises(InvalidParameter, match="unknown special token"):
            says(grammars, own, by_name, [tag, *red])
    quoted = [own.convert_tokens_to_ids('"')]
    anything = Grammar.json_schema({"type": "string"})
    assert says(grammars, own, anything, [*quoted, tag, *quoted]) != special
    assert says(grammars, own, anything, [*quoted, *pieces, *quoted])


def test_no_drafter_has_the_name_of_what_a_grammar_forces() -> None:
    assert ensemble.GRAMMAR == FORCED
    with pytest.raises(InvalidParameter, match=r"^drafters: names must differ and not be 'none' or 'grammar'"):
        ensemble.check_names(["ngram", FORCED])


def test_two_drafters_and_a_grammar() -> None:
    truth = plain("compact", 0.9)
    drafters = [NgramDrafter(), ModelDrafter(spoken.target(1, exact=False), on())]
    adaptive = AdaptiveDepth(CostCurve([1e-3] * len(GRID), 0.0), tree=True)
    engine = Engine(on(), drafters, controller=adaptive, default_drafter="ngram+model")
    check("compact", truth, engine.generate(PROMPTS, params("compact", 0.9)))
    assert engine.record.by_drafter.keys() <= {"ngram", "model", FORCED}
    assert FORCED in engine.record.by_drafter
