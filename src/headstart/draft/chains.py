"""Chains of tokens that a model grows, one forward call per depth for a whole batch.

Whose logits they are, a second model's or the target's own in fewer bits, the choice is the same: under the coupled
rule with the request's own noise, which makes agreement with the target likely; for rejection and block by drawing from
q, which is handed over. Knows laws and rows of logits; not where keys and values lie.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from headstart.decode import noise
from headstart.decode.draft import Draft
from headstart.decode.likeliest import Likeliest
from headstart.decode.sampling import TokenLaw
from headstart.decode.segment import Segment
from headstart.draft.base import DraftRequest
from headstart.errors import GrammarFailed

DOUBT = 0.25
"""Nats by which fewer bits typically move the lead of one token over another; a first guess, since whoever reads the
confidence learns what it is worth. With SmolLM2-135M in 4 bits the target agreed at 0.8 (temperature 0.8) or 0.9
(greedy) of the positions with leads below 0.3, and at 0.98 or 0.99 of the others."""


@dataclass(slots=True)
class Follower:
    """A sequence's law as the drafting model keeps it, in step with a history that may also shrink or change."""

    law: TokenLaw | None = None
    seen: list[int] = field(default_factory=list)

    def follow(self, request: DraftRequest, vocab_size: int, eos_ids: frozenset[int]) -> TokenLaw:
        """The law under the request's own parameters, after its whole history."""
        tokens, seen = request.tokens, self.seen
        if self.law is None or common_prefix(seen, tokens) < len(seen):
            self.seen = seen = list(tokens[: request.prompt_length])
            constraint = None if request.constraint is None else request.constraint()
            self.law = TokenLaw(request.params, seen, request.seed, vocab_size, eos_ids, constraint)
        for token in tokens[len(seen) :]:
            self.law.append(token)
            seen.append(token)
        return self.law


@dataclass(slots=True)
class Chain:
    """One sequence's draft while it grows, up to ``depth`` tokens. ``extent`` is where its keys and values lie.

    ``hints`` are guesses of the draft's first tokens. They are computed beside the row before them, and where one turns
    out right, the row after it is there already; what is chosen does not depend on them.
    """

    request: DraftRequest
    law: TokenLaw
    extent: Any
    depth: int
    hints: Sequence[int] = ()
    twin: bool = False
    """Whether the drafting model is the target but for its bits. Then what is in doubt is which of the two best tokens
    the target prefers, not how likely either is: the lead of one over the other tells, noise included."""
    tokens: list[int] = field(default_factory=list)
    confidence: list[float] = field(default_factory=list)
    laws: list[torch.Tensor] = field(default_factory=list)
    reach: float = 1.0
    """Probability that all of it is right, as the drafting model sees it."""

    def segment(self) -> Segment:
        """The last token as a row to compute, and rows of hints."""
        last = self.tokens[-1] if self.tokens else self.request.tokens[-1]
        self.hints = self.hints[: self.depth - len(self.tokens) - 1]
        return Segment(self.extent, len(self.request.tokens) + len(self.tokens) - 1, [last, *self.hints])

    def follow(self, rows: torch.Tensor, likeliest: Sequence[Likeliest]) -> bool:
        """Add what follows from the rows of ``segment``, as far as hints were right; returns whether more are wanted.
        ``likeliest`` has each row's best tokens."""
        hints, self.hints = self.hints, ()
        for row, best, hint in zip(rows, likeliest, [*hints, None], strict=True):
            if not self.extend(row, best):
                return False
            if self.tokens[-1] != hint:
                break
        return True

    def extend(self, row: torch.Tensor, likeliest: Likeliest) -> bool:
        """Add the token that follows from ``row``, the logits after the last one; returns whether more are wanted.
        ``likeliest`` has the best tokens there."""
        try:
            token, sure = self._choose(row, likeliest)
        except GrammarFailed:  # no law there
            return False
        self.tokens.append(token)
        self.confidence.append(sure)
        self.reach *= sure
        if len(self.tokens) >= self.depth:
            return False
        # where q is sampled from, how deep a draft is must not depend on what was drawn
        return self.request.with_q or self.reach >= self.request.least

    def draft(self, source: str) -> Draft:
        q = torch.stack(self.laws) if self.laws else None
        return Draft(tuple(self.tokens), None, tuple(self.confidence), q, source)

    def _choose(self, row: torch.Tensor, likeliest: Likeliest) -> tuple[int, float]:
        """The next token and how sure it is."""
        law, ahead = self.law, self.tokens
        if self.request.with_q:
            q = law.law(row, ahead).float()
            fresh = noise.round_seed(law.seed, law.position)
            token = noise.sample_law(q.double(), fresh, noise.Stream.DRAFT, law.position + len(ahead))
            self.laws.append(q)
            return token, float(q[token])
        if not self.twin:
            if law.greedy_fast:
                return likeliest.ids[0], likeliest.probabilities[0]
            token = law.choose(row, ahead)
            visible = row[: law.vocab_size].float() if law.constraint is None else law.logits(row, ahead)
            return token, float(torch.exp(visible[token] - torch.logsumexp(visible, 0)))
        if law.greedy_fast:
            token, (best, second) = likeliest.ids[0], likeliest.probabilities
            lag = math.log(best / second) if second > 0.0 else math.inf
        else:
            token, _, lag = law.choose_two(row, ahead)
        return token, 1.0 / (1.0 + math.exp(-lag / DOUBT))


def grow(
    chains: Sequence[Chain],
    forward: Callable[[Sequence[Segment]], torch.Tensor],
    likeliest: Callable[[torch.Tensor], list[Likeliest]],
    logits: torch.Tensor | None = None,
) -> None:
    """Extend all chains until none wants more.

    ``forward`` and ``likeliest`` are the drafting model's, as ``Target`` has them; ``logits`` are those after each
    history, if they are known.
    """
    growing = list(chains)
    if logits is not None:
        best = likeliest(logits)
        growing = [chain for chain, row, b in zip(growing, logits, best, strict=True) if chain.extend(row, b)]
    while growing:
        segments = [chain.segment() for chain in growing]
        logits = forward(segments)
        best = likeliest(logits)
        grown, first = [], 0
        for chain, segment in zip(growing, segments, strict=True):
            last = first + len(segment.tokens)
            if chain.follow(logits[first:last], best[first:last]):
                grown.append(chain)
            first = last
        growing = grown


def common_prefix(mine: Sequence[int], theirs: Sequence[int]) -> int:
    """Length of the common prefix; the usual case, one extends the other, is one comparison."""
    length = min(len(mine), len(theirs))
    if mine[:length] == list(theirs[:length]):
        return length
    return next(i for i in range(length) if mine[i] != theirs[i])
