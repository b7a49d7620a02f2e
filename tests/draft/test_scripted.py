"""The scripted drafters do exactly what they say, so that tests built on them mean something."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from headstart.decode.draft import ROOT, Draft
from headstart.decode.params import SamplingParams
from headstart.draft.base import Drafter, DraftRequest
from headstart.draft.scripted import (
    EosDrafter,
    OracleDrafter,
    OutOfVocabularyDrafter,
    RaisingDrafter,
    Scripted,
    TooLongDrafter,
    TreeOracleDrafter,
    WrongDrafter,
    uniform,
    wrong_token,
)
from headstart.errors import DrafterFailed, InvalidParameter

PROMPT = (1, 2, 3)
OUTPUT = tuple(range(10, 60))
SCRIPT = {PROMPT: OUTPUT}
VOCAB = 64


def ask(done: int = 0, depth: int = 4, nodes: int | None = None, sequence: int = 0) -> DraftRequest:
    tokens = [*PROMPT, *OUTPUT[:done]]
    return DraftRequest(sequence, tokens, len(PROMPT), depth, depth if nodes is None else nodes, SamplingParams(), 0)


def one(drafter: Drafter, request: DraftRequest) -> Draft:
    (draft,) = drafter.propose([request])
    return draft


def accepted(draft: Draft, truth: Sequence[int]) -> int:
    node, count = ROOT, 0
    for true in truth:
        found = [i for i in range(len(draft)) if draft.parent(i) == node and draft.tokens[i] == true]
        if not found:
            break
        node, count = found[0], count + 1
    return count


EVERY: list[Drafter] = [
    OracleDrafter(SCRIPT),
    TreeOracleDrafter(SCRIPT),
    WrongDrafter(),
    EosDrafter(2),
    OutOfVocabularyDrafter(),
    TooLongDrafter(),
    RaisingDrafter(),
]


@pytest.mark.parametrize("drafter", EVERY, ids=lambda drafter: drafter.name)
def test_speaks_the_protocol(drafter: Drafter) -> None:
    assert isinstance(drafter, Drafter)
    drafter.observe(5, Draft((1,)), 0)
    drafter.finish(5, [1], 0, None)
    assert isinstance(drafter, Scripted)
    assert drafter.observed[-1] == (5, Draft((1,)), 0)
    assert drafter.finished[-1] == 5


@pytest.mark.parametrize("done", [0, 1, 47, 50])
def test_the_oracle_is_right(done: int) -> None:
    draft = one(OracleDrafter(SCRIPT), ask(done))
    assert draft.tokens == OUTPUT[done : done + 4]
    assert draft.confidence == (1.0,) * len(draft)


def test_the_oracle_takes_a_function_and_knows_nothing_of_other_prompts() -> None:
    counting = OracleDrafter(lambda history, count: [history[-1] + i + 1 for i in range(count + 3)])
    assert one(counting, ask(1)).tokens == (11, 12, 13, 14)
    assert one(OracleDrafter({}), ask()).tokens == ()


@pytest.mark.parametrize("acceptance", [0.0, 0.3, 0.8])
def test_the_oracle_errs_at_the_rate_it_was_given(acceptance: float) -> None:
    drafter = OracleDrafter(SCRIPT, acceptance, seed=3)
    tokens = [token for s in range(200) for token in one(drafter, ask(0, 50, sequence=s)).tokens]
    right = sum(token == true for token, true in zip(tokens, OUTPUT * 200, strict=True))
    assert right / len(tokens) == pytest.approx(acceptance, abs=0.02)
    assert all(0 <= token < VOCAB for token in tokens)


def test_the_oracle_errs_by_position_not_by_call() -> None:
    drafter = OracleDrafter(SCRIPT, 0.5, seed=1)
    whole = one(drafter, ask(0, 50)).tokens
    assert one(drafter, ask(10, 8)).tokens == whole[10:18]
    assert one(OracleDrafter(SCRIPT, 0.5, seed=2), ask(0, 50)).tokens != whole


@pytest.mark.parametrize("nodes", [1, 3, 4, 5, 9, 30])
def test_the_tree_hides_the_truth(nodes: int) -> None:
    drafter = TreeOracleDrafter(SCRIPT, width=3, seed=4)
    for done in range(40):
        draft = one(drafter, ask(done, 4, nodes))
        assert draft.problem(VOCAB) is None
        assert len(draft) <= nodes
        assert max(draft.depths()) <= 4
        assert accepted(draft, OUTPUT[done:]) == min(4, nodes)
        if nodes >= 9:
            assert not draft.is_chain


def test_the_true_child_is_not_always_first() -> None:
    drafter = TreeOracleDrafter(SCRIPT, width=3, seed=4)
    places = {one(drafter, ask(done, 4, 20)).tokens[:3].index(OUTPUT[done]) for done in range(40)}
    assert places == {0, 1, 2}


def test_the_tree_errs_too() -> None:
    drafter = TreeOracleDrafter(SCRIPT, width=3, acceptance=0.0)
    assert all(accepted(one(drafter, ask(done, 4, 20)), OUTPUT[done:]) == 0 for done in range(40))


def test_the_tree_needs_few_tokens() -> None:
    draft = one(TreeOracleDrafter({(0,): (0, 0, 0)}, width=2), DraftRequest(0, [0], 1, 3, 9, SamplingParams(), 0))
    assert draft.problem(3) is None


def test_wrong_is_wrong() -> None:
    for done in range(45):
        draft = one(WrongDrafter(SCRIPT), ask(done))
        assert len(draft) == 4
        assert all(token != true for token, true in zip(draft.tokens, OUTPUT[done:], strict=False))
        assert draft.problem(VOCAB) is None
    assert one(WrongDrafter(token=9), ask()).tokens == (9,) * 4


def test_contract_breakers() -> None:
    assert one(EosDrafter(2), ask()).tokens == (2,) * 4
    assert all(one(OutOfVocabularyDrafter(), ask(done, 1)).problem(10**9) is not None for done in range(4))
    long = one(TooLongDrafter(SCRIPT, extra=3), ask())
    assert long.tokens == OUTPUT[:7]
    assert len(one(TooLongDrafter(), ask())) == 12


def test_raising() -> None:
    with pytest.raises(DrafterFailed):
        RaisingDrafter().propose([ask()])
    drafter = RaisingDrafter(every=3, inner=OracleDrafter(SCRIPT), error=ValueError("on purpose"))
    for call in range(1, 10):
        if call % 3 == 0:
            with pytest.raises(ValueError, match="on purpose"):
                drafter.propose([ask()])
        else:
            assert one(drafter, ask()).tokens == OUTPUT[:4]
    drafter.observe(0, Draft((1,)), 1)
    assert isinstance(drafter.inner, OracleDrafter)
    assert drafter.inner.observed == drafter.observed


def test_random_numbers_and_wrong_tokens() -> None:
    draws = [uniform(1, i) for i in range(2000)]
    assert all(0.0 <= draw < 1.0 for draw in draws)
    assert sum(draws) / len(draws) == pytest.approx(0.5, abs=0.02)
    assert len(set(draws)) == len(draws)
    assert all(wrong_token(t) != t and 0 <= wrong_token(t) < max(2, t + 1) for t in range(100))


@pytest.mark.parametrize(
    ("make", "param"),
    [
        (lambda: OracleDrafter({}, 1.5), "acceptance"),
        (lambda: TreeOracleDrafter({}, width=0), "width"),
        (lambda: RaisingDrafter(every=0), "every"),
    ],
)
def test_parameters_are_checked(make: object, param: str) -> None:
    assert callable(make)
    with pytest.raises(InvalidParameter, match=param):
        make()
