"""The match index over one growing history: which earlier contexts end like this one, and what followed them.

A suffix automaton (Blumer et al. 1985, "The smallest automaton recognizing the subwords of a text") kept online,
with the number and the most recent place of every context's occurrences. Where the history's own end is concerned,
the longest suffix that occurred before is simply one suffix link away, and following links further up is the backoff
to shorter contexts, visiting only contexts with different statistics.

Knows integers and nothing else: not what a token means, not what is proposed from a match.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

ROOT_STATE = 0
"""The state of the empty context."""

REFRESH_LIMIT = 32
"""Suffix links followed per appended token to refresh counts and recency.

On ordinary text fewer than a dozen links lead to the root and statistics are exact. On ``aaaa...`` the path is as long
as the history, and an exact refresh would cost O(n) per token; the shortest contexts, which by then have been counted
dozens of times, are left behind instead.
"""

NO_TOKEN = -1
"""A separator for :meth:`SuffixAutomaton.append`: matches nothing, so no context runs across it."""


class SuffixAutomaton:
    """Suffix automaton with occurrence statistics; amortised O(1) work per token, at most 2n states and 3n edges.

    ``counts`` and ``recents`` (index of the last token of the most recent occurrence) are exact for every context that
    is within ``refresh_limit`` (at least 1) suffix links of each of its occurrences' ends, and otherwise lag behind.
    Several texts may be indexed one after the other, with :meth:`separate` between them (a generalised automaton).
    """

    __slots__ = ("counts", "edges", "last", "lengths", "links", "recents", "refresh_limit", "size", "work")

    def __init__(self, tokens: Iterable[int] = (), refresh_limit: int = REFRESH_LIMIT) -> None:
        self.edges: list[dict[int, int]] = [{}]
        self.links: list[int] = [-1]
        self.lengths: list[int] = [0]
        self.counts: list[int] = [0]
        self.recents: list[int] = [-1]
        self.refresh_limit = max(1, refresh_limit)
        self.last = ROOT_STATE
        self.size = 0
        """Tokens appended, separators not counted."""
        self.work = 0
        """Elementary steps so far (links followed, edges written or copied), for tests of the amortised bound."""
        self.extend(tokens)

    def __len__(self) -> int:
        return self.size

    @property
    def states(self) -> int:
        return len(self.edges)

    def extend(self, tokens: Iterable[int]) -> None:
        for token in tokens:
            self.append(token)

    def separate(self) -> None:
        """Starts another text: no context will span the two."""
        self.last = ROOT_STATE

    def append(self, token: int) -> None:
        """Indexes one more token of the current text."""
        edges, links, lengths = self.edges, self.links, self.lengths
        counts, recents = self.counts, self.recents
        end = self.size
        self.size += 1
        counts[ROOT_STATE] += 1
        recents[ROOT_STATE] = end
        steps = 1

        # After `separate`, the new text may retrace an edge that exists already: then there is no state to add.
        known = edges[self.last].get(token)
        if known is not None:
            if lengths[known] == lengths[self.last] + 1:
                state = known
            else:
                state, extra = self._clone(self.last, token, known)
                steps += extra
        else:
            state = len(edges)
            edges.append({})
            lengths.append(lengths[self.last] + 1)
            links.append(ROOT_STATE)
            counts.append(0)
            recents.append(end)
            walk = self.last
            while walk != -1 and token not in edges[walk]:
                edges[walk][token] = state
                walk = links[walk]
                steps += 1
            if walk != -1:
                known = edges[walk][token]
                if lengths[known] != lengths[walk] + 1:
                    known, extra = self._clone(walk, token, known)
                    steps += extra
                links[state] = known
        self.last = state

        walk, left = state, self.refresh_limit + 1
        while walk > ROOT_STATE and left:
            counts[walk] += 1
            recents[walk] = end
            walk = links[walk]
            left -= 1
        self.work += steps + self.refresh_limit + 1 - left

    def _clone(self, walk: int, token: int, original: int) -> tuple[int, int]:
        """Splits the shorter contexts off ``original``; returns the new state and the steps taken."""
        edges, links = self.edges, self.links
        state = len(edges)
        edges.append(dict(edges[original]))
        links.append(links[original])
        self.lengths.append(self.lengths[walk] + 1)
        self.counts.append(self.counts[original])
        self.recents.append(self.recents[original])
        links[original] = state
        steps = len(edges[state])
        while walk != -1 and edges[walk].get(token) == original:
            edges[walk][token] = state
            walk = links[walk]
            steps += 1
        return state, steps

    def suffix_state(self) -> tuple[int, int]:
        """State and length of the longest suffix of the current text that also occurred earlier.

        In a single text that is the suffix link of the last state (every longer suffix occurs once, at the end).
        """
        state = self.last
        while state > ROOT_STATE and self.counts[state] <= 1:
            state = self.links[state]
        return state, self.lengths[state]

    def match(self, tokens: Sequence[int]) -> tuple[int, int]:
        """State and length of the longest suffix of ``tokens`` that occurs in what was indexed."""
        state, length = ROOT_STATE, 0
        for token in tokens:
            state, length = self.step(state, length, token)
        return state, length

    def step(self, state: int, length: int, token: int) -> tuple[int, int]:
        """The longest match after one more token, given the longest match before it."""
        edges, links, lengths = self.edges, self.links, self.lengths
        while token not in edges[state]:
            state = links[state]
            if state == -1:
                return ROOT_STATE, 0
            length = lengths[state]
        return edges[state][token], length + 1

    def levels(self, state: int) -> Iterator[int]:
        """``state`` and every shorter context with other statistics, the empty one last."""
        while state != -1:
            yield state
            state = self.links[state]

    def continuations(self, state: int) -> Iterator[tuple[int, int, int]]:
        """What followed a context: ``(token, count, index of the most recent time)``, in no useful order."""
        for token, after in self.edges[state].items():
            yield token, self.counts[after], self.recents[after]
