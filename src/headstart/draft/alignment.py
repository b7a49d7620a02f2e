"""Where an output stands in a text that was predicted for it, followed token by token.

While the output says what was predicted, the place moves along. After a difference several places are thinkable: one
token replaced by any number, something inserted, or wherever the output's last words occur in the text; the longest
such match decides, the one nearest to where the output left the text. A function of the two texts alone. Knows
integers; proposes nothing.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence

from headstart.draft.automaton import ROOT_STATE, SuffixAutomaton

LONGEST = 32
"""Tokens of a match that are compared; longer ones count as this long."""

NEAR = 16
"""A single token that matches says something only so many tokens after the place where the output left the text."""

SHORT_EDIT = 3
"""Tokens without agreement after which a place is no longer guessed from where the output left the text."""

LOOKED_AT = 64
"""Occurrences of a token, the nearest ones, that are compared to find the best place."""


class Prediction:
    """A predicted text, and an index of it that is made when an output first differs from it. Shared by all sequences
    of a request."""

    __slots__ = ("_automaton", "_ends", "tokens")

    def __init__(self, tokens: Iterable[int]) -> None:
        self.tokens = tuple(tokens)
        self._automaton: SuffixAutomaton | None = None
        self._ends: dict[int, list[int]] = {}

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def automaton(self) -> SuffixAutomaton:
        """The match index over the whole text."""
        if self._automaton is None:
            ends: dict[int, list[int]] = {}
            for index, token in enumerate(self.tokens):
                ends.setdefault(token, []).append(index)
            self._ends = ends
            self._automaton = SuffixAutomaton(self.tokens)
        return self._automaton

    def after(self, context: Sequence[int], length: int, anchor: int) -> int | None:
        """The index after the occurrence of ``context[-length:]`` that is best to go on from: the first that ends at or
        after ``anchor``, else the last before it. ``None`` if there is none among the occurrences looked at."""
        tokens, wanted = self.tokens, tuple(context[-length:])
        ends = self._ends.get(wanted[-1], [])
        middle = bisect_left(ends, anchor)
        ahead, behind = ends[middle : middle + LOOKED_AT], ends[max(0, middle - LOOKED_AT) : middle]
        for end in (*ahead, *reversed(behind)):
            if end + 1 >= length and tokens[end + 1 - length : end + 1] == wanted:
                return end + 1
        return None


class Alignment:
    """One output in one prediction.

    ``places`` are indices of the prediction where the output may go on, the likeliest first; ``run`` is how many tokens
    before the first of them agree, 0 if it is a guess or the beginning.
    """

    __slots__ = ("_anchor", "_foretold", "_length", "_lost", "_output", "_state", "places", "prediction", "run")

    def __init__(self, prediction: Prediction) -> None:
        self.prediction = prediction
        self.places: tuple[int, ...] = (0,)
        self.run = 0
        self._output: list[int] = []
        self._anchor = 0
        """Index after the last token that was as predicted."""
        self._lost = 0
        """Tokens since then."""
        self._state: int | None = None
        self._length = 0
        """Longest match of the output's end; kept up since the first difference."""
        self._foretold = bytearray(len(prediction))

    @property
    def output(self) -> list[int]:
        """The output so far, not to be changed."""
        return self._output

    @property
    def foretold(self) -> int:
        """How many tokens of the prediction the output has said at their place."""
        return sum(self._foretold)

    def extend(self, tokens: Iterable[int]) -> None:
        """The output goes on."""
        for token in tokens:
            self.append(token)

    def append(self, token: int) -> None:
        """One more token of the output."""
        text = self.prediction.tokens
        self._output.append(token)
        hit = next((place for place in self.places if place < len(text) and text[place] == token), None)
        if self._state is not None:
            self._state, self._length = self.prediction.automaton.step(self._state, self._length, token)
        if hit is not None:
            self._foretold[hit] = 1
            self._anchor, self._lost = hit + 1, 0
            followed = self.run > 0 and hit == self.places[0]
            self.run = min(self.run + 1, LONGEST) if followed else self._agreement(hit + 1)
            self.places = (hit + 1,)
            if min(self._length, LONGEST) > self.run:  # the output's last words occur elsewhere, with more before them
                self._look(keep=hit + 1)
            return
        self._lost += 1
        self.run = 0
        if self._state is None:
            self._state, self._length = self.prediction.automaton.match(self._output[-LONGEST:])
        guesses = []
        if self._lost <= SHORT_EDIT:
            replaced, inserted = self._anchor + 1, self._anchor
            guesses = [replaced, *([self._anchor + self._lost] if self._lost > 1 else []), inserted]
        self.places = tuple(guesses)
        self._look(keep=None)

    def _look(self, keep: int | None) -> None:
        """Put the place after the longest match in front, if it is to be believed."""
        length = min(self._length, LONGEST)
        if self._state is None or self._state == ROOT_STATE or not length:
            return
        found = self.prediction.after(self._output, length, self._anchor)
        if found is None or (length == 1 and not self._anchor < found <= self._anchor + NEAR):
            return
        if keep is None or found != keep:
            self.places = (found, *(place for place in self.places if place != found))[:3]
            self.run = length

    def _agreement(self, place: int) -> int:
        """How many tokens before ``place`` are the output's last ones, up to ``LONGEST``."""
        text, output = self.prediction.tokens, self._output
        most = min(LONGEST, place, len(output))
        return next((i for i in range(most) if text[place - 1 - i] != output[-1 - i]), most)


def count_foretold(prediction: Prediction, output: Iterable[int]) -> int:
    """How many tokens of ``prediction`` an output says at their place, each counted once."""
    alignment = Alignment(prediction)
    alignment.extend(output)
    return alignment.foretold
