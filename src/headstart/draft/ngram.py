"""The n-gram drafter: proposes what followed the same words before, in this history or in what a tenant said earlier.

It needs no model. Contexts of every length are blended into one next-token law (`blend.py`), with what the target was
seen to think after the last tokens where somebody tells (`recycle.py`). A table learned from what verification accepted
makes its probabilities honest (`calibration.py`), and a chain or a tree is grown from it (`grow.py`). Drafts are point
masses and never contain a token that was neither in the history, nor in the store, nor among the target's best. Knows
nothing of how the target thinks, of sampling, or of what a token means.

Ideas: prompt lookup (Saxena 2023), suffix decoding (Oliaro et al. 2024: counts, trees grown by path probability, depth
limited by the match, a memory across requests), prediction by partial matching (see `blend.py`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from headstart.decode.draft import EMPTY, ROOT, Draft
from headstart.draft.base import DraftRequest
from headstart.draft.calibration import Calibration, Cell
from headstart.draft.parts import MOST_NODES, Parts, Row, Shape, best_parts
from headstart.draft.recycle import MOST_SUCCESSORS, Recycler
from headstart.draft.store import NgramStore
from headstart.errors import InvalidParameter

MAX_TENANTS = 1024
"""Calibration tables kept, a few KiB each."""

STORE_LEAD = 4
"""Tokens of the prompt's end stored in front of an output, so that an output's first tokens have a context."""

MIN_PATH = 0.08
"""Default floor under a chain's path probability. On SmolLM2-135M's greedy outputs (benchmarks/ngram_replay.py, even
ids, with the target's top-k) at depth 8, tokens per unit of cost where a drafted row costs 0.01 / 0.03 / 0.06 of a
plain step: no floor 1.77 / 1.54 / 1.29; floor 0.04 1.81 / 1.68 / 1.51; 0.08 1.79 / 1.69 / 1.56; 0.15 1.73 / 1.66 /
1.57. A cap on depth by the length of the match (`match_cap`) does nothing that a floor does not."""

TREE_MIN_PATH = 0.08
"""Default floor under a node's path probability in a tree. Same measurement, up to 16 nodes at depth 8: no floor 2.32
tokens a round with 16 nodes, 2.00 / 1.57 / 1.18 per unit of cost; floor 0.02 2.27 with 13.9, 2.00 / 1.61 / 1.24; 0.04
2.14 with 9.1, 1.96 / 1.68 / 1.39; 0.06 2.06 with 6.7, 1.93 / 1.72 / 1.47; 0.08 2.00 with 5.2, 1.90 / 1.73 / 1.52; 0.1
1.96 with 4.3, 1.88 / 1.74 / 1.56. Whoever knows that rows are cheap asks for 0.02 or cuts a tree itself."""

SUCCESSORS = 8
"""Default number of best tokens taken per row. 4 cost 1 % of tokens per round in trees; 16 gain nothing."""


class _Sequence:
    """The index of one history, and the draft whose outcome is not known yet."""

    __slots__ = ("index", "parts", "pending", "start", "tenant", "tokens")

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self.tokens: list[int] = []
        self.start = 0
        self.index = parts.index()
        self.pending: _Pending | None = None
        self.tenant: str | None = None

    def follow(self, tokens: Sequence[int], max_history: int) -> None:
        """Indexes what is new; starts over where the history was rewritten, shrank, or outgrew the bound."""
        given = tokens if isinstance(tokens, list) else list(tokens)
        known = len(self.tokens)
        same = len(given) >= known and given[:known] == self.tokens
        if not same:
            self.pending = None
        if not same or len(given) - self.start > max_history + max_history // 4:
            self.start = max(0, len(given) - max_history)
            self.index = self.parts.index(given[self.start :])
            self.tokens = list(given)
        elif len(given) > known:
            new = given[known:]
            self.index.extend(new)
            self.tokens += new


class _Pending:
    """What was proposed at length ``at`` of the history, with each node's calibration cell.

    It may end with a node that was thought too unlikely to propose: its outcome shows in the history all the same, and
    a cell that was once unlucky must be able to recover.
    """

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

    def verified(self, draft: Draft, accepted: int, table: Calibration) -> _Pending | None:
        """Learns from a verified chain; returns what is still unknown. Another draft than this one teaches nothing."""
        length = len(draft)
        if not length or not draft.is_chain or draft.tokens != tuple(self.tokens[:length]):
            return self
        if any(self.parents[i] != i - 1 for i in range(length)):
            return self
        for i in range(min(accepted + 1, length)):
            table.learn(self.cells[i], i < accepted)
        if accepted != length or len(self.tokens) != length + 1 or self.parents[length] != length - 1:
            return None
        return _Pending(self.at + length, self.tokens[length:], [ROOT], self.cells[length:])


class NgramDrafter:
    """Drafts from the history itself and, with ``store``, from what the same tenant's finished sequences said.

    Args:
        store: memory across requests; ``None`` remembers nothing.
        min_path: a chain ends before the first token whose path has a lower estimated probability of being accepted;
            0 always fills the depth, for when rows are free.
        tree_min_path: the same for the nodes of a tree; 0 fills its nodes. A tree's nodes come in order of falling
            path probability, so whoever knows the price of a row can cut it anywhere (`Draft.truncated`).
        match_cap: a draft is at most ``1 + match_cap * length of the match`` deep; ``None`` is no such cap.
        max_history: tokens of one history that are indexed, the most recent ones (up to a quarter more in between). A
            token takes about 0.15 KiB, in Python 0.5 KiB.
        width: most children of one node of a tree.
        successors: how many of the target's best next tokens it takes from each verified row (`learn`), at most 16; 0
            takes none.
        recycler: where those are kept; one of its own by default.
        parts: makes its indexes and grows its drafts; compiled ones where there is a compiler.
    """

    name = "ngram"

    def __init__(
        self,
        *,
        store: NgramStore | None = None,
        min_path: float = MIN_PATH,
        tree_min_path: float = TREE_MIN_PATH,
        match_cap: float | None = None,
        max_history: int = 32_768,
        width: int = 16,
        successors: int = SUCCESSORS,
        recycler: Recycler | None = None,
        parts: Parts | None = None,
    ) -> None:
        if match_cap is not None and match_cap < 0:
            raise InvalidParameter("match_cap", f"must be at least 0 or None, got {match_cap!r}")
        for param, value in (("min_path", min_path), ("tree_min_path", tree_min_path)):
            if not 0.0 <= value <= 1.0:
                raise InvalidParameter(param, f"must be in [0, 1], got {value!r}")
        if max_history < 4:
            raise InvalidParameter("max_history", f"must be at least 4, got {max_history!r}")
        if width < 1:
            raise InvalidParameter("width", f"must be at least 1, got {width!r}")
        if not 0 <= successors <= MOST_SUCCESSORS:
            raise InvalidParameter("successors", f"must be from 0 to {MOST_SUCCESSORS}, got {successors!r}")
        self.successors = successors
        self.parts = best_parts() if parts is None else parts
        self.recycler = Recycler(parts=self.parts) if recycler is None else recycler
        for param, memory in (("store", store), ("recycler", self.recycler)):
            if memory is not None and memory.parts is not self.parts:
                raise InvalidParameter(param, "its parts are of another kind; give both the same parts")
        self.store = store
        self.match_cap = match_cap
        self.min_path = min_path
        self.tree_min_path = tree_min_path
        self.max_history = max_history
        self.width = width
        self._sequences: dict[int, _Sequence] = {}
        self._tables: OrderedDict[str | None, Calibration] = OrderedDict()

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        return [self._draft(request) for request in requests]

    def observe(self, sequence_id: int, draft: Draft, accepted: int) -> None:
        """Learns from a verified chain at once; a tree's path is read off the history at the next call."""
        sequence = self._sequences.get(sequence_id)
        if sequence is not None and sequence.pending is not None:
            table = self.calibration(sequence.tenant)
            sequence.pending = sequence.pending.verified(draft, accepted, table)

    def learn(self, sequence_id: int, rows: Sequence[Row]) -> None:
        """Keeps what the target ranked best in a round's rows, for the sequence's tenant (`base.Learner`)."""
        sequence = self._sequences.get(sequence_id)
        if sequence is not None and self.successors:
            self.recycler.learn(sequence.tenant, rows, self.successors)

    def finish(self, sequence_id: int, tokens: Sequence[int], prompt_length: int, tenant: str | None) -> None:
        sequence = self._sequences.pop(sequence_id, None)
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
        sequence = self._sequences.get(request.sequence_id)
        if sequence is None:
            sequence = self._sequences[request.sequence_id] = _Sequence(self.parts)
        sequence.tenant = request.tenant
        sequence.follow(request.tokens, self.max_history)
        table = self.calibration(request.tenant)
        if sequence.pending is not None:
            sequence.pending.resolve(sequence.tokens, table)
            sequence.pending = None
        nodes = min(request.nodes, MOST_NODES)
        depth = min(request.depth, nodes)
        if depth < 1 or not sequence.tokens:
            return EMPTY

        stored = [] if self.store is None else self.store.sources(request.tenant)
        if nodes > request.depth:
            shape = Shape(depth, nodes, self.width, self.tree_min_path, request.least, self.match_cap)
        else:
            shape = Shape(depth, min_path=max(self.min_path, request.least), match_cap=self.match_cap)
        recycled = self.recycler.table(request.tenant)
        grown = self.parts.grow(sequence.tokens, [sequence.index, *stored], table, recycled, shape)
        sequence.pending = _Pending(len(sequence.tokens), grown.tokens, grown.parents, grown.cells)
        if not grown.shown:
            return EMPTY
        parents = tuple(grown.parents[: grown.shown])
        return Draft(
            tokens=tuple(grown.tokens[: grown.shown]),
            parents=None if all(parent == i - 1 for i, parent in enumerate(parents)) else parents,
            confidence=tuple(grown.confidence[: grown.shown]),
            source=self.name,
        )
