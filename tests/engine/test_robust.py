"""What goes wrong stays where it went wrong: signals, poisoned requests, misuse of handles, closing in between."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Sequence

import pytest
import torch
from tests import tiny

from headstart.control.depth import FixedDepth
from headstart.decode.draft import Draft
from headstart.decode.params import SamplingParams
from headstart.decode.sampling import TokenLaw
from headstart.decode.sequence import FinishReason
from headstart.draft.base import DraftRequest
from headstart.draft.scripted import OracleDrafter, Scripted
from headstart.engine.engine import Engine
from headstart.engine.request import Speculation
from headstart.errors import InvalidParameter, RequestTooLarge
from headstart.target.model import Target

PROMPTS = [tiny.ids(n, n) for n in (3, 17, 40)]
PARAMS = SamplingParams(max_tokens=12, temperature=0.7, seed=2)


@pytest.fixture(scope="module")
def on() -> Target:
    return tiny.target()


@pytest.fixture(scope="module")
def truth(on: Target) -> list[list[int]]:
    return [o.token_ids for o in Engine(on).generate(PROMPTS, PARAMS)]


class Interrupts(Scripted):
    """Ctrl-C in the middle of a round."""

    name = "interrupts"

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        signal.raise_signal(signal.SIGINT)
        return super().propose(requests)


def test_ctrl_c_waits_for_the_end_of_the_round(on: Target, truth: list[list[int]]) -> None:
    engine = Engine(on, [Interrupts()])
    handles = [engine.submit(p, PARAMS) for p in PROMPTS]
    interrupts = 0
    while engine.has_work:
        try:
            engine.step()
        except KeyboardInterrupt:
            interrupts += 1
    assert interrupts >= 10
    assert [h.output().token_ids for h in handles] == truth
    with pytest.raises(KeyboardInterrupt):
        engine.generate(PROMPTS, PARAMS)
    assert not engine.has_work
    assert on.pool.used == 0


def test_one_requests_error_is_its_own(on: Target, truth: list[list[int]], monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(on)
    handles = [engine.submit(p, PARAMS) for p in PROMPTS]
    for _ in range(4):
        engine.step()

    def broken(*_: object) -> int:
        raise ValueError("no law")

    law, choose = handles[1].branches[0].sequence.law, TokenLaw.choose
    monkeypatch.setattr(TokenLaw, "choose", lambda self, *a: broken() if self is law else choose(self, *a))
    while engine.has_work:
        engine.step()
    done = handles[1].output().completions[0]
    assert done.finish_reason == FinishReason.ERROR
    assert done.error == "ValueError: no law"
    assert done.token_ids == truth[1][: len(done.token_ids)]
    assert [handles[i].output().token_ids for i in (0, 2)] == [truth[0], truth[2]]
    assert on.pool.used == 0


class Meddler(Scripted):
    """Tries to write into the history it is shown."""

    name = "meddler"

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        requests[0].tokens.append(3)  # type: ignore[attr-defined]
        return super().propose(requests)

    def finish(self, sequence_id: int, tokens: Sequence[int], *_: object) -> None:
        tokens.clear()  # type: ignore[attr-defined]


def test_a_drafter_cannot_write_into_the_history(on: Target, truth: list[list[int]]) -> None:
    engine = Engine(on, [Meddler()])
    assert [o.token_ids for o in engine.generate(PROMPTS, PARAMS)] == truth
    assert engine.record.fallbacks["raised"] > 0


@pytest.mark.parametrize(
    "q",
    [
        torch.ones(2, tiny.VOCAB, 1),
        torch.ones(2, tiny.VOCAB).to_sparse(),
        torch.ones(2, tiny.VOCAB, device="meta"),
        torch.ones(2, tiny.VOCAB, dtype=torch.complex64),
        torch.ones(2, tiny.VOCAB, dtype=torch.int64),
        torch.zeros(2, tiny.VOCAB),
        [[0.5, 0.5]] * 2,
    ],
    ids=["3-d", "sparse", "meta", "complex", "integer", "zero", "list"],
)
def test_a_q_that_is_no_law_costs_the_draft_only(on: Target, q: object) -> None:
    class BadQ(Scripted):
        name = "bad-q"

        def draft(self, request: DraftRequest) -> Draft:
            return Draft((1, 2), q=q)  # type: ignore[arg-type]

    params = SamplingParams(max_tokens=8, temperature=0.8, seed=1, verify="rejection")
    plain = Engine(on).generate(PROMPTS, params)
    engine = Engine(on, [BadQ()])
    assert [o.token_ids for o in engine.generate(PROMPTS, params)] == [o.token_ids for o in plain]
    assert sum(engine.record.fallbacks.values()) > 0


def test_done_means_delivered(on: Target, truth: list[list[int]]) -> None:
    """Whoever drives the step, the last chunk is there when the request is done."""
    seen: list[bool] = []

    class Watches(Scripted):
        name = "watches"

        def observe(self, *_: object) -> None:
            seen.append(request.done)

        def draft(self, request: DraftRequest) -> Draft:
            return Draft((1,))

    engine = Engine(on, [Watches()])
    request = engine.submit(PROMPTS[0], PARAMS)
    while not request.done:
        engine.step()
    assert not any(seen)
    assert [t for c in request.take() for t in c.token_ids] == truth[0]


def test_a_stream_that_was_never_started_is_taken_out(on: Target) -> None:
    engine = Engine(on)
    stream = engine.stream(PROMPTS[0], PARAMS)
    stream.close()
    assert not engine.has_work
    dropped = engine.stream(PROMPTS[0], PARAMS)
    next(dropped)
    del dropped
    engine.step()
    assert not engine.has_work
    assert on.pool.used == 0


def test_a_cancelled_request_says_so_in_its_last_chunk(on: Target) -> None:
    engine = Engine(on)
    request = engine.submit(PROMPTS[0], PARAMS)
    engine.step()
    engine.cancel(request)
    chunks = request.take()
    assert chunks[-1].finish_reason == FinishReason.CANCELLED
    assert [c.finish_reason for c in chunks].count(None) == len(chunks) - 1
    waiting = engine.submit(PROMPTS[0], PARAMS)
    engine.cancel(waiting)
    assert waiting.take()[0].finish_reason == FinishReason.CANCELLED


def test_closing_in_the_middle_of_async_streams(on: Target) -> None:
    async def main() -> list[FinishReason | None]:
        engine = Engine(on)
        reasons: list[FinishReason | None] = []

        async def consume(prompt: list[int]) -> None:
            async for chunk in engine.astream(prompt, SamplingParams(max_tokens=600)):
                reasons.append(chunk.finish_reason)

        tasks = [asyncio.create_task(consume(p)) for p in PROMPTS]
        await asyncio.sleep(0.05)
        engine.close()
        await asyncio.gather(*tasks)
        with pytest.raises(InvalidParameter, match="closed"):
            engine.submit(PROMPTS[0])
        return reasons

    reasons = asyncio.run(main())
    assert reasons.count(FinishReason.CANCELLED) == len(PROMPTS)
    assert on.pool.used == 0


def test_the_record_ends_where_the_text_ends(on: Target) -> None:
    greedy = SamplingParams(max_tokens=20)
    truth = Engine(on).generate([PROMPTS[1]], greedy)[0].token_ids
    place = next(i for i in range(2, 20) if truth[i] not in truth[:i])
    engine = Engine(on, [OracleDrafter({tuple(PROMPTS[1]): truth})], controller=FixedDepth(8))
    out = engine.generate([PROMPTS[1]], SamplingParams(max_tokens=20, stop_token_ids=(truth[place],)))[0]
    record = out.completions[0].record
    assert record.acceptance_rate == 1.0
    assert record.drafted_at == record.accepted_at


@pytest.mark.parametrize(
    ("param", "call"),
    [
        ("prompt", lambda e: e.generate([1, 2, 3])),
        ("prompts", lambda e: e.generate(None)),
        ("prompt", lambda e: e.generate([{"role": "user", "content": "x"}])),
        ("prompt", lambda e: e.generate([[{"role": "user", "content": "x"}, "y"]])),
        ("params", lambda e: e.submit([1], {"max_tokens": 3})),
        ("speculation", lambda e: e.submit([1], None, {"depth": 3})),
        ("drafters", lambda e: Engine(e.target, [Scripted(), Scripted()])),
        ("prefill_chunk", lambda e: Engine(e.target, prefill_chunk="4")),
        ("max_sequences", lambda e: Engine(e.target, max_sequences=2.5)),
        ("nodes", lambda e: FixedDepth(4, nodes=4.5)),
        ("depth", lambda e: Speculation(depth=True)),
        *(
            (name, lambda e, name=name, value=value: SamplingParams(**{name: value}))
            for name, value in {
                "stop": None,
                "stop_token_ids": (True,),
                "banned_tokens": 3,
                "logit_bias": None,
                "temperature": 10**400,
                "top_p": 0,
                "min_p": float("nan"),
                "repetition_penalty": 1e-40,
                "include_stop": "no",
                "ignore_eos": "false",
                "n": 10**6,
                "seed": 2**64,
                "max_tokens": 0,
                "logprobs": -1,
                "verify": "typical",
            }.items()
        ),
    ],
)
def test_bad_input_is_named(on: Target, param: str, call: object) -> None:
    with pytest.raises(InvalidParameter, match=f"^{param}"):
        call(Engine(on))  # type: ignore[operator]


def test_min_tokens_that_cannot_be_had_are_refused(on: Target) -> None:
    with pytest.raises(RequestTooLarge, match="min_tokens 5000 exceeds the 765 tokens"):
        Engine(on).submit(PROMPTS[0], SamplingParams(min_tokens=5000, max_tokens=None))
