"""What an observer is told: the very counts of the records, every request from queue to end, and no way to disturb."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Sequence

import pytest
from tests import spoken, tiny

from headstart.control.adaptive import AdaptiveDepth
from headstart.control.cost import GRID, CostCurve
from headstart.control.depth import DepthController, FixedDepth
from headstart.control.journal import Journal
from headstart.decode.draft import EMPTY, Draft
from headstart.decode.grammar import Grammar
from headstart.decode.params import SamplingParams
from headstart.decode.record import SpecRecord
from headstart.decode.sequence import FinishReason
from headstart.draft.base import Drafter, DraftRequest
from headstart.draft.ngram import NgramDrafter
from headstart.draft.scripted import (
    OracleDrafter,
    OutOfVocabularyDrafter,
    RaisingDrafter,
    Scripted,
    TooLongDrafter,
    TreeOracleDrafter,
    WrongDrafter,
)
from headstart.engine.engine import Engine
from headstart.engine.events import RequestEvent, RoundEvent, Stage, Status
from headstart.engine.request import Speculation
from headstart.target.model import Target

PROMPTS = [tiny.ids(n, n) for n in (3, 17, 40, 5)]
PARAMS = SamplingParams(max_tokens=24, temperature=0.7, seed=2)


class Recorder:
    """Keeps everything it is told."""

    def __init__(self) -> None:
        self.rounds: list[RoundEvent] = []
        self.requests: list[RequestEvent] = []
        self.failed: Counter[tuple[str, str]] = Counter()

    def round(self, event: RoundEvent) -> None:
        self.rounds.append(event)

    def request(self, event: RequestEvent) -> None:
        self.requests.append(event)

    def drafter_failed(self, drafter: str, reason: str) -> None:
        self.failed[drafter, reason] += 1

    def record(self) -> SpecRecord:
        """The engine's record, rebuilt from what was told."""
        total = SpecRecord()
        for event in self.rounds:
            for part in event.sequences:
                if part.counts is not None:
                    total.add_round(part.counts)
        for (_, reason), count in self.failed.items():
            if reason not in ("finish raised", "feedback raised"):  # not a round's
                total.fallbacks[reason] += count
        return total

    def reasons(self) -> Counter[str | None]:
        return Counter(p.reason for event in self.rounds for p in event.sequences if p.counts is not None)


@pytest.fixture(scope="module")
def on() -> Target:
    return tiny.target()


@pytest.fixture(scope="module")
def truth(on: Target) -> list[list[int]]:
    return [o.token_ids for o in Engine(on).generate(PROMPTS, PARAMS)]


def known(truth: list[list[int]]) -> dict[tuple[int, ...], list[int]]:
    return {tuple(p): t for p, t in zip(PROMPTS, truth, strict=True)}


@pytest.mark.parametrize("kind", ["chain", "tree", "raising", "too long", "nonsense", "ngram", "stops"])
def test_events_add_up_to_the_record(on: Target, truth: list[list[int]], kind: str) -> None:
    oracle = OracleDrafter(known(truth), 0.7)
    drafter: Drafter = {
        "chain": oracle,
        "tree": TreeOracleDrafter(known(truth), acceptance=0.8),
        "raising": RaisingDrafter(every=3, inner=oracle),
        "too long": TooLongDrafter(known(truth)),
        "nonsense": OutOfVocabularyDrafter(),
        "ngram": NgramDrafter(),
        "stops": oracle,
    }[kind]
    params = PARAMS
    if kind == "stops":
        params = SamplingParams(max_tokens=24, temperature=0.7, seed=2, stop_token_ids=(truth[0][7], truth[1][11]))
    seen = Recorder()
    engine = Engine(on, [drafter], controller=FixedDepth(4, 8), observer=seen)
    outputs = engine.generate(PROMPTS, params)
    assert seen.record().as_dict() == engine.record.as_dict()
    emitted = sum(p.counts.emitted for event in seen.rounds for p in event.sequences if p.counts is not None)
    first = sum(p.counts is None for event in seen.rounds for p in event.sequences)
    assert emitted + first == sum(len(o.token_ids) for o in outputs)
    assert first == len(PROMPTS)
    assert sum(event.prompt_tokens for event in seen.rounds) == sum(map(len, PROMPTS))
    assert sum(event.rows for event in seen.rounds) >= sum(map(len, PROMPTS)) + engine.record.rounds
    assert 0 < sum(event.times.total for event in seen.rounds) <= engine.times.total
    if kind in ("raising", "too long", "nonsense"):
        assert seen.failed
    assert seen.reasons()[None] == engine.record.drafted_rounds


