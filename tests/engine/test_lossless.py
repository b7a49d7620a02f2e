"""The promise: same seed, same tokens, whatever drafts, at whatever depth, beside whomever."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from tests import tiny

from headstart.control.depth import FixedDepth
from headstart.decode.params import SamplingParams
from headstart.draft.base import Drafter
from headstart.draft.model import ModelDrafter
from headstart.draft.ngram import NgramDrafter
from headstart.draft.quantised import QuantisedDrafter
from headstart.draft.scripted import OracleDrafter, TreeOracleDrafter, WrongDrafter
from headstart.engine.engine import Engine
from headstart.engine.request import Output, Speculation
from headstart.target.model import Target

LENGTH = 48
PROMPTS = [tiny.ids(1, 1), tiny.ids(7, 2), tiny.ids(5, 3) * 6, tiny.ids(40, 4)]
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
DRAFTERS = ("ngram", "int4", "copy", "other", "oracle", "tree", "wrong")


def params(temperature: float, seed: int = 11, **more: object) -> SamplingParams:
    return SamplingParams(max_tokens=LENGTH, temperature=temperature, seed=seed, **more)


@cache
def target(dtype: str, name: str = "llama") -> Target:
    return tiny.target(name, DTYPES[dtype], draft_weights="int4" if name in tiny.NATIVE else None)


@cache
def plain(dtype: str, temperature: float, name: str = "llama") -> list[Output]:
    """One prompt at a time, no drafter: the baseline."""
    engine = Engine(target(dtype, name))
    return [engine.generate([prompt], params(temperature))[0] for prompt in PROMPTS]


def drafter(kind: str, on: Target, truth: list[Output]) -> Drafter:
    script = {tuple(o.prompt_token_ids): o.token_ids for o in truth}
    if kind == "ngram":
        return NgramDrafter()
    if kind == "int4":
        return QuantisedDrafter(on)
    if kind in ("copy", "other"):
        seed = 0 if kind == "copy" else 1
        name = on.name.removeprefix("tiny-")
        return ModelDrafter(tiny.target(name, on.dtype, seed=seed, exact=False), on)
    if kind == "oracle":
        return OracleDrafter(script, acceptance=0.7, seed=3)
    if kind == "tree":
        return TreeOracleDrafter(script, width=3, acceptance=0.8, seed=3)
    return WrongDrafter(script)


def check(expected: list[Output], got: list[Output]) -> None:
    for a, b in zip(expected, got, strict=True):
        assert torch.equal(torch.tensor(a.token_ids), torch.tensor(b.token_ids))
        assert b.completions[0].finish_reason == a.completions[0].finish_reason
        record = b.completions[0].record
        assert 0 <= record.accepted <= record.drafted
        assert record.emitted + 1 == len(b.token_ids)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("kind", DRAFTERS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_drafter_and_depth_alone_and_together(dtype: str, kind: str, temperature: float) -> None:
    on = target(dtype)
    assert on.numerics.exact_rows
    truth = plain(dtype, temperature)
    engine = Engine(on, [drafter(kind, on, truth)], controller=FixedDepth(4, 12 if kind == "tree" else None))
    for depth in range(1, 9):
        together = engine.generate(PROMPTS, params(temperature), Speculation(depth=depth))
        check(truth, together)
    alone = [engine.generate([p], params(temperature), Speculation(depth=5))[0] for p in PROMPTS]
    check(truth, alone)
    assert on.pool.used == 0


@pytest.mark.parametrize(
    "name", ["qwen2", "qwen3", "mistral", "llama/torch", "mistral/torch", "gemma3", "gemma2", "gpt2"]
)
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_architecture(name: str, dtype: str) -> None:
    """With sliding windows of 12 in some: every draft beyond the prompt crosses one."""
    on = target(dtype, name)
    for temperature in (0.0, 0.8):
        truth = plain(dtype, temperature, name)
        for kind, nodes in (("oracle", None), ("tree", 10), ("ngram", None)):
            engine = Engine(on, [drafter(kind, on, truth)], controller=FixedDepth(4, nodes))
            check(truth, engine.generate(PROMPTS, params(temperature)))
        if on.draft_weights is not None:
            engine = Engine(on, [drafter("int4", on, truth)], controller=FixedDepth(4))
            check(truth, engine.generate(PROMPTS, params(temperature)))
            assert engine.record.accepted > engine.record.drafted / 5


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_batch_mates_that_join_and_leave(dtype: str, temperature: float) -> None:
    """Requests join at different rounds, with different drafters and depths, and some are cancelled."""
    on = target(dtype)
    truth = plain(dtype, temperature)
    oracle, wrong = drafter("oracle", on, truth), drafter("wrong", on, truth)
    copy = QuantisedDrafter(on)
    engine = Engine(on, [NgramDrafter(), oracle, wrong, copy], max_sequences=5, prefill_chunk=9)
    handles, mates = [], []
    for i in range(3 * len(PROMPTS)):
        which = i % len(PROMPTS)
        choice = Speculation(
            drafter=("ngram", "oracle", "wrong", "int4", "none")[i % 5 if i < 10 else i % 4], depth=1 + i % 7
        )
        handles.append((which, engine.submit(PROMPTS[which], params(temperature), choice)))
        mates.append(engine.submit(tiny.ids(3 + 5 * i, 50 + i), params(0.5, seed=i)))
        for _ in range(2 + i % 3):
            engine.step()
        if i % 3 == 1:
            engine.cancel(mates[i // 2])
    while engine.has_work:
        engine.step()
    for which, handle in handles:
        check([truth[which]], [handle.output()])
    assert on.pool.used == 0


@pytest.mark.parametrize("dtype", DTYPES)
def test_penalties_bias_and_the_rest_under_speculation(dtype: str) -> None:
    on = target(dtype)
    for i, more in enumerate(
        [
            {"repetition_penalty": 1.3},
            {"presence_penalty": 1.5, "frequency_penalty": 0.7},
            {"top_k": 5, "top_p": 0.9},
            {"min_p": 0.05, "logit_bias": {3: 4.0, 9: -100.0}},
            {"banned_tokens": (1, 2, 3), "forced_tokens": (5, 6, 7)},
        ]
    ):
        for temperature in (0.0, 0.9):
            p = params(temperature, seed=i, logprobs=3, logprobs_mode=("raw", "processed")[i % 2], **more)
            truth = Engine(on).generate(PROMPTS, p)
            script = {tuple(o.prompt_token_ids): o.token_ids for o in truth}
            for who, nodes in (
                (OracleDrafter(script, 0.75), None),
                (TreeOracleDrafter(script), 9),
                (NgramDrafter(), None),
                (QuantisedDrafter(on), None),
            ):
                got = Engine(on, [who], controller=FixedDepth(5, nodes)).generate(PROMPTS, p)
                check(truth, got)
                for a, b in zip(truth, got, strict=True):
                    assert a.completions[0].logprobs == b.completions[0].logprobs


def test_every_one_of_n_is_its_own_request_with_a_derived_seed() -> None:
    on = target("float32")
    truth = Engine(on).generate(PROMPTS, params(0.8, n=3))
    got = Engine(on, [NgramDrafter()]).generate(PROMPTS, params(0.8, n=3))
    for a, b in zip(truth, got, strict=True):
        assert [c.token_ids for c in a.completions] == [c.token_ids for c in b.completions]
        assert len({tuple(c.token_ids) for c in a.completions}) == 3
        again = Engine(on).generate([a.prompt_token_ids], params(0.8, seed=a.completions[2].seed))[0]
        assert again.token_ids == a.completions[2].token_ids


def test_a_drafter_equal_to_the_target_is_accepted() -> None:
    on = target("float32")
    copy = ModelDrafter(tiny.target(exact=False), on)
    for verify in ("coupled", "rejection", "block"):
        for temperature in (0.0, 0.8):
            engine = Engine(on, [copy])
            engine.generate(PROMPTS, params(temperature, verify=verify))
            rate = engine.record.acceptance_rate
            assert rate is not None
            assert rate >= 0.98, (verify, temperature)


@pytest.mark.parametrize("verify", ["rejection", "block"])
def test_the_sampling_rules_are_greedy_at_temperature_zero_and_repeatable_above(verify: str) -> None:
    on = target("float32")
    other = ModelDrafter(tiny.target(seed=1, exact=False), on)
    check(plain("float32", 0.0), Engine(on, [other]).generate(PROMPTS, params(0.0, verify=verify)))
    first = Engine(on, [other]).generate(PROMPTS, params(0.8, verify=verify))
    second = Engine(on, [other]).generate(PROMPTS, params(0.8, verify=verify))
    assert [o.token_ids for o in first] == [o.token_ids for o in second]
