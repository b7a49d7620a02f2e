"""The draft model: any second model with the target's vocabulary proposes what it would have said itself.

It runs on the same flat forward as a target, with a KV pool of its own and without the target's exactness: a draft
may be wrong, so its bits do not matter. Drafts are chains.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from headstart.decode.draft import EMPTY, Draft
from headstart.decode.segment import Segment
from headstart.draft.base import DraftRequest
from headstart.draft.chains import Chain, Follower, common_prefix, grow
from headstart.draft.vocabulary import check_same_vocabulary
from headstart.target.model import Target

CATCH_UP = 512
"""Most tokens of one sequence computed in one call while catching up with a prompt."""


@dataclass(slots=True)
class _State:
    """What the draft model remembers of a sequence: the tokens in its KV pool, and the law as it follows it."""

    extent: Any
    cached: list[int] = field(default_factory=list)
    follower: Follower = field(default_factory=Follower)


class ModelDrafter:
    """Drafts with a second model.

    Args:
        draft: the draft model, loaded with ``exact=False``. Its context limit may be shorter than the target's: longer
            histories get no draft.
        target: what it drafts for, to compare vocabularies and to learn the target's stop ids.
        name: for records, and for requests that choose it.

    Raises:
        VocabularyMismatch: the two tokenizers give one id two meanings.
    """

    def __init__(self, draft: Target, target: Target, *, name: str = "model") -> None:
        check_same_vocabulary(target.tokenizer, draft.tokenizer, target.name, draft.name)
        self.name = name
        self.computes = True  # every drafted token costs a forward call
        self.draft = draft
        self.vocab_size = min(draft.vocab_size, target.vocab_size)
        self.eos_ids = target.eos_ids
        self._states: dict[int, _State] = {}

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        """Chains of up to ``depth`` tokens. Histories beyond the draft model's context or pool get an empty draft."""
        drafts = [EMPTY] * len(requests)
        active: list[tuple[int, _State]] = []
        chains: list[Chain] = []
        for i, request in enumerate(requests):
            depth = min(request.depth, request.nodes, self.draft.max_model_len - len(request.tokens))
            state = self._state(request, depth) if depth > 0 else None
            if state is not None:
                active.append((i, state))
                law = state.follower.follow(request, self.vocab_size, self.eos_ids)
                chains.append(Chain(request, law, state.extent, depth))
        if not active:
            return drafts
        rows = self._catch_up([(chain.request, state) for chain, (_, state) in zip(chains, active, strict=True)])
        grow(chains, self.draft.forward, self.draft.likeliest, rows)
        for chain, (i, state) in zip(chains, active, strict=True):
            state.cached.extend(chain.tokens[:-1])
            drafts[i] = chain.draft(self.name)
        return drafts

    def observe(self, sequence_id: int, draft: Draft, accepted: int) -> None:
        """Nothing to learn: the next history tells what was kept."""

    def finish(self, sequence_id: int, tokens: Sequence[int], prompt_length: int, tenant: str | None) -> None:
        state = self._states.pop(sequence_id, None)
        if state is not None:
            self.draft.pool.release(state.extent)

    def _state(self, request: DraftRequest, depth: int) -> _State | None:
        """The sequence's state, rolled back to what it still shares with the history, with room for ``depth`` more."""
        state = self._states.get(request.sequence_id)
        keep = 0 if state is None else common_prefix(state.cached, request.tokens)
        if max(request.tokens[keep:], default=0) >= self.draft.logits_width or any(
            token >= self.vocab_size for token in request.params.forced_tokens
        ):
            return None  # the target has tokens the draft model does not know
        needed = len(request.tokens) + depth
        if state is None or state.extent.size < needed:
            # some room to grow, so that an extent is not moved every few rounds
            room = min(needed + max(64, needed // 2), self.draft.max_model_len)
            extent = self.draft.pool.reserve(room) or self.draft.pool.reserve(needed)
            if extent is None:
                return None
            grown = _State(extent)
            if state is not None:
                self.draft.pool.copy_prefix(state.extent, extent, len(state.cached))
                self.draft.pool.release(state.extent)
                grown.cached, grown.follower = state.cached, state.follower
            state = self._states[request.sequence_id] = grown
        # the last token is always computed again: its logits are what the draft starts from
        del state.cached[min(keep, len(request.tokens) - 1) :]
        return state

    def _catch_up(self, work: list[tuple[DraftRequest, _State]]) -> torch.Tensor:
        """Compute what is missing of each history; returns the logits after each last token."""
        rows: dict[int, torch.Tensor] = {}
        while len(rows) < len(work):
            segments, states, complete = [], [], []
            for slot, (request, state) in enumerate(work):
                if slot in rows:
                    continue
                missing = list(request.tokens[len(state.cached) : len(state.cached) + CATCH_UP])
                last = len(state.cached) + len(missing) == len(request.tokens)
                segments.append(
                    Segment(state.extent, len(state.cached), missing, first_logits=len(missing) - int(last))
                )
                states.append(state)
                if last:
                    complete.append(slot)
            logits = self.draft.forward(segments)
            for segment, state in zip(segments, states, strict=True):
                state.cached.extend(segment.tokens)
            for j, slot in enumerate(complete):
                rows[slot] = logits[j]
        return torch.stack([rows[slot] for slot in range(len(work))])
