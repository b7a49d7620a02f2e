"""What drafts are worth: expected tokens against the seconds that their rows take.

Expected tokens are sums of path probabilities, from learned acceptance; seconds come from the cost curve and from what
a round takes beside its forward call, and count at the rate at which tokens have been coming. Knows drafts as shapes
with confidences; whom to ask is decided elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headstart.control.acceptance import Acceptance
from headstart.control.cost import CostCurve
from headstart.control.depth import DepthQuery, Load, Outcome, Proposal, path_probabilities

SMOOTHING = 0.05
LOOK = 8
"""Rows over which the price of one more is averaged: the curve has steps."""

MARGIN = 0.03
"""Tokens, for each sequence, that a round must promise over its plain self: sums are never that exact, and a bet that
is even is not worth it."""

HOPE = 0.9
"""Conditional acceptance of drafts that go well, at least."""

HOPED = (1, 2, 4, 8, 16)
"""Rows for which it is tried whether such drafts would pay."""

PROMISES = 50.0
"""Tokens promised that are remembered of each drafter; older ones fade."""

BELIEF = 20.0
"""Tokens promised and kept that a drafter starts with."""

LEAST_KEPT = 0.3

NOBODY = -1
"""A sequence of which nothing is known."""

CAUTION = 0.5
"""Share of the likelihood that would pay on average, below which a token is not even looked at."""

Node = tuple[float, int, int]
"""Minus the path probability, the proposal's index, the node: sorts by likelihood, parents before children."""


@dataclass(frozen=True, slots=True)
class Stake:
    """What a draft promises if it were the round's only one: the nodes worth a row, their tokens, and ``net``, the
    tokens less those that the time of the rows would bring otherwise."""

    nodes: list[int]
    tokens: float
    net: float


