"""Life of a request: admission, streaming, cancellation at any moment, and a pool that is whole afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
import torch
from tests import tiny

from headstart.control.depth import FixedDepth
from headstart.decode.draft import Draft
from headstart.decode.params import SamplingParams
from headstart.decode.sequence import FinishReason
from headstart.draft.base import DraftRequest
from headstart.draft.scripted import OracleDrafter, Scripted
from headstart.engine.engine import Engine
from headstart.engine.request import Request, Speculation
from headstart.errors import InvalidParameter, RequestTooLarge
from headstart.target.model import Target

PROMPTS = [tiny.ids(n, n) for n in (3, 17, 40, 5)]
PARAMS = SamplingParams(max_tokens=20, temperature=0.7, seed=2)


@pytest.fixture(scope="module")
def on() -> Target:
    return tiny.target()


@pytest.fixture(scope="module")
def truth(on: Target) -> list[list[int]]:
    return [o.token_ids for o in Engine(on).generate(PROMPTS, PARAMS)]


def oracle(truth: list[list[int]], acceptance: float = 0.8) -> OracleDrafter:
    return OracleDrafter({tuple(p): t for p, t in zip(PROMPTS, truth, strict=True)}, acceptance)


def test_more_requests_than_fit_wait_their_turn(truth: list[list[int]]) -> None:
    small = tiny.target(kv_tokens=128)  # two extents of 64
    engine = Engine(small, [oracle(truth)], max_sequences=8)
    handles = [engine.submit(p, PARAMS) for p in PROMPTS]
    most = 0
    while engine.has_work:
        engine.step()
        most = max(most, small.pool.used)
    assert most == 128
    assert [h.output().token_ids for h in handles] == truth
    assert small.pool.used == 0


def test_a_request_that_can_never_fit_is_refused_with_numbers() -> None:
    engine = Engine(tiny.target(kv_tokens=256))
    with pytest.raises(RequestTooLarge, match=r"prompt 40 \+ max_tokens 300 = 340 tokens, but the limit is 256"):
        engine.submit(PROMPTS[2], SamplingParams(max_tokens=300))
    assert not engine.has_work


def test_chunked_prefill_does_not_stop_decoding(on: Target, truth: list[list[int]]) -> None:
    engine = Engine(on, [oracle(truth)], prefill_chunk=4)
    short = engine.submit(PROMPTS[0], PARAMS)
    while not short.chunks:
        engine.step()
    long = engine.submit(PROMPTS[2], PARAMS)
    engine.step()
    assert short.chunks
    assert long.branches[0].sequence.cached == 4
    while engine.has_work:
        engine.step()
    assert short.output().token_ids == truth[0]
    assert long.output().token_ids == truth[2]


def test_streams_are_the_whole_in_parts(on: Target, truth: list[list[int]]) -> None:
    engine = Engine(on, [oracle(truth)])
    for prompt, expected in zip(PROMPTS, truth, strict=True):
        chunks = list(engine.stream(prompt, PARAMS))
        assert [t for c in chunks for t in c.token_ids] == expected
        assert all(len(c.token_ids) == len(c.from_draft) == len(c.texts) for c in chunks)
        assert [c.finish_reason for c in chunks[:-1]] == [None] * (len(chunks) - 1)
        assert chunks[-1].finish_reason == FinishReason.LENGTH
    assert any(sum(c.from_draft) for c in chunks)


def test_closing_a_stream_cancels(on: Target) -> None:
    engine = Engine(on)
    stream = engine.stream(PROMPTS[0], PARAMS)
    next(stream)
    assert on.pool.used > 0
    stream.close()
    assert on.pool.used == 0
    assert not engine.has_work


def test_async_streams_share_rounds(on: Target, truth: list[list[int]]) -> None:
    engine = Engine(on, [oracle(truth)])

    async def collect(prompt: Sequence[int]) -> list[int]:
        return [t async for chunk in engine.astream(prompt, PARAMS) for t in chunk.token_ids]

    async def abandon(prompt: Sequence[int]) -> None:
        async for _ in engine.astream(prompt, PARAMS):
            return

    async def main() -> list[list[int]]:
        results = await asyncio.gather(*(collect(p) for p in PROMPTS), abandon(PROMPTS[1]))
        return results[: len(PROMPTS)]

    assert asyncio.run(main()) == truth
    engine.close()
    assert on.pool.used == 0


def test_a_task_that_is_cancelled_frees_its_slots(on: Target) -> None:
    engine = Engine(on)

    async def main() -> None:
        async def forever() -> None:
            async for _ in engine.astream(PROMPTS[0], SamplingParams(max_tokens=700)):
                pass

        task = asyncio.create_task(forever())
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    engine.close()
    assert on.pool.used == 0


class Saboteur(Scripted):
    """Cancels a request from inside the n-th protocol call."""

    name = "saboteur"

    def __init__(self, inner: OracleDrafter, at: int) -> None:
        super().__init__()
        self.inner, self.at, self.calls = inner, at, 0
        self.engine: Engine | None = None
        self.victim: Request | None = None

    def _tick(self) -> None:
        self.calls += 1
        if self.calls == self.at and self.engine is not None and self.victim is not None:
            self.engine.cancel(self.victim)

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        self._tick()
        return self.inner.propose(requests)

    def observe(self, sequence_id: int, draft: Draft, accepted: int) -> None:
        self._tick()

    def finish(self, *_: object) -> None:
        self._tick()


@pytest.mark.parametrize("at", range(1, 40))
def test_cancelling_inside_any_call(on: Target, truth: list[list[int]], at: int) -> None:
    saboteur = Saboteur(oracle(truth), at)
    engine = Engine(on, [saboteur], prefill_chunk=16)
    handles = [engine.submit(p, PARAMS) for p in PROMPTS]
    saboteur.engine, saboteur.victim = engine, handles[1]
    while engine.has_work:
        engine.step()
    for i, handle in enumerate(handles):
        tokens = handle.output().token_ids
        assert tokens == truth[i] if i != 1 else tokens == truth[1][: len(tokens)]
    assert on.pool.used == 0
    assert on.pool.used + on.pool.kept + on.pool.free == on.pool.capacity


@pytest.mark.parametrize("after", range(0, 14))
def test_cancelling_between_any_two_steps(on: Target, truth: list[list[int]], after: int) -> None:
    engine = Engine(on, [oracle(truth)], max_sequences=2, prefill_chunk=7)
    handles = [engine.submit(p, PARAMS) for p in PROMPTS]
    for _ in range(after):
        engine.step()
    for handle in (handles[0], handles[3], handles[0]):
        engine.cancel(handle)
    while engine.has_work:
        engine.step()
    for i in (1, 2):
        assert handles[i].output().token_ids == truth[i]
    for i in (0, 3):
        done = handles[i].output().completions[0]
        assert done.token_ids == truth[i][: len(done.token_ids)]
        assert done.finish_reason in (FinishReason.CANCELLED, FinishReason.LENGTH)
    assert on.pool.used == 0


class FailingTarget:
    """A target whose n-th forward raises, as when memory runs out."""

    def __init__(self, inner: Target, at: int) -> None:
        self._inner, self._at, self._calls = inner, at, 0

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)

    def forward(self, segments: object, best: int = 0) -> torch.Tensor:
        self._calls += 1
        if self._calls == self._at:
            raise RuntimeError("out of memory")
        return self._inner.forward(segments, best)


@pytest.mark.parametrize("at", [1, 2, 4])
def test_a_failed_forward_can_be_played_again(on: Target, truth: list[list[int]], at: int) -> None:
    engine = Engine(FailingTarget(on, at), [oracle(truth)])
    handles = [engine.submit(p, PARAMS) for p in PROMPTS]
    failures = 0
    while engine.has_work:
        try:
            engine.step()
        except RuntimeError:
            failures += 1
    assert failures == 1
    assert [h.output().token_ids for h in handles] == truth
    with pytest.raises(RuntimeError, match="out of memory"):
        Engine(FailingTarget(on, at), [oracle(truth)]).generate(PROMPTS, PARAMS)
    assert on.pool.used == 0


def test_records_add_up(on: Target, truth: list[list[int]]) -> None:
    engine = Engine(on, [oracle(truth, 0.6)], controller=FixedDepth(3))
    outputs = engine.generate(PROMPTS, PARAMS, [Speculation(depth=d) for d in (0, 1, 3, 6)])
    records = [o.completions[0].record for o in outputs]
    assert records[0].drafted == 0
    assert records[0].mean_acceptance_length == 1.0
    assert records[0].acceptance_rate is None
    total = engine.record
    for name in ("rounds", "drafted", "accepted", "emitted", "room"):
        assert getattr(total, name) == sum(getattr(r, name) for r in records)
    assert len(total.drafted_at) <= 6
    assert total.drafted == sum(total.drafted_at)
    assert total.accepted == sum(total.accepted_at)
    assert total.emitted == total.accepted + total.rounds - sum(1 for o in outputs if o.completions[0].from_draft[-1])
    for output in outputs:
        assert sum(output.completions[0].from_draft) == output.completions[0].record.accepted
        assert output.queue_seconds is not None
        assert 0 <= output.queue_seconds <= output.first_token_seconds <= output.seconds
    assert engine.times.draft > 0
    assert engine.times.forward > 0
    assert engine.times.total > engine.times.forward


def test_info_is_plain_values(on: Target) -> None:
    import json

    info = Engine(on, [Scripted()]).info
    assert json.loads(json.dumps(info)) == info
    assert info["exact_rows"] is True
    assert info["drafters"] == ["scripted"]


def test_bad_settings_are_named(on: Target) -> None:
    for name, call in {
        "max_sequences": lambda: Engine(on, max_sequences=0),
        "prefill_chunk": lambda: Engine(on, prefill_chunk=0),
        "depth": lambda: FixedDepth(-1),
        "nodes": lambda: FixedDepth(4, 2),
        "drafter": lambda: Engine(on, default_drafter="nobody"),
        "params": lambda: Engine(on).generate(PROMPTS, [PARAMS]),
    }.items():
        with pytest.raises(InvalidParameter, match=name):
            call()
    with pytest.raises(InvalidParameter, match="depth"):
        Speculation(depth=99)
