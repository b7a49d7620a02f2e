"""The promise on the real model, in float32 and in bfloat16, on this machine's own kernels."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from functools import cache

import pytest
import torch
from tests import tiny

from headstart.control.adaptive import AdaptiveDepth
from headstart.control.depth import FixedDepth
from headstart.decode.params import SamplingParams
from headstart.draft.base import Drafter
from headstart.draft.model import ModelDrafter
from headstart.draft.ngram import NgramDrafter
from headstart.draft.quantised import QuantisedDrafter
from headstart.draft.scripted import OracleDrafter, TreeOracleDrafter, WrongDrafter
from headstart.engine.costs import cost_curve
from headstart.engine.engine import Engine
from headstart.engine.request import Output, Speculation
from headstart.errors import VocabularyMismatch
from headstart.target.load import load_target, resolve
from headstart.target.model import Target

pytestmark = [pytest.mark.usefixtures("smollm2_installed"), pytest.mark.real_threads]

DTYPES = ("float32", "bfloat16")
PROMPTS = [
    [{"role": "user", "content": "Repeat this sentence three times: the quick brown fox jumps over the lazy dog."}],
    [{"role": "user", "content": "Write a Python function that returns the n-th Fibonacci number."}],
    [{"role": "user", "content": "Tell me a strange story about a lighthouse."}],
]


@cache
def target(dtype: str) -> Target:
    return load_target("smollm2", dtype=dtype, kv_tokens=8192, draft_weights="auto")


@cache
def plain(dtype: str, temperature: float, tokens: int) -> list[Output]:
    engine = Engine(target(dtype))
    return [engine.generate([p], params(temperature, tokens))[0] for p in PROMPTS]


def params(temperature: float, tokens: int) -> SamplingParams:
    return SamplingParams(max_tokens=tokens, temperature=temperature, seed=20)


def copy_of(on: Target, layers: int | None = None) -> ModelDrafter:
    """A draft model made of the target itself: whole, or its first layers only."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(resolve("smollm2"), dtype=on.dtype).eval()
    if layers is not None:
        model.model.layers = copy.copy(model.model.layers[:layers])
        model.config.num_hidden_layers = layers
    draft = Target(model, on.tokenizer, name="copy", kv_tokens=8192, exact=False)
    return ModelDrafter(draft, on)


def drafters(on: Target, truth: list[Output]) -> Iterator[tuple[Drafter, int | None]]:
    script = {tuple(o.prompt_token_ids): o.token_ids for o in truth}
    yield NgramDrafter(), None
    if on.draft_weights is not None:
        yield QuantisedDrafter(on), None
    yield OracleDrafter(script, 0.7), None
    yield TreeOracleDrafter(script, 2, 0.9), 9
    yield WrongDrafter(script), None


def check(truth: list[Output], got: list[Output]) -> None:
    for a, b in zip(truth, got, strict=True):
        assert torch.equal(torch.tensor(a.token_ids), torch.tensor(b.token_ids))
        assert a.text == b.text


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_are_exact_here(dtype: str) -> None:
    numerics = target(dtype).numerics
    assert numerics.exact_rows, numerics.reason


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("dtype", DTYPES)
def test_plain_equals_speculative(dtype: str, temperature: float) -> None:
    """A short version of the grid below: batched against one by one."""
    truth = plain(dtype, temperature, 24)
    for drafter, nodes in drafters(target(dtype), truth):
        engine = Engine(target(dtype), [drafter], controller=FixedDepth(4, nodes))
        check(truth, engine.generate(PROMPTS, params(temperature, 24)))


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_copy_of_the_target_is_accepted(dtype: str) -> None:
    on = target(dtype)
    engine = Engine(on, [copy_of(on)])
    for temperature in (0.0, 0.8):
        check(plain(dtype, temperature, 24), engine.generate(PROMPTS, params(temperature, 24)))
    rate = engine.record.acceptance_rate
    assert rate is not None
    assert rate >= 0.98


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("dtype", DTYPES)
def test_several_drafters_and_a_prediction(dtype: str, temperature: float) -> None:
    on = target(dtype)
    truth = plain(dtype, temperature, 24)
    for controller in (FixedDepth(4), AdaptiveDepth(cost_curve(on), tree=True)):
        engine = Engine(
            on, [NgramDrafter(), copy_of(on, layers=15)], controller=controller, default_drafter="ngram+model"
        )
        check(truth, engine.generate(PROMPTS, params(temperature, 24)))
        edited = [Speculation(prediction=o.text.replace(" the ", " a ")) for o in truth]
        got = engine.generate(PROMPTS, params(temperature, 24), edited)
        check(truth, got)
        for output in got:
            completion = output.completions[0]
            assert completion.accepted_prediction_tokens > 2 * completion.rejected_prediction_tokens
        assert not engine.record.fallbacks


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_auto_chooses(dtype: str) -> None:
    """n-gram drafts and the int4 copy, at the depths that the controller decides."""
    on = target(dtype)
    if on.draft_weights is None:
        pytest.skip("native kernels cannot run here")
    controller = AdaptiveDepth(cost_curve(on), tree=True)
    engine = Engine(
        on, [NgramDrafter(), QuantisedDrafter(on)], controller=controller, default_drafter="ngram+int4", max_sequences=2
    )
    for temperature in (0.0, 0.8):
        check(plain(dtype, temperature, 24), engine.generate(PROMPTS, params(temperature, 24)))
    assert not engine.record.fallbacks


def test_a_model_of_another_tokenizer_is_refused() -> None:
    from tests.draft.test_model import sized

    words = [f"w{i}" for i in range(60)]
    with pytest.raises(VocabularyMismatch, match=r"id 0 is '<\|endoftext\|>' in one and 'w0' in the other"):
        ModelDrafter(sized(64, words, exact=False), target("bfloat16"))
    with pytest.raises(VocabularyMismatch, match="no tokenizer"):
        ModelDrafter(tiny.target(exact=False), target("bfloat16"))


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_whole_grid(dtype: str, temperature: float) -> None:
    """Every drafter, a truncated copy among them, depth 1 to 8, alone and with mates that join and leave."""
    on = target(dtype)
    truth = plain(dtype, temperature, 64)
    several = [*drafters(on, truth), (copy_of(on, layers=20), None)]
    for drafter, nodes in several:
        for depth in range(1, 9):
            controller = FixedDepth(depth, None if nodes is None else nodes + depth)
            engine = Engine(on, [drafter], controller=controller)
            alone = [engine.generate([p], params(temperature, 64))[0] for p in PROMPTS[:1]]
            check(truth[:1], alone)
            mate = engine.submit("An unrelated request that is cancelled", params(1.0, 64))
            handles = []
            for prompt in PROMPTS:
                handles.append(engine.submit(prompt, params(temperature, 64)))
                for _ in range(3):
                    engine.step()
            engine.cancel(mate)
            late = engine.submit("A late one", params(0.5, 16), Speculation(depth=1))
            while engine.has_work:
                engine.step()
            check(truth, [h.output() for h in handles])
            assert late.done
    assert on.pool.used == 0
