"""The law of what the sampled rules emit, enumerated exactly.

``enumerate_round`` runs the real rule on every draft and every pattern of uniforms just below or at its thresholds,
weighs each outcome, and continues from p, which gives the law of the first k + 1 tokens in float64. The same checker
must pass the real rules and catch the broken ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tests.decode.broken_rules import block_stop_at_first_failure, block_unscaled_residual, resample_from_p

from headstart.decode.verify import acceptance, block_thresholds, verify_block, verify_rejection

Tokens = tuple[int, ...]
Array = NDArray[np.float64]
EXACT = 1e-12


@dataclass(frozen=True)
class Problem:
    """Context-dependent laws of target and drafter over ``vocab`` tokens, for drafts of up to ``k``."""

    vocab: int
    k: int
    p: dict[Tokens, torch.Tensor]
    q: dict[Tokens, torch.Tensor]

    def future(self, prefix: Tokens) -> Array:
        """Target's law of the tokens after ``prefix`` up to length k + 1."""
        if len(prefix) > self.k:
            return np.ones(())
        here = self.p[prefix].numpy()
        return np.stack([here[y] * self.future((*prefix, y)) for y in range(self.vocab)])


def random_law(rng: np.random.Generator, vocab: int, style: str) -> torch.Tensor:
    if style == "one-hot":
        weights = np.eye(vocab)[rng.integers(vocab)]
    else:
        weights = rng.dirichlet(np.full(vocab, 0.3 if style == "sharp" else 1.0)) + 1e-9
        if style == "zeros":
            keep = rng.random(vocab) < 0.6
            keep[rng.integers(vocab)] = True
            weights = weights * keep
    return torch.from_numpy(weights / weights.sum())


STYLES = ["dense", "sharp", "zeros", "one-hot"]


def random_problem(seed: int, vocab: int | None = None, k: int | None = None, style: str | None = None) -> Problem:
    rng = np.random.default_rng(seed)
    vocab = int(rng.integers(2, 6)) if vocab is None else vocab
    k = int(rng.integers(1, 4 if vocab < 5 else 3)) if k is None else k
    style_p = style or STYLES[rng.integers(4)]
    style_q = style or STYLES[rng.integers(4)]
    p: dict[Tokens, torch.Tensor] = {}
    q: dict[Tokens, torch.Tensor] = {}
    for length in range(k + 1):
        for context in product(range(vocab), repeat=length):
            p[context] = random_law(rng, vocab, style_p)
            q[context] = p[context].clone() if rng.random() < 0.15 else random_law(rng, vocab, style_q)
    return Problem(vocab, k, p, q)


Drafts = Callable[[Problem], Iterator[tuple[float, Tokens, torch.Tensor | None]]]
"""All drafts of a drafter: (probability, tokens, the q it reports)."""


def sampled(problem: Problem) -> Iterator[tuple[float, Tokens, torch.Tensor | None]]:
    for tokens in product(range(problem.vocab), repeat=problem.k):
        laws = [problem.q[tokens[:i]] for i in range(problem.k)]
        probability = math.prod(float(law[x]) for law, x in zip(laws, tokens, strict=True))
        if probability > 0:
            yield probability, tokens, torch.stack(laws)


def greedy_tokens(problem: Problem) -> Tokens:
    tokens: Tokens = ()
    for _ in range(problem.k):
        tokens += (int(problem.q[tokens].argmax()),)
    return tokens


def point_mass(problem: Problem) -> Iterator[tuple[float, Tokens, torch.Tensor | None]]:
    yield 1.0, greedy_tokens(problem), None


def greedy_scored_soft(problem: Problem) -> Iterator[tuple[float, Tokens, torch.Tensor | None]]:
    """Broken: argmax tokens, but the soft q is reported."""
    tokens = greedy_tokens(problem)
    yield 1.0, tokens, torch.stack([problem.q[tokens[:i]] for i in range(problem.k)])


