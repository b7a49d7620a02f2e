"""The n-gram drafter as a `Learner`: what it makes of the target's best next tokens, and for whom."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headstart.decode.draft import ROOT, Draft
from headstart.decode.params import SamplingParams
from headstart.draft.base import DraftRequest, Learner
from headstart.draft.grow import PYTHON
from headstart.draft.ngram import NgramDrafter
from headstart.draft.recycle import OPINIONS, Opinions, OpinionTable, Recycler
from headstart.draft.store import NgramStore
from headstart.errors import InvalidParameter

PARAMS = SamplingParams()
histories = st.lists(st.integers(0, 4), max_size=20)
rows = st.lists(
    st.tuples(st.lists(st.integers(0, 9), max_size=3).map(tuple), st.lists(st.integers(0, 9), max_size=10).map(tuple)),
    max_size=20,
)


def free(successors: int = 8, **options: object) -> NgramDrafter:
    return NgramDrafter(min_path=0.0, tree_min_path=0.0, successors=successors, **options)  # type: ignore[arg-type]


def one(
    drafter: NgramDrafter,
    tokens: Sequence[int],
    depth: int = 4,
    nodes: int = 0,
    tenant: str | None = None,
    sequence_id: int = 1,
) -> Draft:
    request = DraftRequest(sequence_id, tokens, 0, depth, nodes or depth, PARAMS, 0, tenant)
    (draft,) = drafter.propose([request])
    return draft


def test_speaks_the_protocol() -> None:
    drafter = NgramDrafter()
    assert isinstance(drafter, Learner)
    assert drafter.successors == 8


def test_proposes_what_the_target_thought() -> None:
    """The history says nothing; the target said something after its last token, and after each of those."""
    drafter = free()
    one(drafter, [1, 2, 3])
    drafter.learn(1, [((2, 3), (40, 41)), ((3, 40), (50, 51)), ((3, 41), (60,)), ((40, 50), (70,))])
    assert one(drafter, [1, 2, 3], 3).tokens == (40, 50, 70)
    tree = one(drafter, [1, 2, 3], 3, 16)
    paths = {tuple(tree.tokens[i] for i in tree.path(node)) for node in range(len(tree))}
    assert {(40,), (41,), (40, 50), (40, 51), (41, 60), (40, 50, 70)} <= paths


def test_a_row_serves_other_histories_of_the_tenant() -> None:
    drafter = free()
    one(drafter, [1, 2, 3])
    drafter.learn(1, [((2, 3), (40,))])
    drafter.finish(1, [1, 2, 3], 3, None)
    assert one(drafter, [9, 9, 2, 3], 1, sequence_id=2).tokens == (40,)
    assert one(drafter, [9, 7, 3], 1, sequence_id=3).tokens == (40,)


def test_two_tokens_know_better_than_one() -> None:
    drafter = free()
    one(drafter, [1, 2, 3])
    drafter.learn(1, [((2, 3), (40,)), ((7, 3), (50,)), ((8, 3), (50,))])
    assert one(drafter, [1, 2, 3], 1).tokens == (40,)
    assert one(drafter, [1, 7, 3], 1).tokens == (50,)
    assert one(drafter, [1, 0, 3], 1).tokens == (50,)


def test_a_long_match_beats_an_opinion() -> None:
    drafter = free()
    text = [*range(20), 50, *range(10, 15)]
    one(drafter, text)
    drafter.learn(1, [((13, 14), (60,))])
    tree = one(drafter, text, 1, 4)
    assert tree.tokens[0] == 15
    assert 60 in tree.tokens


def test_the_latest_opinion_leads_and_old_ones_fade() -> None:
    opinions = Opinions()
    opinions.hear((1, 2))
    opinions.hear((3, 4))
    assert next(token for token, _ in opinions.law) == 3
    assert sum(probability for _, probability in opinions.law) == pytest.approx(1.0)
    for _ in range(OPINIONS):
        opinions.hear((5,))
    assert [token for token, _ in opinions.law] == [5]
    assert len(opinions) == OPINIONS


def test_tenants_are_isolated() -> None:
    drafter = free()
    one(drafter, [1, 2, 3], tenant="a", sequence_id=1)
    before = one(drafter, [1, 2, 3], 3, 8, tenant="b", sequence_id=2)
    drafter.learn(1, [((2, 3), (40, 41)), ((3, 40), (50,))])
    assert 40 in one(drafter, [1, 2, 3], 3, 8, tenant="a", sequence_id=1).tokens
    for tenant in ("b", "c", None):
        draft = one(drafter, [1, 2, 3], 3, 8, tenant=tenant, sequence_id=2)
        assert (draft.tokens, draft.parents, draft.confidence) == (before.tokens, before.parents, before.confidence)


def test_switched_off_nothing_is_kept() -> None:
    drafter = free(successors=0)
    before = one(drafter, [1, 2, 3], 3, 8)
    drafter.learn(1, [((2, 3), (40, 41))])
    assert len(drafter.recycler) == 0
    assert one(drafter, [1, 2, 3], 3, 8).tokens == before.tokens


def test_takes_no_more_successors_than_it_asked_for() -> None:
    drafter = free(successors=2)
    one(drafter, [1, 2, 3])
    drafter.learn(1, [((2, 3), (40, 41, 42, 43))])
    tokens = one(drafter, [1, 2, 3], 1, 16).tokens
    assert {40, 41} <= set(tokens) <= {40, 41, 1, 2, 3}


def test_unknown_and_finished_sequences_are_harmless() -> None:
    drafter = free()
    drafter.learn(99, [((2, 3), (40,))])
    one(drafter, [1, 2, 3])
    drafter.finish(1, [1, 2, 3], 3, None)
    drafter.learn(1, [((2, 3), (40,))])
    assert len(drafter.recycler) == 0


def test_odd_rows_are_harmless() -> None:
    drafter = free()
    one(drafter, [1, 2, 3])
    odd = [((), (4,)), ((3,), ()), ((), ()), ((1, 2, 3, 3), (4, 4, 4)), ([2, 3], [5, 6]), ((3,), tuple(range(100)))]
    drafter.learn(1, [])
    drafter.learn(1, odd)  # type: ignore[arg-type]
    draft = one(drafter, [1, 2, 3], 4, 16)
    assert draft.problem(100) is None
    assert draft.tokens[0] == 5


@given(histories, rows, st.integers(0, 5), st.integers(0, 24))
def test_drafts_stay_well_formed(
    tokens: list[int], told: list[tuple[tuple[int, ...], tuple[int, ...]]], depth: int, nodes: int
) -> None:
    drafter = free(store=NgramStore())
    drafter.finish(7, tokens, 0, None)
    one(drafter, tokens, depth, nodes)
    drafter.learn(1, told)
    draft = one(drafter, tokens, depth, nodes)
    assert draft.problem(10) is None
    assert len(draft) <= (nodes or depth)
    assert set(draft.tokens) <= set(tokens) | {token for _, successors in told for token in successors[:8]}
    assert draft.confidence is None or all(0.0 <= confidence <= 1.0 for confidence in draft.confidence)
    for parent in range(ROOT, len(draft)):
        siblings = [draft.confidence[i] for i in range(len(draft)) if draft.parent(i) == parent and draft.confidence]
        assert sum(siblings) <= 1.0 + 1e-6


@given(rows)
def test_same_calls_same_drafts(told: list[tuple[tuple[int, ...], tuple[int, ...]]]) -> None:
    def run() -> Draft:
        drafter = free()
        one(drafter, [1, 2, 3])
        drafter.learn(1, told)
        return one(drafter, [1, 2, 3], 4, 12)

    first, second = run(), run()
    assert (first.tokens, first.parents, first.confidence) == (second.tokens, second.parents, second.confidence)


@pytest.mark.parametrize("right", [0.2, 0.9])
def test_confidence_becomes_honest(right: float) -> None:
    """The target's choice is its own old first choice in a share of cases; confidence comes to say which."""
    rng = random.Random(4)
    drafter = free()
    for sequence in range(800):
        start = [500 + sequence, 2, 3]
        draft = one(drafter, start, 1, sequence_id=sequence)
        choice = 40 if rng.random() < right else 600 + sequence
        drafter.learn(sequence, [((2, 3), (40, 41))])
        drafter.observe(sequence, draft, int(draft.tokens[:1] == (choice,)))
        drafter.finish(sequence, [*start, choice], 3, None)
    draft = one(drafter, [1, 2, 3], 1, sequence_id=10_000)
    assert draft.tokens == (40,)
    assert draft.confidence is not None
    assert draft.confidence[0] == pytest.approx(right, abs=0.1)


