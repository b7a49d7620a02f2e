"""What a grammar leaves of a draft and adds to it, and that the sampled rules stay lossless over it, exactly."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from tests.decode.tables import Allowed, TableConstraint
from tests.decode.test_verify_exact import (
    BLOCK,
    EXACT,
    REJECTION,
    Problem,
    Tokens,
    distance,
    enumerate_round,
    point_mass,
    random_problem,
    sampled,
)

from headstart.decode.admit import FORCED, admitted
from headstart.decode.draft import EMPTY, ROOT, Draft
from headstart.decode.params import SamplingParams
from headstart.decode.sampling import TokenLaw

Drafted = tuple[float, Tokens, torch.Tensor | None]


def digits(output: tuple[int, ...]) -> set[int]:
    """1 is always followed by 2, 5 ends it, all else is free below 6."""
    if output[-1:] == (5,):
        return set()
    return {2} if output[-1:] == (1,) else {0, 1, 2, 3, 4, 5}


def at(*output: int) -> TableConstraint:
    constraint = TableConstraint(8, digits)
    for token in output:
        constraint.append(token)
    return constraint


def test_a_chain_is_cut_at_the_first_forbidden_token() -> None:
    draft = Draft((0, 2, 6, 0), confidence=(0.9, 0.8, 0.7, 0.6), source="x")
    assert admitted(draft, at(), 4, 4) == Draft((0, 2), None, (0.9, 0.8), None, "x")
    assert admitted(draft, at(1), 4, 4).tokens == (2,)
    assert admitted(Draft((4, 5, 0)), at(), 4, 4).tokens == (4, 5)
    assert admitted(draft.truncated(2), at(), 4, 4) == draft.truncated(2)


def test_a_branch_falls_with_its_forbidden_node_and_the_others_stand() -> None:
    tree = Draft((1, 3, 0, 2, 7, 4, 3), (ROOT, ROOT, 0, 0, 1, 4, 1), source="x")
    kept = admitted(tree, at(), 3, 7)
    assert kept == Draft((1, 3, 2, 3), (ROOT, ROOT, 0, 1), source="x")
    assert kept.problem(8) is None
    assert admitted(tree, at(5), 3, 7).tokens == ()


def test_forced_tokens_follow_where_there_is_room() -> None:
    assert admitted(EMPTY, at(1), 3, 3) == Draft((2,), confidence=(1.0,), source=FORCED)
    assert admitted(EMPTY, at(1), 0, 0) is EMPTY
    assert admitted(EMPTY, at(), 3, 3) is EMPTY
    assert admitted(Draft((1, 0), confidence=(0.5, 0.4)), at(), 2, 2) == Draft((1, 2), confidence=(0.5, 1.0))
    assert admitted(Draft((0, 1)), at(), 2, 2).tokens == (0, 1)
    tree = Draft((1, 3), (ROOT, ROOT), source="x")
    assert admitted(tree, at(), 2, 3) == Draft((1, 3, 2), (ROOT, ROOT, 0), source="x")
    assert admitted(tree, at(), 2, 2) is tree
    assert admitted(Draft((3, 4), (ROOT, 0)), at(1), 2, 2) == Draft((2,), (ROOT,), (1.0,), source=FORCED)


def test_a_sampled_chain_keeps_its_limits_and_a_law_without_forbidden_tokens() -> None:
    q = torch.full((3, 8), 0.125)
    cut = admitted(Draft((1, 2, 6), confidence=(0.1, 0.2, 0.3), q=q, source="x"), at(), 3, 3)
    assert (cut.tokens, cut.confidence, cut.source) == ((1, 2), (0.1, 0.2), "x")
    assert cut.q is not None
    assert cut.q.tolist() == [[0.125] * 6 + [0.0] * 2, [0.0, 0.0, 0.125] + [0.0] * 5]
    assert bool((q == 0.125).all()), "the drafter's own tensor is left alone"
    narrow = admitted(Draft((3,), q=torch.full((1, 4), 0.25)), at(), 3, 3)
    assert narrow.q is not None
    assert narrow.q.shape == (1, 4)
    none = admitted(Draft((6,), q=torch.full((1, 8), 0.125)), at(), 3, 3)
    assert len(none) == 0


def random_grammar(seed: int, problem: Problem) -> Allowed:
    """Some tokens of each context, at least one of them the target's."""
    rng = np.random.default_rng(seed)
    table: dict[Tokens, set[int]] = {}
    for context, law in problem.p.items():
        allowed = {t for t in range(problem.vocab) if rng.random() < 0.6}
        table[context] = allowed | {int(law.argmax())}
    return table.__getitem__


