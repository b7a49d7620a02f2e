"""The n-gram drafter: what it proposes, what it follows, what it learns, and what it never does."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headstart.decode.draft import ROOT, Draft
from headstart.decode.params import SamplingParams
from headstart.draft.automaton import SuffixAutomaton
from headstart.draft.base import Drafter, DraftRequest
from headstart.draft.blend import Blend
from headstart.draft.calibration import Calibration, cell
from headstart.draft.grow import PYTHON
from headstart.draft.ngram import NgramDrafter
from headstart.draft.store import NgramStore
from headstart.errors import InvalidParameter

PARAMS = SamplingParams()
VOCAB = 1000
histories = st.lists(st.integers(0, 4), max_size=40)


def ask(tokens: Sequence[int], depth: int = 4, nodes: int | None = None, **changes: object) -> DraftRequest:
    fields: dict[str, object] = {"sequence_id": 1, "prompt_length": 0, "params": PARAMS, "seed": 0} | changes
    return DraftRequest(tokens=tokens, depth=depth, nodes=depth if nodes is None else nodes, **fields)  # type: ignore[arg-type]


def one(
    drafter: NgramDrafter, tokens: Sequence[int], depth: int = 4, nodes: int | None = None, **changes: object
) -> Draft:
    (draft,) = drafter.propose([ask(tokens, depth, nodes, **changes)])
    return draft


def test_speaks_the_protocol() -> None:
    assert isinstance(NgramDrafter(), Drafter)
    assert NgramDrafter().name == "ngram"


@pytest.mark.parametrize("nodes", [4, 12])
@pytest.mark.parametrize("tokens", [[], [7], [7, 8], [7, 7]])
def test_short_histories(tokens: list[int], nodes: int) -> None:
    draft = one(NgramDrafter(), tokens, 4, nodes)
    assert draft.problem(VOCAB) is None
    assert set(draft.tokens) <= set(tokens)


def test_continues_a_repetition() -> None:
    text = list(range(20))
    draft = one(NgramDrafter(), text + text[:6], depth=8)
    assert draft.tokens == tuple(text[6:14])
    assert draft.is_chain
    assert draft.source == "ngram"
    assert draft.q is None


def test_prefers_the_most_recent_of_equally_frequent_continuations() -> None:
    assert one(NgramDrafter(), [1, 2, 30, 1, 2, 40, 1, 2], depth=1).tokens == (40,)


def test_prefers_a_frequent_continuation_to_a_single_newer_one() -> None:
    text = [1, 2, 30, 9, 1, 2, 30, 8, 1, 2, 30, 7, 1, 2, 40, 6, 1, 2]
    assert one(NgramDrafter(), text, depth=1).tokens == (30,)


def test_a_long_match_beats_a_frequent_short_one() -> None:
    long_context = [50, 51, 52, 53, 54, 55]
    text = [55, 1, 55, 1, 55, 1, *long_context, 77, 3, 55, 1, 4, *long_context]
    assert one(NgramDrafter(), text, depth=1).tokens == (77,)


@given(histories, st.integers(0, 6), st.integers(0, 24))
def test_drafts_are_well_formed(tokens: list[int], depth: int, nodes: int) -> None:
    draft = one(NgramDrafter(), tokens, depth, nodes)
    assert draft.problem(5) is None
    assert len(draft) <= nodes
    assert max(draft.depths(), default=0) <= depth
    assert set(draft.tokens) <= set(tokens)
    if nodes <= depth:
        assert draft.is_chain
    assert draft.confidence is None or all(0.0 <= c <= 1.0 for c in draft.confidence)


@given(histories.filter(len), st.integers(1, 6), st.integers(1, 24))
def test_a_tree_starts_with_the_chain(tokens: list[int], depth: int, spare: int) -> None:
    chain = one(NgramDrafter(min_path=0.0), tokens, depth)
    first = one(NgramDrafter(), tokens, depth, depth + spare).principal_chain()
    assert first.tokens == chain.tokens[: len(first)]


@given(histories.filter(len), st.integers(1, 6), st.integers(7, 24))
def test_without_floors_rows_are_used(tokens: list[int], depth: int, nodes: int) -> None:
    drafter = NgramDrafter(min_path=0.0, tree_min_path=0.0)
    assert len(one(drafter, tokens, depth)) == depth
    branching = len(set(tokens))
    whole = sum(branching**level for level in range(1, depth + 1))
    assert len(one(drafter, tokens, depth, nodes)) == min(nodes, whole)


@given(histories.filter(len), st.integers(1, 6), st.integers(7, 24), st.floats(0.0, 0.5))
def test_a_trees_nodes_come_likeliest_first(tokens: list[int], depth: int, nodes: int, floor: float) -> None:
    """So a smaller or pickier tree is the beginning of the larger one."""
    large = one(NgramDrafter(tree_min_path=0.0), tokens, depth, 24)
    small = one(NgramDrafter(tree_min_path=floor), tokens, depth, nodes)
    assert small.tokens == large.tokens[: len(small)]
    assert [small.parent(i) for i in range(len(small))] == [large.parent(i) for i in range(len(small))]


def test_a_tree_holds_other_continuations() -> None:
    text = [1, 2, 30, 9, 1, 2, 40, 8, 1, 2, 50, 7, 1, 2]
    draft = one(NgramDrafter(), text, depth=3, nodes=12)
    roots = {token for i, token in enumerate(draft.tokens) if draft.parent(i) == ROOT}
    assert {30, 40, 50} <= roots


@given(st.lists(histories, min_size=1, max_size=5), st.booleans())
def test_rewritten_and_shrunk_histories_get_a_fresh_answer(versions: list[list[int]], tree: bool) -> None:
    nodes = 10 if tree else 4
    drafter = NgramDrafter(min_path=0.0)  # a floor would also depend on what was learned on the way
    for version in versions:
        draft = one(drafter, version, 4, nodes)
    fresh = one(NgramDrafter(min_path=0.0), versions[-1], 4, nodes)
    assert draft.tokens == fresh.tokens
    assert draft.parents == fresh.parents


@given(histories, st.lists(st.integers(1, 6), max_size=8))
def test_growing_in_steps_equals_starting_late(tokens: list[int], steps: list[int]) -> None:
    drafter = NgramDrafter()
    at = 0
    for step in steps:
        one(drafter, tokens[:at], 4, 10)
        at += step
    assert one(drafter, tokens, 4, 10).tokens == one(NgramDrafter(), tokens, 4, 10).tokens


def test_the_history_is_neither_kept_nor_changed() -> None:
    history = [1, 2, 3, 1, 2]
    drafter = NgramDrafter()
    one(drafter, history)
    assert history == [1, 2, 3, 1, 2]
    history[:] = [4, 5, 6, 4, 5]
    assert one(drafter, history, depth=1).tokens == (6,)


def test_any_sequence_type_will_do() -> None:
    assert one(NgramDrafter(), (1, 2, 3, 1, 2)).tokens == one(NgramDrafter(), [1, 2, 3, 1, 2]).tokens


def test_same_calls_same_drafts() -> None:
    rng = random.Random(3)
    text = [rng.randrange(30) for _ in range(300)]

    def run() -> list[tuple[int, ...]]:
        drafter = NgramDrafter(store=NgramStore())
        out = []
        for sequence in range(3):
            for at in range(50, 300, 7):
                draft = one(drafter, text[:at], 4, 12, sequence_id=sequence)
                drafter.observe(sequence, draft, 1)
                out.append(draft.tokens)
            drafter.finish(sequence, text, 50, None)
        return out

    assert run() == run()


def test_a_batch_is_answered_in_order() -> None:
    drafter = NgramDrafter()
    drafts = drafter.propose(
        [ask([1, 2, 1], 1, sequence_id=1), ask([], 4, sequence_id=2), ask([3, 4, 3], 1, sequence_id=3)]
    )
    assert [draft.tokens for draft in drafts] == [(2,), (), (4,)]


def test_match_cap_limits_depth_and_can_be_off() -> None:
    text = [*range(20), 99, 5, 6]
    assert len(one(NgramDrafter(min_path=0.0, match_cap=1.0), text, depth=10)) == 3
    assert len(one(NgramDrafter(min_path=0.0, match_cap=0.0), text, depth=10)) == 1
    assert len(one(NgramDrafter(min_path=0.0, match_cap=None), text, depth=10)) == 10


def test_min_path_stops_an_unlikely_draft() -> None:
    rng = random.Random(1)
    text = [rng.randrange(50) for _ in range(300)]
    everything = one(NgramDrafter(min_path=0.0), text, depth=8)
    likely = one(NgramDrafter(min_path=0.2), text, depth=8)
    assert len(everything) == 8
    assert likely.tokens == everything.tokens[: len(likely)]
    assert len(likely) < 8


def test_finish_drops_state() -> None:
    drafter = NgramDrafter()
    for sequence in range(50):
        one(drafter, [1, 2, 1], sequence_id=sequence)
        drafter.finish(sequence, [1, 2, 1], 1, None)
    assert drafter.sequences == 0


def test_feedback_for_unknown_sequences_is_harmless() -> None:
    drafter = NgramDrafter(store=NgramStore())
    drafter.observe(99, Draft((1, 2)), 1)
    drafter.finish(99, [1, 2, 3], 1, "x")
    drafter.finish(99, [], 0, None)
    drafter.finish(98, [1], 5, None)
    draft = one(drafter, [1, 2, 1])
    drafter.observe(1, Draft((500, 501)), 2)
    drafter.observe(1, draft, 10**6)
    drafter.observe(1, draft, 0)
    drafter.observe(1, Draft(), 0)
    drafter.finish(1, [7], 0, None)
    assert one(drafter, [1, 2, 1]).tokens == draft.tokens


@pytest.mark.parametrize("right", [True, False])
def test_confidence_follows_acceptance(right: bool) -> None:
    """Through `observe` for chains: drafts that are accepted raise confidence, rejected ones lower it."""
    drafter = NgramDrafter(min_path=0.0)
    text = [1, 2, 3, 9, 1, 2]
    before = one(drafter, text, depth=1)
    for sequence in range(200):
        draft = one(drafter, text, depth=1, sequence_id=sequence)
        drafter.observe(sequence, draft, int(right))
        drafter.finish(sequence, text, 1, None)
    after = one(drafter, text, depth=1)
    assert before.confidence is not None
    assert after.confidence is not None
    if right:
        assert after.confidence[0] > max(0.9, before.confidence[0])
    else:
        assert after.confidence[0] < min(0.1, before.confidence[0])


@pytest.mark.parametrize("right", [True, False])
def test_confidence_of_trees_follows_the_history(right: bool) -> None:
    """A tree's accepted path is read off the next history: no feedback call is needed, and it counts once."""
    drafter = NgramDrafter()
    text = [1, 2, 3, 9, 1, 2]
    before = one(drafter, text, depth=2, nodes=6)
    for sequence in range(200):
        draft = one(drafter, text, depth=2, nodes=6, sequence_id=sequence)
        drafter.observe(sequence, draft, 2 if right else 0)
        drafter.finish(sequence, [*text, *([3, 9] if right else [600, 601])], 1, None)
    after = one(drafter, text, depth=2, nodes=6)
    assert before.confidence is not None
    assert after.confidence is not None
    assert (after.confidence[0] > before.confidence[0]) is right