def _cut(problem: Problem, keep_doubtful: bool) -> Iterator[tuple[float, Tokens, torch.Tensor | None]]:
    for probability, tokens, q in sampled(problem):
        assert q is not None
        doubtful = [i for i, x in enumerate(tokens) if q[i][x] < 0.4]
        length = (doubtful[0] + keep_doubtful) if doubtful else len(tokens)
        yield probability, tokens[:length], q[:length]


def stop_after_doubt(problem: Problem) -> Iterator[tuple[float, Tokens, torch.Tensor | None]]:
    """Allowed: the doubtful token is still submitted, nothing after it."""
    return _cut(problem, True)


def drop_the_doubtful(problem: Problem) -> Iterator[tuple[float, Tokens, torch.Tensor | None]]:
    """Broken: whether a sampled token is submitted depends on its value."""
    return _cut(problem, False)


def rejection_thresholds(tokens: Tokens, p: Any, q: torch.Tensor | None) -> list[float]:
    return [acceptance(p(i), None if q is None else q[i], x) for i, x in enumerate(tokens)]


def thresholds_of_block(tokens: Tokens, p: Any, q: torch.Tensor | None) -> list[float]:
    return rejection_thresholds(tokens, p, q) if q is None else block_thresholds(tokens, p, q)[0]


@dataclass(frozen=True)
class Outcome:
    law: Array
    """Of the first k + 1 tokens, ``[vocab] * (k + 1)``."""
    accepted: float
    """Expected accepted draft tokens in the round."""
    first: float
    """Probability that at least one is accepted."""


def enumerate_round(problem: Problem, drafts: Drafts, rule: Any, thresholds: Any) -> Outcome:
    mass: dict[Tokens, Array] = {}
    for probability, tokens, q in drafts(problem):

        def p(row: int, tokens: Tokens = tokens) -> torch.Tensor:
            return problem.p[tokens[:row]]

        limits = thresholds(tokens, p, q)
        for passes in product((True, False), repeat=len(tokens)):
            weight = probability
            for limit, passed in zip(limits, passes, strict=True):
                weight *= limit if passed else 1.0 - limit
            if weight == 0.0:
                continue
            # Just below and exactly at the threshold, so that a rule with another threshold is found out.
            uniforms = [
                math.nextafter(limit, 0.0) if passed else limit for limit, passed in zip(limits, passes, strict=True)
            ]
            laws: list[torch.Tensor] = []

            def draw(law: torch.Tensor, row: int, laws: list[torch.Tensor] = laws) -> int:
                laws.append(law)
                return row

            verdict = rule(tokens, p, q, uniforms, draw)
            assert len(laws) == 1
            assert verdict.token == len(verdict.path), "the last token is drawn at the row after the path"
            prefix = tokens[: len(verdict.path)]
            law = laws[0].numpy()
            mass.setdefault(prefix, np.zeros(problem.vocab))
            mass[prefix] += weight * law / law.sum()
    total = np.zeros((problem.vocab,) * (problem.k + 1))
    for prefix, masses in mass.items():
        for y in np.flatnonzero(masses):
            total[(*prefix, int(y))] += masses[y] * problem.future((*prefix, int(y)))
    return Outcome(
        total,
        accepted=sum(len(prefix) * float(masses.sum()) for prefix, masses in mass.items()),
        first=sum(float(masses.sum()) for prefix, masses in mass.items() if prefix),
    )


def distance(problem: Problem, outcome: Outcome) -> float:
    """Total variation between emitted and target law."""
    return 0.5 * float(np.abs(outcome.law - problem.future(())).sum())


REJECTION = (verify_rejection, rejection_thresholds)
BLOCK = (verify_block, thresholds_of_block)


@pytest.mark.parametrize("rule", [REJECTION, BLOCK], ids=["rejection", "block"])
@pytest.mark.parametrize("drafts", [sampled, point_mass, stop_after_doubt])
def test_the_emitted_law_is_the_targets(rule: Any, drafts: Drafts) -> None:
    for seed in range(60):
        problem = random_problem(seed)
        assert distance(problem, enumerate_round(problem, drafts, *rule)) < EXACT, f"problem {seed}"


