"""Drafts as values, and what each acceptance rule decides in cases worked out by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headstart.decode import noise, verify
from headstart.decode.draft import EMPTY, ROOT, Draft, Verdict
from headstart.decode.params import SamplingParams
from headstart.decode.sampling import TokenLaw
from headstart.decode.verify import verify_block, verify_coupled, verify_rejection, verify_sampled
from headstart.errors import DrafterFailed

TREE = Draft(tokens=(5, 6, 7, 8, 9, 7), parents=(ROOT, ROOT, 0, 0, 2, 1))
"""5 -> 7 -> 9, 5 -> 8, 6 -> 7."""


def script(*tokens: int) -> tuple[Callable[[int, tuple[int, ...]], int], list[tuple[int, tuple[int, ...]]]]:
    """A target that says these tokens in turn, and the rows it was asked for."""
    asked: list[tuple[int, tuple[int, ...]]] = []

    def choose(row: int, ahead: tuple[int, ...]) -> int:
        asked.append((row, ahead))
        return tokens[len(ahead)]

    return choose, asked


def law_for(vocab: int = 6, **params: Any) -> TokenLaw:
    return TokenLaw(SamplingParams(**params), [1, 2, 3], 17, vocab, frozenset())


class TestDraft:
    def test_a_chain_needs_no_parents(self) -> None:
        chain = Draft(tokens=(4, 5, 6))
        assert chain.is_chain
        assert Draft(tokens=(4, 5, 6), parents=(ROOT, 0, 1)).is_chain
        assert not TREE.is_chain
        assert chain.depths() == [1, 2, 3]
        assert chain.path(2) == [0, 1, 2]
        assert TREE.depths() == [1, 1, 2, 2, 3, 2]
        assert TREE.path(4) == [0, 2, 4]
        assert len(EMPTY) == 0
        assert EMPTY.is_chain

    @pytest.mark.parametrize(
        ("draft", "word"),
        [
            (Draft(tokens=(True,)), "not an int"),
            (Draft(tokens=(-1,)), "outside"),
            (Draft(tokens=(10,)), "outside"),
            (Draft(tokens=(1, 2), parents=(ROOT,)), "parents for"),
            (Draft(tokens=(1, 2), parents=(ROOT, 1)), "come first"),
            (Draft(tokens=(1, 2), parents=(ROOT, -2)), "come first"),
            (Draft(tokens=(1, 1), parents=(ROOT, ROOT)), "sibling"),
            (Draft(tokens=(1, 2), confidence=(0.5,)), "confidences"),
            (Draft(tokens=(1, 2), q=torch.ones(1, 10)), "q has shape"),
            (Draft(tokens=(1, 2), q=torch.ones(2, 11)), "q has shape"),
        ],
    )
    def test_problems_are_named(self, draft: Draft, word: str) -> None:
        problem = draft.problem(10)
        assert problem is not None
        assert word in problem

    @pytest.mark.parametrize("draft", [EMPTY, TREE, Draft(tokens=(1, 1), q=torch.ones(2, 9))])
    def test_good_drafts_have_none(self, draft: Draft) -> None:
        assert draft.problem(10) is None

    def test_truncation_goes_by_depth_and_count(self) -> None:
        q = torch.arange(12.0).reshape(6, 2)
        tree = Draft(TREE.tokens, TREE.parents, confidence=(0.1, 0.2, 0.3, 0.4, 0.5, 0.6), q=q, source="s")
        shallow = tree.truncated(2)
        assert (shallow.tokens, shallow.parents) == ((5, 6, 7, 8, 7), (ROOT, ROOT, 0, 0, 1))
        assert shallow.confidence == (0.1, 0.2, 0.3, 0.4, 0.6)
        assert shallow.q is not None
        assert torch.equal(shallow.q, q[[0, 1, 2, 3, 5]])
        assert shallow.source == "s"
        assert tree.truncated(3, 2).tokens == (5, 6)
        assert tree.truncated(9) is tree
        assert tree.truncated(0).tokens == ()
        assert Draft(tokens=(1, 2, 3)).truncated(2).tokens == (1, 2)

    def test_principal_chain(self) -> None:
        chain = TREE.principal_chain()
        assert (chain.tokens, chain.is_chain) == ((5, 7, 9), True)
        assert Draft(tokens=(1, 2)).principal_chain().tokens == (1, 2)

    @given(st.lists(st.integers(0, 3), max_size=12), st.data())
    @settings(max_examples=100, deadline=None)
    def test_every_cut_of_a_good_draft_is_good(self, tokens: list[int], data: st.DataObject) -> None:
        parents = tuple(data.draw(st.integers(ROOT, i - 1)) for i in range(len(tokens)))
        draft = Draft(tuple(tokens), parents)
        if draft.problem(4) is None:
            cut = draft.truncated(data.draw(st.integers(0, 5)), data.draw(st.integers(0, 12)))
            assert cut.problem(4) is None
            assert draft.principal_chain().problem(4) is None
            assert draft.principal_chain().is_chain


class TestCoupled:
    def test_nothing_drafted(self) -> None:
        choose, asked = script(3)
        assert verify_coupled(EMPTY, choose) == Verdict((), 3)
        assert asked == [(0, ())]

    def test_all_accepted(self) -> None:
        choose, asked = script(5, 6, 7, 8)
        assert verify_coupled(Draft(tokens=(5, 6, 7)), choose) == Verdict((0, 1, 2), 8)
        assert asked == [(0, ()), (1, (5,)), (2, (5, 6)), (3, (5, 6, 7))]

    def test_all_rejected_looks_at_one_row(self) -> None:
        choose, asked = script(9)
        assert verify_coupled(Draft(tokens=(5, 6, 7)), choose) == Verdict((), 9)
        assert asked == [(0, ())]

    def test_stops_at_the_first_difference(self) -> None:
        choose, _ = script(5, 1, 7, 8)
        assert verify_coupled(Draft(tokens=(5, 6, 7)), choose) == Verdict((0,), 1)

    @pytest.mark.parametrize(
        ("target", "verdict", "rows"),
        [
            ((5, 7, 9, 1), Verdict((0, 2, 4), 1), [0, 1, 3, 5]),
            ((5, 8, 1), Verdict((0, 3), 1), [0, 1, 4]),
            ((6, 7, 9), Verdict((1, 5), 9), [0, 2, 6]),
            ((6, 8), Verdict((1,), 8), [0, 2]),
            ((7,), Verdict((), 7), [0]),
        ],
    )
    def test_trees_descend_where_the_target_goes(
        self, target: tuple[int, ...], verdict: Verdict, rows: list[int]
    ) -> None:
        choose, asked = script(*target)
        assert verify_coupled(TREE, choose) == verdict
        assert [row for row, _ in asked] == rows
        assert all(ahead == target[: len(ahead)] for _, ahead in asked)

    @given(st.lists(st.integers(0, 2), max_size=10), st.data(), st.integers(0, 1000))
    @settings(max_examples=200, deadline=None)
    def test_the_output_is_the_targets_own_whatever_is_drafted(
        self, tokens: list[int], data: st.DataObject, seed: int
    ) -> None:
        parents = tuple(data.draw(st.integers(ROOT, i - 1)) for i in range(len(tokens)))
        draft = Draft(tuple(tokens), parents)

        def says(history: tuple[int, ...]) -> int:
            return int(noise.uniform(seed, noise.Stream.SAMPLE, hash(history) % 2**32) * 3)

        verdict = verify_coupled(draft, lambda row, ahead: says(ahead))
        emitted = [*(draft.tokens[node] for node in verdict.path), verdict.token]
        assert emitted == [says(tuple(emitted[:i])) for i in range(len(emitted))]
        if verdict.path:
            assert draft.path(verdict.path[-1]) == list(verdict.path)


def first(law: torch.Tensor, row: int) -> int:
    return int(law.argmax())


RULES = [verify_rejection, verify_block]


class TestSampledRules:
    p = torch.tensor([[0.5, 0.5, 0.0], [0.1, 0.1, 0.8], [0.0, 0.0, 1.0]], dtype=torch.float64)
    q = torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.5, 0.5]], dtype=torch.float64)

    def test_rejection_by_hand(self) -> None:
        def run(*uniforms: float) -> Verdict:
            return verify_rejection((0, 1), self.p.__getitem__, self.q, uniforms, first)

        assert run(0.49, 0.19) == Verdict((0, 1), 2)
        assert run(0.49, 0.21) == Verdict((0,), 2)
        assert run(0.51, 0.01) == Verdict((), 1)

    def test_block_takes_the_largest_passing_index(self) -> None:
        thresholds, weights = verify.block_thresholds((0, 2), self.p.__getitem__, self.q)
        # P_1 = 0.5; S_1 = (0.05 - 0)+ + (0.05 - 0.5)+ + (0.4 - 0.5)+ = 0.05; h_1 = 0.05 / 0.55; P_2 = 0.8 = h_2.
        assert weights == pytest.approx([1.0, 0.5, 0.8])
        assert thresholds == pytest.approx([0.05 / 0.55, 0.8])
        accepted = verify_block((0, 2), self.p.__getitem__, self.q, (0.99, 0.79), first)
        assert accepted == Verdict((0, 1), 2), "a failure at 1 must not hide the pass at 2"
        assert verify_block((0, 2), self.p.__getitem__, self.q, (0.05, 0.81), first) == Verdict((0,), 0)
        assert verify_block((0, 2), self.p.__getitem__, self.q, (0.10, 0.81), first) == Verdict((), 1)

    @pytest.mark.parametrize("rule", RULES)
    def test_an_empty_draft_draws_from_p(self, rule: Any) -> None:
        for q in (None, self.q[:0]):
            assert rule((), self.p.__getitem__, q, (), first) == Verdict((), 0)

    @pytest.mark.parametrize("rule", RULES)
    def test_equal_laws_accept_everything(self, rule: Any) -> None:
        p = torch.softmax(torch.randn(4, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64), 1)
        almost_one = (1 - 2.0**-53,) * 3
        assert rule((1, 2, 3), p.__getitem__, p[:3], almost_one, first).path == (0, 1, 2)

    @pytest.mark.parametrize("rule", RULES)
    def test_laws_equal_up_to_rounding_never_yield_nan(self, rule: Any) -> None:
        p = torch.softmax(torch.randn(4, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64), 1)

        def draw(law: torch.Tensor, row: int) -> int:
            assert bool(torch.isfinite(law).all())
            assert float(law.sum()) > 0
            return int(law.argmax())

        for off in (1e-16, 1e-15, 1e-12):
            q = p[:3] * (1 + off)
            for u in (1e-17, 0.5, 1 - 2.0**-53):
                assert rule((1, 2, 3), p.__getitem__, q, (u, u, u), draw).token >= 0

    @pytest.mark.parametrize("rule", RULES)
    def test_a_token_the_drafter_could_not_draw_is_rejected(self, rule: Any) -> None:
        assert rule((1,), self.p.__getitem__, self.q[:1], (1e-16,), first) == Verdict((), 1)

    def test_point_masses_leave_the_token_out_of_the_residual(self) -> None:
        assert verify.residual(self.p[0], None, 0).tolist() == [0.0, 0.5, 0.0]
        assert self.p[0].tolist() == [0.5, 0.5, 0.0]
        assert verify.residual(self.p[2], None, 2).tolist() == [0.0, 0.0, 1.0]

    def test_rejection_asks_for_no_row_beyond_the_end(self) -> None:
        asked: list[int] = []

        def p(row: int) -> torch.Tensor:
            asked.append(row)
            return self.p[row]

        verify_rejection((0, 1), p, self.q, (0.9, 0.9), first)
        assert asked == [0]


class TestVerifySampled:
    rows = torch.randn(4, 8, generator=torch.Generator().manual_seed(9))

    @pytest.mark.parametrize("rule", ["coupled", "rejection", "block"])
    def test_greedy_is_the_same_under_every_rule(self, rule: Any) -> None:
        best = [int(row[:6].argmax()) for row in self.rows]
        q = torch.full((3, 6), 1 / 6)
        for wrong in range(4):
            tokens = tuple((t + 1) % 6 if i == wrong else t for i, t in enumerate(best[:3]))
            for given_q in (None, q):
                verdict = verify_sampled(rule, Draft(tokens, q=given_q), self.rows, law_for())
                assert verdict == Verdict(tuple(range(wrong)), best[wrong])

    def test_coupled_equals_plain_sampling(self) -> None:
        law = law_for(temperature=1.0, frequency_penalty=1.0)
        plain: list[int] = []
        for row in self.rows:
            plain.append(law.choose(row, plain))
        assert verify_sampled("coupled", Draft(tuple(plain[:3])), self.rows, law) == Verdict((0, 1, 2), plain[3])
        assert verify_sampled("coupled", EMPTY, self.rows, law) == Verdict((), plain[0])

    @pytest.mark.parametrize("rule", ["rejection", "block"])
    def test_noise_is_read_by_position_under_the_rounds_seed(self, rule: Any) -> None:
        law = law_for(temperature=0.9)
        law.append(4)
        q = torch.softmax(torch.randn(3, 5, generator=torch.Generator().manual_seed(2)), 1)
        wide = torch.nn.functional.pad(q.double(), (0, 1))
        wide /= wide.sum(1, keepdim=True)
        fresh = noise.round_seed(17, 4)
        uniforms = [noise.uniform(fresh, noise.Stream.ACCEPT, 4 + i) for i in range(3)]
        p = [law.law(self.rows[i], (1, 2, 3)[:i]) for i in range(4)]
        pure = verify_block if rule == "block" else verify_rejection
        for given_q, laws in ((q, wide), (None, None)):
            expected = pure(
                (1, 2, 3),
                p.__getitem__,
                laws,
                uniforms,
                lambda law, row: noise.sample_law(law, fresh, noise.Stream.RECOVER, 4 + row),
            )
            assert verify_sampled(rule, Draft((1, 2, 3), q=given_q), self.rows.__getitem__, law) == expected

    def test_trees_are_for_the_coupled_rule(self) -> None:
        tree = Draft((1, 2), (ROOT, ROOT))
        law = law_for(temperature=1.0)
        verify_sampled("coupled", tree, self.rows, law)
        with pytest.raises(ValueError, match="principal_chain"):
            verify_sampled("block", tree, self.rows, law)

    @pytest.mark.parametrize("bad", [0.0, float("nan"), float("inf"), -1.0])
    def test_a_q_that_is_no_law_is_the_drafters_failure(self, bad: float) -> None:
        with pytest.raises(DrafterFailed):
            verify_sampled("rejection", Draft((1,), q=torch.full((1, 6), bad)), self.rows, law_for(temperature=1.0))