def test_a_request_is_told_from_queue_to_end(on: Target, truth: list[list[int]]) -> None:
    seen = Recorder()
    engine = Engine(on, [OracleDrafter(known(truth))], max_sequences=2, observer=seen)
    handles = [engine.submit(p, PARAMS, tag=f"r{i}") for i, p in enumerate(PROMPTS)]
    many = engine.submit(PROMPTS[0], SamplingParams(max_tokens=5, n=3), Speculation(drafter="none"), tag="many")
    while engine.has_work:
        engine.step()
    for handle in (*handles, many):
        events = [event for event in seen.requests if event.request_id == handle.id]
        assert [event.stage for event in events] == list(Stage)
        assert {event.tag for event in events} == {handle.tag}
        assert {event.prompt_tokens for event in events} == {len(handle.prompt)}
        assert [event.seconds for event in events] == sorted(event.seconds for event in events)
        assert [event.output is not None for event in events] == [False, False, False, True]
        output = events[-1].output
        assert output is not None
        assert output == handle.output()
        assert len(output.completions) == handle.params.n
    assert {event.drafter for event in seen.requests} == {"oracle", "none"}
    gaps = [p.gap for event in seen.rounds for p in event.sequences if p.sequence_id == 0]
    assert gaps[0] is None
    assert all(gap is not None and gap > 0 for gap in gaps[1:])


def test_requests_that_are_cancelled_end_too(on: Target) -> None:
    seen = Recorder()
    engine = Engine(on, max_sequences=1, observer=seen)
    running, waiting = engine.submit(PROMPTS[0], PARAMS), engine.submit(PROMPTS[1], PARAMS)
    engine.step()
    assert engine.status == Status(running=1, waiting=1, kv_used=64, kv_capacity=4096)
    engine.submit(PROMPTS[1], PARAMS)
    assert engine.status.waiting == 2
    engine.cancel(waiting)
    engine.cancel(running)
    engine.close()
    assert engine.status == Status(running=0, waiting=0, kv_used=0, kv_capacity=4096)
    ends = [event for event in seen.requests if event.stage is Stage.ENDED]
    assert len(ends) == 3
    assert [event.stage for event in seen.requests if event.request_id == waiting.id] == [Stage.QUEUED, Stage.ENDED]
    assert all(e.output and e.output.completions[0].finish_reason is FinishReason.CANCELLED for e in ends)


def test_why_there_was_no_draft(on: Target, truth: list[list[int]]) -> None:
    free = CostCurve([0.010] * len(GRID), 0.0)
    dear = CostCurve([0.010 * (1 + 10.0 * (rows - 1)) for rows in GRID], 0.0)

    def reasons(
        drafter: Drafter, controller: DepthController, speculation: Speculation | None = None
    ) -> Counter[str | None]:
        seen = Recorder()
        engine = Engine(on, [drafter], controller=controller, observer=seen)
        engine.generate(PROMPTS[:2], PARAMS, speculation)
        return seen.reasons()

    oracle, clumsy = OracleDrafter(known(truth)), OracleDrafter(known(truth), 0.0)
    assert set(reasons(clumsy, FixedDepth())) == {None, "output nearly finished"}
    assert set(reasons(oracle, FixedDepth(), Speculation(depth=0))) == {"not wanted"}
    assert set(reasons(oracle, FixedDepth(), Speculation(drafter="none"))) == {"not wanted"}
    assert set(reasons(oracle, FixedDepth(0))) == {"depth 0", "output nearly finished"}
    assert set(reasons(RaisingDrafter(), FixedDepth())) == {"drafter failed", "output nearly finished"}
    assert set(reasons(Scripted(), FixedDepth())) == {"nothing to say", "output nearly finished"}
    low = reasons(oracle, AdaptiveDepth(dear))
    assert low["busy batch"] + low["acceptance too low"] > 0

    class Slow(Scripted):
        """Thinks for half a step and has nothing to say."""

        def draft(self, request: DraftRequest) -> Draft:
            time.sleep(0.005)
            return EMPTY

    silent = AdaptiveDepth(free)
    found = reasons(Slow(), silent)
    assert found["resting"] > 0
    assert found == silent.skips

    class Sink:
        def write(self, _: str) -> None:
            pass

    assert reasons(Slow(), Journal(AdaptiveDepth(free), Sink())) == found  # type: ignore[arg-type]


