"""How deep each sequence may draft in this round. Depth decisions change speed, never text.

Knows numbers about sequences, not sequences themselves. A controller must decide before it sees the tokens drafted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from headstart.errors import InvalidParameter

DEFAULT_DEPTH = 4
MAX_DEPTH = 32
MAX_NODES = 64


@dataclass(frozen=True, slots=True)
class DepthQuery:
    """One sequence that could draft: ``room`` is the deepest draft that could still be useful, ``context`` the tokens
    so far, ``asked`` a depth fixed by the request."""

    sequence_id: int
    drafter: str
    room: int
    context: int
    asked: int | None = None


@dataclass(frozen=True, slots=True)
class Allowance:
    """A draft of at most ``depth`` levels and ``nodes`` tokens; depth 0 is plain decoding."""

    depth: int
    nodes: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one sequence's draft in a round."""

    sequence_id: int
    drafter: str
    drafted: int
    accepted: int
    confidence: tuple[float, ...] | None = None


@dataclass(frozen=True, slots=True)
class RoundCost:
    """Rows and wall-clock seconds of one round, for controllers that learn costs."""

    rows: int
    context: int
    draft_seconds: float
    forward_seconds: float
    total_seconds: float


class DepthController(Protocol):
    """Decides depth, learns from outcomes."""

    def allow(self, queries: Sequence[DepthQuery]) -> list[Allowance]:
        """One allowance per query, in order; never deeper than ``room``."""
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

    def allow(self, queries: Sequence[DepthQuery]) -> list[Allowance]:
        out = []
        for query in queries:
            depth = min(self.depth if query.asked is None else query.asked, query.room)
            out.append(Allowance(depth, max(depth, self.nodes) if depth else 0))
        return out

    def observe(self, outcomes: Sequence[Outcome], cost: RoundCost) -> None:
        """A fixed depth learns nothing."""


def check_depth(param: str, depth: int) -> None:
    """Raise ``InvalidParameter`` unless ``0 <= depth <= MAX_DEPTH``."""
    if not isinstance(depth, int) or isinstance(depth, bool) or not 0 <= depth <= MAX_DEPTH:
        raise InvalidParameter(param, f"must be an integer from 0 (plain) to {MAX_DEPTH}, got {depth!r}")