def restricted(law: torch.Tensor, allowed: set[int]) -> torch.Tensor:
    out = torch.zeros_like(law)
    out[list(allowed)] = law[list(allowed)]
    return out / out.sum()


def under(problem: Problem, allows: Allowed) -> Problem:
    """The problem whose target obeys the grammar; its drafter knows nothing of it."""
    p = {context: restricted(law, allows(context)) for context, law in problem.p.items()}
    return replace(problem, p=p)


def cut_by(allows: Allowed, drafts: Any, *, keep_q: bool = False) -> Any:
    def cut(problem: Problem) -> Iterator[Drafted]:
        for probability, tokens, q in drafts(problem):
            constraint = TableConstraint(problem.vocab, allows)
            left = admitted(Draft(tokens, q=q), constraint, problem.k, problem.k)
            rows = left.q
            if rows is not None:
                rows = q[: len(left)] if keep_q else rows / rows.sum(dim=1, keepdim=True)
            yield probability, left.tokens, rows

    return cut


@pytest.mark.parametrize("rule", [REJECTION, BLOCK], ids=["rejection", "block"])
@pytest.mark.parametrize("drafts", [sampled, point_mass])
def test_cut_drafts_leave_the_targets_law(rule: Any, drafts: Any) -> None:
    for seed in range(60):
        problem = random_problem(seed)
        allows = random_grammar(seed, problem)
        bound = under(problem, allows)
        assert distance(bound, enumerate_round(bound, cut_by(allows, drafts), *rule)) < EXACT, f"problem {seed}"


@pytest.mark.parametrize("rule", [REJECTION, BLOCK], ids=["rejection", "block"])
def test_a_q_that_is_not_restricted_would_be_caught(rule: Any) -> None:
    found = []
    for seed in range(8):
        problem = random_problem(seed, vocab=3, k=3, style="dense")
        allows = random_grammar(seed, problem)
        bound = under(problem, allows)
        found.append(distance(bound, enumerate_round(bound, cut_by(allows, sampled, keep_q=True), *rule)))
    assert sum(tv > 1e-3 for tv in found) >= 5, found


def test_the_law_obeys_the_grammar_before_all_else() -> None:
    row = torch.tensor([0.0, 9.0, 1.0, 8.0, 0.5, 0.2, 50.0, 60.0, 70.0])
    for params in (
        SamplingParams(),
        SamplingParams(temperature=0.7, seed=1, top_k=2),
        SamplingParams(temperature=2.0, seed=1, logit_bias={6: 100.0}),
        SamplingParams(banned_tokens=(2,), temperature=1.0),
        SamplingParams(repetition_penalty=1.5),
    ):
        law = TokenLaw(params, [0], 3, 8, frozenset({5}), at())
        assert not law.greedy_fast
        assert set(np.flatnonzero(law.law(row).numpy())) <= {0, 1, 2, 3, 4, 5}
        # 1 leaves 2 alone, even where 2 is banned
        assert law.law(row, [1])[2] == 1.0
        assert law.choose(row, [1]) == 2
        law.append(1)
        assert law.choose(row) == 2
        assert law.logprobs(row, (), 2).logprob == pytest.approx(float(torch.log_softmax(row[:8], 0)[2]))
    waiting = TokenLaw(SamplingParams(min_tokens=5), [0], 3, 8, frozenset({5}), TableConstraint(8, lambda _: {5}))
    assert waiting.choose(row) == 5
    assert not waiting.complete
