"""Prefix caching: the rows of a prompt that were computed before are copied or taken over, not computed again.

A row of keys and values depends on the tokens up to it and on nothing else, so whoever computed it, it is the same row.
Sequences that have ended leave their rows in the pool, where they stay until the room is needed; sequences that run
lend theirs. No extent ever has two writers. Requests of different tenants share nothing.

Knows token ids and extents; does not know models, requests or text.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from headstart.decode.sequence import FinishReason, Sequence
from headstart.target.extents import Extent
from headstart.target.kv import KVPool
from headstart.target.radix import Node, RadixTree

LEAST = 16
"""Fewest tokens worth a copy, or the wait of a round for whoever is computing them: about what the fixed cost of a
round would have computed."""


@dataclass(frozen=True, slots=True)
class PrefixRecord:
    """What the cache has done so far and holds now.

    ``lookups`` counts sequences that looked and ``hits`` those that found something; ``queried_tokens`` and
    ``hit_tokens`` are their prompts' tokens and those found. ``evictions`` counts kept sequences that made room for
    others. ``entries`` are kept now, in ``kept_slots`` slots of the pool.
    """

    lookups: int = 0
    hits: int = 0
    queried_tokens: int = 0
    hit_tokens: int = 0
    evictions: int = 0
    entries: int = 0
    kept_slots: int = 0

    @property
    def hit_rate(self) -> float | None:
        """Tokens found over tokens looked for; ``None`` before the first look-up."""
        return self.hit_tokens / self.queried_tokens if self.queried_tokens else None


@dataclass(slots=True, eq=False)
class _Entry:
    """The first ``length`` rows of ``extent`` hold the tokens that lead to ``node``; while ``owner`` runs, as many of
    them as it has cached."""

    tenant: str | None
    extent: Extent
    length: int
    node: Node[_Entry]
    owner: Sequence | None = None

    @property
    def rows(self) -> int:
        return self.length if self.owner is None else min(self.length, self.owner.cached)


@dataclass(slots=True)
class _Runner:
    """A sequence that runs: whether it has begun to compute, and then what it lends."""

    tenant: str | None
    begun: bool = False
    entry: _Entry | None = None


class PrefixCache:
    """The rows of one pool that can be used again, for the sequences of one engine.

    A sequence is admitted, is ready once no row that it could have copied is still being computed, and retires.
    """

    def __init__(self, pool: KVPool) -> None:
        self.pool = pool
        self._trees: dict[str | None, RadixTree[_Entry]] = {}
        self._runners: dict[int, _Runner] = {}
        self._kept: dict[_Entry, int] = {}
        """The slots of each entry that nobody uses."""
        self._kept_slots = 0
        self._lookups = self._hits = self._queried = self._hit_tokens = self._evictions = 0

    @property
    def record(self) -> PrefixRecord:
        """A snapshot; may be taken from another thread."""
        return PrefixRecord(
            lookups=self._lookups,
            hits=self._hits,
            queried_tokens=self._queried,
            hit_tokens=self._hit_tokens,
            evictions=self._evictions,
            entries=len(self._kept),
            kept_slots=self._kept_slots,
        )

    def admit(self, sequence: Sequence, tenant: str | None) -> bool:
        """Give the sequence an extent for ``limit`` tokens: a new one, or a kept one that begins with its prompt.
        Returns ``False`` when sequences in use leave no room; kept rows never stand in the way."""
        entry, length = self._longest(sequence, tenant)
        kept = entry if entry is not None and entry.owner is None else None
        extent = None
        if kept is None or kept.length - length >= LEAST:  # others may want the rest of what is kept
            extent = self._reserve_beside(kept, sequence.limit)
        if extent is None and kept is not None and self.pool.extend(kept.extent, sequence.limit, length):
            self._forget(kept)
            extent = kept.extent
            sequence.cached = sequence.reused = length
        if extent is None:
            return False
        sequence.extent = extent
        self._runners[sequence.id] = _Runner(tenant)
        return True

    def ready(self, sequence: Sequence) -> bool:
        """Whether to compute the sequence's prompt now. The first time it is, what others have of it is copied; before,
        somebody is computing a part of it."""
        runner = self._runners.get(sequence.id)
        if runner is None or runner.begun:
            return True
        if not sequence.reused:
            entry, length = self._longest(sequence, runner.tenant)
            if entry is not None:
                if entry.rows < length:
                    return False
                self.pool.copy_prefix(entry.extent, sequence.extent, length)
                if entry.owner is None:
                    self._keep(entry)
                sequence.cached = sequence.reused = length
        runner.begun = True
        self._lookups += 1
        self._hits += sequence.reused > 0
        self._queried += sequence.prompt_length
        self._hit_tokens += sequence.reused
        self._lend(sequence, runner)
        return True

    def retire(self, sequence: Sequence) -> None:
        """The sequence is over: its rows are kept where they are of use, and its extent is no longer its own."""
        runner, extent, rows = self._runners.pop(sequence.id, None), sequence.extent, sequence.cached
        if runner is not None and runner.entry is not None:
            self._forget(runner.entry)
        # after an error nobody knows what the rows hold
        if runner is None or rows < LEAST or sequence.finish is FinishReason.ERROR:
            self.pool.release(extent)
            return
        tokens = sequence.tokens[:rows]
        tree = self._trees.setdefault(runner.tenant, RadixTree())
        node, length = tree.longest(tokens)
        longer = node.any() if length == rows else None
        if longer is not None and longer.owner is None:
            self._keep(longer)
            self.pool.release(extent)
            return
        node = tree.insert(tokens)
        node.entry = _Entry(runner.tenant, extent, rows, node)
        self._keep(node.entry)
        for shorter in [entry for entry in node.above() if entry.owner is None]:
            self._forget(shorter)
            self.pool.release(shorter.extent)

    def clear(self) -> None:
        """Give back everything that is kept."""
        for entry in list(self._kept):
            self._forget(entry)
            self.pool.release(entry.extent)

    def _longest(self, sequence: Sequence, tenant: str | None) -> tuple[_Entry | None, int]:
        """Who has most of the sequence's prompt, and how many tokens of it."""
        tree = self._trees.get(tenant)
        if tree is None:
            return None, 0
        node, length = tree.longest(sequence.tokens)
        # the last token of a prompt is always computed: its logits are wanted
        length = min(length, sequence.prompt_length - 1)
        return (node.any(), length) if length >= LEAST else (None, 0)

    def _reserve_beside(self, entry: _Entry | None, tokens: int) -> Extent | None:
        """A new extent, without giving up ``entry`` for it."""
        if entry is None:
            return self.pool.reserve(tokens)
        self.pool.take(entry.extent)
        try:
            return self.pool.reserve(tokens)
        finally:
            self._keep(entry)

    def _lend(self, sequence: Sequence, runner: _Runner) -> None:
        """Let others copy the sequence's prompt as it is computed."""
        if sequence.prompt_length < LEAST:
            return
        node = self._trees.setdefault(runner.tenant, RadixTree()).insert(sequence.tokens[: sequence.prompt_length])
        if node.entry is None:
            node.entry = runner.entry = _Entry(
                runner.tenant, sequence.extent, sequence.prompt_length, node, owner=sequence
            )

    def _keep(self, entry: _Entry) -> None:
        """Keep the entry, as the one used last."""
        self.pool.keep(entry.extent, entry.length, partial(self._evicted, entry))
        self._kept_slots += entry.extent.size - self._kept.get(entry, 0)
        self._kept[entry] = entry.extent.size

    def _evicted(self, entry: _Entry) -> None:
        self._evictions += 1
        self._forget(entry)

    def _forget(self, entry: _Entry) -> None:
        self._kept_slots -= self._kept.pop(entry, 0)
        if entry.node.entry is not entry:  # a kept one has taken its place
            return
        tree = self._trees[entry.tenant]
        tree.remove(entry.node)
        if tree.empty:
            del self._trees[entry.tenant]
