"""``speculation.trace``: a streamed chat says for every token who drafted it, and for every round what it did."""

from __future__ import annotations

from typing import Any

import pytest
from tests.serve.harness import Running, chat, completion, events, problem

from headstart.engine.engine import Engine
from headstart.engine.request import Request
from headstart.serve.replies import ChatChunk
from headstart.serve.shape import Fresh
from headstart.serve.traced import traced

REPETITIVE = "abcabcabcabcabcabc"


def streamed(up: Running, text: str, **more: Any) -> list[ChatChunk]:
    body = {**chat(text, seed=3, max_completion_tokens=60, stream=True), **more}
    return [ChatChunk.model_validate(item) for item in events(up.post("/v1/chat/completions", body))]


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_the_trace_tells_the_text_and_adds_up_to_the_counts(up: Running, temperature: float) -> None:
    usage = {"include_usage": True}
    chunks = streamed(up, REPETITIVE, temperature=temperature, speculation={"trace": True}, stream_options=usage)
    told, opening = 0, True
    totals = {"steps": 0, "drafted": 0, "accepted": 0}
    for chunk in chunks:
        if chunk.speculation is None:
            continue
        text = ""
        for round in chunk.speculation.rounds:
            text += "".join(piece.text for piece in round.pieces) + (round.tail or "")
            told += len(round.pieces)
            drafted_by = [piece.drafter for piece in round.pieces if piece.drafter is not None]
            if opening:
                assert (round.depth, round.drafted, round.deepest, round.accepted) == (None, None, None, None)
                assert len(round.pieces) == 1
                assert not drafted_by
                opening = False
                continue
            assert round.depth is not None
            assert round.drafted is not None
            assert 0 <= len(drafted_by) <= round.drafted <= round.depth <= 4
            assert len(drafted_by) == round.accepted
            assert set(drafted_by) <= {"ngram"}
            totals["steps"] += round.drafted > 0
            totals["drafted"] += round.drafted
            totals["accepted"] += len(drafted_by)
        assert text == (chunk.choices[0].delta.content or "")
    last = chunks[-1]
    assert last.usage is not None
    assert told == last.usage.completion_tokens
    assert last.metrics is not None
    spec = last.metrics.speculative_decoding
    assert spec is not None
    assert totals == {
        "steps": spec.num_spec_steps,
        "drafted": spec.num_draft_tokens,
        "accepted": spec.num_accepted_draft_tokens,
    }
    assert totals["drafted"] > 0


def test_plain_rounds_are_told_too(up: Running) -> None:
    chunks = streamed(up, REPETITIVE, speculation={"trace": True, "depth": 0})
    rounds = [round for chunk in chunks if chunk.speculation for round in chunk.speculation.rounds]
    assert {(round.depth, round.drafted, len(round.pieces)) for round in rounds[1:]} == {(0, 0, 1)}
    assert all(piece.drafter is None for round in rounds for piece in round.pieces)


@pytest.mark.parametrize("speculation", [None, {}, {"trace": False}])
def test_nothing_is_told_unless_asked_for(up: Running, speculation: Any) -> None:
    chunks = streamed(up, REPETITIVE, speculation=speculation)
    assert len(chunks) > 2
    assert all("speculation" not in chunk.model_fields_set for chunk in chunks)


def test_a_trace_leaves_the_text_as_it_is(up: Running) -> None:
    def text(**more: Any) -> str:
        chunks = streamed(up, REPETITIVE, n=2, stop=["q"], temperature=1.0, **more)
        return "".join(c.choices[0].delta.content or "" for i in range(2) for c in chunks if c.choices[0].index == i)

    assert text(speculation={"trace": True}) == text()


def test_a_slow_reader_gets_every_round(engine: Engine) -> None:
    request: Request = engine.submit(REPETITIVE)
    fresh = Fresh(0)
    while not request.done and len(fresh.chunks) < 5:
        for chunk in engine.advance(request):
            fresh.add(chunk, request)
    engine.cancel(request)
    rounds = traced(fresh.chunks).rounds
    assert len(rounds) == len(fresh.chunks) == 5
    assert sum(len(round.pieces) for round in rounds) == len(fresh.tokens)


def test_where_there_is_no_trace_it_is_refused(up: Running) -> None:
    reply = up.post("/v1/chat/completions", chat("hi", speculation={"trace": True}))
    assert "stream" in problem(reply, 400, param="speculation.trace")
    body = completion("hi", stream=True, speculation={"trace": True})
    problem(up.post("/v1/completions", body), 400, param="speculation.trace")
