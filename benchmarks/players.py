"""Drafters as the offline replay drives them: transformers' own prompt lookup, vLLM's rule, headstart's n-grams.

Each proposes from a history and hears what became of it. Knows no model and no engine.
"""

from __future__ import annotations

from collections.abc import Sequence

from headstart.decode.draft import Draft
from headstart.decode.params import SamplingParams
from headstart.draft.base import DraftRequest
from headstart.draft.ngram import NgramDrafter
from headstart.draft.recycle import Row
from headstart.draft.store import NgramStore

PARAMS = SamplingParams()


class Player:
    """A drafter under replay."""

    def propose(self, history: list[int], prompt_length: int) -> Draft:
        raise NotImplementedError

    def learn(self, rows: Sequence[Row]) -> None:
        """The target's best tokens in the rows of a round."""

    def observe(self, draft: Draft, accepted: int) -> None:
        """Feedback after a round."""

    def finish(self, history: list[int], prompt_length: int) -> None:
        """The sequence is over."""


class PromptLookup(Player):
    def __init__(self, depth: int, size: int, eos: int = 2) -> None:
        import torch
        from transformers.generation.candidate_generator import PromptLookupCandidateGenerator

        self._tensor = torch.tensor
        self._generator = PromptLookupCandidateGenerator(
            eos_token_id=torch.tensor([eos]),
            num_output_tokens=depth,
            max_matching_ngram_size=size,
            max_length=1_000_000,
        )

    def propose(self, history: list[int], prompt_length: int) -> Draft:
        candidates, _ = self._generator.get_candidates(self._tensor([history]))
        return Draft(tuple(candidates[0, len(history) :].tolist()))


class VllmRule(Player):
    def __init__(self, depth: int, sizes: tuple[int, int]) -> None:
        self.depth = depth
        self.sizes = sizes

    def propose(self, history: list[int], prompt_length: int) -> Draft:
        low, high = self.sizes
        for size in range(min(high, len(history) - 1), low - 1, -1):
            suffix = history[-size:]
            for at in range(len(history) - size):
                if history[at] == suffix[0] and history[at : at + size] == suffix:
                    return Draft(tuple(history[at + size : at + size + self.depth]))
        return Draft()


class Headstart(Player):
    def __init__(self, depth: int, nodes: int | None = None, store: bool = False, **options: float) -> None:
        self.depth = depth
        self.nodes = depth if nodes is None else nodes
        self.drafter = NgramDrafter(store=NgramStore() if store else None, **options)  # type: ignore[arg-type]
        self.sequence = 0

    def propose(self, history: list[int], prompt_length: int) -> Draft:
        request = DraftRequest(self.sequence, history, prompt_length, self.depth, self.nodes, PARAMS, 0)
        return self.drafter.propose([request])[0]

    def learn(self, rows: Sequence[Row]) -> None:
        self.drafter.learn(self.sequence, rows)

    def observe(self, draft: Draft, accepted: int) -> None:
        if len(draft):
            self.drafter.observe(self.sequence, draft, accepted)

    def finish(self, history: list[int], prompt_length: int) -> None:
        self.drafter.finish(self.sequence, history, prompt_length, None)
        self.sequence += 1