def test_a_draft_that_was_given_up_comes_back() -> None:
    """What the drafter no longer proposes, it still watches: the floor must not be a trap."""
    drafter = NgramDrafter(min_path=0.3)
    text = [1, 2, 3, 9, 1, 2]
    for sequence in range(200):
        drafter.observe(sequence, one(drafter, text, depth=1, sequence_id=sequence), 0)
        drafter.finish(sequence, [*text, 600], 1, None)
    assert len(one(drafter, text, depth=1)) == 0
    for sequence in range(200):
        one(drafter, text, depth=1, sequence_id=sequence)
        drafter.finish(sequence, [*text, 3], 1, None)
    assert one(drafter, text, depth=1).tokens == (3,)


def test_calibration_is_per_tenant() -> None:
    drafter = NgramDrafter(min_path=0.0)
    text = [1, 2, 3, 9, 1, 2]
    before = one(drafter, text, depth=1, sequence_id=1000, tenant="b").confidence
    for sequence in range(100):
        draft = one(drafter, text, depth=1, sequence_id=sequence, tenant="a")
        drafter.observe(sequence, draft, 0)
    assert one(drafter, text, depth=1, sequence_id=1001, tenant="b").confidence == before
    assert one(drafter, text, depth=1, sequence_id=1002, tenant="a").confidence != before


