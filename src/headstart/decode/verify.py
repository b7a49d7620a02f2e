"""The acceptance rules: given a draft, which of it the target keeps, and the one more token of the round.

Each rule is a pure function with its mathematics beside it. All are lossless: whatever was drafted, the emitted tokens
follow the target's law. Throughout, p and q are the target's and the drafter's next-token laws after the same
temperature, filters, penalties and masks; row 0 is the position after the committed tokens, row i + 1 the position
after draft node i; (.)+ is max(., 0).

Refuses to know how laws are made, where drafts come from, and how tokens are handed out. What no rule can check: q
must be the law the tokens were really drawn from, and whether a position was drafted must not depend on the token
drawn there or later.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from headstart.decode import noise
from headstart.decode.draft import ROOT, Draft, Verdict
from headstart.decode.params import VerifyRule
from headstart.decode.sampling import TokenLaw
from headstart.errors import DrafterFailed

Choose = Callable[[int, tuple[int, ...]], int]
"""(row, draft tokens before it) -> the target's own token at that row."""

Law = Callable[[int], torch.Tensor]
"""row -> p there, float64 ``[V]``, summing to 1. A table ``[k + 1, V]`` serves as ``table.__getitem__``."""

Draw = Callable[[torch.Tensor, int], int]
"""(law ``[V]``, not necessarily summing to 1; row) -> a token sampled from it, independently of all else."""


def verify_coupled(draft: Draft, choose: Choose) -> Verdict:
    """Follow the target's own choices through the draft, a chain or a tree, for as long as it holds them.

    The target chooses y at the root. If a child of the current node carries y, that node is accepted and the target
    chooses again after it; otherwise y is the round's last token. Every emitted token is thus the target's own choice
    after the tokens before it, so the output cannot depend on the draft, whatever ``choose`` is. With ``choose`` a
    sample from p, a drafted token x is accepted with probability p(x).

    Source: greedy verification, Stern et al. 2018 "Blockwise Parallel Decoding"; with shared Gumbel noise, Daliri,
    Musco, Suresh 2025 "Coupling without Communication and Drafter-Invariant Speculative Decoding".

    Args:
        draft: the proposed tokens.
        choose: asked only for rows on the accepted path, in order.
    """
    children: dict[tuple[int, int], int] = {}
    for node, token in enumerate(draft.tokens):
        children.setdefault((draft.parent(node), token), node)
    path: list[int] = []
    ahead: tuple[int, ...] = ()
    at = ROOT
    while True:
        token = choose(at + 1, ahead)
        child = children.get((at, token))
        if child is None:
            return Verdict(tuple(path), token)
        path.append(child)
        ahead += (token,)
        at = child


def acceptance(p: torch.Tensor, q: torch.Tensor | None, token: int) -> float:
    """Probability that the rejection rule accepts ``token``: min(1, p(x) / q(x)); p(x) when q is a point mass.

    Args:
        p: float64 ``[V]``.
        q: float64 ``[V]``, or ``None`` for a point mass on ``token``.
        token: the drafted token x. If q(x) = 0 it cannot have been drawn from q: it is rejected.
    """
    mine = float(p[token])
    theirs = 1.0 if q is None else float(q[token])
    return min(1.0, mine / theirs) if theirs > 0.0 else 0.0


def residual(p: torch.Tensor, q: torch.Tensor | None, token: int, scale: float = 1.0) -> torch.Tensor:
    """The law of the token that replaces a refused draft: (scale p - q)+, unnormalised; float64 ``[V]``.

    With q a point mass it is p without ``token``. No mass left means p = q up to rounding, where refusal has
    probability 0 up to rounding: p itself then.
    """
    if q is None:
        rest = p.clone()
        rest[token] = 0.0
    else:
        rest = (p * scale - q).clamp_(min=0.0)
    return rest if float(rest.sum()) > 0.0 else p


def verify_rejection(
    tokens: Sequence[int], p: Law, q: torch.Tensor | None, uniforms: Sequence[float], draw: Draw
) -> Verdict:
    """Token-by-token rejection sampling of a chain.

    Left to right, x_i is accepted with probability min(1, p_i(x_i) / q_i(x_i)). At the first refusal the round ends
    with y drawn from norm((p_i - q_i)+): P(x accepted) + P(refused) * P(y = x) = min(p, q) + (p - q)+ = p. If all
    pass, one more token is drawn from p_{k+1}. Each step accepts with probability sum_x min(p(x), q(x)).

    Source: Leviathan, Kalman, Matias 2023 "Fast Inference from Transformers via Speculative Decoding", theorem 3.5;
    Chen et al. 2023 "Accelerating Large Language Model Decoding with Speculative Sampling".

    Args:
        tokens: the drafted chain, k tokens.
        p: asked for rows in order, up to the one where the round ends.
        q: float64 ``[k, V]``, rows sum to 1; row i is the law ``tokens[i]`` was drawn from. ``None``: point masses.
        uniforms: k numbers in (0, 1), independent of the draft and of each other.
        draw: samples the round's last token; called once.
    """
    for i, token in enumerate(tokens):
        here = p(i)
        theirs = None if q is None else q[i]
        if uniforms[i] >= acceptance(here, theirs, token):
            return Verdict(tuple(range(i)), draw(residual(here, theirs, token), i))
    k = len(tokens)
    return Verdict(tuple(range(k)), draw(p(k), k))


