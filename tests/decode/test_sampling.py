"""TokenLaw against a slow reference in plain Python, and the equivalences that verification relies on."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import stats

from headstart.decode import noise
from headstart.decode.params import SamplingParams
from headstart.decode.sampling import TokenLaw
from headstart.errors import InvalidParameter

INF = math.inf
VOCAB = 12
EOS = frozenset([2])


def f32(value: float) -> float:
    return float(struct.unpack("f", struct.pack("f", value))[0])


def reference(
    params: SamplingParams, prompt: Sequence[int], output: Sequence[int], row: Sequence[float], eos: frozenset[int]
) -> list[float]:
    """The documented steps, one token at a time; every arithmetic result rounded to float32."""
    n = len(row)
    step = len(output)
    if step < len(params.forced_tokens):
        return [0.0 if i == params.forced_tokens[step] else -INF for i in range(n)]
    endings = {*eos, *params.stop_token_ids} if step < params.min_tokens else set()
    for excluded in ({*params.banned_tokens, *endings}, set(params.banned_tokens), set[int]()):
        x = [-INF if i in excluded else value for i, value in enumerate(row)]
        if max(x) > -INF:
            break
    for i, value in params.logit_bias.items():
        if i < n:
            x[i] = f32(x[i] + f32(value))
    for i in range(n):
        if params.repetition_penalty != 1 and (i in prompt or i in output):
            r = f32(params.repetition_penalty)
            x[i] = f32(x[i] / r) if x[i] > 0 else f32(x[i] * r)
        count = list(output).count(i)
        if count:
            x[i] = f32(x[i] - f32(params.presence_penalty + params.frequency_penalty * count))
    if params.temperature == 0:
        return x
    x = [f32(value / f32(params.temperature)) for value in x]
    ranked = sorted((i for i in range(n) if x[i] > -INF), key=lambda i: (-x[i], i))
    if params.top_k:
        ranked = ranked[: params.top_k]
    if params.top_p < 1:
        weights = [math.exp(x[i] - x[ranked[0]]) for i in ranked]
        total, mass, kept = sum(weights), 0.0, 0
        for weight in weights:
            mass += weight
            kept += 1
            assume(mass == params.top_p * total or abs(mass - params.top_p * total) > 1e-12)
            if mass >= params.top_p * total:
                break
        ranked = ranked[:kept]
    if params.min_p > 0:
        limit = f32(x[ranked[0]] + f32(math.log(params.min_p)))
        ranked = [i for i in ranked if x[i] >= limit]
    return [x[i] if i in ranked else -INF for i in range(n)]


def committed(params: SamplingParams, prompt: Sequence[int], output: Sequence[int], vocab: int = VOCAB) -> TokenLaw:
    law = TokenLaw(params, prompt, 5, vocab, EOS)
    for token in output:
        law.append(token)
    return law


ids = st.integers(0, VOCAB - 1)
histories = st.lists(ids, max_size=6)
# Coarse values make ties common; fine ones exercise rounding.
entries = st.one_of(st.integers(-3, 3).map(float), st.floats(-12, 12, width=32))
rows = st.lists(st.one_of(entries, entries, entries, st.just(-INF)), min_size=VOCAB, max_size=VOCAB).filter(
    lambda row: max(row) > -INF
)
ONE_BY_ONE: dict[str, st.SearchStrategy[Any]] = {
    "temperature": st.sampled_from([0.0, 1e-4, 0.3, 1.0, 1.7, 100.0]),
    "top_k": st.integers(0, VOCAB + 3),
    "top_p": st.floats(0.01, 1.0),
    "min_p": st.one_of(st.just(0.0), st.just(1.0), st.floats(1e-3, 1.0)),
    "repetition_penalty": st.sampled_from([0.5, 1.0, 1.1, 3.0]),
    "presence_penalty": st.sampled_from([-2.0, 0.0, 0.7]),
    "frequency_penalty": st.sampled_from([-0.3, 0.0, 1.1]),
    "logit_bias": st.dictionaries(st.integers(0, VOCAB + 2), st.sampled_from([-100.0, -0.1, 2.5, 100.0]), max_size=4),
    "banned_tokens": st.lists(st.integers(0, VOCAB + 2), max_size=VOCAB),
    "forced_tokens": st.lists(ids, max_size=4),
    "min_tokens": st.integers(0, 8),
    "stop_token_ids": st.lists(st.integers(0, VOCAB + 2), max_size=VOCAB),
    "ignore_eos": st.booleans(),
}
everything = st.fixed_dictionaries(ONE_BY_ONE)


def check(settings_: dict[str, Any], prompt: list[int], output: list[int], row: list[float]) -> None:
    params = SamplingParams(**settings_)
    expected = reference(params, prompt, output, row, EOS)
    given_row = torch.tensor(row)
    law = committed(params, prompt, output)
    assert law.logits(given_row).tolist() == expected
    assert given_row.tolist() == row
    probabilities = law.law(given_row)
    assert probabilities.dtype == torch.float64
    assert float(probabilities.sum()) == pytest.approx(1.0, abs=1e-12)
    if params.greedy:
        assert int(probabilities.argmax()) == expected.index(max(expected)) == law.choose(given_row)
        assert probabilities.max() == 1.0
    else:
        scale = sum(math.exp(value - max(expected)) for value in expected)
        wanted = [math.exp(value - max(expected)) / scale for value in expected]
        assert probabilities.tolist() == pytest.approx(wanted, abs=1e-12)
        assert expected[law.choose(given_row)] > -INF


@pytest.mark.parametrize("name", sorted(ONE_BY_ONE))
def test_each_parameter_alone(name: str) -> None:
    @given(st.data(), histories, histories, rows)
    @settings(max_examples=40, deadline=None)
    def alone(data: st.DataObject, prompt: list[int], output: list[int], row: list[float]) -> None:
        check({"temperature": 0.8, name: data.draw(ONE_BY_ONE[name])}, prompt, output, row)

    alone()


@given(everything, histories, histories, rows)
@settings(max_examples=300, deadline=None)
def test_all_parameters_together(
    given_: dict[str, Any], prompt: list[int], output: list[int], row: list[float]
) -> None:
    check(given_, prompt, output, row)


@given(everything, histories, histories, histories, rows)
@settings(max_examples=300, deadline=None)
def test_ahead_equals_append(
    given_: dict[str, Any], prompt: list[int], output: list[int], ahead: list[int], row: list[float]
) -> None:
    params = SamplingParams(**given_, logprobs=3, logprobs_mode="processed")
    before = committed(params, prompt, output)
    after = committed(params, prompt, output + ahead)
    tensor = torch.tensor(row)
    plain_first = before.logits(tensor)
    assert torch.equal(before.logits(tensor, ahead), after.logits(tensor))
    assert torch.equal(before.law(tensor, ahead), after.law(tensor))
    token = before.choose(tensor, ahead)
    assert token == after.choose(tensor)
    assert before.logprobs(tensor, ahead, token) == after.logprobs(tensor, (), token)
    assert torch.equal(before.logits(tensor), plain_first), "asking ahead must leave no trace"


def test_choose_is_the_gumbel_trick_at_the_absolute_position() -> None:
    row = torch.randn(200, generator=torch.Generator().manual_seed(1))
    law = TokenLaw(SamplingParams(temperature=0.9, top_k=50), [1, 2, 3], 77, 200, EOS)
    law.append(9)
    scores = law.law(row, (4, 4)).log() + noise.gumbel(77, noise.Stream.SAMPLE, 3 + 1 + 2, 200)
    assert law.position == 4
    assert law.choose(row, (4, 4)) == int(scores.argmax())


def test_choices_follow_the_law() -> None:
    row = torch.randn(8, generator=torch.Generator().manual_seed(3))
    law = TokenLaw(SamplingParams(temperature=1.3, top_k=6), [], 5, 8, EOS)
    counts = torch.zeros(8)
    for _ in range(6000):
        token = law.choose(row)
        counts[token] += 1
        law.append(token)
    expected = law.law(row) * 6000
    kept = expected > 0
    assert counts[~kept].sum() == 0
    assert stats.chisquare(counts[kept].numpy(), expected[kept].numpy(), sum_check=False).pvalue > 1e-6


@given(everything, rows, st.lists(st.floats(-50, 50, width=32), max_size=5))
@settings(max_examples=100, deadline=None)
def test_padding_ids_change_nothing(given_: dict[str, Any], row: list[float], padding: list[float]) -> None:
    law = committed(SamplingParams(**given_, logprobs=4), [1, 2], [3])
    narrow, wide = torch.tensor(row), torch.tensor(row + [60.0 + value for value in padding])
    assert torch.equal(law.logits(narrow), law.logits(wide))
    assert law.choose(narrow) == law.choose(wide) < VOCAB
    assert law.logprobs(narrow, (), 1) == law.logprobs(wide, (), 1)


def test_rows_are_independent_of_their_neighbours_and_left_alone() -> None:
    block = torch.randn(6, 40, generator=torch.Generator().manual_seed(2)).to(torch.bfloat16)
    kept = block.clone()
    params = SamplingParams(temperature=0.7, top_p=0.8, repetition_penalty=1.2, banned_tokens=(3,), min_tokens=4)
    law = TokenLaw(params, [5, 6], 1, 40, EOS)
    together = [law.logits(block[i]) for i in range(6)]
    shuffled = block[[3, 0, 5, 1, 4, 2]]
    assert torch.equal(law.logits(shuffled[0]), together[3])
    for i in range(6):
        assert torch.equal(law.logits(block[i].clone()), together[i])
        assert torch.equal(law.logits(block[i].float()), together[i])
    assert torch.equal(block, kept)


@pytest.mark.parametrize(
    ("given_", "kept"),
    [
        ({"top_k": 1}, [1]),
        ({"top_k": 2}, [1, 2]),  # three tokens tie for second place: the lowest ids win
        ({"top_k": 4}, [1, 2, 4, 5]),
        ({"top_k": 99}, [0, 1, 2, 3, 4, 5]),
        ({"top_p": 1e-9}, [1]),
        ({"top_p": 1.0}, [0, 1, 2, 3, 4, 5]),
        ({"top_k": 4, "top_p": 0.999999}, [1, 2, 4, 5]),
        ({"min_p": 1.0}, [1]),
        ({"temperature": 0.0, "top_k": 1, "top_p": 0.1, "min_p": 1.0}, [0, 1, 2, 3, 4, 5]),
    ],
)
def test_filter_edges(given_: dict[str, Any], kept: list[int]) -> None:
    row = torch.tensor([0.0, 3.0, 2.0, -1.0, 2.0, 2.0])
    law = TokenLaw(SamplingParams(**{"temperature": 1.0, **given_}), [], 0, 6, frozenset())
    assert torch.nonzero(law.logits(row) > -INF).flatten().tolist() == kept


def test_top_p_needs_no_more_than_it_says() -> None:
    row = torch.zeros(10)
    for wanted, top_p in ((1, 0.1), (3, 0.3), (4, 0.31), (10, 0.95)):
        law = TokenLaw(SamplingParams(temperature=1.0, top_p=top_p), [], 0, 10, frozenset())
        assert torch.nonzero(law.law(row)).flatten().tolist() == list(range(wanted))


def test_greedy_takes_the_first_of_equal_maxima() -> None:
    law = TokenLaw(SamplingParams(banned_tokens=(1,)), [], 0, 5, frozenset())
    assert law.choose(torch.tensor([0.0, 9.0, 4.0, 4.0, 4.0])) == 2


def test_bans_give_way_in_order_and_forced_tokens_win() -> None:
    row = torch.tensor([1.0, 2.0, 3.0])
    all_but_eos = TokenLaw(SamplingParams(banned_tokens=(0, 1), min_tokens=5), [], 0, 3, EOS)
    assert all_but_eos.choose(row) == 2
    everything_banned = TokenLaw(SamplingParams(banned_tokens=(0, 1, 2), min_tokens=5), [], 0, 3, EOS)
    assert torch.equal(everything_banned.logits(row), row)
    forced = TokenLaw(SamplingParams(banned_tokens=(1,), forced_tokens=(1,), temperature=1.0), [], 0, 3, EOS)
    assert forced.choose(torch.tensor([0.0, -INF, 0.0])) == 1
    assert forced.law(row).tolist() == [0.0, 1.0, 0.0]
    with pytest.raises(InvalidParameter, match="forced_tokens"):
        TokenLaw(SamplingParams(forced_tokens=(3,)), [], 0, 3, EOS)


def test_min_tokens_counts_draft_tokens_and_ignores_ignore_eos() -> None:
    row = torch.tensor([0.0, 1.0, 9.0, 8.0])
    law = TokenLaw(SamplingParams(min_tokens=2, stop_token_ids=(3,), ignore_eos=True), [0], 0, 4, EOS)
    assert [law.choose(row, (1,) * n) for n in range(4)] == [1, 1, 2, 2]


@given(everything, histories, rows)
@settings(max_examples=200, deadline=None)
def test_greedy_fast_promises_the_raw_argmax(given_: dict[str, Any], output: list[int], row: list[float]) -> None:
    law = committed(SamplingParams(**{**given_, "temperature": 0.0}), [1], output)
    if law.greedy_fast:
        for ahead in ((), (1,), (1, 2, 2)):
            assert law.choose(torch.tensor(row), ahead) == row.index(max(row))


def test_greedy_fast_follows_the_output() -> None:
    law = TokenLaw(SamplingParams(min_tokens=1, forced_tokens=(4, 4), top_k=3, top_p=0.5), [1], 0, VOCAB, EOS)
    seen = []
    for _ in range(3):
        seen.append(law.greedy_fast)
        law.append(4)
    assert seen == [False, False, True]
    assert not TokenLaw(SamplingParams(logit_bias={1: 1.0}), [], 0, VOCAB, EOS).greedy_fast
    assert not TokenLaw(SamplingParams(temperature=1.0), [], 0, VOCAB, EOS).greedy_fast
    assert TokenLaw(SamplingParams(min_tokens=9), [], 0, VOCAB, frozenset()).greedy_fast


@pytest.mark.parametrize("mode", ["raw", "processed"])
def test_logprobs(mode: Any) -> None:
    row = torch.tensor([0.5, 3.0, 2.0, -1.0, 2.0, 50.0])
    params = SamplingParams(temperature=2.0, top_k=3, logprobs=4, logprobs_mode=mode)
    report = TokenLaw(params, [], 0, 5, frozenset()).logprobs(row, (), 4)
    base = row[:5] if mode == "raw" else torch.tensor([-INF, 1.5, 1.0, -INF, 1.0])
    expected = torch.log_softmax(base, 0)
    assert (report.token, report.rank) == (4, 2)
    assert report.logprob == float(expected[4])
    wanted = [1, 2, 4, 0] if mode == "raw" else [1, 2, 4]
    assert report.top == tuple((i, float(expected[i])) for i in wanted)


def test_unusable_rows_are_refused() -> None:
    law = TokenLaw(SamplingParams(temperature=1.0), [], 0, 4, frozenset())
    with pytest.raises(ValueError, match="vocabulary"):
        law.logits(torch.zeros(3))
    with pytest.raises(ValueError, match="NaN"):
        law.choose(torch.full((4,), math.nan))


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("penalty", [0.0, 1.5])
def test_the_second_choice_is_what_would_be_chosen_without_the_first(temperature: float, penalty: float) -> None:
    torch.manual_seed(3)
    law = committed(SamplingParams(temperature=temperature, presence_penalty=penalty, seed=5), [1, 2], [3, 3, 4])
    for row in torch.randn(40, VOCAB):
        first, second, lag = law.choose_two(row, [5])
        assert first == law.choose(row, [5])
        others = row.clone()
        others[first] = -math.inf
        assert second == law.choose(others, [5])
        assert lag > 0
    alone = torch.full((VOCAB,), -math.inf)
    alone[7] = 1.0
    assert law.choose_two(alone, [5]) == (7, 7, math.inf)
