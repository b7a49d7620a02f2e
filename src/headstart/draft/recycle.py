"""The target's second thoughts, recycled: which tokens it ranked best after the same last one or two tokens.

A verified row of the target ranks the whole vocabulary, and decoding uses one token of it. The runners-up, and the rows
after tokens that were rejected, show what the target tends to say where the history shows nothing (Token Recycling, Luo
et al. 2024; contexts of two tokens and the merging of opinions are ours). Tables are bounded and per tenant, for the
reason given in `store.py`. Knows ids and their order; not the target's probabilities, nor which row was accepted.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from operator import itemgetter

from headstart.draft.blend import added
from headstart.draft.parts import Parts, Row, Table, best_parts
from headstart.errors import InvalidParameter

RANK_WEIGHT = (1.0, 0.4, 0.25, 0.2, 0.15, 0.1, 0.08, 0.06)
"""Weight of a token by its place in an opinion; further places weigh like the last. Chosen for tokens per round of
trees (SmolLM2-135M, benchmarks/ngram_replay.py, even ids). After the same two tokens the target's choice is the first
of the latest opinion in 56 % of cases, the second in 8 %, then 4 and 2 %."""

FADE = 0.7
"""Weight of an opinion relative to the next newer one."""

OPINIONS = 4
"""Most recent opinions kept for a context."""

KEPT = 12
"""Tokens of a context's law. 8 and 32 propose as well within 0.2 %."""

ESCAPE = ((), (0.7, 0.6, 0.5, 0.4), (0.5, 0.4, 0.3, 0.25))
"""Share of the mass left to shorter contexts, by length of the context and number of opinions. Halving or raising all
of a row by a third costs less than 0.5 % of tokens per round."""

LONGEST = len(ESCAPE) - 1
"""Tokens of the longest context with a table. Three instead of two gained nothing."""

MOST_SUCCESSORS = 16
"""Tokens of one ranking."""

Context = tuple[int, ...]


class Opinions:
    """The target's latest rankings after one context."""

    __slots__ = ("_law", "_recent")

    def __init__(self) -> None:
        self._recent: tuple[tuple[int, ...], ...] = ()
        self._law: list[tuple[int, float]] | None = None

    def hear(self, ranked: tuple[int, ...]) -> None:
        """One more ranking, best first."""
        self._recent = (ranked, *self._recent[: OPINIONS - 1])
        self._law = None

    def __len__(self) -> int:
        return len(self._recent)

    @property
    def law(self) -> list[tuple[int, float]]:
        """Tokens and their probabilities, merged from all rankings when first asked for."""
        if self._law is None:
            weights: dict[int, float] = {}
            scale = 1.0
            for ranked in self._recent:
                for place, token in enumerate(ranked):
                    weight = RANK_WEIGHT[min(place, len(RANK_WEIGHT) - 1)]
                    weights[token] = weights.get(token, 0.0) + scale * weight
                scale *= FADE
            best = sorted(weights.items(), key=itemgetter(1), reverse=True)[:KEPT]
            total = added(weight for _, weight in best)
            self._law = [(token, weight / total) for token, weight in best]
        return self._law


class OpinionTable:
    """One tenant's opinions by context, the one heard least recently first."""

    __slots__ = ("contexts",)

    def __init__(self) -> None:
        self.contexts: OrderedDict[Context, Opinions] = OrderedDict()

    def __len__(self) -> int:
        return len(self.contexts)

    def hear(self, rows: Iterable[Row], most: int) -> None:
        contexts = self.contexts
        for context, successors in rows:
            ranked = tuple(successors[:most])
            if not ranked:
                continue
            for length in range(1, min(LONGEST, len(context)) + 1):
                key = tuple(context[-length:])
                opinions = contexts.get(key)
                if opinions is None:
                    opinions = contexts[key] = Opinions()
                else:
                    contexts.move_to_end(key)
                opinions.hear(ranked)

    def drop_oldest(self) -> None:
        self.contexts.popitem(last=False)

    def law(self, context: Context, law: dict[int, float], mass: float) -> float:
        """Adds its share of ``mass`` as the law after ``context`` alone to ``law``; returns the share that escapes."""
        opinions = self.contexts.get(context)
        if opinions is None:
            return 1.0
        escape = ESCAPE[len(context)][len(opinions) - 1]
        share = mass * (1.0 - escape)
        for token, probability in opinions.law:
            law[token] = law.get(token, 0.0) + share * probability
        return escape


class Recycler:
    """Every tenant's table. ``None`` is a tenant of its own.

    Args:
        max_contexts: most contexts held over all tenants; the tenant that was told something least recently loses its
            oldest first. A context takes 0.5 KiB, in Python 0.7 KiB or 1.5 KiB once it was asked.
        max_contexts_per_tenant: most contexts held for one tenant.
        parts: makes the tables; the drafter's.
    """

    def __init__(
        self, *, max_contexts: int = 100_000, max_contexts_per_tenant: int = 50_000, parts: Parts | None = None
    ) -> None:
        if max_contexts < LONGEST:
            raise InvalidParameter("max_contexts", f"must be at least {LONGEST}, got {max_contexts!r}")
        if max_contexts_per_tenant < LONGEST:
            raise InvalidParameter(
                "max_contexts_per_tenant", f"must be at least {LONGEST}, got {max_contexts_per_tenant!r}"
            )
        self.max_contexts = max_contexts
        self.max_contexts_per_tenant = min(max_contexts, max_contexts_per_tenant)
        self.parts = best_parts() if parts is None else parts
        self._tables: OrderedDict[str | None, Table] = OrderedDict()
        self._total = 0

    def __len__(self) -> int:
        """Contexts held, over all tenants."""
        return self._total

    def table(self, tenant: str | None) -> Table | None:
        """What this tenant's rows taught; not to be written to."""
        return self._tables.get(tenant)

    def learn(self, tenant: str | None, rows: Iterable[Row], most: int) -> None:
        """Takes in the ``most`` best tokens of each row, for every context that ends its ``context``."""
        table = self._tables.get(tenant)
        if table is None:
            table = self._tables[tenant] = self.parts.table()
        self._tables.move_to_end(tenant)
        before = len(table)
        table.hear(rows, most)
        while len(table) > self.max_contexts_per_tenant:
            table.drop_oldest()
        self._total += len(table) - before
        while self._total > self.max_contexts:
            oldest = next(iter(self._tables))
            self._tables[oldest].drop_oldest()
            self._total -= 1
            if not len(self._tables[oldest]):
                del self._tables[oldest]
        if not len(table):
            self._tables.pop(tenant, None)
