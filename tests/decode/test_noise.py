"""The noise is reproducible, independent where it must be, and its fast sampler equals the naive definition."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from headstart.decode import noise
from headstart.decode.noise import Stream

GOLDEN_UNIFORMS = [0.5123475078242464, 0.4423184524222402, 0.4816054436731615]
GOLDEN_GUMBELS = [2.6603076139803705, -1.586994636610819, 1.0870961189656492, 2.1764037494545625]
GOLDEN_DERIVED = 17648693749087158055
GOLDEN_ROUND = 15911153514614327326

INF = math.inf
seeds = st.integers(-(2**63), 2**64 - 1)
streams = st.sampled_from(list(Stream))
positions = st.integers(0, 2**31)


def naive(logits: torch.Tensor, seed: int, stream: Stream, position: int) -> int:
    return int((logits.double() + noise.gumbel(seed, stream, position, logits.shape[0])).argmax())


def test_golden_values() -> None:
    """A changed value changes users' texts for the same seed."""
    assert noise.uniform(0, Stream.SAMPLE, 0) == GOLDEN_UNIFORMS[0]
    assert noise.uniform(1234, Stream.ACCEPT, 77) == GOLDEN_UNIFORMS[1]
    assert noise.uniform(-1, Stream.RECOVER, 2**40) == GOLDEN_UNIFORMS[2]
    assert noise.gumbel(1234, Stream.SAMPLE, 7, 4).tolist() == GOLDEN_GUMBELS
    assert noise.derive_seed(1234, 3) == GOLDEN_DERIVED
    assert noise.round_seed(1234, 3) == GOLDEN_ROUND


def test_the_hash_is_splitmix64() -> None:
    """First output of the published generator for seed 0."""
    assert noise._mix(noise._GAMMA) == 0xE220A8397B1DCDAF


def test_gumbel_is_the_double_logarithm_of_the_hash() -> None:
    values = noise.gumbel(99, Stream.DRAFT, 5, 1000).tolist()
    key = noise._key(99, Stream.DRAFT, 5)
    for token, value in enumerate(values):
        bits = noise._mix((key + (token + 1) * noise._GAMMA) % 2**64)
        assert value == pytest.approx(-math.log(-math.log(noise._to_unit(bits))), rel=1e-12, abs=1e-12)
        assert value == noise._gumbel_at(bits)


def test_extreme_hashes_stay_inside_the_unit_interval() -> None:
    assert 0.0 < noise._to_unit(0) < noise._to_unit(2**64 - 1) < 1.0
    assert noise._gumbel_at(2**64 - 1) <= noise.GUMBEL_MAX
    assert noise._gumbel_at(0) >= noise.GUMBEL_MIN


@given(seeds, streams, positions, st.integers(1, 300), st.integers(0, 300))
@settings(max_examples=60, deadline=None)
def test_a_tokens_noise_does_not_depend_on_the_vocabulary(
    seed: int, stream: Stream, position: int, small: int, padding: int
) -> None:
    wide = noise.gumbel(seed, stream, position, small + padding)
    assert torch.equal(noise.gumbel(seed, stream, position, small), wide[:small])


def test_rows_equal_single_calls() -> None:
    rows = noise.gumbel_rows([3, -4, 2**64 - 1], Stream.SAMPLE, [0, 9, 9], 50)
    for row, seed, position in zip(rows, [3, -4, 2**64 - 1], [0, 9, 9], strict=True):
        assert torch.equal(row, noise.gumbel(seed, Stream.SAMPLE, position, 50))


def test_signed_and_unsigned_seeds_agree() -> None:
    assert noise.uniform(-1, Stream.SAMPLE, 3) == noise.uniform(2**64 - 1, Stream.SAMPLE, 3)
    assert noise.derive_seed(-1, 2) == noise.derive_seed(2**64 - 1, 2)


def test_negative_positions_are_refused() -> None:
    with pytest.raises(ValueError, match="position"):
        noise.uniform(0, Stream.SAMPLE, -1)


@pytest.mark.parametrize("stream", list(Stream))
def test_uniforms_are_uniform_over_positions_and_seeds(stream: Stream) -> None:
    by_position = [noise.uniform(42, stream, i) for i in range(20_000)]
    by_seed = [noise.uniform(i, stream, 42) for i in range(20_000)]
    for sample in (by_position, by_seed):
        assert stats.kstest(sample, "uniform").pvalue > 1e-6
        lagged = stats.pearsonr(sample[:-1], sample[1:])
        assert lagged.pvalue > 1e-6


