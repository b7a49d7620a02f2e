"""Several drafters for one request: the same text, the right names on the tokens, and no one falls with another."""

from __future__ import annotations

import io
import logging
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy import stats
from tests import tiny
from tests.control.test_adaptive import free, linear
from tests.engine.test_lossless import DTYPES, PROMPTS, check, params, plain, target

from headstart.control.adaptive import AdaptiveDepth
from headstart.control.depth import Allowance, DepthController, DepthQuery, FixedDepth, Load, Proposal
from headstart.control.journal import Journal, replay
from headstart.decode import noise
from headstart.decode.draft import EMPTY, Draft
from headstart.decode.params import SamplingParams
from headstart.draft.base import DraftRequest
from headstart.draft.model import ModelDrafter
from headstart.draft.ngram import NgramDrafter
from headstart.draft.scripted import OracleDrafter, RaisingDrafter, Scripted, TreeOracleDrafter, WrongDrafter
from headstart.engine.engine import Engine
from headstart.engine.request import Output, Speculation
from headstart.errors import InvalidParameter
from headstart.target.model import Target

SETS = (
    "ngram+model",
    "model+ngram",
    "ngram+copy",
    "wrong+ngram+model",
    "oracle+tree-oracle",
    "tree-oracle+copy",
    "wrong+oracle",
)


def script(truth: Sequence[Output]) -> dict[tuple[int, ...], list[int]]:
    return {tuple(o.prompt_token_ids): o.token_ids for o in truth}


def everyone(on: Target, truth: Sequence[Output]) -> list[object]:
    known = script(truth)
    return [
        NgramDrafter(),
        ModelDrafter(tiny.target(dtype=on.dtype, seed=1, exact=False), on),
        ModelDrafter(tiny.target(dtype=on.dtype, seed=0, exact=False), on, name="copy"),
        OracleDrafter(known, 0.5, seed=3),
        TreeOracleDrafter(known, width=3, acceptance=0.8, seed=3),
        WrongDrafter(known),
    ]


class Silent(Scripted):
    """Says what ``inner`` says, but for ``silent`` of every 11 positions."""

    def __init__(self, inner: Scripted, silent: int) -> None:
        super().__init__()
        self.inner, self.silent = inner, silent
        self.name = inner.name

    def draft(self, request: DraftRequest) -> Draft:
        return EMPTY if len(request.tokens) % 11 < self.silent else self.inner.draft(request)


class Both(FixedDepth):
    """Asks everyone and takes the last who speaks: every drafter's state is put to the test."""

    def allow_next(
        self, queries: Sequence[DepthQuery], said: Sequence[Sequence[Proposal]], load: Load
    ) -> list[Allowance]:
        return self.allow(queries, load)

    def trim(self, proposals: Sequence[Proposal], load: Load) -> list[Draft]:
        last = {p.query.sequence_id: i for i, p in enumerate(proposals) if len(p.draft)}
        return [p.draft if last.get(p.query.sequence_id) == i else EMPTY for i, p in enumerate(proposals)]


def controllers() -> list[DepthController]:
    return [
        FixedDepth(4, 12),
        Both(4, 12),
        AdaptiveDepth(free(), tree=True),
        AdaptiveDepth(linear(0.05), tree=False),
    ]


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("dtype", DTYPES)
def test_text_is_the_same_alone_and_together(dtype: str, temperature: float) -> None:
    on = target(dtype)
    truth = plain(dtype, temperature)
    drafters = everyone(on, truth)
    for controller in controllers():
        engine = Engine(on, drafters, controller=controller)  # type: ignore[arg-type]
        for drafter in SETS:
            together = engine.generate(PROMPTS, params(temperature), Speculation(drafter=drafter))
            check(truth, together)
            record = together[0].completions[0].record
            assert set(record.by_drafter) <= set(drafter.split("+"))
        mixed = [Speculation(drafter=name, depth=d) for name, d in zip(SETS, (None, 3, 1, 7), strict=False)]
        check(truth, engine.generate(PROMPTS, params(temperature), mixed))
        alone = [engine.generate([p], params(temperature), Speculation(drafter=SETS[0]))[0] for p in PROMPTS]
        check(truth, alone)
        assert not engine.record.fallbacks
    assert on.pool.used == 0