def contexts(recycler: Recycler, tenant: str) -> list[tuple[int, ...]]:
    """What a tenant has, the oldest first."""
    table = recycler.table(tenant)
    if table is None:
        return []
    assert isinstance(table, OpinionTable)
    return list(table.contexts)


def test_tables_are_bounded() -> None:
    recycler = Recycler(max_contexts=100, max_contexts_per_tenant=40, parts=PYTHON)
    rng = random.Random(1)
    for round_ in range(200):
        tenant = f"t{rng.randrange(6)}"
        told = [((rng.randrange(50), rng.randrange(50)), (round_,)) for _ in range(rng.randrange(30))]
        recycler.learn(tenant, told, 8)
        sizes = [len(contexts(recycler, f"t{i}")) for i in range(6)]
        assert len(recycler) == sum(sizes) <= 100
        assert max(sizes) <= 40
    recycler.learn("t0", [((60, 61), (7,))], 8)
    assert (60, 61) in contexts(recycler, "t0")


def test_the_oldest_contexts_of_the_oldest_tenant_go_first() -> None:
    recycler = Recycler(max_contexts=4, max_contexts_per_tenant=3, parts=PYTHON)
    recycler.learn("a", [((1,), (5,)), ((2,), (5,)), ((1,), (6,))], 8)
    recycler.learn("b", [((3,), (5,)), ((4,), (5,))], 8)
    recycler.learn("b", [((5,), (5,))], 8)
    assert contexts(recycler, "a") == [(1,)]
    assert contexts(recycler, "b") == [(3,), (4,), (5,)]
    recycler.learn("b", [((6,), (5,))], 8)
    assert contexts(recycler, "b") == [(4,), (5,), (6,)]
    recycler.learn("c", [((1,), (5,)), ((2,), (5,))], 8)
    assert recycler.table("a") is None
    assert len(recycler) == 4
    recycler.learn("d", [], 8)
    assert recycler.table("d") is None


@pytest.mark.parametrize("wrong", [{"max_contexts": 1}, {"max_contexts_per_tenant": 0}])
def test_bounds_are_checked(wrong: dict[str, int]) -> None:
    with pytest.raises(InvalidParameter, match=next(iter(wrong))):
        Recycler(**wrong)


@pytest.mark.parametrize("successors", [-1, 17])
def test_numbers_of_successors_out_of_bounds_are_refused(successors: int) -> None:
    with pytest.raises(InvalidParameter, match="successors"):
        NgramDrafter(successors=successors)
