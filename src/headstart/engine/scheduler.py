"""Who runs in this round: admission by KV budget, first come first served, and chunks of prefill beside decoding.

A sequence is admitted when slots for its whole prompt and output are free, so it never has to be thrown out again.
Knows sequences, the pool and its prefix cache; not models, drafters or text.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from headstart.decode.round import Prefill
from headstart.engine.request import Branch
from headstart.target.kv import KVPool
from headstart.target.prefix import PrefixCache


class Scheduler:
    """Waiting and running sequences.

    Args:
        pool: where admitted sequences get their slots.
        max_sequences: most sequences running at once.
        prefill_chunk: most prompt tokens computed in one round, over all sequences.
        prefixes: where rows of earlier prompts are found; ``None`` computes every prompt.
    """

    def __init__(
        self, pool: KVPool, max_sequences: int, prefill_chunk: int, prefixes: PrefixCache | None = None
    ) -> None:
        self.pool = pool
        self.prefixes = prefixes
        self.max_sequences = max_sequences
        self.prefill_chunk = prefill_chunk
        self.waiting: deque[Branch] = deque()
        self.running: list[Branch] = []

    def add(self, branches: Iterable[Branch]) -> None:
        self.waiting.extend(branches)

    def admit(self, join: Callable[[Branch], None]) -> list[Branch]:
        """Move waiting sequences to running while they fit, in order; returns the newcomers. ``join`` is told of each
        before it runs."""
        admitted = []
        while self.waiting and len(self.running) < self.max_sequences:
            branch = self.waiting[0]
            if not self._place(branch):
                break
            join(branch)
            self.running.append(self.waiting.popleft())
            admitted.append(branch)
        return admitted

    def remove(self, branch: Branch) -> None:
        """Take a sequence out, wherever it is, and give its slots back. Harmless when it is out already."""
        if branch in self.running:
            self.running.remove(branch)
        elif branch in self.waiting:
            self.waiting.remove(branch)
        if branch.sequence.extent is not None:
            if self.prefixes is not None:
                self.prefixes.retire(branch.sequence)
            else:
                self.pool.release(branch.sequence.extent)
            branch.sequence.extent = None

    def decoding(self) -> list[Branch]:
        return [branch for branch in self.running if not branch.sequence.prefilling]

    def prefills(self) -> list[Prefill]:
        """The prompt chunks of this round, oldest sequence first."""
        out: list[Prefill] = []
        budget = self.prefill_chunk
        for branch in self.running:
            sequence = branch.sequence
            if sequence.prefilling and budget > 0 and (self.prefixes is None or self.prefixes.ready(sequence)):
                count = min(budget, sequence.prompt_length - sequence.cached)
                out.append(Prefill(sequence, count))
                budget -= count
        return out

    def _place(self, branch: Branch) -> bool:
        """Reserve the sequence's slots, if there is room."""
        sequence = branch.sequence
        if self.prefixes is not None and branch.prefix_cache:
            return self.prefixes.admit(sequence, branch.tenant)
        sequence.extent = self.pool.reserve(sequence.limit)
        return sequence.extent is not None
