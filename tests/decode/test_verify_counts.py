"""The law of what the rules emit, counted through the real noise streams.

``generate`` decodes many sequences round by round, and a chi-square test compares the first two tokens with the
target's law. Seeds are fixed, so a test that passes once passes always. The same checker must pass the real rules and
catch the broken ones, among them those that enumeration cannot see: noise shared between streams or between rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy import stats
from tests.decode.broken_rules import block_stop_at_first_failure, resample_from_p

from headstart.decode import noise
from headstart.decode.draft import ROOT, Draft
from headstart.decode.noise import Stream
from headstart.decode.verify import verify_block, verify_coupled, verify_rejection

Array = NDArray[np.float64]
P_VALUE = 1e-6


@dataclass(frozen=True)
class Markov:
    """Laws that depend on the last token; row ``vocab`` is the start."""

    p: Array
    q: Array
    k: int

    @staticmethod
    def random(vocab: int, k: int, seed: int = 1) -> Markov:
        rng = np.random.default_rng(seed)
        p, q = (rng.dirichlet(np.full(vocab, 0.7), size=vocab + 1) for _ in range(2))
        return Markov(p, 0.5 * (p + q), k)

    @property
    def vocab(self) -> int:
        return int(self.p.shape[1])

    def pairs(self) -> Array:
        """Target's law of the first two tokens."""
        law: Array = self.p[-1][:, None] * self.p[:-1]
        return law


Keying = Callable[[int, int], int]
"""(sequence seed, base position) -> the seed under which a round reads its streams."""


def never_fresh(seed: int, base: int) -> int:
    """Broken: the next round reads the numbers that this one has already looked at."""
    return seed


def draw_with(gumbels: Array) -> Callable[[torch.Tensor, int], int]:
    def draw(law: torch.Tensor, row: int) -> int:
        with np.errstate(divide="ignore"):
            return int((np.log(law.numpy()) + gumbels[row]).argmax())

    return draw


def generate(model: Markov, rule: Any, count: int, keying: Keying = noise.round_seed, shared: bool = False) -> Array:
    """Counts of the first two tokens over ``count`` sequences, decoded in rounds by ``rule``.

    ``shared`` is broken on purpose: the accept uniform of a token is the one its draft was drawn with.
    """
    vocab, k = model.vocab, model.k
    p, q = torch.from_numpy(model.p), torch.from_numpy(model.q)
    log_q = np.log(model.q)
    texts = np.full((count, k + 3), vocab)
    lengths = np.zeros(count, dtype=np.int64)
    for base in range(2):
        active = np.flatnonzero(lengths == base)
        seeds = [keying(int(seed), base) for seed in active]

        def read(stream: Stream, row: int, seeds: list[int] = seeds, base: int = base) -> Array:
            return noise.gumbel_rows(seeds, stream, [base + row] * len(seeds), vocab).numpy()

        before = texts[active, base - 1] if base else np.full(len(active), vocab)
        drafts = np.empty((len(active), k), dtype=np.int64)
        uniforms = np.empty((len(active), k))
        last = before
        for i in range(k):
            noises = read(Stream.DRAFT, i)
            drafts[:, i] = last = (log_q[last] + noises).argmax(axis=1)
            if shared:
                uniforms[:, i] = np.exp(-np.exp(-noises[np.arange(len(active)), last]))
            else:
                uniforms[:, i] = [noise.uniform(seed, Stream.ACCEPT, base + i) for seed in seeds]
        recover = np.stack([read(Stream.RECOVER, i) for i in range(k + 1)], axis=1)
        for at, sequence in enumerate(active):
            tokens = tuple(drafts[at].tolist())
            history = (int(before[at]), *tokens)
            laws = q[list(history[:-1])]
            verdict = rule(
                tokens, lambda row, h=history: p[h[row]], laws, uniforms[at].tolist(), draw_with(recover[at])
            )
            emitted = [*tokens[: len(verdict.path)], verdict.token]
            texts[sequence, base : base + len(emitted)] = emitted
            lengths[sequence] += len(emitted)
    counts = np.zeros((vocab, vocab))
    np.add.at(counts, (texts[:, 0], texts[:, 1]), 1)
    return counts


