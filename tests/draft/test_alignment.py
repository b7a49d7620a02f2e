"""Where an output stands in its prediction: along it, after edits of every kind, and lost."""

from __future__ import annotations

import difflib
import random
from collections.abc import Sequence

import pytest

from headstart.draft.alignment import Alignment, Prediction, count_foretold

TEXT = list(range(100, 160))


def after(prediction: Sequence[int], output: Sequence[int]) -> Alignment:
    alignment = Alignment(Prediction(prediction))
    alignment.extend(output)
    return alignment


def edited(text: Sequence[int], rate: float, generator: random.Random) -> list[int]:
    """A part ``rate`` of the tokens replaced, preceded by something new, or left out with up to four that follow."""
    out: list[int] = []
    i = 0
    while i < len(text):
        chance = generator.random() / rate if rate else 1.0
        if chance < 1 / 3:
            out.append(generator.randrange(1000))
        elif chance < 2 / 3:
            out += [generator.randrange(1000) for _ in range(generator.randint(1, 4))]
            continue
        elif chance < 1:
            i += generator.randint(0, 4)
        else:
            out.append(text[i])
        i += 1
    return out


def test_it_starts_at_the_beginning_and_goes_along() -> None:
    alignment = after(TEXT, [])
    assert (alignment.places, alignment.run) == ((0,), 0)
    for i in range(1, len(TEXT) + 1):
        alignment.append(TEXT[i - 1])
        assert alignment.places == (i,)
        assert alignment.run == min(i, 32)
    assert alignment.foretold == len(TEXT)
    alignment.append(7)  # beyond the end
    assert alignment.foretold == len(TEXT)


@pytest.mark.parametrize(
    ("output", "place"),
    [
        ([*TEXT[:9], 1], 10),  # a token replaced: at once
        ([*TEXT[:9], 1, TEXT[10]], 11),
        ([*TEXT[:9], 1, 2, TEXT[10]], 11),  # by two
        ([*TEXT[:9], 1, 2, TEXT[11]], 12),  # two by two
        ([*TEXT[:9], 1, TEXT[9]], 10),  # one inserted
        ([*TEXT[:9], 1, 2, TEXT[9]], 10),
        ([*TEXT[:9], *range(10), TEXT[9]], 10),  # many inserted
        ([*TEXT[:9], TEXT[13]], 14),  # four left out
        ([*TEXT[:9], TEXT[40], TEXT[41]], 42),  # a paragraph left out: two tokens tell
        ([*TEXT[:30], TEXT[2], TEXT[3]], 4),  # back to an earlier one
        ([1, 2, 3, 4, 5, 6, 7, TEXT[0]], 1),  # an introduction
        ([*TEXT, *TEXT[:2]], 2),  # once more from the beginning
    ],
)
def test_it_finds_back(output: list[int], place: int) -> None:
    assert after(TEXT, output).places[0] == place


def test_right_after_a_difference_every_simple_edit_is_thinkable() -> None:
    assert set(after(TEXT, [*TEXT[:9], 1]).places) == {9, 10}
    assert set(after(TEXT, [*TEXT[:9], 1, 2]).places) == {9, 10, 11}
    assert after(TEXT, [*TEXT[:9], 1]).run == 0


def test_where_it_is_lost_it_says_so() -> None:
    assert after(TEXT, [*TEXT[:9], 1, 2, 3, 4]).places == ()
    assert after(TEXT, [1, 2, 3, 4, TEXT[40]]).places == ()  # one far token says nothing


def test_of_equal_matches_the_next_one_counts() -> None:
    text = [1, 2, 3, 9, 1, 2, 4, 9, 1, 2, 5, 9, 1, 2, 6]
    assert after(text, [1, 2, 3, 9, 70, 71, 72, 73, 1, 2]).places[0] == 6
    assert after(text, [1, 2, 3, 9, 1, 2, 4, 9, 70, 71, 72, 73, 1, 2]).places[0] == 10


def test_more_context_wins_over_a_guess() -> None:
    text = [*range(10), 50, 51, 52, 53, 54, *range(20, 30), 5, 60, 61]
    # after the edit the guess goes on at 7, but the last four words are those of another place
    output = [*range(6), 51, 52, 53, 54]
    assert after(text, output).places[0] == 15


@pytest.mark.parametrize(("rate", "share"), [(0.0, 1.0), (0.02, 0.95), (0.1, 0.85), (0.3, 0.6)])
def test_most_of_an_edited_text_is_foretold(rate: float, share: float) -> None:
    """Against the longest common blocks; the first token after an edit is often lost."""
    generator = random.Random(5)
    words = [int(generator.paretovariate(0.8)) % 1000 for _ in range(1500)]
    output = edited(words, rate, generator)
    common = difflib.SequenceMatcher(None, words, output, autojunk=False).get_matching_blocks()
    foretold = count_foretold(Prediction(words), output)
    assert foretold <= min(len(words), len(output))
    assert foretold >= share * sum(block.size for block in common)


def test_an_unrelated_output_is_hardly_ever_foretold() -> None:
    generator = random.Random(6)
    words, others = ([generator.randrange(5000) for _ in range(1000)] for _ in range(2))
    assert count_foretold(Prediction(words), others) < 10


def test_tokens_count_once_and_repetition_does_no_harm() -> None:
    same = [7] * 300
    assert count_foretold(Prediction(same), [7] * 1000) == 300
    assert count_foretold(Prediction(same), [7] * 100) == 100
    assert count_foretold(Prediction([7] * 50 + [8]), [7] * 400 + [8]) <= 51
    assert count_foretold(Prediction([1]), []) == 0


def test_it_is_a_function_of_the_texts_alone() -> None:
    generator = random.Random(7)
    words = [generator.randrange(30) for _ in range(400)]
    output = edited(words, 0.1, generator)
    shared = Prediction(words)
    whole, piecewise = Alignment(shared), Alignment(Prediction(words))
    whole.extend(output)
    while len(piecewise.output) < len(output):
        at = len(piecewise.output)
        piecewise.extend(output[at : at + generator.randint(1, 9)])
    assert (whole.places, whole.run, whole.foretold) == (piecewise.places, piecewise.run, piecewise.foretold)
