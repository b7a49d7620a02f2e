"""How deep each sequence may draft in this round. Depth decisions change speed, never text.

Knows numbers about sequences, and drafts as shapes with confidences; not sequences, models or text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from headstart.control.limits import DEFAULT_DEPTH, MAX_NODES, check_depth
from headstart.decode.draft import EMPTY, ROOT, Draft
from headstart.errors import InvalidParameter


@dataclass(frozen=True, slots=True)
class DepthQuery:
    """One sequence that is decoding, and the drafter that could be asked for it: ``room`` is the deepest draft that
    could still be useful, ``context`` the tokens so far, ``asked`` a depth fixed by the request, ``drafts`` whether it
    has a drafter at all, ``dear`` whether that drafter computes for every token it drafts, ``hot`` whether the request
    samples: drafts are accepted less often then, ``deep`` whether the drafter's drafts are mostly one long chain."""

    sequence_id: int
    drafter: str
    room: int
    context: int
    asked: int | None = None
    drafts: bool = True
    dear: bool = False
    hot: bool = False
    deep: bool = False


@dataclass(frozen=True, slots=True)
class Load:
    """What the round computes without any draft: rows in the flat call, keys they attend to, sequences decoding; how
    many of the rows and keys are prompts'; and how many sequences are ``waiting`` for their prompts to be computed."""

    rows: int
    keys: int
    sequences: int
    prompt_rows: int = 0
    prompt_keys: int = 0
    waiting: int = 0

    @property
    def everyone(self) -> int:
        """Sequences that the time of a draft is taken from; at least one."""
        return max(1, self.sequences + self.waiting)


@dataclass(frozen=True, slots=True)
class Allowance:
    """A draft of at most ``depth`` levels and ``nodes`` tokens; depth 0 is plain decoding. Tokens after the first whose
    path is less likely than ``least`` would not be worth a row, so growing them is not worth the time."""

    depth: int
    nodes: int
    least: float = 0.0


NOTHING = Allowance(0, 0)


@dataclass(frozen=True, slots=True)
class Proposal:
    """A draft before it is verified. ``free`` says that its nodes may be chosen by their confidence: the rule is
    coupled or the tokens are point masses, and the request has not fixed its depth. ``asked``: the drafter was
    asked. Several proposals for one sequence are alternatives, in the order in which they were made."""

    query: DepthQuery
    draft: Draft
    free: bool
    asked: bool


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one sequence's draft: ``path`` are the accepted nodes, ``emitted`` counts the round's tokens,
    ``ended`` says the sequence is over. Of a draft that was not verified, ``path`` is what would have been accepted of
    it, as far as that is known (it has no nodes deeper than the round's tokens), and ``emitted`` is 0."""

    sequence_id: int
    drafter: str
    draft: Draft
    path: tuple[int, ...]
    ended: bool = False
    hot: bool = False
    emitted: int = 0


@dataclass(frozen=True, slots=True)
class RoundCost:
    """Rows, keys and wall-clock seconds of one round. ``draft_rows`` of the rows were drafts'; ``prefill`` says that
    chunks of prompts were among them. ``draft_seconds``, ``drafted`` (tokens proposed, before trimming) and ``asks``
    (sequences asked for) are by drafter."""

    rows: int
    keys: int
    forward_seconds: float
    total_seconds: float
    prefill: bool = False
    draft_seconds: Mapping[str, float] = field(default_factory=dict)
    drafted: Mapping[str, int] = field(default_factory=dict)
    asks: Mapping[str, int] = field(default_factory=dict)
    draft_rows: int = 0


class DepthController(Protocol):
    """Decides depth, learns from outcomes."""

    @property
    def why(self) -> Mapping[int, str]:
        """Why sequences go without a draft in this round, by sequence id, as far as the controller decided it; for
        metrics, so from a small set of reasons."""
        ...

    def allow(self, queries: Sequence[DepthQuery], load: Load) -> list[Allowance]:
        """Before drafting: one allowance per query, in order; never deeper than ``room``."""
        ...

    def allow_next(
        self, queries: Sequence[DepthQuery], said: Sequence[Sequence[Proposal]], load: Load
    ) -> list[Allowance]:
        """After some drafters of a sequence have answered: one allowance per query for its next one. ``said[i]`` are
        the proposals made so far for the sequence of ``queries[i]``."""
        ...

    def trim(self, proposals: Sequence[Proposal], load: Load) -> list[Draft]:
        """After drafting: each draft or a part of it, closed under parents; of a sequence's alternatives at most one
        is not empty. A draft that is not ``free`` stays whole, and leaves its alternatives no chance: what was sampled
        must not be dropped for what it is."""
        ...

    def observe(self, outcomes: Sequence[Outcome], cost: RoundCost) -> None:
        """Feedback after each round."""
        ...


class FixedDepth:
    """The same depth for everyone, unless a request asks for its own. ``nodes`` over ``depth`` invites trees."""

    def __init__(self, depth: int = DEFAULT_DEPTH, nodes: int | None = None) -> None:
        check_depth("depth", depth)
        if nodes is not None and (type(nodes) is not int or not depth <= nodes <= MAX_NODES):
            raise InvalidParameter("nodes", f"must be an integer from depth {depth} to {MAX_NODES}, got {nodes!r}")
        self.depth = depth
        self.nodes = nodes if nodes is not None else depth
        self.why: Mapping[int, str] = {}

    def allow(self, queries: Sequence[DepthQuery], load: Load) -> list[Allowance]:
        out = []
        for query in queries:
            depth = min(self.depth if query.asked is None else query.asked, query.room)
            tree = depth and self.nodes > self.depth
            out.append(Allowance(depth, max(depth, self.nodes) if tree else depth))
        return out

    def allow_next(
        self, queries: Sequence[DepthQuery], said: Sequence[Sequence[Proposal]], load: Load
    ) -> list[Allowance]:
        """The first drafter with something to say is the only one."""
        fresh = self.allow(queries, load)
        return [
            NOTHING if any(len(proposal.draft) for proposal in proposals) else allowance
            for allowance, proposals in zip(fresh, said, strict=True)
        ]

    def trim(self, proposals: Sequence[Proposal], load: Load) -> list[Draft]:
        spoken: set[int] = set()
        out = []
        for proposal in proposals:
            first = proposal.query.sequence_id not in spoken
            out.append(proposal.draft if first else EMPTY)
            if len(proposal.draft):
                spoken.add(proposal.query.sequence_id)
        return out

    def observe(self, outcomes: Sequence[Outcome], cost: RoundCost) -> None:
        """A fixed depth learns nothing."""


def path_probabilities(draft: Draft, conditional: Sequence[float]) -> list[float]:
    """Products of ``conditional`` from the root's child down to each node."""
    out: list[float] = []
    for node, probability in enumerate(conditional):
        parent = draft.parent(node)
        out.append(probability if parent == ROOT else probability * out[parent])
    return out