def test_calibration_table() -> None:
    table = Calibration(prior=8.0, memory=100.0)
    where = cell(3, 0.5)
    assert table.confidence(where, 0.5) == 0.5
    for _ in range(1000):
        table.learn(where, True)
    assert table.confidence(where, 0.5) > 0.9
    assert table.observations <= 100
    for _ in range(200):
        table.learn(where, False)
    assert table.confidence(where, 0.5) < 0.2


@given(st.integers(0, 10_000), st.floats(0.0, 1.3))
def test_every_match_has_a_cell(length: int, probability: float) -> None:
    table = Calibration()
    assert 0.0 <= table.confidence(cell(length, probability), min(1.0, probability)) <= 1.0


@given(histories)
def test_the_blended_law_is_a_law(tokens: list[int]) -> None:
    automaton = SuffixAutomaton(tokens)
    blend = Blend(automaton)
    law: dict[int, float] = {}
    rest = blend.law(*automaton.suffix_state(), law)
    assert sum(law.values()) + rest == pytest.approx(1.0)
    blend.empty_context(law, rest)
    assert sum(law.values()) == pytest.approx(1.0 if tokens else 0.0)
    assert set(law) <= set(tokens)


def test_only_the_end_of_a_very_long_history_is_indexed() -> None:
    drafter = NgramDrafter(max_history=100)
    text: list[int] = []
    for block in range(40):
        text += [block * 7 % 13, *range(20, 40)]
        draft = one(drafter, text)
        assert draft.problem(VOCAB) is None
        assert drafter._sequences[1].index.size <= 125
    assert one(drafter, [*text, 20, 21], depth=2).tokens == (22, 23)


@pytest.mark.parametrize("kind", ["same", "random"])
def test_work_per_round_is_bounded(kind: str) -> None:
    """Counted in automaton steps: a round costs the new tokens, not the history."""
    rng = random.Random(5)
    text = [1 if kind == "same" else rng.randrange(100) for _ in range(20_000)]
    drafter = NgramDrafter(parts=PYTHON)
    one(drafter, text[:19_000])
    blend = drafter._sequences[1].index
    assert isinstance(blend, Blend)
    automaton = blend.automaton
    for at in range(19_000, 20_000, 4):
        before = automaton.work
        one(drafter, text[:at])
        assert drafter._sequences[1].index is blend
        assert automaton.work - before <= 4 * 200
    assert automaton.work <= 60 * 20_000


@pytest.mark.parametrize(
    "wrong",
    [
        {"match_cap": -1.0},
        {"min_path": 1.5},
        {"min_path": -0.1},
        {"tree_min_path": 2.0},
        {"max_history": 0},
        {"width": 0},
    ],
)
def test_parameters_are_checked(wrong: dict[str, float]) -> None:
    with pytest.raises(InvalidParameter, match=next(iter(wrong))):
        NgramDrafter(**wrong)  # type: ignore[arg-type]
