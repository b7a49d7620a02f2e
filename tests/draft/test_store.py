"""The store across requests: bounded, useful, and never across tenants."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headstart.decode.draft import Draft
from headstart.decode.params import SamplingParams
from headstart.draft.base import DraftRequest
from headstart.draft.blend import Blend
from headstart.draft.grow import PYTHON
from headstart.draft.ngram import NgramDrafter
from headstart.draft.store import NgramStore
from headstart.errors import InvalidParameter


def draft_for(drafter: NgramDrafter, tokens: list[int], tenant: str | None, nodes: int = 4) -> Draft:
    request = DraftRequest(7, tokens, len(tokens), 4, nodes, SamplingParams(), 0, tenant)
    (draft,) = drafter.propose([request])
    drafter.finish(7, tokens, len(tokens), tenant)
    return draft


def test_a_finished_sequence_helps_the_next_of_its_tenant() -> None:
    drafter = NgramDrafter(store=NgramStore(), min_path=0.0)
    drafter.finish(1, [50, 51, 10, 11, 12, 13, 14], 2, "a")
    assert draft_for(drafter, [60, 10, 11], "a").tokens[:3] == (12, 13, 14)


def test_without_a_store_nothing_is_remembered() -> None:
    drafter = NgramDrafter()
    drafter.finish(1, [50, 51, 10, 11, 12, 13, 14], 2, "a")
    assert set(draft_for(drafter, [60, 10, 11], "a").tokens) <= {60, 10, 11}


def test_only_outputs_and_the_prompts_last_words_are_stored() -> None:
    store = NgramStore()
    NgramDrafter(store=store).finish(1, [*range(100), 7, 8, 9], 100, "a")
    assert store.tokens("a") == 4 + 3


def test_a_long_match_in_the_store_beats_a_short_local_one() -> None:
    drafter = NgramDrafter(store=NgramStore())
    phrase = [70, 71, 72, 73, 74, 75]
    drafter.finish(1, [1, *phrase, 80, 81], 1, None)
    assert draft_for(drafter, [75, 5, *phrase], None).tokens[:2] == (80, 81)


@given(
    st.lists(
        st.tuples(st.sampled_from(["a", "b", None]), st.lists(st.integers(0, 30), min_size=1, max_size=20)), max_size=12
    ),
    st.sampled_from(["a", "b", "c", None]),
    st.lists(st.integers(0, 30), min_size=1, max_size=10),
)
def test_a_tenant_never_sees_another_tenants_text(
    texts: list[tuple[str | None, list[int]]], asker: str | None, history: list[int]
) -> None:
    """Also with the same bounds hit by others: the answer is a function of the tenant's own texts."""
    shift = {"a": 0, "b": 100, None: 200, "c": 300}
    everyone = NgramDrafter(store=NgramStore())
    alone = NgramDrafter(store=NgramStore())
    mine = [token + shift[asker] for token in history]
    for tenant, text in texts:
        said = [token + shift[tenant] for token in text]
        everyone.finish(1, said, 0, tenant)
        if tenant == asker:
            alone.finish(1, said, 0, tenant)
        everyone.finish(2, [*mine, *said], len(mine), "eavesdropped" if tenant != asker else tenant)
        if tenant == asker:
            alone.finish(2, [*mine, *said], len(mine), tenant)
    found = draft_for(everyone, mine, asker, nodes=16)
    assert found.tokens == draft_for(alone, mine, asker, nodes=16).tokens
    assert all(shift[asker] <= token < shift[asker] + 100 for token in found.tokens)


def blends(store: NgramStore, tenant: str | None) -> list[Blend]:
    return [index for index in store.sources(tenant) if isinstance(index, Blend)]


@given(st.lists(st.tuples(st.sampled_from(["a", "b", "c", None]), st.integers(0, 60)), max_size=40))
def test_bounds(adds: list[tuple[str | None, int]]) -> None:
    store = NgramStore(max_tokens=100, max_tokens_per_tenant=40, parts=PYTHON)
    for tenant, length in adds:
        store.add(tenant, list(range(length)))
        assert len(store) <= 100
        assert len(store) == sum(store.tokens(t) for t in store.tenants)
        assert all(store.tokens(t) <= 40 for t in store.tenants)
        states = sum(blend.automaton.states for t in store.tenants for blend in blends(store, t))
        assert states <= 2 * 100 + 8
        if length:
            assert store.tokens(tenant) >= min(length, 20)


def test_the_oldest_texts_go_first() -> None:
    store = NgramStore(max_tokens=100, max_tokens_per_tenant=100, parts=PYTHON)
    for first in range(0, 1000, 10):
        store.add(None, list(range(first, first + 10)))
    held = [blend.automaton.match([990, 991])[1] for blend in blends(store, None)]
    assert max(held) == 2
    assert all(blend.automaton.match([0, 1])[1] == 0 for blend in blends(store, None))
    assert 50 <= store.tokens(None) <= 100


def test_the_tenant_used_least_recently_loses_first() -> None:
    store = NgramStore(max_tokens=30, max_tokens_per_tenant=30)
    store.add("a", list(range(10)))
    store.add("b", list(range(10)))
    store.sources("a")
    store.add("c", list(range(15)))
    assert set(store.tenants) == {"a", "c"}
    assert store.sources("b") == []


def test_a_text_longer_than_the_share_is_remembered_by_its_end() -> None:
    store = NgramStore(max_tokens=20, max_tokens_per_tenant=20, parts=PYTHON)
    store.add(None, list(range(100)))
    assert store.tokens(None) == 10
    assert blends(store, None)[0].automaton.match([98, 99])[1] == 2


def test_forget() -> None:
    store = NgramStore()
    store.add("a", [1, 2, 3])
    store.add("b", [1, 2, 3])
    store.forget("a")
    store.forget("nobody")
    assert (len(store), store.tenants) == (3, ("b",))


@pytest.mark.parametrize("wrong", [{"max_tokens": 0}, {"max_tokens_per_tenant": 1}])
def test_parameters_are_checked(wrong: dict[str, int]) -> None:
    with pytest.raises(InvalidParameter, match=next(iter(wrong))):
        NgramStore(**wrong)
