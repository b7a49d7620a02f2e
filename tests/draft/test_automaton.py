"""The match index against brute force, and its work and memory on the worst texts."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headstart.draft.automaton import REFRESH_LIMIT, ROOT_STATE, SuffixAutomaton

texts = st.lists(st.integers(0, 3), max_size=40)


def occurrences(text: list[int], context: list[int]) -> list[int]:
    """Index of the last token of every occurrence of ``context``."""
    n = len(context)
    return [i + n - 1 for i in range(len(text) - n + 1) if text[i : i + n] == context]


def longest_earlier_suffix(text: list[int]) -> list[int]:
    for n in range(len(text) - 1, 0, -1):
        if len(occurrences(text, text[-n:])) > 1:
            return text[-n:]
    return []


@given(texts)
def test_longest_suffix_that_occurred_earlier(text: list[int]) -> None:
    _, length = SuffixAutomaton(text).suffix_state()
    assert length == len(longest_earlier_suffix(text))


@given(texts)
def test_counts_and_recency_of_every_level(text: list[int]) -> None:
    automaton = SuffixAutomaton(text, refresh_limit=1000)
    state, length = automaton.suffix_state()
    for level in automaton.levels(state):
        context = text[len(text) - min(length, automaton.lengths[level]) :]
        ends = occurrences(text, context) if context else list(range(len(text)))
        assert automaton.counts[level] == len(ends)
        if ends:
            assert automaton.recents[level] == ends[-1]


@given(texts)
def test_continuations_are_those_of_brute_force(text: list[int]) -> None:
    automaton = SuffixAutomaton(text, refresh_limit=1000)
    state, length = automaton.suffix_state()
    context = text[len(text) - length :]
    starts = [i + 1 for i in occurrences(text, context)] if context else list(range(len(text)))
    expected: dict[int, tuple[int, int]] = {}
    for i in starts:
        if i < len(text):
            expected[text[i]] = (expected.get(text[i], (0, 0))[0] + 1, i)
    found = {token: (count, recent) for token, count, recent in automaton.continuations(state)}
    assert found == expected
    if expected and context:
        newest = max(found, key=lambda token: found[token][1])
        assert newest == text[occurrences(text, context)[-2] + 1]


@given(texts, texts)
def test_match_of_another_text(text: list[int], other: list[int]) -> None:
    automaton = SuffixAutomaton(text)
    state, length = automaton.match(other)
    expected = next((n for n in range(len(other), 0, -1) if occurrences(text, other[-n:])), 0)
    assert length == expected
    assert automaton.lengths[state] >= length
    assert length == 0 or automaton.lengths[automaton.links[state]] < length


@given(st.lists(texts, max_size=4), texts)
def test_separate_texts_do_not_run_into_each_other(several: list[list[int]], other: list[int]) -> None:
    automaton = SuffixAutomaton(refresh_limit=1000)
    for text in several:
        automaton.separate()
        automaton.extend(text)
    assert automaton.size == sum(map(len, several))
    state, length = automaton.match(other)
    expected = next((n for n in range(len(other), 0, -1) if any(occurrences(t, other[-n:]) for t in several)), 0)
    assert length == expected
    if length:
        assert automaton.counts[state] == sum(len(occurrences(t, other[-length:])) for t in several)


@given(texts)
def test_state_and_edge_bounds(text: list[int]) -> None:
    automaton = SuffixAutomaton(text)
    assert automaton.states <= 2 * len(text) + 1
    assert sum(map(len, automaton.edges)) <= 3 * len(text) + 1


def worst_cases() -> dict[str, list[int]]:
    rng = random.Random(7)
    fibonacci, previous = [0, 1], [0]
    while len(fibonacci) < 20_000:
        fibonacci, previous = fibonacci + previous, fibonacci
    paragraph = [rng.randrange(500) for _ in range(400)]
    return {
        "one token": [5] * 20_000,
        "two tokens": [0, 1] * 10_000,
        "then another": [0] * 10_000 + [1] + [0] * 9_999,
        "fibonacci": fibonacci[:20_000],
        "random, small vocabulary": [rng.randrange(4) for _ in range(20_000)],
        "random, large vocabulary": [rng.randrange(50_000) for _ in range(20_000)],
        "a paragraph again and again": paragraph * 50,
    }


@pytest.mark.parametrize("name", worst_cases())
def test_work_and_memory_are_linear(name: str) -> None:
    text = worst_cases()[name]
    automaton = SuffixAutomaton()
    most = 0
    for token in text:
        before = automaton.work
        automaton.append(token)
        most = max(most, automaton.work - before)
    assert automaton.work <= (REFRESH_LIMIT + 8) * len(text)
    assert automaton.states <= 2 * len(text)
    assert sum(map(len, automaton.edges)) <= 3 * len(text)


@settings(max_examples=50)
@given(texts, st.integers(1, 8))
def test_a_small_refresh_limit_never_invents(text: list[int], limit: int) -> None:
    exact = SuffixAutomaton(text, refresh_limit=1000)
    lagging = SuffixAutomaton(text, refresh_limit=limit)
    assert lagging.suffix_state() == exact.suffix_state()
    for state in range(1, lagging.states):
        assert 1 <= lagging.counts[state] <= exact.counts[state]
        assert 0 <= lagging.recents[state] <= exact.recents[state]


def test_the_empty_text() -> None:
    automaton = SuffixAutomaton()
    assert len(automaton) == 0
    assert automaton.suffix_state() == (ROOT_STATE, 0)
    assert automaton.match([]) == (ROOT_STATE, 0)
    assert automaton.match([1, 2]) == (ROOT_STATE, 0)
    assert list(automaton.continuations(ROOT_STATE)) == []
