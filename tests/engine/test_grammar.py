"""Structured output: always a text of the grammar, and the same text whatever drafts.

Here with tiny random models, which have every reason to break out; tests/real has one that means it.
"""

from __future__ import annotations

import random
import re
from typing import Any

import pytest
from tests import spoken
from tests.engine.grammars import (
    DRAFTERS,
    GRAMMARS,
    PROMPTS,
    check,
    drafter,
    follows,
    on,
    params,
    plain,
)

from headstart.control.adaptive import AdaptiveDepth
from headstart.control.cost import GRID, CostCurve
from headstart.control.depth import FixedDepth
from headstart.decode.admit import FORCED
from headstart.decode.draft import Draft
from headstart.decode.grammar import Grammar
from headstart.decode.params import SamplingParams
from headstart.decode.sequence import FinishReason
from headstart.draft import ensemble
from headstart.draft.base import DraftRequest
from headstart.draft.model import ModelDrafter
from headstart.draft.ngram import NgramDrafter
from headstart.draft.scripted import (
    OracleDrafter,
    Scripted,
    TreeOracleDrafter,
)
from headstart.engine.engine import Engine
from headstart.engine.request import Speculation
from headstart.errors import InvalidParameter


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


def test_no_drafter_has_the_name_of_what_a_grammar_forces() -> None:
    assert ensemble.GRAMMAR == FORCED
    with pytest.raises(InvalidParameter, match=r"^drafters: names must differ and not be 'none', 'grammar'"):
        ensemble.check_names(["ngram", FORCED])


def test_two_drafters_and_a_grammar() -> None:
    truth = plain("compact", 0.9)
    drafters = [NgramDrafter(), ModelDrafter(spoken.target(1, exact=False), on())]
    adaptive = AdaptiveDepth(CostCurve([1e-3] * len(GRID), 0.0), tree=True)
    engine = Engine(on(), drafters, controller=adaptive, default_drafter="ngram+model")
    check("compact", truth, engine.generate(PROMPTS, params("compact", 0.9)))
    assert engine.record.by_drafter.keys() <= {"ngram", "model", FORCED}
    assert FORCED in engine.record.by_drafter