def block_thresholds(tokens: Sequence[int], p: Law, q: torch.Tensor) -> tuple[list[float], list[float]]:
    """What ``verify_block`` compares its uniforms with: (h_1 .. h_k, P_0 .. P_k).

    P_0 = 1, P_i = min(1, P_{i-1} p_i(x_i) / q_i(x_i)): the weight a prefix may keep. For i < k, with
    S_i = sum_x (P_i p_{i+1}(x) - q_{i+1}(x))+, h_i = S_i / (S_i + 1 - P_i); and h_k = P_k. Arguments as for
    ``verify_block``.

    P_i = 1 gives h_i = 1 even where S_i = 0, the case p = q.
    """
    k = len(tokens)
    weights = [1.0]
    for i, token in enumerate(tokens):
        mine, theirs = float(p(i)[token]), float(q[i][token])
        weights.append(min(1.0, weights[-1] * mine / theirs) if theirs > 0.0 else 0.0)
    thresholds: list[float] = []
    for i in range(1, k):
        if weights[i] == 1.0:
            thresholds.append(1.0)
            continue
        spare = float((p(i) * weights[i] - q[i]).clamp_(min=0.0).sum())
        thresholds.append(spare / (spare + 1.0 - weights[i]))
    return thresholds + weights[k:] if k else [], weights


def verify_block(
    tokens: Sequence[int], p: Law, q: torch.Tensor | None, uniforms: Sequence[float], draw: Draw
) -> Verdict:
    """Block verification of a chain: accept the longest prefix that passes, judged as a whole.

    tau is the LARGEST i with u_i < h_i (0 if none); a failure at i says nothing about longer prefixes, so the search
    must not stop there. If tau = k one more token is drawn from p_{k+1}; otherwise y is drawn from
    norm((P_tau p_{tau+1} - q_{tau+1})+). Accepts at least as many tokens in expectation as ``verify_rejection``, and
    no rule that is given the same accepts more. It needs q: for point masses it is the rejection rule.

    Source: Sun et al. 2025 "Block Verification Accelerates Speculative Decoding" (ICLR 2025), algorithm 2.

    Args:
        tokens, p, q, uniforms, draw: as for ``verify_rejection``; all rows of p but the last are always asked for.
    """
    if q is None:
        return verify_rejection(tokens, p, q, uniforms, draw)
    k = len(tokens)
    thresholds, weights = block_thresholds(tokens, p, q)
    tau = max((i for i in range(1, k + 1) if uniforms[i - 1] < thresholds[i - 1]), default=0)
    path = tuple(range(tau))
    if tau == k:
        return Verdict(path, draw(p(k), k))
    return Verdict(path, draw(residual(p(tau), q[tau], tokens[tau], weights[tau]), tau))


def verify_sampled(
    rule: VerifyRule, draft: Draft, rows: Callable[[int], torch.Tensor] | torch.Tensor, law: TokenLaw
) -> Verdict:
    """Verify one draft under any rule, with the sequence's own law and noise.

    Greedy requests are verified by the coupled rule whatever ``rule`` says: with p one-hot all three decide alike.
    The ACCEPT and RECOVER streams are read at absolute positions under ``noise.round_seed(law.seed, law.position)``,
    which makes them fresh in every round; a drafter that samples for these rules must read DRAFT under the same seed.

    Args:
        rule: coupled, rejection or block.
        draft: a chain; under the coupled rule also a tree. ``draft.q`` (float32 ``[k, V']``, V' <= vocab_size) is
            renormalised in float64, which is the law that sampling from its logarithm realises.
        rows: the target's logits: row 0 after the committed tokens, row i + 1 after draft node i; each ``[V]``.
        law: the sequence's law, with every committed token appended.

    Raises:
        DrafterFailed: a row of ``draft.q`` is no law; go on without the draft.
        ValueError: a tree under rejection or block; verify ``draft.principal_chain()`` instead.
    """
    row = rows.__getitem__ if isinstance(rows, torch.Tensor) else rows
    if rule == "coupled" or law.params.greedy:
        return verify_coupled(draft, lambda at, ahead: law.choose(row(at), ahead))
    if not draft.is_chain:
        raise ValueError(f"the {rule} rule verifies chains; pass draft.principal_chain()")
    base = law.position
    fresh = noise.round_seed(law.seed, base)
    computed: dict[int, torch.Tensor] = {}

    def p(at: int) -> torch.Tensor:
        if at not in computed:
            computed[at] = law.law(row(at), draft.tokens[:at])
        return computed[at]

    def draw(weights: torch.Tensor, at: int) -> int:
        return noise.sample_law(weights, fresh, noise.Stream.RECOVER, base + at)

    uniforms = [noise.uniform(fresh, noise.Stream.ACCEPT, base + i) for i in range(len(draft))]
    verify = verify_block if rule == "block" else verify_rejection
    return verify(draft.tokens, p, _as_laws(draft.q, law.vocab_size), uniforms, draw)


def _as_laws(q: torch.Tensor | None, vocab_size: int) -> torch.Tensor | None:
    if q is None:
        return None
    laws = torch.zeros(q.shape[0], vocab_size, dtype=torch.float64)
    laws[:, : q.shape[1]] = q
    totals = laws.sum(dim=1, keepdim=True)
    if not bool((laws >= 0.0).all() and torch.isfinite(totals).all() and (totals > 0.0).all()):
        raise DrafterFailed("q holds a row that is no probability law; fix the drafter or let it report q=None")
    return laws / totals
