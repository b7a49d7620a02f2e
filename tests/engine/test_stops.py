"""Every way to stop, at every offset inside an accepted block."""

from __future__ import annotations

from functools import cache

import pytest
from tests import tiny
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from headstart.control.depth import FixedDepth
from headstart.decode.params import SamplingParams
from headstart.decode.sequence import FinishReason
from headstart.draft.scripted import OracleDrafter
from headstart.engine.engine import Engine
from headstart.engine.request import Output, Speculation
from headstart.errors import InvalidParameter, RequestTooLarge
from headstart.target.model import Target

PROMPT = tiny.ids(6, 8)
DEPTHS = (0, 1, 3, 7)


@cache
def target() -> Target:
    """A tiny model with a tokenizer of one letter pair per token."""
    words = {f"{chr(97 + i // 8)}{chr(97 + i % 8)}": i for i in range(tiny.VOCAB)}
    raw = Tokenizer(models.WordLevel(words, unk_token="aa"))
    raw.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw)
    return Target(tiny.model(), tokenizer, name="worded", kv_tokens=4096)


@cache
def truth() -> Output:
    return Engine(target()).generate([PROMPT], SamplingParams(max_tokens=40))[0]


def run(params: SamplingParams, depth: int) -> Output:
    oracle = OracleDrafter({tuple(PROMPT): truth().token_ids})
    return Engine(target(), [oracle], controller=FixedDepth(depth)).generate([PROMPT], params)[0]


def first_positions() -> list[tuple[int, int]]:
    """Output positions whose token has not occurred before: a stop there cannot trigger earlier."""
    tokens = truth().token_ids
    return [(i, token) for i, token in enumerate(tokens[:20]) if token not in tokens[:i]]


@pytest.mark.parametrize("depth", DEPTHS)
def test_stop_ids_at_every_offset(depth: int) -> None:
    positions = first_positions()
    assert len(positions) > 9
    for i, token in positions:
        out = run(SamplingParams(max_tokens=40, stop_token_ids=(token,)), depth)
        assert out.token_ids == truth().token_ids[: i + 1]
        done = out.completions[0]
        assert (done.finish_reason, done.stopped_by) == (FinishReason.STOP, token)
        plain = run(SamplingParams(max_tokens=40, stop_token_ids=(token,)), 0)
        assert out.text == plain.text
        assert done.record.emitted == i
        assert done.record.accepted <= done.record.drafted


@pytest.mark.parametrize("depth", DEPTHS)
def test_eos_at_every_offset_and_ignored(depth: int) -> None:
    on = target()
    before = on.eos_ids
    try:
        for i, token in first_positions():
            on.eos_ids = frozenset({token})
            assert run(SamplingParams(max_tokens=40), depth).token_ids == truth().token_ids[: i + 1]
            assert run(SamplingParams(max_tokens=40, ignore_eos=True), depth).token_ids == truth().token_ids
            at_least = run(SamplingParams(max_tokens=40, min_tokens=i + 3), depth)
            assert len(at_least.token_ids) >= i + 3
            assert token not in at_least.token_ids[: i + 3]
            assert at_least.token_ids == run(SamplingParams(max_tokens=40, min_tokens=i + 3), 0).token_ids
    finally:
        on.eos_ids = before


@pytest.mark.parametrize("depth", DEPTHS)
def test_stop_strings_at_every_offset(depth: int) -> None:
    whole = truth().text
    for start in range(0, 30):
        for length in (1, 2, 5):
            stop = whole[start : start + length]
            place = whole.index(stop)
            out = run(SamplingParams(max_tokens=40, stop=(stop,)), depth)
            assert out.text == whole[:place], (stop, place)
            assert out.completions[0].finish_reason == FinishReason.STOP
            assert out.completions[0].stopped_by == stop
            kept = run(SamplingParams(max_tokens=40, stop=(stop,), include_stop=True), depth)
            assert kept.text == whole[: place + length]
            assert out.token_ids == truth().token_ids[: len(out.token_ids)]
            # no token after the one that completed the stop string
            needed = next(
                n
                for n in range(1, 41)
                if stop
                in target().tokenizer.decode(PROMPT + truth().token_ids[:n])[len(target().tokenizer.decode(PROMPT)) :]
            )
            assert len(out.token_ids) == needed


@pytest.mark.parametrize("depth", DEPTHS)
def test_max_tokens_from_one_to_depth_plus_two(depth: int) -> None:
    for count in range(1, depth + 3):
        out = run(SamplingParams(max_tokens=count), depth)
        assert out.token_ids == truth().token_ids[:count]
        assert out.completions[0].finish_reason == FinishReason.LENGTH


@pytest.mark.parametrize("depth", DEPTHS)
def test_a_prompt_at_the_context_limit(depth: int) -> None:
    on = tiny.target(kv_tokens=2048)
    assert on.max_model_len == 768
    for spare in (1, 2, depth + 1, depth + 2):
        prompt = tiny.ids(768 - spare, spare)
        script = Engine(on).generate([prompt], SamplingParams(max_tokens=None))[0]
        assert len(script.token_ids) == spare
        oracle = OracleDrafter({tuple(prompt): script.token_ids})
        engine = Engine(on, [oracle], controller=FixedDepth(depth))
        assert engine.generate([prompt], SamplingParams(max_tokens=None))[0].token_ids == script.token_ids
        assert engine.generate([prompt], SamplingParams(max_tokens=spare))[0].token_ids == script.token_ids
        with pytest.raises(RequestTooLarge, match=f"{768 + 1} tokens, but the limit is 768"):
            engine.generate([prompt], SamplingParams(max_tokens=spare + 1))
    with pytest.raises(RequestTooLarge, match="the prompt has 768 tokens"):
        Engine(on).generate([tiny.ids(768)], SamplingParams(max_tokens=1))


def test_what_names_tokens_the_model_does_not_have_is_refused() -> None:
    engine = Engine(target())
    for name, value in {
        "stop_token_ids": (tiny.VOCAB,),
        "banned_tokens": (tiny.VOCAB,),
        "forced_tokens": (tiny.VOCAB,),
        "logit_bias": {tiny.VOCAB: 1.0},
        "logprobs": tiny.VOCAB + 1,
    }.items():
        with pytest.raises(InvalidParameter, match=name):
            engine.generate([PROMPT], SamplingParams(**{name: value}))
    for prompt in ([], "", [-1], [tiny.VOCAB], [True], [{"role": "user", "content": "x"}]):
        with pytest.raises(InvalidParameter, match="prompt"):
            engine.generate([prompt])
    with pytest.raises(InvalidParameter, match="stop"):
        Engine(tiny.target()).generate([PROMPT], SamplingParams(stop=("x",)))
    with pytest.raises(InvalidParameter, match="drafter"):
        engine.generate([PROMPT], None, Speculation(drafter="psychic"))
