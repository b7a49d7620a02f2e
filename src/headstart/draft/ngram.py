"""The n-gram drafter: proposes what followed the same words before, in this history or in what a tenant said earlier.

It needs no model. Contexts of every length are blended into one next-token law (`blend.py`), a table learned from what
verification accepted makes its probabilities honest (`calibration.py`), and drafts are grown from it: a chain by the
likeliest token at each step, a tree by the likeliest path first. Drafts are point masses and never contain a token that
is neither in the history nor in the store. Knows nothing of the target, of sampling, or of what a token means.

Ideas: prompt lookup (Saxena 2023), suffix decoding (Oliaro et al. 2024: counts, trees grown by path probability, depth
limited by the match, a memory across requests), prediction by partial matching (see `blend.py`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from heapq import heappop, heappush, nlargest

from headstart.decode.draft import EMPTY, ROOT, Draft
from headstart.draft.automaton import SuffixAutomaton
from headstart.draft.base import DraftRequest
from headstart.draft.blend import Blend
from headstart.draft.calibration import Calibration, Cell, cell
from headstart.draft.store import NgramStore
from headstart.errors import InvalidParameter

MAX_TENANTS = 1024
"""Calibration tables kept, a few KiB each."""

STORE_CONTEXT = 16
"""Most recent tokens matched against the store."""

STORE_LEAD = 4
"""Tokens of the prompt's end stored in front of an output, so that an output's first tokens have a context."""

STORE_MASS = 0.3
"""Weight of the store's law beside the local one, unless its match is longer."""

Match = tuple[int, int]
"""State and length of a match in one source."""


class _Sequence:
    """The index of one history, and the draft whose outcome is not known yet."""

    __slots__ = ("blend", "pending", "start", "tokens")

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.start = 0
        self.blend = Blend(SuffixAutomaton())
        self.pending: _Pending | None = None

    def follow(self, tokens: Sequence[int], max_history: int) -> None:
        """Indexes what is new; starts over where the history was rewritten, shrank, or outgrew the bound."""
        given = tokens if isinstance(tokens, list) else list(tokens)
        known = len(self.tokens)
        same = len(given) >= known and given[:known] == self.tokens
        if not same:
            self.pending = None
        if not same or len(given) - self.start > max_history + max_history // 4:
            self.start = max(0, len(given) - max_history)
            self.blend = Blend(SuffixAutomaton(given[self.start :]))
            self.tokens = list(given)
        elif len(given) > known:
            new = given[known:]
            self.blend.automaton.extend(new)
            self.tokens += new


class _Pending:
    """A proposed draft and the calibration cell of each of its nodes."""

    __slots__ = ("at", "cells", "parents", "tokens")

    def __init__(self, at: int, tokens: list[int], parents: list[int], cells: list[Cell]) -> None:
        self.at = at
        self.tokens = tokens
        self.parents = parents
        self.cells = cells

    def resolve(self, history: Sequence[int], table: Calibration) -> None:
        """Learns from what the history went on with: every child of every node on the true path."""
        node, at = ROOT, self.at
        while at < len(history):
            found = None
            for i in range(node + 1, len(self.tokens)):
                if self.parents[i] == node:
                    hit = self.tokens[i] == history[at]
                    table.learn(self.cells[i], hit)
                    if hit:
                        found = i
            if found is None:
                return
            node = found
            at += 1


