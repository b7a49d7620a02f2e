"""Depth by expected gain: draft rows are handed out across the batch while one more raises tokens per second.

Two decisions a round. Before drafting, which drafter is asked and how deep (``allow``, ``allow_next``): that is where
drafting itself costs. After drafting, which nodes are worth a row (``trim``): expected tokens are sums of path
probabilities, seconds come from the cost curve and count at the rate at which tokens have been coming, and the prefix
of nodes that gains most wins; no node is a normal outcome. Of several drafters the next is asked when it is expected to
gain more than what the ones before it said. Choices look at confidences, never at whether a token will be accepted, and
are made only where drafts are point masses or the rule is coupled, so that they cannot bias sampling. Text never
depends on any of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from headstart.control.acceptance import Acceptance
from headstart.control.cost import CostCurve
from headstart.control.depth import (
    NOTHING,
    Allowance,
    DepthQuery,
    Load,
    Outcome,
    Proposal,
    RoundCost,
)
from headstart.control.gain import Gains
from headstart.control.limits import DEFAULT_DEPTH, MAX_DEPTH, MAX_NODES
from headstart.control.patience import Patience
from headstart.control.price import Prices
from headstart.control.value import Node, Stake, Value, kind
from headstart.decode.draft import EMPTY, ROOT, Draft
from headstart.errors import InvalidParameter

MOST_DEPTH, MOST_NODES = 16, 16
PLAIN_EVERY = 24
"""Rounds with drafts in a row, beside as many sequences, after which one is played without: what plain decoding costs
must be known to be compared with."""

DEAR = 0.05
"""A drafter that takes this share of a plain step per token is asked for no more than is expected to pay."""

HORIZON = 128
"""Tokens to come over which the time to catch up with a history is spread, at most."""


class AdaptiveDepth:
    """Decides by measured costs and learned acceptance.

    Args:
        curve: seconds of a forward call; corrected here while running.
        most_depth, most_nodes: bounds of one sequence's draft.
        tree: whether drafters are invited to grow trees.

    ``skips`` counts sequence-rounds without a draft by reason: ``busy batch``, ``acceptance too low``, ``context too
    long``, ``output nearly finished``, ``nothing to say``, ``resting``. ``why`` has this round's, by sequence.
    """

    def __init__(
        self, curve: CostCurve, *, most_depth: int = MOST_DEPTH, most_nodes: int = MOST_NODES, tree: bool = False
    ) -> None:
        for param, value, most in (("depth", most_depth, MAX_DEPTH), ("nodes", most_nodes, MAX_NODES)):
            if type(value) is not int or not 1 <= value <= most:
                raise InvalidParameter(param, f"must be an integer from 1 to {most}, got {value!r}")
        self.acceptance = Acceptance()
        self.value = Value(curve, self.acceptance)
        self.prices = Prices()
        self.gains = Gains()
        self.patience = Patience()
        self.most_depth, self.most_nodes = most_depth, most_nodes
        self.tree = tree
        self._expected: dict[int, float] = {}
        """Tokens expected of the draft that goes on in this round, by sequence."""
        self._in_a_row: Counter[int] = Counter()
        """Rounds with drafts since the last without, by sequences."""
        self._hopeful: dict[str, bool] = {}
        """Whether each drafter could pay in this round if all went well."""
        self._plain_round = False
        self._unknown: set[str] = set()
        """Drafters of unknown price that somebody tries in this round."""
        self.skips: Counter[str] = Counter()
        self.why: dict[int, str] = {}

    def allow(self, queries: Sequence[DepthQuery], load: Load) -> list[Allowance]:
        self.prices.begin()
        self.why.clear()
        self._hopeful.clear()
        self._unknown.clear()
        self.value.gain = self.gains.mean(query.sequence_id for query in queries)
        self._plain_round = self._in_a_row[load.sequences] >= PLAIN_EVERY and all(q.asked is None for q in queries)
        return [self._allow(query, (), load) for query in queries]

    def allow_next(
        self, queries: Sequence[DepthQuery], said: Sequence[Sequence[Proposal]], load: Load
    ) -> list[Allowance]:
        return [self._allow(query, proposals, load) for query, proposals in zip(queries, said, strict=True)]

    def trim(self, proposals: Sequence[Proposal], load: Load) -> list[Draft]:
        """The nodes of each draft that are worth a row, likeliest first across the batch."""
        by_sequence: dict[int, list[int]] = {}
        for i, proposal in enumerate(proposals):
            by_sequence.setdefault(proposal.query.sequence_id, []).append(i)
        stakes: dict[int, Stake] = {}
        chosen = {self._choose(proposals, mine, stakes, load) for mine in by_sequence.values()}
        nodes: list[Node] = []
        rows, keys = load.rows, load.keys
        for i in sorted(chosen):
            proposal = proposals[i]
            if not proposal.free:
                rows += len(proposal.draft)
                keys += len(proposal.draft) * proposal.query.context
                continue
            for node, probability in enumerate(self.value.paths(proposal)):
                nodes.append((-probability, i, node))
        nodes.sort()
        keep: list[list[int]] = [[] for _ in proposals]
        tokens = [0.0] * len(proposals)
        for negative, i, node in nodes[: self.value.best_prefix(nodes, proposals, rows, keys, load)]:
            keep[i].append(node)
            tokens[i] -= negative
        out = [EMPTY] * len(proposals)
        for i, proposal in enumerate(proposals):
            if i in chosen:
                whole = proposal.draft
                out[i] = whole if not proposal.free else whole.subset(sorted(keep[i])) if keep[i] else EMPTY
                if keep[i]:
                    share = self.value.kept(kind(proposal.query))
                    self._expected[proposal.query.sequence_id] = tokens[i] / share
            if proposal.free and proposal.asked:
                if i in stakes and i not in chosen:
                    self._learn_worth(proposal.query, stakes[i].tokens, len(stakes[i].nodes), load)
                else:
                    self._learn_worth(proposal.query, tokens[i], len(keep[i]), load)
        for mine in by_sequence.values():
            if not any(len(out[i]) for i in mine):
                self._count_skip([proposals[i] for i in mine], alone=len(by_sequence) == 1)
        return out

    def observe(self, outcomes: Sequence[Outcome], cost: RoundCost) -> None:
        for outcome in outcomes:
            draft = outcome.draft
            node = ROOT
            for depth in range(1, len(draft) + 1):
                children = [i for i in range(len(draft)) if draft.parent(i) == node]
                step = outcome.path[depth - 1] if depth <= len(outcome.path) else None
                for child in children:
                    confidence = None if draft.confidence is None else draft.confidence[child]
                    self.acceptance.learn(outcome.sequence_id, kind(outcome), depth, confidence, child == step)
                if step is None:
                    break
                node = step
            expected = self._expected.pop(outcome.sequence_id, None) if outcome.emitted else None
            if expected is not None and len(draft) and not outcome.ended:
                self.value.learn_kept(kind(outcome), len(outcome.path), expected)
            if outcome.ended:
                for memory in (self.acceptance, self.patience, self.prices, self.gains):
                    memory.forget(outcome.sequence_id)
        pace = self.value.curve.scale
        if not cost.prefill:
            drafted, rows = cost.draft_rows > 0, cost.rows - cost.draft_rows
            self._in_a_row[rows] = self._in_a_row[rows] + 1 if drafted else 0
            pace *= cost.forward_seconds / self.value.curve.predict(cost.rows, cost.keys, drafted=drafted)
            rest = cost.total_seconds - cost.forward_seconds - sum(cost.draft_seconds.values())
            asks = sum(cost.asks.values())
            self.value.learn(cost.rows, cost.keys, cost.forward_seconds, rest, drafted=drafted, asks=asks)
            plain = cost.total_seconds / self.value.seconds(rows, cost.keys * rows // cost.rows)
            for outcome in outcomes:
                if outcome.emitted and not outcome.ended:
                    self.gains.learn(outcome.sequence_id, outcome.emitted, plain)
        self.prices.observe(cost, pace)
        self.prices.pace = self.value.curve.scale

    # -- whom to ask ------------------------------------------------------------------------------------------------

    def _allow(self, query: DepthQuery, said: Sequence[Proposal], load: Load) -> Allowance:
        """How deep one drafter may go, given what the sequence's earlier ones said."""
        spoken = [proposal for proposal in said if len(proposal.draft)]
        if any(not proposal.free for proposal in spoken):
            return NOTHING
        depth = min(self.most_depth, query.room)
        if query.asked is not None:
            depth = 0 if spoken else min(query.asked, query.room)
            return Allowance(depth, depth)
        if self._plain_round:
            self.why[query.sequence_id] = "resting"
            depth = 0
        elif query.room == 0:
            if query.drafts:
                self.why[query.sequence_id] = "output nearly finished"
        elif self.patience.rests(query.sequence_id, query.drafter):
            self.why[query.sequence_id] = "resting"
            depth = 0
        else:
            depth = self._worthwhile(query, depth, spoken, load)
        if depth == 0:
            return NOTHING
        self.prices.asked(query.sequence_id, query.drafter, query.context)
        least = self.value.least(load, self.prices.token(query.drafter) or 0.0)
        if self.tree:  # a tree as deep as it has nodes would be a chain
            deepest = self.most_nodes - 1 if query.deep else self.most_nodes // 2
            return Allowance(min(depth, max(1, deepest)), self.most_nodes, least)
        return Allowance(depth, min(depth, self.most_nodes), least)

    def _worthwhile(self, query: DepthQuery, depth: int, spoken: Sequence[Proposal], load: Load) -> int:
        """The depth that is expected to pay, 0 if none; now and then a probe, at a bounded cost."""
        price = self.prices.token(query.drafter)
        most = min(depth, DEFAULT_DEPTH) if query.dear else depth
        if price is None:
            if query.dear and query.drafter in self._unknown:  # one sequence at a time finds out
                self.why[query.sequence_id] = "resting"
                return 0
            self._unknown.add(query.drafter)
            return most
        plain = self.value.plain(load)
        cheap = price < DEAR * plain
        if not self._could_pay(query, 0.0 if cheap else price, load):
            self.why[query.sequence_id] = "busy batch" if load.sequences > 1 else "acceptance too low"
            return 0
        if cheap:
            if not spoken:
                return depth
            net = max(self.value.stake(proposal, load).net for proposal in spoken)
            if self.patience.worth(query.sequence_id, query.drafter) > net:
                return depth
            cost = self.prices.ask(query.drafter)
        else:
            floor = max((self.value.stake(proposal, load).net for proposal in spoken), default=0.0)
            best = self._best_depth(query, depth, price, max(floor, self.value.margin(load)), load)
            if best:
                return best
            lag = self.prices.lag(query.sequence_id, query.drafter, query.context)
            cost = most * price + self.prices.catch_up(query.drafter, lag)
        if self.prices.probe(query.drafter, cost, plain / max(1, load.sequences)):
            self.acceptance.fade(kind(query))
            return most
        self.why[query.sequence_id] = "acceptance too low"
        return 0

    def _could_pay(self, query: DepthQuery, token: float, load: Load) -> bool:
        """Whether the drafter could pay in this round; the same answer for all sequences, for they share the load."""
        known = self._hopeful.get(query.drafter)
        if known is None:
            asking = 0.0 if token else self.prices.ask(query.drafter) + self.value.vain
            known = self._hopeful[query.drafter] = self.value.hopeful(query, load, asking, token)
        return known

    def _best_depth(self, query: DepthQuery, depth: int, price: float, floor: float, load: Load) -> int:
        """For a drafter whose tokens cost time: the depth that is expected to gain most, alone, if more than ``floor``
        tokens."""
        lag = self.prices.lag(query.sequence_id, query.drafter, query.context)
        catch_up = self.prices.catch_up(query.drafter, lag)
        coming = max(1, min(query.room, HORIZON))
        best, tokens, reach = 0, 0.0, 1.0
        for k in range(1, depth + 1):
            reach *= self.acceptance.conditional(query.sequence_id, kind(query), k, None)
            tokens += reach
            net = self.value.net(query, tokens, k, load, k * price + catch_up * min(1.0, (tokens + 1.0) / coming))
            if net > floor:
                best, floor = k, net
        return best

    # -- what goes on -----------------------------------------------------------------------------------------------

    def _choose(self, proposals: Sequence[Proposal], mine: Sequence[int], stakes: dict[int, Stake], load: Load) -> int:
        """Which of a sequence's alternatives goes on; ``stakes`` takes in what was computed for that."""
        spoken = [i for i in mine if len(proposals[i].draft)]
        fixed = [i for i in spoken if not proposals[i].free]
        if fixed or len(spoken) <= 1:
            return (fixed or spoken or mine)[0]
        for i in spoken:
            stakes[i] = self.value.stake(proposals[i], load)
        return max(spoken, key=lambda i: stakes[i].net)

    def _learn_worth(self, query: DepthQuery, tokens: float, rows: int, load: Load) -> None:
        """Asking brought ``rows`` nodes that promise so many tokens, and cost time."""
        spent = self.prices.ask(query.drafter) + (0.0 if rows else self.value.vain)
        worth = self.value.net(query, tokens, rows, load, spent)
        self.patience.learn(query.sequence_id, query.drafter, worth, alone=load.sequences == 1)

    def _count_skip(self, proposals: Sequence[Proposal], *, alone: bool) -> None:
        """Count why a sequence goes without a draft."""
        spoken = [proposal for proposal in proposals if proposal.asked and len(proposal.draft)]
        sequence_id = proposals[0].query.sequence_id
        if spoken:
            best = max(spoken, key=lambda proposal: max(self.value.paths(proposal)))
            self.why[sequence_id] = self.value.hindrance(best, alone=alone)
        elif any(proposal.asked for proposal in proposals):
            self.why[sequence_id] = "nothing to say"
        if sequence_id in self.why:
            self.skips[self.why[sequence_id]] += 1
