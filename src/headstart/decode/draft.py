"""A draft: the tokens proposed for one sequence in one round, as a chain or a tree.

Knows tensors and nothing else: not who proposed it, not which model will check it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

ROOT = -1
"""Parent index of nodes that follow the last committed token directly."""


@dataclass(frozen=True, slots=True)
class Draft:
    """Proposed tokens of one round for one sequence.

    ``tokens[i]`` is node ``i``; ``parents[i] < i`` is the index of the node before it, ``ROOT`` (-1) when it
    follows the last committed token. ``parents=None`` is a chain: ``parents[i] == i - 1``. Siblings must carry
    different tokens. The first child of each node should be its likeliest, so that the *principal chain*
    (first child of first child ...) is the best single guess.

    ``confidence[i]`` (optional) estimates the probability that node ``i`` is the target's choice given that its
    parent was. ``q`` (optional, float32 ``[len(tokens), vocab]``) are the laws the tokens were *sampled* from, after
    the request's temperature and filters; ``None`` says each token is a point mass (argmax, n-gram). ``source``
    names the drafter, for records.
    """

    tokens: tuple[int, ...] = ()
    parents: tuple[int, ...] | None = None
    confidence: tuple[float, ...] | None = None
    q: torch.Tensor | None = None
    source: str = ""

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def is_chain(self) -> bool:
        return self.parents is None or all(p == i - 1 for i, p in enumerate(self.parents))

    def parent(self, node: int) -> int:
        return node - 1 if self.parents is None else self.parents[node]

    def depths(self) -> list[int]:
        """Depth of every node; children of the root have depth 1."""
        out: list[int] = []
        for node in range(len(self.tokens)):
            up = self.parent(node)
            out.append(1 if up == ROOT else out[up] + 1)
        return out

    def path(self, node: int) -> list[int]:
        """Node indices from the root's child down to ``node``, both included."""
        out = []
        while node != ROOT:
            out.append(node)
            node = self.parent(node)
        return out[::-1]

    def problem(self, vocab_size: int) -> str | None:
        """What makes this draft unusable, in words; ``None`` when it is well formed."""
        n = len(self.tokens)
        for i, token in enumerate(self.tokens):
            if not isinstance(token, int) or isinstance(token, bool):
                return f"token {i} is {token!r}, not an int"
            if not 0 <= token < vocab_size:
                return f"token {i} is {token}, outside the vocabulary of {vocab_size}"
        if self.parents is not None:
            if len(self.parents) != n:
                return f"{len(self.parents)} parents for {n} tokens"
            seen: set[tuple[int, int]] = set()
            for i, up in enumerate(self.parents):
                if not ROOT <= up < i:
                    return f"node {i} has parent {up}; parents must come first"
                if (up, self.tokens[i]) in seen:
                    return f"node {i} repeats a sibling's token {self.tokens[i]}"
                seen.add((up, self.tokens[i]))
        if self.confidence is not None and len(self.confidence) != n:
            return f"{len(self.confidence)} confidences for {n} tokens"
        if self.q is not None:
            if not isinstance(self.q, torch.Tensor) or self.q.dim() != 2:
                return "q is no matrix"
            if self.q.shape[0] != n or self.q.shape[1] > vocab_size:
                return f"q has shape {tuple(self.q.shape)} for {n} tokens and a vocabulary of {vocab_size}"
            if not self.q.is_floating_point() or self.q.layout != torch.strided or self.q.is_meta:
                return f"q is {self.q.dtype}, {self.q.layout}, on {self.q.device}; it must be dense floating point"
        return None

    def truncated(self, max_depth: int, max_nodes: int | None = None) -> Draft:
        """The nodes no deeper than ``max_depth``, at most ``max_nodes`` of them. Never looks at token values."""
        depths = self.depths()
        limit = len(self.tokens) if max_nodes is None else max_nodes
        keep = [i for i, d in enumerate(depths) if d <= max_depth][:limit]
        return self.subset(keep)

    def principal_chain(self) -> Draft:
        """First child of first child and so on: the chain to verify where trees are not allowed."""
        return self.subset(self.principal_nodes())

    def principal_nodes(self) -> list[int]:
        """The nodes of the principal chain, from the root's first child on."""
        chain: list[int] = []
        for node in range(len(self.tokens)):
            if self.parent(node) == (chain[-1] if chain else ROOT):
                chain.append(node)
        return chain

    def subset(self, keep: Sequence[int]) -> Draft:
        """The nodes ``keep``, ascending and closed under parents; the whole draft when that is all of them."""
        if len(keep) == len(self.tokens):
            return self
        new_index = {ROOT: ROOT} | {old: new for new, old in enumerate(keep)}
        parents = None if self.parents is None else tuple(new_index[self.parent(i)] for i in keep)
        return Draft(
            tokens=tuple(self.tokens[i] for i in keep),
            parents=parents,
            confidence=None if self.confidence is None else tuple(self.confidence[i] for i in keep),
            q=None if self.q is None else self.q[list(keep)],
            source=self.source,
        )


EMPTY = Draft()


@dataclass(frozen=True, slots=True)
class Verdict:
    """What verification decided for one sequence.

    ``path`` are the accepted node indices, root's child first; ``token`` is the one more token that every round
    yields (the correction after a rejection, or the bonus after full acceptance).
    """

    path: tuple[int, ...] = field(default=())
    token: int = -1
