"""What finished sequences said, remembered for later ones: bounded, and never across tenants.

Each tenant has two generations, each a match index over finished texts. Texts go into the young one; when it is half
full, the old one is forgotten as a whole and the young one takes its place (first in, first out, by whole sequences:
a suffix automaton cannot forget a single text). Knows token lists and tenant keys; nothing of drafts.

A cache that is shared leaks by timing: a fast answer says that somebody asked before. Hence tenants.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from headstart.draft.parts import Index, Parts, best_parts
from headstart.errors import InvalidParameter


class _Memory:
    """One tenant's two generations."""

    __slots__ = ("old", "parts", "young")

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self.young = parts.index()
        self.old: Index | None = None

    @property
    def tokens(self) -> int:
        return self.young.size + (0 if self.old is None else self.old.size)

    def turn_over(self) -> None:
        self.old, self.young = self.young, self.parts.index()


class NgramStore:
    """Bounded memory of finished sequences, by tenant. ``None`` is a tenant of its own.

    Args:
        max_tokens: most tokens held over all tenants. The tenants used least recently lose theirs first. A token takes
            about 0.15 KiB, in Python 0.5 KiB.
        max_tokens_per_tenant: most tokens held for one tenant.
        parts: makes the indexes; the drafter's.

    A text longer than half a tenant's share is remembered by its end.
    """

    def __init__(
        self, *, max_tokens: int = 1_000_000, max_tokens_per_tenant: int = 200_000, parts: Parts | None = None
    ) -> None:
        if max_tokens < 2:
            raise InvalidParameter("max_tokens", f"must be at least 2, got {max_tokens!r}")
        if max_tokens_per_tenant < 2:
            raise InvalidParameter("max_tokens_per_tenant", f"must be at least 2, got {max_tokens_per_tenant!r}")
        self.max_tokens = max_tokens
        self.max_tokens_per_tenant = min(max_tokens, max_tokens_per_tenant)
        self.parts = best_parts() if parts is None else parts
        self._tenants: OrderedDict[str | None, _Memory] = OrderedDict()
        self._total = 0

    def __len__(self) -> int:
        """Tokens held, over all tenants."""
        return self._total

    @property
    def tenants(self) -> tuple[str | None, ...]:
        """Who has anything stored, the least recently used first."""
        return tuple(self._tenants)

    def tokens(self, tenant: str | None) -> int:
        """Tokens held for one tenant."""
        memory = self._tenants.get(tenant)
        return 0 if memory is None else memory.tokens

    def add(self, tenant: str | None, tokens: Sequence[int]) -> None:
        """Remembers one finished text."""
        room = self.max_tokens_per_tenant // 2
        text = list(tokens[-room:])
        if not text:
            return
        memory = self._tenants.get(tenant)
        if memory is None:
            memory = self._tenants[tenant] = _Memory(self.parts)
        self._tenants.move_to_end(tenant)
        if memory.young.size + len(text) > room:
            self._total -= 0 if memory.old is None else memory.old.size
            memory.turn_over()
        memory.young.separate()
        memory.young.extend(text)
        self._total += len(text)
        self._shrink(tenant)

    def sources(self, tenant: str | None) -> list[Index]:
        """This tenant's indexes, newest first; empty ones left out."""
        memory = self._tenants.get(tenant)
        if memory is None:
            return []
        self._tenants.move_to_end(tenant)
        return [index for index in (memory.young, memory.old) if index is not None and index.size]

    def forget(self, tenant: str | None) -> None:
        """Drops everything a tenant has stored."""
        memory = self._tenants.pop(tenant, None)
        if memory is not None:
            self._total -= memory.tokens

    def _shrink(self, newest: str | None) -> None:
        while self._total > self.max_tokens:
            tenant = next(iter(self._tenants))
            memory = self._tenants[tenant]
            if memory.old is not None:
                self._total -= memory.old.size
                memory.old = None
            elif tenant != newest:
                self.forget(tenant)
            else:  # only the newest text is left, and it fits: half a share at most
                break