def p_value(counts: Array, law: Array) -> float:
    """Chi-square over all cells expected at least 5 times, the others pooled."""
    expected = (law * counts.sum()).ravel()
    observed = counts.ravel()
    large = expected >= 5
    observed = np.append(observed[large], observed[~large].sum())
    expected = np.append(expected[large], expected[~large].sum())
    if expected[-1] < 5:
        observed, expected = observed[:-1], expected[:-1]
    return float(stats.chisquare(observed, expected, sum_check=False).pvalue)


@pytest.mark.parametrize("count", [20_000, 200_000])
@pytest.mark.parametrize("rule", [verify_rejection, verify_block])
def test_counts_follow_the_target(rule: Any, count: int) -> None:
    model = Markov.random(vocab=16, k=2)
    assert p_value(generate(model, rule, count), model.pairs()) > P_VALUE


@pytest.mark.parametrize("rule", [verify_rejection, verify_block])
def test_counts_follow_the_target_over_several_rounds(rule: Any) -> None:
    model = Markov.random(vocab=3, k=3, seed=6)
    assert p_value(generate(model, rule, 20_000), model.pairs()) > P_VALUE


@pytest.mark.parametrize(
    ("rule", "options"),
    [
        (verify_rejection, {"shared": True}),
        (verify_block, {"shared": True}),
        (verify_block, {"keying": never_fresh}),
        (block_stop_at_first_failure, {}),
        (resample_from_p(verify_rejection), {}),
    ],
    ids=["shared noise, rejection", "shared noise, block", "noise reused by the next round", "first failure", "from p"],
)
def test_counting_catches_the_negative_controls(rule: Any, options: dict[str, Any]) -> None:
    model = Markov.random(vocab=3, k=3, seed=6)
    assert p_value(generate(model, rule, 20_000, **options), model.pairs()) < P_VALUE


def coupled_counts(model: Markov, draft: Draft, count: int) -> tuple[Array, int]:
    """Counts of the first two tokens under the coupled rule with real noise, and how often the first was drafted."""
    vocab = model.vocab
    log_p = np.log(model.p)
    gumbels = [noise.gumbel_rows(range(count), Stream.SAMPLE, [at] * count, vocab).numpy() for at in range(4)]
    counts = np.zeros((vocab, vocab))
    accepted = 0
    for sequence in range(count):

        def choose(row: int, ahead: Sequence[int], sequence: int = sequence) -> int:
            last = ahead[-1] if ahead else vocab
            return int((log_p[last] + gumbels[len(ahead)][sequence]).argmax())

        verdict = verify_coupled(draft, choose)
        accepted += len(verdict.path) > 0
        emitted = [*(draft.tokens[node] for node in verdict.path), verdict.token]
        if len(emitted) == 1:
            emitted.append(choose(0, emitted))
        counts[emitted[0], emitted[1]] += 1
    return counts, accepted


@pytest.mark.parametrize("count", [20_000, 200_000])
def test_coupled_counts_follow_the_target(count: int) -> None:
    model = Markov.random(vocab=16, k=2)
    best = int(model.p[-1].argmax())
    second = int(model.p[-1].argsort()[-2])
    tree = Draft((best, second, int(model.p[best].argmax()), 3, int(model.p[3].argmax())), (ROOT, ROOT, 0, 1, 3))
    counts, accepted = coupled_counts(model, tree, count)
    assert p_value(counts, model.pairs()) > P_VALUE
    chance = float(model.p[-1][best] + model.p[-1][second])
    assert stats.binomtest(accepted, count, chance).pvalue > P_VALUE


def test_coupled_accepts_a_point_mass_with_its_probability() -> None:
    model = Markov.random(vocab=16, k=2)
    for token in (int(model.p[-1].argmax()), 5):
        _, accepted = coupled_counts(model, Draft((token,)), 20_000)
        assert stats.binomtest(accepted, 20_000, float(model.p[-1][token])).pvalue > P_VALUE
