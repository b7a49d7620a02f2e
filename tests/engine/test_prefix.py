"""Prefix caching: nothing is computed twice, and nobody can tell from the output."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import cache

import pytest
import torch
from tests import tiny
from transformers import Phi3Config, Phi3ForCausalLM

from headstart.control.depth import FixedDepth
from headstart.decode.params import SamplingParams
from headstart.decode.sampling import TokenLaw
from headstart.decode.segment import Segment
from headstart.decode.sequence import FinishReason
from headstart.draft.base import Drafter
from headstart.draft.model import ModelDrafter
from headstart.draft.ngram import NgramDrafter
from headstart.draft.scripted import OracleDrafter, TreeOracleDrafter, WrongDrafter
from headstart.engine.engine import Engine
from headstart.engine.request import Branch, Output, Request, Speculation
from headstart.engine.scheduler import Scheduler
from headstart.errors import InvalidParameter, RequestTooLarge
from headstart.target.kv import KVPool
from headstart.target.model import Target

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
SYSTEM = tiny.ids(90, 1)
ASKS = [SYSTEM + tiny.ids(n, 40 + n) for n in (5, 33, 61)]
PARAMS = SamplingParams(max_tokens=24, temperature=0.8, seed=4, logprobs=2)
GREEDY = SamplingParams(max_tokens=24, logprobs=2)


class Counting:
    """A target that counts the prompt and decode rows it is asked for."""

    def __init__(self, inner: Target) -> None:
        self._inner = inner
        self.rows = 0

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)

    def forward(self, segments: Sequence[Segment], best: int = 0) -> torch.Tensor:
        self.rows += sum(len(segment.tokens) for segment in segments)
        return self._inner.forward(segments, best)


@cache
def target(name: str = "llama", dtype: str = "float32") -> Target:
    return tiny.target(name, DTYPES[dtype])


def plain(on: Target) -> Engine:
    return Engine(on, prefix_cache=False)


def same(expected: Sequence[Output], got: Sequence[Output]) -> None:
    for a, b in zip(expected, got, strict=True):
        for x, y in zip(a.completions, b.completions, strict=True):
            assert x.token_ids == y.token_ids
            assert x.logprobs == y.logprobs
            assert x.finish_reason == y.finish_reason


def whole(engine: Engine) -> None:
    """Nothing in use, everything accounted for, and all of it given back on demand."""
    pool = engine.target.pool
    record = engine.prefix_record
    assert pool.used == 0
    assert pool.kept == record.kept_slots
    assert pool.kept + pool.free == pool.capacity
    engine.clear_prefix_cache()
    assert pool.free == pool.capacity
    assert engine.prefix_record.entries == 0
    assert engine._prefixes is None or not engine._prefixes._trees


def kept_rows_are_right(engine: Engine, reference: Target | None = None) -> None:
    """Every kept row is what a fresh prefill of its tokens computes, bit for bit where that does not rest on a probe:
    torch's kernels in bfloat16 may differ in one element of a million between one row and many. ``reference`` is a
    twin with room to compute in."""
    prefixes, pool = engine._prefixes, engine.target.pool
    assert prefixes is not None
    loose = engine.target.numerics.kernels == "torch" and engine.target.dtype is torch.bfloat16

    def equal(a: torch.Tensor, b: torch.Tensor) -> bool:
        return torch.equal(a, b) or (loose and bool(((a - b).abs() <= 0.02 * b.abs().max()).all()))

    twin = reference or engine.target

    def rows(pool: KVPool, start: int, count: int) -> list[torch.Tensor]:
        slots = torch.arange(start, start + count)
        return [view[at(slots)] for view, at in pool.by_slots()]

    for entry in prefixes._kept:
        tokens: list[int] = []
        node = entry.node
        while node.parent is not None:
            tokens, node = node.tokens + tokens, node.parent
        assert len(tokens) == entry.length
        fresh = twin.pool.reserve(entry.length)
        assert fresh is not None
        twin.forward([Segment(fresh, 0, tokens)])
        mine = rows(pool, entry.extent.start, entry.length)
        theirs = rows(twin.pool, fresh.start, entry.length)
        assert all(equal(a, b) for a, b in zip(mine, theirs, strict=True))
        twin.pool.release(fresh)


@pytest.mark.parametrize("params", [GREEDY, PARAMS], ids=["greedy", "sampled"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", tiny.VARIANTS)
def test_shared_prompts_and_turns_are_found(name: str, dtype: str, params: SamplingParams) -> None:
    on = target(name, dtype)
    assert on.numerics.exact_rows
    off, engine = plain(on), Engine(on)
    asks = [*ASKS]
    for turn in range(3):
        for i, ask in enumerate(asks):
            expected, got = off.generate([ask], params), engine.generate([ask], params)
            same(expected, got)
            assert expected[0].cached_tokens == 0
            if turn == 0:
                assert got[0].cached_tokens in ((0,) if i == 0 else (len(SYSTEM), len(SYSTEM) + 1))
            else:  # all but the last token of the answer was computed before
                assert got[0].cached_tokens >= len(ask) - 4
            asks[i] = ask + got[0].token_ids + tiny.ids(3, turn)
        kept_rows_are_right(engine)
    whole(engine)
    assert on.pool.kept == 0


@pytest.mark.parametrize("kind", ["ngram", "model", "oracle", "tree", "wrong"])
@pytest.mark.parametrize("name", ["llama", "mistral", "gemma3"])
def test_only_what_was_accepted_is_kept(name: str, kind: str) -> None:
    """Rejected rows and branches lie in the same slots until they are overwritten."""
    for dtype in DTYPES if name in tiny.NATIVE else ("float32",):
        on = target(name, dtype)
        for params in (GREEDY, PARAMS):
            truth = plain(on).generate(ASKS, params)
            script = {tuple(o.prompt_token_ids): o.token_ids for o in truth}
            made: dict[str, Drafter] = {
                "ngram": NgramDrafter(),
                "oracle": OracleDrafter(script, 0.7, seed=3),
                "tree": TreeOracleDrafter(script, 3, 0.8, seed=3),
                "wrong": WrongDrafter(script),
            }
            if kind == "model":
                made["model"] = ModelDrafter(tiny.target(name, DTYPES[dtype], seed=1, exact=False), on)
            engine = Engine(on, [made[kind]], controller=FixedDepth(5, 12 if kind == "tree" else None))
            for _ in range(2):
                same(truth, engine.generate(ASKS, params))
                kept_rows_are_right(engine)
            longer = [o.prompt_token_ids + o.token_ids + [3, 1] for o in truth]
            got = engine.generate(longer, params)
            same(plain(on).generate(longer, params), got)
            assert all(o.cached_tokens >= len(o.prompt_token_ids) - 3 for o in got)
            kept_rows_are_right(engine)
            whole(engine)


def test_rejection_rules_repeat_themselves_with_found_rows() -> None:
    on = target()
    other = ModelDrafter(tiny.target(seed=1, exact=False), on)
    for verify in ("rejection", "block"):
        params = SamplingParams(max_tokens=24, temperature=0.9, seed=3, verify=verify)
        engine = Engine(on, [other])
        first = engine.generate(ASKS, params)
        second = engine.generate(ASKS, params)
        assert [o.token_ids for o in first] == [o.token_ids for o in second]
        assert second[0].cached_tokens == len(ASKS[0]) - 1
        engine.close()
    assert on.pool.kept == 0


def rows_of(on: Target, engine: Engine, prompts: Sequence[list[int]], params: SamplingParams) -> int:
    assert isinstance(engine.target, Counting)
    before = engine.target.rows
    same(plain(on).generate(prompts, params), engine.generate(prompts, params))
    return engine.target.rows - before


def test_requests_that_come_together_share_one_prefill() -> None:
    on = target()
    counting = Counting(on)
    for chunk in (16, 64, 256):
        engine = Engine(counting, prefill_chunk=chunk)  # type: ignore[arg-type]
        rows = rows_of(on, engine, ASKS, PARAMS)
        own = sum(len(ask) - len(SYSTEM) for ask in ASKS)
        decoded = len(ASKS) * (PARAMS.max_tokens - 1)
        assert len(SYSTEM) + own - 4 <= rows - decoded <= len(SYSTEM) + own
        assert engine.prefix_record.hits == 2
        whole(engine)


def test_every_one_of_n_shares_its_prompt() -> None:
    on = target()
    engine = Engine(Counting(on), prefill_chunk=32)  # type: ignore[arg-type]
    params = SamplingParams(max_tokens=8, temperature=1.0, seed=1, n=5, logprobs=1)
    rows = rows_of(on, engine, [ASKS[2]], params)
    assert rows == len(ASKS[2]) + 4 + 5 * 7
    assert engine.prefix_record.hit_tokens == 4 * (len(ASKS[2]) - 1)
    whole(engine)


def test_a_follower_takes_what_is_left_of_a_cancelled_leader() -> None:
    on = target()
    long = tiny.ids(300, 9)
    truth = plain(on).generate([long], PARAMS)
    for after in range(1, 9):
        engine = Engine(on, prefill_chunk=64)
        leader, *followers = [engine.submit(long, PARAMS) for _ in range(4)]
        for _ in range(after):
            engine.step()
        engine.cancel(leader)
        kept_rows_are_right(engine)
        while engine.has_work:
            engine.step()
        for follower in followers:
            same(truth, [follower.output()])
            assert follower.cached_tokens >= min(64 * after, len(long) - 1)
        whole(engine)


def test_what_is_kept_never_delays_or_refuses_anybody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever waits, waits for sequences that run."""
    admit = Scheduler.admit

    def admitting(self: Scheduler, join: Callable[[Branch], None]) -> list[Branch]:
        admitted = admit(self, join)
        if self.waiting and len(self.running) < self.max_sequences:
            assert -(-self.waiting[0].sequence.limit // 64) * 64 > self.pool.capacity - self.pool.used
        return admitted

    monkeypatch.setattr(Scheduler, "admit", admitting)
    for seed in range(4):
        chance = random.Random(seed)
        work = []
        for i in range(24):
            prompt = SYSTEM[: chance.randrange(1, 90)] + tiny.ids(chance.randrange(1, 120), i % 5)
            work.append((prompt, SamplingParams(max_tokens=chance.randrange(1, 60), temperature=0.7, seed=i)))
        small = tiny.target(kv_tokens=512)
        outputs = []
        for cached in (False, True):
            engine = Engine(small, max_sequences=4, prefill_chunk=512, prefix_cache=cached)
            handles = [engine.submit(prompt, params) for prompt, params in work]
            while engine.has_work:
                engine.step()
                queue, pool = engine._scheduler, small.pool
                assert pool.used + pool.kept + pool.free == pool.capacity
                assert pool.used == sum(b.sequence.extent.size for b in queue.running)
            outputs.append([h.output() for h in handles])
            record = engine.prefix_record
            assert (record.evictions > 0) == (record.hits > 0) == cached
            with pytest.raises(
                RequestTooLarge, match=r"prompt 90 \+ max_tokens 500 = 590 tokens, but the limit is 512"
            ):
                engine.submit(SYSTEM, SamplingParams(max_tokens=500))
            whole(engine)
        same(*outputs)


def test_a_conversation_that_fills_the_pool_takes_its_own_rows_over() -> None:
    """Two extents of it do not fit, so a copy cannot be made."""
    small = tiny.target(kv_tokens=512)
    engine, off = Engine(small), plain(target())
    prompt = tiny.ids(200, 3)
    params = SamplingParams(max_tokens=50, temperature=0.5, seed=2, logprobs=1)
    for turn in range(4):
        got = engine.generate([prompt], params)
        same(off.generate([prompt], params), got)
        if turn:
            assert got[0].cached_tokens == len(prompt) - 6
        prompt = prompt + got[0].token_ids + tiny.ids(5, turn)
    regenerated = engine.generate([prompt[:-60]], params)  # most of the kept rows are of no use to it
    same(off.generate([prompt[:-60]], params), regenerated)
    assert regenerated[0].cached_tokens == len(prompt) - 61
    whole(engine)


class Scenario:
    """Random requests, cancels and steps over a small pool, against the same requests computed alone."""

    def __init__(self, on: Target, seed: int) -> None:
        self.chance = random.Random(seed)
        self.off = plain(tiny.target(on.name.removeprefix("tiny-"), on.dtype))
        oracle = OracleDrafter({}, 0.7, seed=seed)
        self.engine = Engine(
            on,
            [NgramDrafter(), oracle],
            max_sequences=self.chance.choice((1, 3, 6)),
            prefill_chunk=self.chance.choice((7, 48, 256)),
        )
        self.handles: list[tuple[Request, SamplingParams]] = []

    def submit(self) -> None:
        chance = self.chance
        stems = [SYSTEM, tiny.ids(150, 2)]
        stems += [[*h.prompt, *h.output().token_ids] for h, _ in self.handles[-4:]]
        stem = chance.choice(stems)
        stem = stem[: chance.randrange(1, len(stem) + 1)]
        prompt = (stem + tiny.ids(chance.randrange(0, 30), chance.randrange(3)))[:400]
        params = SamplingParams(
            max_tokens=chance.randrange(1, 24),
            temperature=chance.choice((0.0, 0.9)),
            seed=chance.randrange(3),
            logprobs=1,
        )
        spec = Speculation(
            drafter=chance.choice(("ngram", "oracle", "none")),
            depth=chance.choice((None, 0, 3, 7)),
            tenant=chance.choice((None, None, "a")),
            prefix_cache=chance.random() < 0.9,
        )
        self.handles.append((self.engine.submit(prompt, params, spec), params))

    def run(self) -> None:
        chance = self.chance
        for _ in range(20):
            for _ in range(chance.randrange(3)):
                self.submit()
            if chance.random() < 0.2 and self.handles:
                self.engine.cancel(chance.choice(self.handles)[0])
            for _ in range(chance.randrange(6)):
                self.engine.step()
        kept_rows_are_right(self.engine, self.off.target)
        while self.engine.has_work:
            self.engine.step()
        assert self.engine.prefix_record.hits > 0
        prompts, params = [h.prompt for h, _ in self.handles], [p for _, p in self.handles]
        for (handle, _), truth in zip(self.handles, self.off.generate(prompts, params), strict=True):
            done = handle.output()
            if done.completions[0].finish_reason is FinishReason.CANCELLED:
                count = len(done.token_ids)
                assert done.token_ids == truth.token_ids[:count]
                assert done.completions[0].logprobs == truth.completions[0].logprobs[:count]  # type: ignore[index]
            else:
                same([truth], [done])
        whole(self.engine)


@pytest.mark.parametrize("name", ["llama", "mistral", "llama/torch", "gemma3"])
@pytest.mark.parametrize("seed", range(3))
def test_anything_at_any_moment(name: str, seed: int) -> None:
    Scenario(tiny.target(name, DTYPES[("float32", "bfloat16")[seed % 2]], kv_tokens=1024), seed).run()


def test_tenants_share_nothing_and_a_request_can_stay_out() -> None:
    on = target()
    engine = Engine(on)

    def found(**speculation: object) -> int:
        return engine.generate([ASKS[0]], GREEDY, Speculation(**speculation))[0].cached_tokens  # type: ignore[arg-type]

    most = len(ASKS[0]) - 1
    assert found(prefix_cache=False) == 0
    assert engine.prefix_record.lookups == 0
    assert found() == 0
    assert found() == most
    assert found(prefix_cache=False) == 0
    assert found(tenant="a") == 0
    assert found(tenant="a") == most
    assert found(tenant="b") == 0
    together = [engine.submit(ASKS[2], GREEDY, Speculation(tenant=t)) for t in ("c", "d", "c")]
    while engine.has_work:
        engine.step()
    assert [h.cached_tokens for h in together] == [0, 0, len(ASKS[2]) - 1]
    whole(engine)


def test_counters_add_up() -> None:
    engine = Engine(target())
    outputs = [*engine.generate(ASKS, PARAMS), *engine.generate(ASKS[:1], PARAMS)]
    record = engine.prefix_record
    assert record.lookups == 4
    assert record.hits == 3
    assert record.queried_tokens == sum(map(len, ASKS)) + len(ASKS[0])
    assert record.hit_tokens == sum(o.cached_tokens for o in outputs)
    assert record.hit_rate == record.hit_tokens / record.queried_tokens
    assert record.entries == 3
    assert record.evictions == 0
    assert engine.info["prefix_cache"] is True
    whole(engine)
    assert engine.prefix_record.hit_tokens == record.hit_tokens
    assert engine.generate(ASKS[:1], PARAMS)[0].cached_tokens == 0
    engine.close()
    assert engine.target.pool.kept == 0


def test_off_is_off() -> None:
    on = target()
    engine = plain(on)
    engine.generate([ASKS[0], ASKS[0]], GREEDY)
    assert on.pool.free == on.pool.capacity
    assert engine.prefix_record.lookups == 0
    assert engine.prefix_record.hit_rate is None
    assert engine.info["prefix_cache"] is False
    engine.clear_prefix_cache()
    with pytest.raises(InvalidParameter, match="prefix_cache"):
        Engine(on, prefix_cache="no")  # type: ignore[arg-type]
    with pytest.raises(InvalidParameter, match="prefix_cache"):
        Speculation(prefix_cache=1)  # type: ignore[arg-type]


def test_what_ended_in_an_error_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(target())
    handle = engine.submit(ASKS[0], PARAMS)
    engine.step()

    def broken(*_: object) -> int:
        raise ValueError("no law")

    monkeypatch.setattr(TokenLaw, "choose", broken)
    while engine.has_work:
        engine.step()
    assert handle.output().completions[0].finish_reason is FinishReason.ERROR
    assert engine.target.pool.free == engine.target.pool.capacity


class Failing(Counting):
    """Every third forward raises, having written its rows."""

    calls = 0

    def forward(self, segments: Sequence[Segment], best: int = 0) -> torch.Tensor:
        out = super().forward(segments, best)
        self.calls += 1
        if self.calls % 3 == 0:
            raise RuntimeError("out of memory")
        return out


def test_failed_rounds_leave_no_wrong_rows() -> None:
    on = target()
    engine = Engine(Failing(on), [NgramDrafter()], prefill_chunk=40)  # type: ignore[arg-type]
    handles = [engine.submit(ask, PARAMS) for ask in (*ASKS, *ASKS)]
    failures = 0
    while engine.has_work:
        try:
            engine.step()
        except RuntimeError:
            failures += 1
    assert failures > 3
    same(plain(on).generate([*ASKS, *ASKS], PARAMS), [h.output() for h in handles])
    assert engine.prefix_record.hits == 5
    whole(engine)


def test_engines_on_one_pool_do_not_stand_in_each_others_way() -> None:
    small = tiny.target(kv_tokens=256)
    first, second = Engine(small), Engine(small)
    truth = first.generate([ASKS[1]], PARAMS)
    assert small.pool.kept > 0
    again = second.generate([ASKS[1], tiny.ids(180, 1)], PARAMS)
    same(truth, again[:1])
    assert again[0].cached_tokens == 0
    assert first.prefix_record.evictions == 1
    assert first.prefix_record.entries == 0
    second.close()
    assert small.pool.free == small.pool.capacity


def test_rows_that_a_longer_text_would_change_are_not_shared() -> None:
    """LongRoPE turns every position otherwise once a text passes the original length."""
    torch.manual_seed(0)
    half = [1.0] * 8
    config = Phi3Config(
        **{**tiny.SIZES, "pad_token_id": 0},
        original_max_position_embeddings=256,
        rope_scaling={"rope_type": "longrope", "short_factor": half, "long_factor": [4.0] * 8},
    )
    model = Phi3ForCausalLM(config).eval()
    short = Target(model, None, kv_tokens=1024, max_model_len=256)
    assert short.lasting_rows
    torch.manual_seed(0)
    long = Target(Phi3ForCausalLM(config).eval(), None, kv_tokens=1024)
    assert not long.lasting_rows
    engine = Engine(long)
    assert engine.info["prefix_cache"] is False
    engine.generate([ASKS[0], ASKS[0]], GREEDY)
    assert long.pool.kept == 0
