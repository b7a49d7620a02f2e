"""Growing one draft from the end of a history: a chain by the likeliest token, or a tree by the likeliest path first.

The local history and the store's indexes are matched side by side, one state each, and their laws added. What the
target was seen to think after one or two tokens comes right after what the history says of as short a context. Knows
automata, laws and the calibration table; not requests, and not what became of a draft.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Sequence
from heapq import heappop, heappush
from operator import itemgetter

from headstart.decode.draft import ROOT
from headstart.draft.automaton import SuffixAutomaton
from headstart.draft.blend import Blend, added
from headstart.draft.calibration import Calibration, Cell, cell
from headstart.draft.parts import STORE_CONTEXT, Growth, Index, Shape, Table
from headstart.draft.recycle import LONGEST, Context, OpinionTable

STORE_MASS = (0.15, 0.3, 0.5, 0.7, 1.0)
"""Weight of a store's law beside the local one, by how much longer its match is: -1 or less, 0, 1, 2, 3 or more."""

Match = tuple[int, int]
"""State and length of a match in one source."""

Place = tuple[list[Match], Context]
"""Where a draft has got to: a match in each source, and its last `LONGEST` tokens."""


class PythonParts:
    """``Parts``, where there is no compiler; the ones the compiled are held to."""

    def index(self, tokens: Iterable[int] = ()) -> Blend:
        return Blend(SuffixAutomaton(tokens))

    def table(self) -> OpinionTable:
        return OpinionTable()

    def grow(
        self,
        history: Sequence[int],
        indexes: Sequence[Index],
        calibration: Calibration,
        recycled: Table | None,
        shape: Shape,
    ) -> Growth:
        blends = [index for index in indexes if isinstance(index, Blend)]
        table = recycled if isinstance(recycled, OpinionTable) else None
        return Grower(history, blends, calibration, table).grow(shape)


PYTHON = PythonParts()


class Grower:
    """A draft in the making."""

    __slots__ = ("calibration", "grown", "length", "recycled", "sources", "start")

    def __init__(
        self, history: Sequence[int], sources: Sequence[Blend], calibration: Calibration, recycled: OpinionTable | None
    ) -> None:
        self.sources = sources
        self.calibration = calibration
        self.recycled = recycled
        tail = history[-STORE_CONTEXT:]
        local, *stored = sources
        matches = [local.automaton.suffix_state(), *(blend.automaton.match(tail) for blend in stored)]
        self.start: Place = matches, tuple(history[-LONGEST:])
        self.length = max(length for _, length in matches)
        self.grown = Growth([], [], [], [], 0)

    def grow(self, shape: Shape) -> Growth:
        depth = shape.depth
        if shape.match_cap is not None:
            depth = min(depth, 1 + int(shape.match_cap * self.length))
        if shape.nodes:
            self.tree(depth, shape.nodes, shape.width, shape.min_path, shape.least)
        else:
            self.chain(depth, shape.min_path)
        return self.grown

    def chain(self, depth: int, min_path: float) -> None:
        """The likeliest token at each step, and one that is not shown where the path gets too unlikely."""
        place, path = self.start, 1.0
        for _ in range(depth):
            law, length = self._law(place)
            if not law:
                return
            token = max(law, key=law.__getitem__)
            where = cell(length, law[token])
            confidence = self.calibration.confidence(where, law[token])
            path *= confidence
            self._add(token, len(self.grown.tokens) - 1, where, confidence)
            if path < min_path:
                return
            self.grown.shown += 1
            place = self._step(place, token)

    def tree(self, depth: int, nodes: int, width: int, min_path: float, least: float) -> None:
        """The likeliest path first, until there are ``nodes`` of them or the next is too unlikely; the first token need
        only be as likely as ``min_path``, the others as ``least`` too.

        The order is that of the estimates, not of the calibrated confidence: cells differ in how much they have seen,
        and letting that reorder a tree's nodes cost 0.7 % of tokens per round.
        """
        heap: list[tuple[float, int, int, int, int, float, int, Place]] = []
        order = 0
        best: list[float] = []  # of all children so far, negative, ascending: what is worse than `nodes` others is out
        node, place, path, level = ROOT, self.start, 1.0, 0
        while True:
            if level < depth:
                law, length = self._law(place)
                floor = -best[-1] / path if len(best) == nodes else 0.0
                children = [child for child in law.items() if child[1] > floor]
                children.sort(key=itemgetter(1), reverse=True)
                for token, estimate in children[:width]:
                    minus = -path * estimate
                    if len(best) == nodes:
                        if minus >= best[-1]:
                            break
                        best.pop()
                    insort(best, minus)
                    heappush(heap, (minus, order, node, token, level + 1, estimate, length, place))
                    order += 1
            if not heap or -heap[0][0] < min_path:
                return
            minus, _, parent, token, level, estimate, length, place = heappop(heap)
            node, path = len(self.grown.tokens), -minus
            where = cell(length, estimate)
            self._add(token, parent, where, self.calibration.confidence(where, estimate))
            self.grown.shown += 1
            if len(self.grown.tokens) == nodes:
                return
            min_path = max(min_path, least)
            if level < depth:
                place = self._step(place, token)

    def _add(self, token: int, parent: int, where: Cell, confidence: float) -> None:
        grown = self.grown
        grown.tokens.append(token)
        grown.parents.append(parent)
        grown.cells.append(where)
        grown.confidence.append(min(1.0, confidence))

    def _step(self, place: Place, token: int) -> Place:
        matches = [
            source.automaton.step(state, length, token)
            for source, (state, length) in zip(self.sources, place[0], strict=True)
        ]
        return matches, (*place[1][1 - LONGEST :], token)

    def _law(self, place: Place) -> tuple[dict[int, float], int]:
        """The blended law at a place, and the length of the longest match there."""
        matches, last = place
        law: dict[int, float] = {}
        longest = matches[0][1]
        trails = [(self.sources[0], *matches[0], 1.0)]
        for source, (state, length) in zip(self.sources[1:], matches[1:], strict=True):
            if length:
                trails.append((source, state, length, STORE_MASS[min(4, max(0, length - matches[0][1] + 1))]))
                longest = max(longest, length)
        if self.recycled is not None:
            for size in range(len(last), 0, -1):
                trails = [
                    (source, *source.levels(state, length, law, mass, size)) for source, state, length, mass in trails
                ]
                escape = self.recycled.law(last[-size:], law, added(mass for *_, mass in trails))
                if escape < 1.0:
                    trails = [(source, state, length, mass * escape) for source, state, length, mass in trails]
        for source, state, length, mass in trails:
            rest = source.law(state, length, law, mass)
            if source is self.sources[0]:
                source.empty_context(law, rest)
        if len(trails) > 1:
            total = added(law.values())
            law = {token: probability / total for token, probability in law.items()}
        return law, longest