@pytest.mark.parametrize("dtype", DTYPES)
def test_mates_join_and_leave(dtype: str) -> None:
    on = target(dtype)
    truth = plain(dtype, 0.8)
    engine = Engine(on, everyone(on, truth), controller=AdaptiveDepth(free()), max_sequences=5)  # type: ignore[arg-type]
    handles, mates = [], []
    for i in range(2 * len(PROMPTS)):
        which = i % len(PROMPTS)
        choice = Speculation(drafter=SETS[i % len(SETS)], depth=(None, 2, 5)[i % 3])
        handles.append((which, engine.submit(PROMPTS[which], params(0.8), choice)))
        mates.append(engine.submit(tiny.ids(3 + 5 * i, 50 + i), params(0.5), Speculation(drafter="ngram+copy")))
        for _ in range(2 + i % 3):
            engine.step()
        if i % 3 == 1:
            engine.cancel(mates[i // 2])
    while engine.has_work:
        engine.step()
    for which, handle in handles:
        check([truth[which]], [handle.output()])
    assert on.pool.used == 0


def test_every_token_carries_the_name_of_its_drafter() -> None:
    on = target("float32")
    truth = plain("float32", 0.0)
    known = script(truth)
    first = Silent(OracleDrafter(known), silent=5)
    second = TreeOracleDrafter(known)
    engine = Engine(on, [first, second], controller=FixedDepth(2), default_drafter="oracle+tree-oracle")
    for handle in [engine.submit(prompt, params(0.0)) for prompt in PROMPTS]:
        chunks = []
        while not handle.drained:
            chunks += engine.advance(handle)
        completion = handle.output().completions[0]
        names = [name for chunk in chunks for name in chunk.drafters]
        assert names == completion.drafters
        assert [name is not None for name in names] == completion.from_draft
        assert names[0] is None  # from prefill
        counts = completion.record.by_drafter
        for name in ("oracle", "tree-oracle"):
            assert names.count(name) == counts[name].accepted > 0
        assert sum(c.accepted for c in counts.values()) == completion.record.accepted
        assert sum(c.drafted for c in counts.values()) == completion.record.drafted
        assert sum(c.drafts for c in counts.values()) == completion.record.drafted_rounds
        for position, count in enumerate(completion.record.accepted_at):
            assert count == sum(c.accepted_at[position] for c in counts.values() if position < len(c.accepted_at))
    total = engine.record
    assert set(total.as_dict()["by_drafter"]) == {"oracle", "tree-oracle"}
    assert {draft.source for _, draft, _ in first.observed} == {"oracle"}  # feedback on its own drafts only
    assert sorted(first.finished) == sorted(second.finished) == [0, 1, 2, 3]


def test_one_that_raises_falls_out_alone(caplog: pytest.LogCaptureFixture) -> None:
    on = target("float32")
    truth = plain("float32", 0.0)
    oracle = OracleDrafter(script(truth))
    for order in ("raising+oracle", "oracle+raising"):
        with caplog.at_level(logging.CRITICAL):
            engine = Engine(on, [RaisingDrafter(), oracle], default_drafter=order, controller=Both(3))
            check(truth, engine.generate(PROMPTS, params(0.0)))
        record = engine.record
        assert record.by_drafter["oracle"].accepted == record.accepted > 0.6 * record.emitted
        assert record.fallbacks["raised"] > 0
        assert "raising" not in record.by_drafter


def test_one_that_was_not_asked_for_a_while_is_still_right() -> None:
    """Every draft of a draft model and of the n-gram drafter, asked now and then, is what a fresh one would say."""
    on = target("float32")
    truth = plain("float32", 0.0)
    told: list[tuple[DraftRequest, tuple[int, ...]]] = []

    class Witness(ModelDrafter):
        def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
            drafts = super().propose(requests)
            for request, draft in zip(requests, drafts, strict=True):
                again = DraftRequest(0, list(request.tokens), 1, 4, 4, request.params, request.seed)
                told.append((again, draft.tokens))
            return drafts

    rare = Silent(OracleDrafter(script(truth), 0.9), silent=2)
    model = Witness(tiny.target(seed=1, exact=False), on)
    engine = Engine(on, [rare, model], default_drafter="oracle+model")
    check(truth, engine.generate(PROMPTS, params(0.0)))
    assert len(told) >= 8
    lags = [len(b.tokens) - len(a.tokens) for (a, _), (b, _) in pairwise(told)]
    assert max(lags) > 5
    for request, tokens in told:
        fresh = ModelDrafter(tiny.target(seed=1, exact=False), on)
        assert fresh.propose([request])[0].tokens[: len(tokens)] == tokens
    assert model.draft.pool.used == 0


def test_a_better_second_drafter_takes_over_and_the_worse_rests() -> None:
    on = target("float32")
    truth = plain("float32", 0.0)
    known = script(truth)
    weak, strong = OracleDrafter(known, 0.2, seed=1), OracleDrafter(known)
    weak.name = "weak"
    engine = Engine(on, [weak, strong], default_drafter="weak+oracle", controller=AdaptiveDepth(linear(0.02)))
    for _ in range(3):
        check(truth, engine.generate(PROMPTS, params(0.0)))
    record = engine.record
    assert record.by_drafter["oracle"].accepted > 0.95 * record.accepted
    assert (record.mean_acceptance_length or 0) > 4


def test_a_run_with_several_drafters_replays_to_the_same_decisions() -> None:
    on = target("float32")
    sink = io.StringIO()
    controller = Journal(AdaptiveDepth(linear(0.05), tree=True), sink)
    model = ModelDrafter(tiny.target(seed=1, exact=False), on)
    engine = Engine(on, [NgramDrafter(), model], controller=controller, default_drafter="ngram+model")
    check(plain("float32", 0.0), engine.generate(PROMPTS, params(0.0)))
    lines = sink.getvalue().splitlines()
    assert sum('"call": "allow_next"' in line for line in lines) > 10
    assert replay(lines, AdaptiveDepth(linear(0.05), tree=True)) == []
    assert any(d.call == "allow_next" for d in replay(lines, FixedDepth(2)))


def test_names_are_checked() -> None:
    on = target("float32")
    engine = Engine(on, [NgramDrafter(), WrongDrafter()])
    for name, message in (("ngram+magic", "'magic' is not loaded"), ("ngram+ngram", "twice"), ("ngram+", "lacks")):
        with pytest.raises(InvalidParameter, match=message):
            engine.submit([1], params(0.0), Speculation(drafter=name))
    with pytest.raises(InvalidParameter, match="'magic' is not loaded"):
        Engine(on, [NgramDrafter()], default_drafter="ngram+magic")
    plus = WrongDrafter()
    plus.name = "a+b"
    with pytest.raises(InvalidParameter, match="contain"):
        Engine(on, [plus])


class Guess(Scripted):
    """Always the same token, as a point mass."""

    name = "guess"

    def __init__(self, token: int) -> None:
        super().__init__()
        self.token = token

    def draft(self, request: DraftRequest) -> Draft:
        return Draft((self.token,), confidence=(0.5,))


class Dice(Scripted):
    """Samples one token from a law of its own, and says which law."""

    name = "dice"

    def __init__(self, law: dict[int, float]) -> None:
        super().__init__()
        self.q = torch.zeros(tiny.VOCAB)
        for token, probability in law.items():
            self.q[token] = probability

    def draft(self, request: DraftRequest) -> Draft:
        base = len(request.tokens) - request.prompt_length
        seed = noise.round_seed(request.seed, base)
        token = noise.sample_law(self.q.double(), seed, noise.Stream.DRAFT, base)
        return Draft((token,), None, (float(self.q[token]),), self.q[None])


class Peeking(Both):
    """Broken on purpose: drops the sampled draft when the token drawn looks unlikely, and takes the other one."""

    def trim(self, proposals: Sequence[Proposal], load: Load) -> list[Draft]:
        out = super().trim(proposals, load)
        for i, proposal in enumerate(proposals):
            confidence = proposal.draft.confidence
            if len(out[i]) and proposal.draft.q is not None and confidence is not None and confidence[0] < 0.4:
                out[i] = EMPTY
                out[i - 1] = proposals[i - 1].draft
        return out


@pytest.mark.parametrize("verify", ["rejection", "block"])
def test_the_choice_of_drafter_leaves_the_law_alone(verify: str) -> None:
    """Chi-square of the second and third token; a controller that peeks at what was drawn must be caught."""
    on = target("float32")
    prompt, forced, count = tiny.ids(9, 4), 5, 960

    def settings(*first: int, **more: object) -> SamplingParams:
        return SamplingParams(
            temperature=1.5,
            top_k=3,
            forced_tokens=first,
            verify=verify,
            **more,  # type: ignore[arg-type]
        )

    def law(*first: int) -> dict[int, float]:
        look = settings(*first, max_tokens=len(first) + 1, logprobs=3, logprobs_mode="processed", seed=0)
        found = Engine(on).generate([prompt], look)[0].completions[0].logprobs
        assert found is not None
        return {token: float(np.exp(logprob)) for token, logprob in found[-1].top}

    second = law(forced)
    expected = {(a, b): pa * pb for a, pa in second.items() for b, pb in law(forced, a).items()}
    assert sum(expected.values()) == pytest.approx(1.0, abs=1e-5)
    best, middle, least = sorted(second, key=second.__getitem__, reverse=True)
    dice = Dice({best: 0.3, middle: 0.5, least: 0.2})

    def p_value(controller: DepthController) -> float:
        engine = Engine(on, [Guess(best), dice], controller=controller, default_drafter="guess+dice", max_sequences=60)
        several = [settings(forced, max_tokens=3, n=120, seed=seed) for seed in range(count // 120)]
        outputs = engine.generate([prompt] * len(several), several)
        assert engine.record.by_drafter["dice"].drafted > 0
        pairs = [tuple(c.token_ids[1:3]) for output in outputs for c in output.completions]
        assert set(pairs) <= set(expected)
        observed = np.array([pairs.count(pair) for pair in expected])
        return float(stats.chisquare(observed, np.array([*expected.values()]) * count, sum_check=False).pvalue)

    assert p_value(AdaptiveDepth(linear(0.02))) > 1e-4
    assert p_value(Both(2)) > 1e-4
    assert p_value(Peeking(2)) < 1e-6


def test_chunks_of_a_plain_request_name_nobody() -> None:
    on = target("float32")
    out = Engine(on, [NgramDrafter()]).generate([PROMPTS[2]], params(0.0), Speculation(drafter="none"))[0]
    assert set(out.completions[0].drafters) == {None}
    assert torch.equal(torch.tensor(out.token_ids), torch.tensor(plain("float32", 0.0)[2].token_ids))
