"""Growing one draft from the end of a history: a chain by the likeliest token, or a tree by the likeliest path first.

The local history and the store's indexes are matched side by side, one state each, and their laws added. Knows
automata, laws and the calibration table; not requests, and not what became of a draft.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush, nlargest

from headstart.decode.draft import ROOT
from headstart.draft.blend import Blend
from headstart.draft.calibration import Calibration, Cell, cell

STORE_CONTEXT = 16
"""Most recent tokens matched against the store."""

STORE_MASS = (0.15, 0.3, 0.5, 0.7, 1.0)
"""Weight of a store's law beside the local one, by how much longer its match is: -1 or less, 0, 1, 2, 3 or more."""

Match = tuple[int, int]
"""State and length of a match in one source."""


class Grower:
    """A draft in the making, in the lists ``tokens``, ``parents``, ``cells`` and ``confidence``, one entry per node.

    The first ``shown`` nodes are the draft; a chain may have one more, the one it stopped at.
    """

    __slots__ = ("cells", "confidence", "length", "parents", "shown", "sources", "start", "table", "tokens")

    def __init__(self, history: Sequence[int], local: Blend, stored: Sequence[Blend], table: Calibration) -> None:
        self.sources = [local, *stored]
        self.table = table
        tail = history[-STORE_CONTEXT:]
        self.start: list[Match] = [local.automaton.suffix_state()]
        self.start += [blend.automaton.match(tail) for blend in stored]
        self.length = max(length for _, length in self.start)
        self.shown = 0
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self.cells: list[Cell] = []
        self.confidence: list[float] = []

    def chain(self, depth: int, min_path: float) -> None:
        """The likeliest token at each step, and one that is not shown where the path gets too unlikely."""
        matches, path = self.start, 1.0
        for _ in range(depth):
            law, length = self._law(matches)
            if not law:
                return
            token = max(law, key=law.__getitem__)
            where = cell(length, law[token])
            confidence = self.table.confidence(where, law[token])
            path *= confidence
            self._add(token, len(self.tokens) - 1, where, confidence)
            if path < min_path:
                return
            self.shown += 1
            matches = self._step(matches, token)

    def tree(self, depth: int, nodes: int, width: int, min_path: float) -> None:
        """The likeliest path first, until there are ``nodes`` of them or the next is too unlikely.

        The order is that of the estimates, not of the calibrated confidence: cells differ in how much they have seen,
        and letting that reorder a tree's nodes cost 0.7 % of tokens per round.
        """
        heap: list[tuple[float, int, int, int, int, float, int, list[Match]]] = []
        order = 0
        node, matches, path, level = ROOT, self.start, 1.0, 0
        while True:
            if level < depth:
                law, length = self._law(matches)
                best = nlargest(min(width, nodes - len(self.tokens)), law.items(), key=lambda item: item[1])
                for token, estimate in best:
                    heappush(heap, (-path * estimate, order, node, token, level + 1, estimate, length, matches))
                    order += 1
            if not heap or -heap[0][0] < min_path:
                return
            minus, _, parent, token, level, estimate, length, matches = heappop(heap)
            node, path = len(self.tokens), -minus
            where = cell(length, estimate)
            self._add(token, parent, where, self.table.confidence(where, estimate))
            self.shown += 1
            if len(self.tokens) == nodes:
                return
            if level < depth:
                matches = self._step(matches, token)

    def _add(self, token: int, parent: int, where: Cell, confidence: float) -> None:
        self.tokens.append(token)
        self.parents.append(parent)
        self.cells.append(where)
        self.confidence.append(min(1.0, confidence))

    def _step(self, matches: list[Match], token: int) -> list[Match]:
        return [
            source.automaton.step(state, length, token)
            for source, (state, length) in zip(self.sources, matches, strict=True)
        ]

    def _law(self, matches: list[Match]) -> tuple[dict[int, float], int]:
        """The blended law after ``matches``, and the length of the longest."""
        law: dict[int, float] = {}
        state, longest = matches[0]
        local = longest
        rest = self.sources[0].law(state, longest, law)
        self.sources[0].empty_context(law, rest)
        if len(matches) > 1:
            for source, (state, length) in zip(self.sources[1:], matches[1:], strict=True):
                if length:
                    source.law(state, length, law, STORE_MASS[min(4, max(0, length - local + 1))])
                    longest = max(longest, length)
            total = sum(law.values())
            law = {token: probability / total for token, probability in law.items()}
        return law, longest
