"""Drafters that misbehave cost speed and a counter, never a token."""

from __future__ import annotations

import logging

import pytest
import torch
from tests import tiny

from headstart.decode.draft import Draft
from headstart.decode.params import SamplingParams
from headstart.draft.scripted import (
    EosDrafter,
    OracleDrafter,
    OutOfVocabularyDrafter,
    RaisingDrafter,
    Scripted,
    TooLongDrafter,
    WrongDrafter,
)
from headstart.engine.engine import Engine

PROMPTS = [tiny.ids(9, 1), tiny.ids(20, 2)]
TARGET = None


class Misshapen(Scripted):
    """Breaks the protocol itself: too few drafts, or things that are no drafts."""

    name = "misshapen"

    def __init__(self, answer: object) -> None:
        super().__init__()
        self.answer = answer

    def propose(self, requests: object) -> object:  # type: ignore[override]
        return self.answer


class RaisesEverywhere(RaisingDrafter):
    name = "raises-everywhere"

    def observe(self, *_: object) -> None:
        raise RuntimeError("observe")

    def finish(self, *_: object) -> None:
        raise RuntimeError("finish")


class BadLaws(Scripted):
    """Hands over q that is no law."""

    name = "bad-laws"

    def draft(self, request: object) -> Draft:
        return Draft((1, 2), q=torch.full((2, tiny.VOCAB), float("nan")))


@pytest.fixture(scope="module")
def on() -> object:
    return tiny.target()


def drafters(truth: dict[tuple[int, ...], list[int]]) -> list[object]:
    oracle = OracleDrafter(truth)
    return [
        WrongDrafter(truth),
        WrongDrafter(),
        EosDrafter(5),
        OutOfVocabularyDrafter(),
        OutOfVocabularyDrafter((tiny.VOCAB,)),
        TooLongDrafter(truth),
        TooLongDrafter(),
        RaisingDrafter(),
        RaisingDrafter(every=3, inner=oracle),
        RaisesEverywhere(every=2, inner=oracle),
        Misshapen([]),
        Misshapen(None),
        Misshapen([None, None]),
        Misshapen([Draft((1.5,)), Draft((3, 3), parents=(-1, -1))]),
        Misshapen([Draft((1, 2), parents=(1, -1)), Draft((1,), confidence=(0.5, 0.5))]),
        BadLaws(),
    ]


@pytest.mark.parametrize("verify", ["coupled", "rejection", "block"])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_text_is_untouched(on: object, temperature: float, verify: str, caplog: pytest.LogCaptureFixture) -> None:
    params = SamplingParams(max_tokens=24, temperature=temperature, seed=1, verify=verify)
    plain = Engine(on).generate(PROMPTS, params)
    script = {tuple(o.prompt_token_ids): o.token_ids for o in plain}
    exact = verify == "coupled" or temperature == 0
    for drafter in drafters(script):
        with caplog.at_level(logging.CRITICAL):
            engine = Engine(on, [drafter])
            got = engine.generate(PROMPTS, params)
        for a, b in zip(plain, got, strict=True):
            assert len(b.token_ids) == 24
            assert all(0 <= t < tiny.VOCAB for t in b.token_ids)
            assert a.token_ids == b.token_ids or not exact
        record = engine.record
        assert 0 <= record.accepted <= record.drafted
        assert all(0 <= a <= d for a, d in zip(record.accepted_at, record.drafted_at, strict=True))
        assert record.emitted <= record.accepted + record.rounds
        assert on.pool.used == 0


def test_failures_are_counted_and_warned_about_once(on: object, caplog: pytest.LogCaptureFixture) -> None:
    engine = Engine(on, [RaisingDrafter()])
    with caplog.at_level(logging.WARNING):
        out = engine.generate(PROMPTS, SamplingParams(max_tokens=10))
    assert engine.record.fallbacks["raised"] == sum(o.completions[0].record.rounds for o in out) - len(PROMPTS)
    warnings = [r for r in caplog.records if r.levelno == logging.WARNING]
    assert len(warnings) == 1
    assert "raising" in warnings[0].getMessage()


def test_an_interrupt_is_no_drafter_failure(on: object) -> None:
    engine = Engine(on, [RaisingDrafter(every=2, error=KeyboardInterrupt())])  # type: ignore[arg-type]
    with pytest.raises(KeyboardInterrupt):
        engine.generate(PROMPTS, SamplingParams(max_tokens=10))
    assert on.pool.used == 0
    assert not engine.has_work