@pytest.mark.parametrize("rule", [REJECTION, BLOCK], ids=["rejection", "block"])
@pytest.mark.parametrize("style", STYLES)
def test_the_emitted_law_is_the_targets_at_the_largest_size(rule: Any, style: str) -> None:
    problem = random_problem(7, vocab=5, k=3, style=style)
    assert distance(problem, enumerate_round(problem, sampled, *rule)) < EXACT


@pytest.mark.parametrize("rule", [REJECTION, BLOCK], ids=["rejection", "block"])
def test_equal_laws_accept_every_token(rule: Any) -> None:
    for seed in range(10):
        base = random_problem(seed)
        problem = Problem(base.vocab, base.k, base.p, base.p)
        outcome = enumerate_round(problem, sampled, *rule)
        assert distance(problem, outcome) < EXACT
        assert outcome.accepted == pytest.approx(problem.k, abs=EXACT)


@pytest.mark.parametrize(
    ("drafts", "rule"),
    [
        (sampled, (block_stop_at_first_failure, thresholds_of_block)),
        (sampled, (resample_from_p(verify_rejection), rejection_thresholds)),
        (sampled, (resample_from_p(verify_block), thresholds_of_block)),
        (sampled, (block_unscaled_residual, thresholds_of_block)),
        (point_mass, (resample_from_p(verify_rejection), rejection_thresholds)),
        (greedy_scored_soft, REJECTION),
        (greedy_scored_soft, BLOCK),
        (drop_the_doubtful, REJECTION),
        (drop_the_doubtful, BLOCK),
    ],
    ids=[
        "block stops at first failure",
        "rejection resamples from p",
        "block resamples from p",
        "block residual unscaled",
        "point mass resampled from p",
        "greedy scored soft, rejection",
        "greedy scored soft, block",
        "pruned by value, rejection",
        "pruned by value, block",
    ],
)
def test_negative_controls_are_caught(drafts: Drafts, rule: Any) -> None:
    problems = [random_problem(seed, vocab=3, k=3, style="dense") for seed in range(8)]
    found = [distance(problem, enumerate_round(problem, drafts, *rule)) for problem in problems]
    assert sum(tv > 1e-3 for tv in found) >= 6, found
    assert max(found) > 5e-3, found


def test_acceptance_is_what_theory_says() -> None:
    better = 0
    for seed in range(60):
        problem = random_problem(seed)
        overlap = float(torch.minimum(problem.p[()], problem.q[()]).sum())
        by_token = enumerate_round(problem, sampled, *REJECTION)
        by_block = enumerate_round(problem, sampled, *BLOCK)
        assert by_token.first == pytest.approx(overlap, abs=EXACT)
        assert by_block.accepted >= by_token.accepted - EXACT
        better += by_block.accepted > by_token.accepted + 1e-6
        tokens = greedy_tokens(problem)
        by_point = enumerate_round(problem, point_mass, *REJECTION)
        assert by_point.first == pytest.approx(float(problem.p[()][tokens[0]]), abs=EXACT)
    assert better >= 10


def test_the_papers_example() -> None:
    """Sun et al. 2025, section 1: p = (1/3, 2/3), q = (2/3, 1/3), k = 2: 10/9 accepted by token, 11/9 by block."""
    p, q = torch.tensor([1 / 3, 2 / 3], dtype=torch.float64), torch.tensor([2 / 3, 1 / 3], dtype=torch.float64)
    contexts = [(), (0,), (1,), *product((0, 1), repeat=2)]
    problem = Problem(2, 2, dict.fromkeys(contexts, p), dict.fromkeys(contexts, q))
    assert enumerate_round(problem, sampled, *REJECTION).accepted == pytest.approx(10 / 9, abs=EXACT)
    assert enumerate_round(problem, sampled, *BLOCK).accepted == pytest.approx(11 / 9, abs=EXACT)