class NgramDrafter:
    """Drafts from the history itself and, with ``store``, from what the same tenant's finished sequences said.

    Args:
        store: memory across requests; ``None`` remembers nothing.
        match_cap: a draft is at most ``1 + match_cap * length of the match`` deep; ``None`` switches the cap off, for
            when rows are free.
        min_path: nodes whose path has a lower estimated probability are left out; 0 keeps all.
        max_history: tokens of one history that are indexed, the most recent ones (up to a quarter more in between). A
            token takes about 0.6 KiB.
        width: most children of one node of a tree.
    """

    name = "ngram"

    def __init__(
        self,
        *,
        store: NgramStore | None = None,
        match_cap: float | None = None,
        min_path: float = 0.0,
        max_history: int = 32_768,
        width: int = 16,
    ) -> None:
        if match_cap is not None and match_cap < 0:
            raise InvalidParameter("match_cap", f"must be at least 0 or None, got {match_cap!r}")
        if not 0.0 <= min_path <= 1.0:
            raise InvalidParameter("min_path", f"must be in [0, 1], got {min_path!r}")
        if max_history < 4:
            raise InvalidParameter("max_history", f"must be at least 4, got {max_history!r}")
        if width < 1:
            raise InvalidParameter("width", f"must be at least 1, got {width!r}")
        self.store = store
        self.match_cap = match_cap
        self.min_path = min_path
        self.max_history = max_history
        self.width = width
        self._sequences: dict[int, _Sequence] = {}
        self._tables: OrderedDict[str | None, Calibration] = OrderedDict()
        self._tenants: dict[int, str | None] = {}

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        return [self._draft(request) for request in requests]

    def observe(self, sequence_id: int, draft: Draft, accepted: int) -> None:
        """Learns from a verified chain at once; a tree's path is read off the history at the next call."""
        sequence = self._sequences.get(sequence_id)
        if sequence is None or sequence.pending is None or not draft.is_chain:
            return
        pending = sequence.pending
        length = len(draft)
        if draft.tokens != tuple(pending.tokens[:length]) or any(pending.parents[i] != i - 1 for i in range(length)):
            return
        table = self.calibration(self._tenants.get(sequence_id))
        for i in range(min(accepted + 1, length)):
            table.learn(pending.cells[i], i < accepted)
        sequence.pending = None

    def finish(self, sequence_id: int, tokens: Sequence[int], prompt_length: int, tenant: str | None) -> None:
        sequence = self._sequences.pop(sequence_id, None)
        self._tenants.pop(sequence_id, None)
        if sequence is not None and sequence.pending is not None:
            known = len(sequence.tokens)
            if list(tokens[:known]) == sequence.tokens:
                sequence.pending.resolve(tokens, self.calibration(tenant))
        if self.store is not None and len(tokens) > prompt_length:
            self.store.add(tenant, tokens[max(0, prompt_length - STORE_LEAD) :])

    def calibration(self, tenant: str | None) -> Calibration:
        """The tenant's table of observed acceptance."""
        table = self._tables.get(tenant)
        if table is None:
            table = self._tables[tenant] = Calibration()
            if len(self._tables) > MAX_TENANTS:
                self._tables.popitem(last=False)
        else:
            self._tables.move_to_end(tenant)
        return table

    @property
    def sequences(self) -> int:
        """Sequences with state."""
        return len(self._sequences)

    def _draft(self, request: DraftRequest) -> Draft:
        sequence = self._sequences.setdefault(request.sequence_id, _Sequence())
        self._tenants[request.sequence_id] = request.tenant
        sequence.follow(request.tokens, self.max_history)
        table = self.calibration(request.tenant)
        if sequence.pending is not None:
            sequence.pending.resolve(sequence.tokens, table)
            sequence.pending = None
        depth = min(request.depth, request.nodes)
        if depth < 1 or not sequence.tokens:
            return EMPTY

        grower = _Grower(sequence, [] if self.store is None else self.store.sources(request.tenant), table)
        if self.match_cap is not None:
            depth = min(depth, 1 + int(self.match_cap * grower.length))
        if request.nodes > request.depth:
            grower.tree(depth, request.nodes, self.width, self.min_path)
        else:
            grower.chain(depth, self.min_path)
        if not grower.tokens:
            return EMPTY
        sequence.pending = _Pending(len(sequence.tokens), grower.tokens, grower.parents, grower.cells)
        is_chain = all(parent == i - 1 for i, parent in enumerate(grower.parents))
        return Draft(
            tokens=tuple(grower.tokens),
            parents=None if is_chain else tuple(grower.parents),
            confidence=tuple(grower.confidence),
            source=self.name,
        )


class _Grower:
    """Grows one draft from the end of a history."""

    def __init__(self, sequence: _Sequence, stored: list[Blend], table: Calibration) -> None:
        self.sources = [sequence.blend, *stored]
        self.table = table
        tail = sequence.tokens[-STORE_CONTEXT:]
        self.start: list[Match] = [sequence.blend.automaton.suffix_state()]
        self.start += [blend.automaton.match(tail) for blend in stored]
        self.length = max(length for _, length in self.start)
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self.cells: list[Cell] = []
        self.confidence: list[float] = []

    def chain(self, depth: int, min_path: float) -> None:
        """The likeliest token at each step."""
        matches, path = self.start, 1.0
        for _ in range(depth):
            law, length = self._law(matches)
            if not law:
                return
            token = max(law, key=law.__getitem__)
            where = cell(length, law[token])
            confidence = self.table.confidence(where, law[token])
            path *= confidence
            if path < min_path:
                return
            self._add(token, len(self.tokens) - 1, where, confidence)
            matches = self._step(matches, token)

    def tree(self, depth: int, nodes: int, width: int, min_path: float) -> None:
        """The likeliest path first, until there are ``nodes`` of them."""
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
            if not heap or len(self.tokens) >= nodes:
                return
            minus, _, parent, token, level, estimate, length, matches = heappop(heap)
            node, path = len(self.tokens), -minus
            where = cell(length, estimate)
            self._add(token, parent, where, self.table.confidence(where, estimate))
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
        for source, (state, length) in zip(self.sources[1:], matches[1:], strict=True):
            if length:
                source.law(state, length, law, STORE_MASS if length <= local + 1 else 1.0)
                longest = max(longest, length)
        self.sources[0].empty_context(law, rest)
        return law, longest