def test_gumbels_are_gumbel_over_tokens_positions_and_seeds() -> None:
    samples = [
        noise.gumbel(7, Stream.SAMPLE, 3, 50_000),
        noise.gumbel_rows([7] * 50_000, Stream.SAMPLE, range(50_000), 1)[:, 0],
        noise.gumbel_rows(range(50_000), Stream.SAMPLE, [3] * 50_000, 1)[:, 0],
    ]
    for sample in samples:
        assert stats.kstest(sample.numpy(), "gumbel_r").pvalue > 1e-6


def test_streams_positions_and_seeds_are_uncorrelated() -> None:
    base = noise.gumbel(7, Stream.SAMPLE, 3, 50_000)
    others = [noise.gumbel(7, stream, 3, 50_000) for stream in Stream if stream is not Stream.SAMPLE]
    others += [noise.gumbel(7, Stream.SAMPLE, 4, 50_000), noise.gumbel(8, Stream.SAMPLE, 3, 50_000)]
    for other in others:
        assert not torch.equal(base, other)
        assert stats.pearsonr(base.numpy(), other.numpy()).pvalue > 1e-6


def test_derived_and_round_seeds_are_distinct() -> None:
    assert noise.derive_seed(5, 0) == 5
    derived = {noise.derive_seed(seed, i) for seed in range(50) for i in range(50)}
    rounds = {noise.round_seed(seed, i) for seed in range(50) for i in range(50)}
    assert len(derived) == len(rounds) == 2500
    assert len(derived & rounds) == 0


@pytest.mark.parametrize("scale", [0.0, 0.01, 1.0, 3.0, 15.0, 200.0, 1e5])
@pytest.mark.parametrize("vocab", [1, 2, 65, 1000, 8192])
def test_fast_argmax_equals_the_definition(scale: float, vocab: int) -> None:
    generator = torch.Generator().manual_seed(vocab)
    for position in range(40):
        logits = torch.randn(vocab, generator=generator) * scale
        if position % 4 == 1:
            logits = logits.round()  # many equal logits
        if position % 4 == 2:
            logits[torch.rand(vocab, generator=generator) < 0.3] = -INF
        if position % 4 == 3:
            logits[torch.rand(vocab, generator=generator) < 0.98] = -INF
        kept = logits.clone()
        expected = naive(logits, 11, Stream.SAMPLE, position)
        assert noise.gumbel_argmax(logits, 11, Stream.SAMPLE, position) == expected
        assert torch.equal(logits, kept)


@given(
    st.lists(st.one_of(st.just(-INF), st.floats(-1e6, 1e6, width=32)), min_size=1, max_size=200),
    seeds,
    streams,
    positions,
)
@settings(max_examples=300, deadline=None)
def test_fast_argmax_equals_the_definition_anywhere(
    values: list[float], seed: int, stream: Stream, position: int
) -> None:
    logits = torch.tensor(values, dtype=torch.float32)
    assert noise.gumbel_argmax(logits, seed, stream, position) == naive(logits, seed, stream, position)


def test_ties_go_to_the_first_index() -> None:
    logits = torch.full((300,), -INF)
    assert noise.gumbel_argmax(logits, 0, Stream.SAMPLE, 0) == 0
    # 2**80 swallows every Gumbel value: all scores tie exactly.
    huge = torch.full((300,), 2.0**80)
    huge[:17] = -INF
    assert noise.gumbel_argmax(huge, 0, Stream.SAMPLE, 0) == naive(huge, 0, Stream.SAMPLE, 0) == 17


def test_unnormalised_laws_are_sampled() -> None:
    law = torch.tensor([0.0, 2.0, 6.0, 0.0, 4.0], dtype=torch.float64)
    counts = [0] * 5
    for position in range(6000):
        counts[noise.sample_law(law, 1, Stream.RECOVER, position)] += 1
    assert counts[0] == counts[3] == 0
    assert stats.chisquare([counts[i] for i in (1, 2, 4)], [1000, 3000, 2000]).pvalue > 1e-6
