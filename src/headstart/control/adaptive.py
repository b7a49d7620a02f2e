"""Depth by expected gain: draft rows are handed out across the batch while one more raises tokens per second.

Two decisions a round. Before drafting, how deep each drafter may go (``allow``): that is where drafting itself costs.
After drafting, which nodes are worth a row (``trim``): expected tokens are sums of path probabilities, seconds come
from the cost curve, and the prefix of nodes with the best ratio wins; no node is a normal outcome. Trimming looks at
confidences, never at whether a token will be accepted, and is done only where drafts are point masses or the rule is
coupled, so that it cannot bias sampling. Text never depends on any of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from headstart.control.acceptance import Acceptance
from headstart.control.cost import CostCurve
from headstart.control.depth import (
    Allowance,
    DepthQuery,
    Load,
    Outcome,
    Proposal,
    RoundCost,
    path_probabilities,
)
from headstart.control.limits import DEFAULT_DEPTH, MAX_DEPTH, MAX_NODES
from headstart.decode.draft import EMPTY, ROOT, Draft
from headstart.errors import InvalidParameter

MOST_DEPTH, MOST_NODES = 16, 16
SMOOTHING = 0.05
DEAR = 0.05
"""A drafter that takes this share of a plain step per token is asked for no more than is expected to pay."""

WORTH_SMOOTHING = 0.1
PATIENCE = 8
LONGEST_NAP = 32
"""Rounds a sequence's drafter may go unasked at most: probing is bounded, and so is not probing."""


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
        self.curve = curve
        self.acceptance = Acceptance()
        self.most_depth, self.most_nodes = most_depth, most_nodes
        self.tree = tree
        self.skips: Counter[str] = Counter()
        self.why: dict[int, str] = {}
        self._rest = 0.0
        """Running mean of a round's seconds outside drafting and the forward call."""
        self._draft_seconds: dict[str, float] = {}
        """Running mean of seconds per token drafted, by drafter."""
        self._ask_seconds: dict[str, float] = {}
        """Running mean of seconds per sequence a drafter is asked for."""
        self._barren: dict[int, int] = {}
        """Rounds in a row in which asking for a sequence was not worth it."""
        self._worth: dict[int, float] = {}
        """Running mean of what asking brought a sequence, in tokens: expected acceptances less time spent."""
        self._naps: dict[int, int] = {}

    def allow(self, queries: Sequence[DepthQuery], load: Load) -> list[Allowance]:
        out = []
        self.why.clear()
        for query in queries:
            if query.asked is not None:
                depth = min(query.asked, query.room)
                out.append(Allowance(depth, depth))
                continue
            depth = min(self.most_depth, query.room)
            if query.room == 0:
                if query.drafts:
                    self._skip(query, "output nearly finished")
            elif self._naps.get(query.sequence_id, 0) > 0:
                self._naps[query.sequence_id] -= 1
                self._skip(query, "resting")
                depth = 0
            else:
                depth = self._affordable(query, depth, load)
            if self.tree:  # a tree as deep as it has nodes would be a chain
                depth = min(depth, max(1, self.most_nodes // 2))
                out.append(Allowance(depth, self.most_nodes if depth else 0))
            else:
                out.append(Allowance(depth, min(depth, self.most_nodes)))
        return out

    def trim(self, proposals: Sequence[Proposal], load: Load) -> list[Draft]:
        """The nodes of each draft that are worth a row, likeliest first across the batch."""
        nodes: list[tuple[float, int, int]] = []
        rows, keys = load.rows, load.keys
        for i, proposal in enumerate(proposals):
            if not proposal.free:
                rows += len(proposal.draft)
                keys += len(proposal.draft) * proposal.query.context
                continue
            for node, probability in enumerate(self._paths(proposal)):
                nodes.append((-probability, i, node))
        nodes.sort()
        chosen = self._best_prefix(nodes, proposals, rows, keys, load)
        keep: list[list[int]] = [[] for _ in proposals]
        for _, i, node in nodes[:chosen]:
            keep[i].append(node)
        out = []
        for i, proposal in enumerate(proposals):
            if proposal.free:
                self._note(proposal, keep[i], alone=len(proposals) == 1, load=load)
                out.append(proposal.draft.subset(sorted(keep[i])) if keep[i] else EMPTY)
            else:
                out.append(proposal.draft)
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
                    self.acceptance.learn(outcome.sequence_id, _kind(outcome), depth, confidence, child == step)
                if step is None:
                    break
                node = step
            if outcome.ended:
                self.acceptance.forget(outcome.sequence_id)
                for memory in (self._barren, self._naps, self._worth):
                    memory.pop(outcome.sequence_id, None)
        if not cost.prefill:
            self.curve.observe(cost.rows, cost.keys, cost.forward_seconds)
            rest = cost.total_seconds - cost.forward_seconds - sum(cost.draft_seconds.values())
            self._rest += SMOOTHING * (rest - self._rest)
        for name, seconds in cost.draft_seconds.items():
            asks = cost.asks.get(name, 0)
            if asks:
                mean = self._ask_seconds.setdefault(name, seconds / asks)
                self._ask_seconds[name] = mean + SMOOTHING * (seconds / asks - mean)
            drafted = cost.drafted.get(name, 0)
            if drafted:
                mean = self._draft_seconds.setdefault(name, seconds / drafted)
                self._draft_seconds[name] = mean + SMOOTHING * (seconds / drafted - mean)

    # -- the sums ---------------------------------------------------------------------------------------------------

    def _affordable(self, query: DepthQuery, depth: int, load: Load) -> int:
        """For a drafter whose tokens cost time: the depth with the best expected tokens per second, alone."""
        price = self._draft_seconds.get(query.drafter)
        plain = self.curve.predict(load.rows, load.keys) + self._rest
        if price is None:
            return min(depth, DEFAULT_DEPTH) if depth > DEFAULT_DEPTH and query.dear else depth
        if price < DEAR * plain:
            return depth
        best, best_rate, tokens, reach = 0, load.sequences / plain, float(load.sequences), 1.0
        for k in range(1, depth + 1):
            reach *= self.acceptance.conditional(query.sequence_id, _kind(query), k, None)
            tokens += reach
            seconds = self.curve.predict(load.rows + k, load.keys + k * query.context) + self._rest + k * price
            if tokens / seconds > best_rate:
                best, best_rate = k, tokens / seconds
        if best == 0:
            self._tire(query.sequence_id)
            self._skip(query, "acceptance too low")
        return best

    def _paths(self, proposal: Proposal) -> list[float]:
        """Probability that each node is reached and accepted."""
        query, draft = proposal.query, proposal.draft
        conditional = [
            self.acceptance.conditional(
                query.sequence_id, _kind(query), depth, None if draft.confidence is None else draft.confidence[i]
            )
            for i, depth in enumerate(draft.depths())
        ]
        return path_probabilities(draft, conditional)

    def _best_prefix(
        self,
        nodes: Sequence[tuple[float, int, int]],
        proposals: Sequence[Proposal],
        rows: int,
        keys: int,
        load: Load,
    ) -> int:
        """How many of ``nodes`` give the most expected tokens per second; steps in the curve rule out stopping
        early."""
        tokens = float(max(1, load.sequences))
        best, best_rate = 0, tokens / (self.curve.predict(rows, keys) + self._rest)
        for count, (negative, i, _) in enumerate(nodes, start=1):
            tokens -= negative
            rows += 1
            keys += proposals[i].query.context
            rate = tokens / (self.curve.predict(rows, keys) + self._rest)
            if rate > best_rate:
                best, best_rate = count, rate
        return best

    def _note(self, proposal: Proposal, kept: Sequence[int], *, alone: bool, load: Load) -> None:
        """Count why a sequence goes without a draft, and let a drafter rest that does not earn what asking it costs."""
        query = proposal.query
        if not proposal.asked:
            return
        paths = self._paths(proposal)
        plain = self.curve.predict(load.rows, load.keys) + self._rest
        extra = self.curve.predict(load.rows + len(kept), load.keys + len(kept) * query.context) + self._rest - plain
        spent = (self._ask_seconds.get(query.drafter, 0.0) + extra) / plain * max(1, load.sequences)
        worth = self._worth.get(query.sequence_id, 0.0)
        worth += WORTH_SMOOTHING * (sum(paths[i] for i in kept) - spent - worth)
        self._worth[query.sequence_id] = worth
        if worth > 0:
            self._barren.pop(query.sequence_id, None)
        else:
            self._tire(query.sequence_id)
        if not kept:
            self._skip(query, self._reason(proposal, max(paths, default=0.0), alone=alone))

    def _skip(self, query: DepthQuery, reason: str) -> None:
        self.skips[reason] += 1
        self.why[query.sequence_id] = reason

    def _reason(self, proposal: Proposal, best: float, *, alone: bool) -> str:
        """Why not even the likeliest node was worth a row."""
        if not len(proposal.draft):
            return "nothing to say"

        def pays(rows: int, keys: int, context: int) -> bool:
            before, after = self.curve.predict(rows, keys), self.curve.predict(rows + 1, keys + context)
            return (1.0 + best) / (after + self._rest) > 1.0 / (before + self._rest)

        context = proposal.query.context
        if not alone and pays(1, context, context):
            return "busy batch"
        return "context too long" if pays(1, 0, 0) else "acceptance too low"

    def _tire(self, sequence_id: int) -> None:
        barren = self._barren[sequence_id] = self._barren.get(sequence_id, 0) + 1
        if barren >= PATIENCE:
            self._naps[sequence_id] = min(LONGEST_NAP, 2 ** (barren - PATIENCE))


def _kind(of: DepthQuery | Outcome) -> str:
    """Whose acceptance it is: a drafter's under greedy decoding or under sampling, which differ much."""
    return f"{of.drafter} sampled" if of.hot else of.drafter
