"""The prediction drafter: chains along the prediction, branches after a difference, silence when lost."""

from __future__ import annotations

import pytest

from headstart.decode.draft import EMPTY, ROOT, Draft
from headstart.decode.params import SamplingParams
from headstart.draft.alignment import Prediction
from headstart.draft.base import Drafter, DraftRequest
from headstart.draft.prediction import PredictionDrafter, confidence

PROMPT = [1, 2, 3]
TEXT = list(range(100, 160))
PREDICTION = Prediction(TEXT)


def ask(
    output: list[int], depth: int = 6, nodes: int | None = None, prediction: Prediction | None = PREDICTION
) -> DraftRequest:
    nodes = depth if nodes is None else nodes
    return DraftRequest(0, [*PROMPT, *output], 3, depth, nodes, SamplingParams(), 9, prediction=prediction)


def say(drafter: PredictionDrafter, *of: object, **more: object) -> Draft:
    draft = drafter.propose([ask(*of, **more)])[0]  # type: ignore[arg-type]
    assert draft.problem(1000) is None
    return draft


def test_it_goes_along_and_ends_with_the_text() -> None:
    drafter = PredictionDrafter()
    assert isinstance(drafter, Drafter)
    assert say(drafter, []).tokens == tuple(TEXT[:6])
    assert say(drafter, TEXT[:7], 15, 16).tokens == tuple(TEXT[7:22])
    assert say(drafter, TEXT[:57]).tokens == tuple(TEXT[57:])
    assert say(drafter, TEXT) == EMPTY
    assert say(drafter, [], prediction=None) == EMPTY


def test_branches_after_a_difference_where_a_tree_is_wanted() -> None:
    drafter = PredictionDrafter()
    output = [*TEXT[:9], 1]
    assert say(drafter, output).tokens == tuple(TEXT[10:16])  # a chain: as if one was replaced
    draft = say(drafter, output, 8, 16)
    roots = [draft.tokens[i] for i in range(len(draft)) if draft.parent(i) == ROOT]
    assert roots == [TEXT[10], TEXT[9]]
    assert draft.principal_chain().tokens == tuple(TEXT[10:18])
    assert len(draft) <= 16
    small = say(drafter, output, 2, 3)
    assert (len(small), max(small.depths())) == (3, 2)


def test_places_with_one_token_share_it() -> None:
    text = Prediction([5, 6, 6, 7, 8])
    draft = say(PredictionDrafter(), [5, 9], 3, 8, text)  # replaced or inserted: 6 either way
    assert [draft.parent(i) for i in range(len(draft))].count(ROOT) == 1


def test_lost_means_silent() -> None:
    drafter = PredictionDrafter()
    assert say(drafter, [*TEXT[:9], 1, 2, 3, 4]) == EMPTY
    assert say(drafter, [*TEXT[:9], 1, 2, 3, 4, TEXT[9]]).tokens == tuple(TEXT[10:16])


def test_confidence_grows_with_agreement() -> None:
    assert [confidence(i) for i in range(40)] == sorted(confidence(i) for i in range(40))
    drafter = PredictionDrafter()
    early, late = say(drafter, TEXT[:1]).confidence, say(drafter, TEXT[:30]).confidence
    assert early is not None
    assert late is not None
    assert early == tuple(sorted(early))
    assert all(0 < a < b < 1 for a, b in zip(early, late, strict=True))
    tree = say(drafter, [*TEXT[:30], 1], 8, 16)
    assert tree.confidence is not None
    roots = [tree.confidence[i] for i in range(len(tree)) if tree.parent(i) == ROOT]
    assert roots == sorted(roots, reverse=True)
    assert sum(roots) < 1


@pytest.mark.parametrize("history", [TEXT[:20], TEXT[:24], TEXT[:10], [*TEXT[:8], 1], TEXT[:50], TEXT[:1], []])
def test_histories_that_grow_shrink_and_are_rewritten(history: list[int]) -> None:
    drafter = PredictionDrafter()
    say(drafter, [*TEXT[:12], 4])
    assert say(drafter, history) == say(PredictionDrafter(), history)
    drafter.finish(0, [*PROMPT, *history], 3, None)
    drafter.finish(0, [*PROMPT, *history], 3, None)
    assert not drafter._alignments


def test_sequences_of_one_request_share_the_index() -> None:
    prediction = Prediction(TEXT)
    drafter = PredictionDrafter()
    requests = [
        DraftRequest(i, [*PROMPT, *TEXT[:5], 900 + i], 3, 4, 4, SamplingParams(), 9, prediction=prediction)
        for i in range(3)
    ]
    assert [d.tokens for d in drafter.propose(requests)] == [tuple(TEXT[6:10])] * 3
    assert prediction.automaton is prediction.automaton
