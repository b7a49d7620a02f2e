"""Cutting drafts to what a grammar admits, before the target pays for their rows, and adding what it forces.

Knows drafts and constraints; not drafters, laws or targets.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from headstart.decode.draft import ROOT, Draft
from headstart.decode.grammar import Constraint

FORCED = "grammar"
"""``Draft.source`` of drafts that hold nothing but forced tokens."""


def admitted(draft: Draft, constraint: Constraint, depth: int, nodes: int) -> Draft:
    """``draft`` without the nodes that the grammar forbids, then with the tokens that it forces.

    Whatever is cut could never be accepted, so this changes cost and nothing else. A draft that was sampled from
    ``q`` is cut at its first forbidden token, and its ``q`` is restricted to the allowed tokens. This keeps the rules
    of rejection lossless: a token that survives was drawn from the restricted law, and whether position j survives
    depends on the draw at j alone, which is thrown away if it does not; the round then goes on from p, as after any
    draft that ends there. Cutting and keeping q whole would bias the output.

    Args:
        draft: a well-formed draft.
        constraint: the sequence's own.
        depth, nodes: limits of the result, as of the draft; only forced tokens could go beyond.
    """
    if draft.q is not None:
        return _restricted(draft, draft.q, constraint)
    kept: list[int] = []
    paths: dict[int, tuple[int, ...]] = {ROOT: ()}
    if draft.is_chain:
        kept = list(range(constraint.admits(draft.tokens)))
    else:
        for node, token in enumerate(draft.tokens):
            before = paths.get(draft.parent(node))
            if before is not None and constraint.admits((*before, token)) == len(before) + 1:
                paths[node] = (*before, token)
                kept.append(node)
    return _extended(draft.subset(kept), constraint, depth, nodes)


def _restricted(draft: Draft, q: torch.Tensor, constraint: Constraint) -> Draft:
    """A chain up to its first forbidden token, and q restricted to what is allowed; verification renormalises it."""
    q = q.clone()
    kept = 0
    for token in draft.tokens:
        allowed = constraint.allowed(draft.tokens[:kept])
        if not allowed[token]:
            break
        q[kept, torch.from_numpy(~allowed[: q.shape[1]]).to(q.device)] = 0.0
        kept += 1
    return replace(draft, q=q).subset(range(kept))


def _extended(draft: Draft, constraint: Constraint, depth: int, nodes: int) -> Draft:
    """The draft, and behind its principal chain the tokens that are sure to follow there."""
    chain = draft.principal_nodes()
    room = min(depth - len(chain), nodes - len(draft))
    if room <= 0:
        return draft
    more = constraint.forced([draft.tokens[node] for node in chain])[:room]
    if not more:
        return draft
    first = len(draft)
    parents = None
    if draft.parents is not None:
        parents = (*draft.parents, chain[-1] if chain else ROOT, *range(first, first + len(more) - 1))
    confidence = None if draft.confidence is None else (*draft.confidence, *(1.0,) * len(more))
    if not first:
        confidence = (1.0,) * len(more)
    return Draft((*draft.tokens, *more), parents, confidence, None, draft.source if first else FORCED)
