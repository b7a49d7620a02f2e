"""The target itself in fewer bits as its own drafter: self-speculation with quantised weights.

On a CPU a step at one row takes as long as its weights take to read, so a copy in 4 bits drafts at a fraction of the
target's time, and mostly says what the target says. It needs no training and no second model. It reads the target's own
keys and values, so it has no prompt to catch up with, and writes those of its draft where the target is going to write
its own: verification computes every one of them again before anybody reads it. The idea of drafting with a quantised
self over a shared cache is QuantSpec's (Tiwari et al. 2025), who quantise the cache as well.
"""

from __future__ import annotations

from collections.abc import Sequence

from headstart.decode.draft import EMPTY, Draft
from headstart.draft.base import DraftRequest
from headstart.draft.chains import Chain, Follower, grow
from headstart.target.model import Target

MOST_HINTS = 4
"""Guesses computed at once; a row more than these costs half as much as another call."""

LEAST_HINT = 0.15
"""How likely a guess must be, given what came before it, to be worth its row: about a row's share of a call."""


class QuantisedDrafter:
    """Drafts with the target's quantised copy. What a drafter before it said is drafted upon in its turn: guesses that
    the copy agrees with cost it a row each instead of a call (staged speculation, Spector & Re 2023).

    Args:
        target: loaded with ``draft_weights``.

    Raises:
        ValueError: it was not.
    """

    def __init__(self, target: Target) -> None:
        if target.draft_weights is None:
            raise ValueError("the target holds no quantised copy; load it with draft_weights")
        self.name: str = target.draft_weights
        self.computes = True  # every drafted token costs a forward call
        self.deep = True  # long drafts pay, where the copy is sure
        self.target = target
        self._followers: dict[int, Follower] = {}

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        """Chains of up to ``depth`` tokens; shorter ones where the copy is too unsure for more to pay."""
        chains: list[Chain | None] = []
        for request in requests:
            depth = min(request.depth, request.nodes)
            if depth < 1 or request.extent is None:
                chains.append(None)
                continue
            follower = self._followers.setdefault(request.sequence_id, Follower())
            law = follower.follow(request, self.target.vocab_size, self.target.eos_ids)
            chains.append(Chain(request, law, request.extent, depth, _hints(request.said), twin=True))
        grow([chain for chain in chains if chain is not None], self.target.draft, self.target.likeliest)
        return [EMPTY if chain is None else chain.draft(self.name) for chain in chains]

    def observe(self, sequence_id: int, draft: Draft, accepted: int) -> None:
        """Nothing to learn: the next history tells what was kept."""

    def finish(self, sequence_id: int, tokens: Sequence[int], prompt_length: int, tenant: str | None) -> None:
        self._followers.pop(sequence_id, None)


def _hints(said: Draft) -> tuple[int, ...]:
    """The principal chain of ``said`` as far as it is likely enough for a row."""
    hints, path = [], 1.0
    for node in said.principal_nodes()[:MOST_HINTS]:
        path *= 1.0 if said.confidence is None else said.confidence[node]
        if path < LEAST_HINT:
            break
        hints.append(said.tokens[node])
    return tuple(hints)
