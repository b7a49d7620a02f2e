"""What speculation did: counts with the right denominators, and where the time went. Knows numbers only."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class RoundCounts:
    """What one round did for one sequence: allowed ``depth``, ``drafted`` nodes down to depth ``deepest``, ``accepted``
    of them, ``emitted`` tokens. ``drafter`` is whose draft it was, empty for none."""

    depth: int
    drafted: int
    deepest: int
    accepted: int
    emitted: int
    drafter: str = ""

    @property
    def room(self) -> int:
        """The most that could have been emitted."""
        return max(self.depth, self.deepest) + 1

    def reached(self, depth: int) -> list[int]:
        """Per depth of the draft, 1 down to ``depth`` and 0 below."""
        return [1] * depth + [0] * (self.deepest - depth)


@dataclass(slots=True)
class DraftCounts:
    """One drafter's share of a record: ``drafts`` that were verified, and of their tokens the same counts as there."""

    drafts: int = 0
    drafted: int = 0
    accepted: int = 0
    drafted_at: list[int] = field(default_factory=list)
    accepted_at: list[int] = field(default_factory=list)

    def add(self, counts: RoundCounts) -> None:
        """Count one round's draft."""
        self.drafts += 1
        self.drafted += counts.drafted
        self.accepted += counts.accepted
        _add_to(self.drafted_at, counts.reached(counts.deepest))
        _add_to(self.accepted_at, counts.reached(counts.accepted))

    def merge(self, other: DraftCounts) -> None:
        """Add the counts of ``other``."""
        self.drafts += other.drafts
        self.drafted += other.drafted
        self.accepted += other.accepted
        _add_to(self.drafted_at, other.drafted_at)
        _add_to(self.accepted_at, other.accepted_at)

    def as_dict(self) -> dict[str, Any]:
        """The counts as plain values."""
        return {
            "drafts": self.drafts,
            "drafted": self.drafted,
            "accepted": self.accepted,
            "drafted_at": list(self.drafted_at),
            "accepted_at": list(self.accepted_at),
        }


@dataclass(slots=True)
class SpecRecord:
    """Counters over rounds, of one sequence or of a whole engine. A *round* here is one sequence's part of one.

    ``drafted`` counts draft tokens that were verified, ``accepted`` those that were handed out, ``emitted`` all tokens
    handed out by rounds; tokens behind a stop are in none of them, so ``0 <= accepted <= drafted`` and
    ``emitted <= accepted + rounds``. The first token of a sequence comes from prefill and belongs to no round.
    ``drafted_at[i]`` counts rounds whose draft reached depth ``i + 1``, ``accepted_at[i]`` those that accepted that
    deep, so their ratio stays right when depth varies. ``by_drafter`` has the same counts for each drafter's drafts.
    """

    rounds: int = 0
    drafted_rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    emitted: int = 0
    room: int = 0
    """Sum over rounds of depth + 1, the most that could have been emitted."""
    drafted_at: list[int] = field(default_factory=list)
    accepted_at: list[int] = field(default_factory=list)
    by_drafter: dict[str, DraftCounts] = field(default_factory=dict)
    fallbacks: Counter[str] = field(default_factory=Counter)
    """Times a drafter was asked and failed, by reason."""

    def add_round(self, counts: RoundCounts) -> None:
        """Count one round."""
        self.rounds += 1
        self.drafted_rounds += counts.drafted > 0
        self.drafted += counts.drafted
        self.accepted += counts.accepted
        self.emitted += counts.emitted
        self.room += counts.room
        if counts.drafted:
            self.by_drafter.setdefault(counts.drafter, DraftCounts()).add(counts)
            _add_to(self.drafted_at, counts.reached(counts.deepest))
            _add_to(self.accepted_at, counts.reached(counts.accepted))

    def merge(self, other: SpecRecord) -> None:
        """Add the counts of ``other``."""
        for name in ("rounds", "drafted_rounds", "drafted", "accepted", "emitted", "room"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        _add_to(self.drafted_at, other.drafted_at)
        _add_to(self.accepted_at, other.accepted_at)
        for drafter, counts in other.by_drafter.items():
            self.by_drafter.setdefault(drafter, DraftCounts()).merge(counts)
        self.fallbacks.update(other.fallbacks)

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted over drafted tokens; ``None`` when nothing was drafted."""
        return self.accepted / self.drafted if self.drafted else None

    @property
    def mean_acceptance_length(self) -> float | None:
        """Tokens emitted per round, rounds without a draft included; plain decoding is 1.0."""
        return self.emitted / self.rounds if self.rounds else None

    @property
    def system_efficiency(self) -> float | None:
        """Emitted tokens over the most that the allowed depths could have emitted."""
        return self.emitted / self.room if self.room else None

    @property
    def acceptance_by_position(self) -> list[float]:
        """Of the rounds that drafted to depth i + 1, the share that accepted that deep (unconditional)."""
        return [a / d if d else 0.0 for a, d in zip(self.accepted_at, self.drafted_at, strict=True)]

    def as_dict(self) -> dict[str, Any]:
        """Counts and rates as plain values."""
        return {
            "rounds": self.rounds,
            "drafted_rounds": self.drafted_rounds,
            "drafted": self.drafted,
            "accepted": self.accepted,
            "emitted": self.emitted,
            "drafted_at": list(self.drafted_at),
            "accepted_at": list(self.accepted_at),
            "by_drafter": {drafter: counts.as_dict() for drafter, counts in self.by_drafter.items()},
            "fallbacks": dict(self.fallbacks),
            "acceptance_rate": self.acceptance_rate,
            "mean_acceptance_length": self.mean_acceptance_length,
            "system_efficiency": self.system_efficiency,
        }


def _add_to(sums: list[int], counts: list[int]) -> None:
    """Add element by element, ``sums`` growing as needed."""
    sums.extend([0] * (len(counts) - len(sums)))
    for i, count in enumerate(counts):
        sums[i] += count


@dataclass(slots=True)
class StepTimes:
    """Seconds of wall clock: drafting, the target's forward, the acceptance rules, and all else in a step."""

    draft: float = 0.0
    forward: float = 0.0
    verify: float = 0.0
    rest: float = 0.0

    @property
    def total(self) -> float:
        return self.draft + self.forward + self.verify + self.rest

    def add(self, other: StepTimes) -> None:
        self.draft += other.draft
        self.forward += other.forward
        self.verify += other.verify
        self.rest += other.rest
