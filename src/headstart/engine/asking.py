"""One round's drafts: the drafters of each sequence are asked in order, all sequences together, and one draft goes on.

Whom to ask next, how deep, and which draft goes on is the controller's decision; how to ask and survive it is
``headstart.engine.drafting``'s. This is the order of things between the two, and what both are told afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from headstart.control.depth import Allowance, DepthController, DepthQuery, Load, Outcome, Proposal, RoundCost
from headstart.decode.admit import FORCED
from headstart.decode.draft import EMPTY, Draft
from headstart.decode.record import StepTimes
from headstart.decode.round import Prefill, Turn
from headstart.decode.verify import verify_coupled
from headstart.engine.drafting import Ask, Drafting, samples
from headstart.engine.request import Branch

NOBODY = -1
"""A token that no draft holds."""


@dataclass(slots=True)
class _Part:
    """One sequence's part: who could be asked next, what was said so far and what of it was left."""

    branch: Branch
    turn: Turn
    query: DepthQuery
    asked: int = 0
    """Drafters that had their chance."""
    proposals: list[Proposal] = field(default_factory=list)


class Asking:
    """The turns of a round, and the drafts for them.

    Args:
        branches: the sequences that are decoding.
        prefills: chunks of prompts computed beside them.
        waiting: sequences whose prompts are not computed yet.
    """

    def __init__(
        self,
        branches: Sequence[Branch],
        prefills: Sequence[Prefill],
        drafting: Drafting,
        controller: DepthController,
        *,
        waiting: int = 0,
    ) -> None:
        self._drafting, self._controller = drafting, controller
        self._prefill = bool(prefills)
        self.queries = [self._query(branch, 0) for branch in branches]
        prompt_rows = sum(p.count for p in prefills)
        prompt_keys = sum(p.count * p.sequence.cached + p.count * (p.count + 1) // 2 for p in prefills)
        self.load = Load(
            rows=len(branches) + prompt_rows,
            keys=sum(q.context for q in self.queries) + prompt_keys,
            sequences=len(branches),
            prompt_rows=prompt_rows,
            prompt_keys=prompt_keys,
            waiting=waiting,
        )
        self._allowed = controller.allow(self.queries, self.load)
        self.turns = [
            Turn(branch.sequence, successors=drafting.successors(branch, first=allowance.depth > 0))
            for branch, allowance in zip(branches, self._allowed, strict=True)
        ]
        self._parts = [_Part(*of) for of in zip(branches, self.turns, self.queries, strict=True)]

    def draft(self, turns: Sequence[Turn]) -> list[Draft]:
        """One draft per turn of ``self.turns``, as ``play_round`` wants it."""
        self._drafting.begin()
        parts, allowed = self._parts, self._allowed
        while parts:
            self._ask(parts, allowed)
            parts = [part for part in parts if part.asked < len(part.branch.drafters)]
            for part in parts:
                part.query = self._query(part.branch, part.asked)
            if parts:
                queries, said = [part.query for part in parts], [part.proposals for part in parts]
                allowed = self._controller.allow_next(queries, said, self.load)
        for part in self._parts:
            if not part.proposals:
                part.proposals.append(Proposal(part.query, EMPTY, free=part.query.asked is None, asked=False))
        everything = [proposal for part in self._parts for proposal in part.proposals]
        trimmed = iter(self._controller.trim(everything, self.load))
        return [_take(part, [next(trimmed) for _ in part.proposals]) for part in self._parts]

    def teach(self, times: StepTimes) -> None:
        """After the round: drafters and controller learn what came of it."""
        self._drafting.observe(self.turns)
        outcomes = [outcome for part in self._parts for outcome in _outcomes(part)]
        drafted = sum(len(turn.draft) for turn in self.turns)
        cost = RoundCost(
            rows=self.load.rows + drafted,
            keys=self.load.keys + sum(len(p.turn.draft) * p.query.context for p in self._parts),
            forward_seconds=times.forward,
            total_seconds=times.total,
            prefill=self._prefill,
            draft_seconds=self._drafting.seconds if self.turns else {},
            drafted=self._drafting.drafted if self.turns else {},
            asks=self._drafting.asks if self.turns else {},
            draft_rows=drafted,
        )
        self._controller.observe(outcomes, cost)

    def _ask(self, parts: Sequence[_Part], allowed: Sequence[Allowance]) -> None:
        asks, asking = [], []
        for part, allowance in zip(parts, allowed, strict=True):
            names = part.branch.drafters
            depth = min(allowance.depth, part.query.room)
            if depth > 0 and names:
                sequence = part.turn.sequence
                slots = sequence.extent.size - len(sequence.tokens)
                nodes = max(0, min(allowance.nodes, slots))
                said = next((p.draft for p in reversed(part.proposals) if len(p.draft)), EMPTY)
                asks.append(Ask(part.turn, names[part.asked], depth, nodes, allowance.least, said))
                asking.append(part)
                part.turn.depth = depth
            part.asked += 1
        for part, draft in zip(asking, self._drafting.ask(asks), strict=True):
            # nodes chosen by confidence would bias what is sampled from q
            free = part.query.asked is None and (draft.q is None or not samples(part.turn))
            part.proposals.append(Proposal(part.query, draft, free, asked=True))

    def _query(self, branch: Branch, place: int) -> DepthQuery:
        """About the ``place``-th drafter of a sequence."""
        sequence = branch.sequence
        drafts = bool(branch.drafters) and branch.depth != 0
        name = branch.drafters[place] if branch.drafters else branch.drafter
        return DepthQuery(
            sequence_id=sequence.id,
            drafter=name,
            # the round itself emits one token, so a draft deeper than remaining - 1 is of no use
            room=max(0, sequence.remaining - 1) if drafts else 0,
            context=len(sequence.tokens),
            asked=branch.depth,
            drafts=drafts,
            dear=self._drafting.says(name, "computes"),
            hot=not sequence.params.greedy,
            deep=self._drafting.says(name, "deep"),
        )


def _take(part: _Part, trimmed: Sequence[Draft]) -> Draft:
    """What is left of a sequence's proposals: at most one draft. Notes how deep it was allowed to be."""
    for proposal, draft in zip(part.proposals, trimmed, strict=True):
        if len(draft):
            part.query = proposal.query
            if draft is not proposal.draft:
                part.turn.depth = max(draft.depths())
            return draft
    if any(len(proposal.draft) for proposal in part.proposals):
        part.turn.depth = 0
    return EMPTY


def _outcomes(part: _Part) -> list[Outcome]:
    """What came of the draft that was verified, and what would have come of the others. Nothing is learned about a
    drafter from tokens that a grammar forced."""
    query, turn = part.query, part.turn
    ended = turn.sequence.finish is not None
    emitted = turn.sequence.tokens[query.context :]
    out = []
    for proposal in part.proposals:
        if len(proposal.draft) and proposal.draft.source not in (turn.draft.source, FORCED):
            known = proposal.draft.truncated(len(emitted))
            verdict = verify_coupled(known, lambda _, ahead: [*emitted, NOBODY][len(ahead)])
            out.append(Outcome(query.sequence_id, proposal.query.drafter, known, verdict.path, hot=query.hot))
    draft, path = (turn.draft, turn.path) if turn.draft.source != FORCED else (EMPTY, ())
    out.append(Outcome(query.sequence_id, query.drafter, draft, path, ended, query.hot, len(emitted)))
    return out
