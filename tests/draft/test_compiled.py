"""The n-gram drafter's compiled parts draft what the Python ones do, to the bit."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headstart.decode.params import SamplingParams
from headstart.draft.base import DraftRequest
from headstart.draft.compiled.parts import CompiledParts, compiled_parts
from headstart.draft.grow import PYTHON
from headstart.draft.ngram import NgramDrafter
from headstart.draft.parts import Parts
from headstart.draft.recycle import Recycler
from headstart.draft.store import NgramStore
from headstart.errors import InvalidParameter

if compiled_parts() is None:
    pytest.skip("no C compiler on this machine", allow_module_level=True)

PARAMS = SamplingParams()
texts = st.lists(st.integers(0, 6), max_size=80)
told = st.lists(
    st.tuples(st.lists(st.integers(0, 6), max_size=3).map(tuple), st.lists(st.integers(0, 9), max_size=20).map(tuple)),
    max_size=20,
)
shapes = st.tuples(st.integers(1, 8), st.integers(0, 24))


def compiled() -> CompiledParts:
    parts = compiled_parts()
    assert parts is not None
    return parts


def drafter(parts: Parts, **options: object) -> NgramDrafter:
    store = NgramStore(max_tokens_per_tenant=400, parts=parts)
    recycler = Recycler(max_contexts=60, max_contexts_per_tenant=40, parts=parts)
    return NgramDrafter(store=store, recycler=recycler, parts=parts, **options)  # type: ignore[arg-type]


def both(**options: object) -> tuple[NgramDrafter, NgramDrafter]:
    return drafter(PYTHON, **options), drafter(compiled(), **options)


def same(pair: Sequence[NgramDrafter], tokens: list[int], depth: int, nodes: int, **changes: object) -> None:
    """Both make the same draft, and had the same cells in mind."""
    fields: dict[str, object] = {"sequence_id": 1, "prompt_length": 0, "params": PARAMS, "seed": 0} | changes
    request = DraftRequest(tokens=tokens, depth=depth, nodes=max(depth, nodes), **fields)  # type: ignore[arg-type]
    one, other = (each.propose([request])[0] for each in pair)
    assert (one.tokens, one.parents, one.confidence) == (other.tokens, other.parents, other.confidence)
    first, second = (each._sequences[request.sequence_id].pending for each in pair)
    assert (first and first.cells) == (second and second.cells)


@given(st.lists(texts, min_size=1, max_size=4), texts, told, shapes, st.floats(0.0, 0.4))
def test_drafts_are_the_same(
    finished: list[list[int]],
    tokens: list[int],
    rows: list[tuple[tuple[int, ...], tuple[int, ...]]],
    shape: tuple[int, int],
    least: float,
) -> None:
    pair = both(min_path=0.0, tree_min_path=0.01)
    for text in finished:
        for each in pair:
            each.finish(0, text, 0, None)
    same(pair, tokens, *shape)
    for each in pair:
        each.learn(1, rows)
    same(pair, tokens, *shape, least=least)
    same(pair, tokens + finished[0], *shape, least=least)


@pytest.mark.parametrize("words", [2, 8, 200])
def test_long_histories(words: int) -> None:
    """Crowded contexts, crowded roots, tables that overflow, stores that turn over, calibration that has seen much."""
    rng = random.Random(words)
    pair = both(match_cap=2.0, width=5)
    tokens: list[int] = []
    for step in range(400):
        sequence = step // 100
        if step % 100 == 0:
            tokens = []
        if tokens and rng.random() < 0.4:
            at = rng.randrange(len(tokens))
            tokens = tokens + tokens[at : at + rng.randrange(12)]
        else:
            tokens = [*tokens, *(rng.randrange(words) for _ in range(rng.randrange(1, 6)))]
        same(pair, tokens, rng.randrange(1, 9), rng.choice([0, 3, 16, 64]), sequence_id=sequence, tenant="t")
        rows = [
            (tuple(tokens[-rng.randrange(1, 3) :]), tuple(rng.sample(range(300), rng.randrange(1, 9))))
            for _ in range(5)
        ]
        for each in pair:
            each.learn(sequence, rows)
            if step % 100 == 99:
                each.finish(sequence, tokens, 0, "t")
    assert len(pair[0].recycler) == len(pair[1].recycler) == (6 if words == 2 else 40)


@pytest.mark.parametrize("text", [[3] * 3000, [*range(2000)], [*range(700), *range(700), 5, *range(700)]])
def test_odd_texts(text: list[int]) -> None:
    pair = both()
    for end in (1, 2, 3, len(text) // 2, len(text) - 1, len(text)):
        same(pair, text[:end], 8, 16)
        same(pair, text[:end], 8, 0)


def test_whoever_chooses_gets_the_compiled_ones() -> None:
    assert NgramDrafter().parts is compiled()
    assert NgramStore().parts is compiled()


@pytest.mark.parametrize("param", ["store", "recycler"])
def test_parts_of_two_kinds_do_not_mix(param: str) -> None:
    other = NgramStore(parts=PYTHON) if param == "store" else Recycler(parts=PYTHON)
    with pytest.raises(InvalidParameter, match=param):
        NgramDrafter(parts=compiled(), **{param: other})  # type: ignore[arg-type]


def test_without_a_compiler_drafts_are_grown_in_python(monkeypatch: pytest.MonkeyPatch) -> None:
    from headstart.draft import parts
    from headstart.draft.compiled import parts as module

    monkeypatch.setattr(module, "compiled_parts", lambda: None)
    assert parts.best_parts() is PYTHON