def test_a_grammar_that_bars_every_draft_is_a_reason() -> None:
    pytest.importorskip("llguidance")
    seen = Recorder()
    engine = Engine(spoken.target(), [WrongDrafter(token=0)], observer=seen)
    engine.generate(["red"], SamplingParams(max_tokens=24, grammar=Grammar.regex("[01]{12}")))
    assert seen.reasons()["barred by the grammar"] > 0
    assert seen.record().as_dict() == engine.record.as_dict()


def test_failures_outside_a_round_are_told(on: Target) -> None:
    class Clumsy(OracleDrafter):
        def observe(self, sequence_id: int, draft: object, accepted: int) -> None:
            raise OSError("feedback")

        def finish(self, sequence_id: int, tokens: Sequence[int], prompt_length: int, tenant: str | None) -> None:
            raise OSError("finish")

    seen = Recorder()
    engine = Engine(on, [Clumsy(lambda history, count: [0] * count)], observer=seen)
    engine.generate(PROMPTS[:1], PARAMS)
    assert seen.failed["oracle", "finish raised"] == 1
    assert seen.failed["oracle", "feedback raised"] == engine.record.drafted_rounds > 0
    assert seen.record().as_dict() == engine.record.as_dict()


def test_failures_of_a_round_that_is_played_again_are_told_once_each(on: Target, truth: list[list[int]]) -> None:
    seen = Recorder()
    engine = Engine(on, [RaisingDrafter(every=2, inner=OracleDrafter(known(truth)))], observer=seen)
    handle = engine.submit(PROMPTS[0], PARAMS)
    forward, calls = on.forward, iter(range(1000))

    def flaky(*args: object, **kwargs: object) -> object:
        if next(calls) % 3 == 1:
            raise RuntimeError("out of memory")
        return forward(*args, **kwargs)  # type: ignore[arg-type]

    on.forward = flaky  # type: ignore[method-assign, assignment]
    try:
        while engine.has_work:
            try:
                engine.step()
            except RuntimeError:
                continue
    finally:
        del on.forward
    assert handle.output().token_ids == truth[0]
    assert seen.failed["raising", "raised"] > 0
    assert seen.record().as_dict() == engine.record.as_dict()


def test_an_observer_that_raises_disturbs_nothing(
    on: Target, truth: list[list[int]], caplog: pytest.LogCaptureFixture
) -> None:
    class Broken:
        def round(self, event: RoundEvent) -> None:
            raise ZeroDivisionError("round")

        def request(self, event: RequestEvent) -> None:
            raise ZeroDivisionError("request")

        def drafter_failed(self, drafter: str, reason: str) -> None:
            raise ZeroDivisionError("failed")

    engine = Engine(on, [RaisingDrafter(every=2, inner=OracleDrafter(known(truth)))], observer=Broken())
    with caplog.at_level(logging.WARNING):
        assert [o.token_ids for o in engine.generate(PROMPTS, PARAMS)] == truth
    assert engine.observing.errors > len(PROMPTS) * len(Stage)
    assert sum("the observer raised" in record.message for record in caplog.records) == 1
    assert on.pool.used == 0


def test_requests_from_many_threads_are_all_told(on: Target, truth: list[list[int]]) -> None:
    seen = Recorder()
    engine = Engine(on, [OracleDrafter(known(truth), 0.7)], observer=seen)

    def work(i: int) -> None:
        assert engine.generate([PROMPTS[i]], PARAMS)[0].token_ids == truth[i]

    threads = [threading.Thread(target=work, args=(i % len(PROMPTS),)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen.record().as_dict() == engine.record.as_dict()
    assert Counter(event.stage for event in seen.requests) == dict.fromkeys(Stage, 8)