class Value:
    """Sums over rows.

    Args:
        curve: seconds of a forward call; corrected here while running.
        acceptance: how likely nodes are to be accepted.
    """

    def __init__(self, curve: CostCurve, acceptance: Acceptance) -> None:
        self.curve = curve
        self.acceptance = acceptance
        self.rest = 0.0
        """Running mean of a round's seconds outside drafting and the forward call, where nobody was asked."""
        self.more = 0.0
        """What a round takes beyond that where something was: more rows to judge, rows to move."""
        self.vain = 0.0
        """What a round takes beyond it for every sequence that somebody was asked for, where nothing came of it."""
        self.gain = 1.0
        """How much faster than plain decoding the round's sequences have been going."""
        self._promises: dict[str, list[float]] = {}
        """Tokens accepted of each drafter's drafts, and tokens expected of them."""
        self._plain: tuple[Load, float] | None = None
        """The last answer of ``plain``, which is asked for often in a round."""

    def learn(
        self, rows: int, keys: int, forward_seconds: float, rest_seconds: float, *, drafted: bool, asks: int = 0
    ) -> None:
        """One round's seconds, without prompts in it. ``asks`` counts the sequences that somebody was asked for."""
        self._plain = None
        self.curve.observe(rows, keys, forward_seconds, drafted=drafted)
        unasked = not (drafted or asks)
        if unasked and not self.rest:
            self.rest = rest_seconds
        beyond = rest_seconds - self.rest  # all of it as long as nothing else is known: then a rest comes, and it is
        if drafted:
            self.more += SMOOTHING * (max(0.0, beyond) - self.more)
        elif asks:
            self.vain += SMOOTHING * (max(0.0, beyond) / asks - self.vain)
        if self.rest and (unasked or beyond < 0.0):
            self.rest += SMOOTHING * beyond

    def kept(self, drafter: str) -> float:
        """Share of what was expected of the drafter's drafts that was accepted, 1 at most. It is below 1 because nodes
        are chosen: of many estimates, the best are those that flatter."""
        accepted, expected = self._promises.get(drafter, (BELIEF, BELIEF))
        return min(max(accepted / expected, LEAST_KEPT), 1.0)

    def learn_kept(self, drafter: str, accepted: int, expected: float) -> None:
        """So many tokens of a draft were accepted; ``expected`` were, before ``kept`` took its share."""
        counts = self._promises.setdefault(drafter, [BELIEF, BELIEF])
        fade = max(0.0, 1.0 - expected / PROMISES)
        counts[:] = [fade * counts[0] + accepted, fade * counts[1] + expected]

    def seconds(self, rows: int, keys: int, *, drafted: bool = False) -> float:
        """Of a round but for drafting; whether drafts are verified in it."""
        seconds = self.curve.predict(rows, keys, drafted=drafted) + self.rest
        return seconds + self.more if drafted else seconds

    def least(self, load: Load, token: float = 0.0) -> float:
        """How likely a token must be to be worth a row beside this load and the ``token`` seconds that drafting it
        takes, with room for misjudging it."""
        context = load.keys // max(1, load.rows)
        some, many = (self.decoding(load, load.rows + more, load.keys + more * context) for more in (1, 1 + LOOK))
        row = (many - some) / LOOK * load.everyone / self.plain(load)
        return min(1.0, CAUTION * (row + token * self.going(load)))

    def decoding(self, load: Load, rows: int, keys: int) -> float:
        """Seconds that decoding takes of a round of ``rows`` rows: all but what prompts would take anyway, which must
        not make drafts beside them look cheap."""
        seconds = self.seconds(rows, keys, drafted=rows > load.rows)
        return seconds - self._prompts(load) if load.prompt_rows else seconds

    def _prompts(self, load: Load) -> float:
        decoding = self.seconds(load.rows - load.prompt_rows, load.keys - load.prompt_keys)
        return self.seconds(load.rows, load.keys) - decoding

    def plain(self, load: Load) -> float:
        """Seconds of decoding if nobody drafts."""
        if self._plain is None or self._plain[0] is not load:
            self._plain = load, self.decoding(load, load.rows, load.keys)
        return self._plain[1]

    def drafted(self, load: Load, query: DepthQuery, rows: int) -> float:
        """Seconds of decoding if one sequence drafts ``rows`` tokens."""
        return self.decoding(load, load.rows + rows, load.keys + rows * query.context)

    def paths(self, proposal: Proposal) -> list[float]:
        """Probability that each node is reached and accepted."""
        query, draft = proposal.query, proposal.draft
        conditional = [
            self.acceptance.conditional(
                query.sequence_id, kind(query), depth, None if draft.confidence is None else draft.confidence[i]
            )
            for i, depth in enumerate(draft.depths())
        ]
        kept = self.kept(kind(query))
        return [kept * path for path in path_probabilities(draft, conditional)]

    def going(self, load: Load) -> float:
        """Tokens per second that time spent otherwise would bring: who waits for a prompt could be decoding as well."""
        return self.gain * load.everyone / self.plain(load)

    def margin(self, load: Load) -> float:
        """Tokens that a round with drafts must gain."""
        return MARGIN * max(1, load.sequences)

    def hopeful(self, query: DepthQuery, load: Load, asking: float, token: float) -> bool:
        """Whether a draft that goes well would beat plain decoding beside this load, if it took ``asking`` seconds and
        ``token`` more for each of its tokens."""
        hope = max(HOPE, self.acceptance.conditional(NOBODY, kind(query), 1, None))
        plain = self.plain(load)
        for rows in HOPED:
            tokens = hope * (1.0 - hope**rows) / (1.0 - hope)
            seconds = self.drafted(load, query, rows) + asking + rows * token
            if tokens - (seconds / plain - 1.0) * load.everyone > MARGIN:
                return True
        return False

    def best_prefix(
        self, nodes: Sequence[Node], proposals: Sequence[Proposal], rows: int, keys: int, load: Load
    ) -> int:
        """How many of ``nodes`` gain the most over ``rows`` rows without them, 0 if that is hardly anything; steps in
        the curve rule out stopping early."""
        going, without = self.going(load), self.decoding(load, rows, keys)
        best, most, tokens = 0, self.margin(load), 0.0
        for count, (negative, i, _) in enumerate(nodes, start=1):
            tokens -= negative
            rows += 1
            keys += proposals[i].query.context
            net = tokens - going * (self.decoding(load, rows, keys) - without)
            if net > most:
                best, most = count, net
        return best

    def stake(self, proposal: Proposal, load: Load) -> Stake:
        """A draft judged alone."""
        paths = self.paths(proposal)
        nodes = sorted((-probability, 0, node) for node, probability in enumerate(paths))
        kept = [node for _, _, node in nodes[: self.best_prefix(nodes, [proposal], load.rows, load.keys, load)]]
        tokens = sum(paths[node] for node in kept)
        return Stake(kept, tokens, self.net(proposal.query, tokens, len(kept), load))

    def net(self, query: DepthQuery, tokens: float, rows: int, load: Load, spent: float = 0.0) -> float:
        """``tokens`` expected of ``rows`` rows, less what their time and ``spent`` seconds would bring otherwise."""
        return tokens - self.going(load) * (self.drafted(load, query, rows) + spent - self.plain(load))

    def hindrance(self, proposal: Proposal, *, alone: bool) -> str:
        """Why not even a draft's likeliest node is worth a row."""
        best = max(self.paths(proposal))

        def pays(rows: int, keys: int, context: int) -> bool:
            return (1.0 + best) / self.seconds(rows + 1, keys + context, drafted=True) > 1.0 / self.seconds(rows, keys)

        context = proposal.query.context
        if not alone and pays(1, context, context):
            return "busy batch"
        row = self.seconds(2, 2 * context) - self.seconds(1, context)
        mostly_keys = self.seconds(2, 0) - self.seconds(1, 0) < row / 2
        return "context too long" if mostly_keys and pays(1, 0, 0) else "acceptance too low"


def kind(of: DepthQuery | Outcome) -> str:
    """Whose acceptance it is: a drafter's under greedy decoding or under sampling, which differ much."""
    return f"{of.drafter} sampled" if of.hot else of.drafter
