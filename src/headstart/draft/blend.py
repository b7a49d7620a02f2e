"""The next-token law of a match: contexts of every length blended, longest first.

Prediction by partial matching (Cleary & Witten 1984; escape method C, Moffat 1990) over the levels of a suffix
automaton. Each level spreads its mass over what followed that context, by count and recency, and hands the rest
(the escape) to the next shorter context. Method C trusts a long context that was always followed by the same token
far too little, so the escape shrinks with length. Knows automata and integers; proposes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import nlargest

from headstart.draft.automaton import ROOT_STATE, SuffixAutomaton

ESCAPE_BY_LENGTH = (1.0, 1.3, 1.0, 0.85, 0.7, 0.5, 0.5, 0.5, 0.3)
"""Factor on the escape by length of the context. Measured on SmolLM2-135M's greedy outputs: a token that followed a
context of 1, 2, 3, 4, 5 and 8+ tokens once, with no other, followed it again in 35, 52, 60, 67, 75 and 85 % of cases
(benchmarks/ngram_replay.py; even question ids)."""

RECENCY = 100.0
"""Age in tokens at which a continuation weighs half of what a new one weighs. Its main use is that of two equally
frequent continuations the newer one leads: 30, 100, 300 and no weighting differ by at most 0.3 % in tokens a round."""

FAN_OUT = 24
"""Continuations of one context that are looked at. Only the shortest contexts have more; theirs are ranked by count."""

FREQUENT = 24
"""Tokens that are proposed without context."""

STALE = 1.125
"""A ranking of more than ``FAN_OUT`` continuations is kept until the context's count has grown by this factor."""

FLOOR = 1e-3
"""Mass below which shorter contexts are not asked."""


def added(numbers: Iterable[float]) -> float:
    """Their sum from left to right, as compiled code adds; ``sum`` compensates from Python 3.12 on."""
    total = 0.0
    for number in numbers:
        total += number
    return total


class Blend:
    """Laws over one automaton (an ``Index``). Keeps rankings of crowded contexts, so it lives as long as that."""

    __slots__ = ("_frequent", "_ranked", "automaton")

    def __init__(self, automaton: SuffixAutomaton) -> None:
        self.automaton = automaton
        self._frequent: tuple[int, list[tuple[int, float]]] = (0, [])
        self._ranked: dict[int, tuple[float, list[tuple[int, int]]]] = {}

    @property
    def size(self) -> int:
        return self.automaton.size

    def extend(self, tokens: Iterable[int]) -> None:
        self.automaton.extend(tokens)

    def separate(self) -> None:
        self.automaton.separate()

    def law(self, state: int, length: int, law: dict[int, float], mass: float = 1.0) -> float:
        """Adds ``mass`` times the law after a match of ``length`` tokens at ``state`` to ``law``.

        ``law`` maps tokens to probabilities. The empty context is left out; returns the mass that escaped to it.
        """
        return self.levels(state, length, law, mass)[2]

    def levels(
        self, state: int, length: int, law: dict[int, float], mass: float, shortest: int = 1
    ) -> tuple[int, int, float]:
        """As `law`, over the contexts of at least ``shortest`` tokens; returns where to go on, and the mass left."""
        automaton = self.automaton
        edges, counts, recents = automaton.edges, automaton.counts, automaton.recents
        links, lengths = automaton.links, automaton.lengths
        now = automaton.size + RECENCY
        while length >= shortest and state > ROOT_STATE and mass > FLOOR:
            after = edges[state]
            if after:
                fan = len(after)
                scale = ESCAPE_BY_LENGTH[length] if length < 8 else ESCAPE_BY_LENGTH[8]
                if fan == 1:
                    ((token, child),) = after.items()
                    escape = scale / (counts[child] + 1)
                    law[token] = law.get(token, 0.0) + mass * (1.0 - escape)
                else:
                    items = after.items() if fan <= FAN_OUT else self._top(state)
                    total, seen = 0.0, 0
                    weights = []
                    for token, child in items:
                        count = counts[child]
                        seen += count
                        weight = count / (now - recents[child])
                        total += weight
                        weights.append((token, weight))
                    if fan > FAN_OUT:
                        seen = counts[state]
                    escape = min(0.95, scale * fan / (seen + fan))
                    share = mass * (1.0 - escape) / total
                    for token, weight in weights:
                        law[token] = law.get(token, 0.0) + share * weight
                mass *= escape
            state = links[state]
            length = lengths[state]
        return state, length, mass

    def empty_context(self, law: dict[int, float], mass: float) -> None:
        """Adds ``mass`` times the law without context, over the most frequent tokens, to ``law``."""
        automaton = self.automaton
        if not automaton.size:
            return
        if self._frequent[0] != automaton.size:
            counts, size = automaton.counts, automaton.size
            self._frequent = size, [(token, counts[child] / size) for token, child in self._top(ROOT_STATE)[:FREQUENT]]
        for token, probability in self._frequent[1]:
            law[token] = law.get(token, 0.0) + mass * probability

    def _top(self, state: int) -> list[tuple[int, int]]:
        """The ``FAN_OUT`` most frequent continuations ``(token, state after it)``, up to date within ``STALE``."""
        automaton = self.automaton
        count = automaton.counts[state]
        kept = self._ranked.get(state)
        if kept is not None and count <= kept[0]:
            return kept[1]
        counts, recents = automaton.counts, automaton.recents
        top = nlargest(FAN_OUT, automaton.edges[state].items(), key=lambda edge: (counts[edge[1]], recents[edge[1]]))
        self._ranked[state] = (count * STALE if len(automaton.edges[state]) > FAN_OUT else count, top)
        return top
