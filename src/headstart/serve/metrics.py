"""From the engine's events to the server's meters. Adds numbers; decides and formats nothing.

Speculation is counted by round, as it happens, and is equal to the sum of all ``SpecRecord``s at every moment between
two rounds.
"""

from __future__ import annotations

from collections.abc import Iterable

from headstart.decode.record import RoundCounts
from headstart.decode.sequence import FinishReason
from headstart.draft.ensemble import PLAIN
from headstart.engine.events import RequestEvent, RoundEvent, Stage
from headstart.engine.request import Output
from headstart.observe import names
from headstart.observe.labels import NONE, Bounded
from headstart.observe.meters import Cell, Labels, Meters
from headstart.serve.tags import RequestTag

_WHOLE = (FinishReason.STOP, FinishReason.LENGTH)
"""Ends of sequences whose times say how fast the server is."""


class EngineMetrics:
    """An observer of an engine that counts into ``meters``.

    Args:
        drafters: names that get series at zero from the start.
    """

    def __init__(self, meters: Meters, drafters: Iterable[str] = ()) -> None:
        self._meters = meters
        known = [*drafters, PLAIN]
        self._drafter, self._reason = Bounded(known=known), Bounded()  # custom parts may call theirs anything
        self._of: dict[tuple[str, Labels], _Speculation] = {}
        with meters:
            self._steps, self._rows = meters.counter(names.STEPS, ()), meters.counter(names.ROWS, ())
            self._seconds = [meters.counter(names.STEP_SECONDS, (part,)) for part in _PARTS]
            if not meters.routes:  # which routes there will be is not known
                for drafter in known:
                    self._speculation(drafter, ())

    def round(self, event: RoundEvent) -> None:
        """Count a round."""
        with self._meters:
            self._steps.value += 1
            self._rows.value += event.rows
            for cell, part in zip(self._seconds, _PARTS, strict=True):
                cell.value += getattr(event.times, part)
            for sequence in event.sequences:
                route = self._route(sequence.tag)
                speculation = self._speculation(sequence.drafter, route)
                speculation.add(sequence.counts, sequence.gap)
                if sequence.reason is not None:
                    speculation.fallback(self._reason(sequence.reason)).value += 1

    def request(self, event: RequestEvent) -> None:
        """Count what became of a request."""
        labels = (self._drafter(event.drafter), *self._route(event.tag))
        with self._meters as meters:
            if event.stage is Stage.ADMITTED:
                meters.observe(names.QUEUE_TIME, labels, event.seconds)
            elif event.stage is Stage.FIRST_TOKEN:
                meters.observe(names.TTFT, labels, event.seconds)
                meters.add(names.PROMPT_TOKENS, labels, event.prompt_tokens)
            elif event.output is not None:
                self._ended(labels, event.output)

    def drafter_failed(self, drafter: str, reason: str) -> None:
        """Count a failure."""
        with self._meters as meters:
            meters.add(names.FAILURES, (self._drafter(drafter), reason))

    def _ended(self, labels: Labels, output: Output) -> None:
        meters = self._meters
        for completion in output.completions:
            reason = completion.finish_reason.value
            meters.add(names.FINISHED, (labels[0], reason, *labels[1:]))
            if (share := completion.record.acceptance_rate) is not None:
                meters.observe(names.REQUEST_ACCEPTANCE, labels, share)
        if any(completion.finish_reason not in _WHOLE for completion in output.completions):
            return
        meters.observe(names.DURATION, labels, output.seconds)
        longest = max(len(completion.token_ids) for completion in output.completions)
        if longest > 1 and output.first_token_seconds is not None:
            meters.observe(names.TPOT, labels, (output.seconds - output.first_token_seconds) / (longest - 1))

    def _route(self, tag: object) -> Labels:
        if not self._meters.routes:
            return ()
        return (tag.route if isinstance(tag, RequestTag) else NONE,)

    def _speculation(self, drafter: str, route: Labels) -> _Speculation:
        found = self._of.get((drafter, route))
        if found is None:
            label = self._drafter(drafter)
            found = self._of.get((label, route)) or _Speculation(self._meters, label, route)
            self._of[label, route] = found
        return found


_PARTS = ("draft", "forward", "verify", "rest")


class _Speculation:
    """The series of one drafter and route, at hand: they change in every round."""

    def __init__(self, meters: Meters, drafter: str, route: Labels) -> None:
        self._meters, self._drafter, self._route = meters, drafter, route
        labels = (drafter, *route)
        self._drafts = meters.counter(names.DRAFTS, labels)
        self._draft_tokens = meters.counter(names.DRAFT_TOKENS, labels)
        self._accepted = meters.counter(names.ACCEPTED, labels)
        self._emitted = meters.counter(names.EMITTED, labels)
        self._possible = meters.counter(names.POSSIBLE, labels)
        self._generated = meters.counter(names.GENERATION_TOKENS, labels)
        self._drafted = meters.counter(names.ROUNDS, (drafter, "drafted", *route))
        self._plain = meters.counter(names.ROUNDS, (drafter, "plain", *route))
        self._depth = meters.histogram(names.DEPTH, labels)
        self._gap = meters.histogram(names.CHUNK_GAP, labels)
        self._drafts_at: list[Cell] = []
        self._accepted_at: list[Cell] = []

    def add(self, counts: RoundCounts | None, gap: float | None) -> None:
        """Count a sequence's part in a round; without counts it got its first token."""
        if gap is not None:
            self._gap.observe(gap)
        if counts is None:
            self._generated.value += 1
            return
        self._generated.value += counts.emitted
        self._emitted.value += counts.emitted
        self._possible.value += counts.room
        self._depth.observe(counts.deepest)
        if not counts.drafted:
            self._plain.value += 1
            return
        self._drafted.value += 1
        self._drafts.value += 1
        self._draft_tokens.value += counts.drafted
        self._accepted.value += counts.accepted
        while len(self._drafts_at) < min(counts.deepest, names.MOST_POSITIONS):
            labels = (self._drafter, str(len(self._drafts_at)), *self._route)
            self._drafts_at.append(self._meters.counter(names.DRAFTS_AT, labels))
            self._accepted_at.append(self._meters.counter(names.ACCEPTED_AT, labels))
        for cell in self._drafts_at[: counts.deepest]:
            cell.value += 1
        for cell in self._accepted_at[: counts.accepted]:
            cell.value += 1

    def fallback(self, reason: str) -> Cell:
        """The series of rounds without a draft for this reason."""
        return self._meters.counter(names.FALLBACKS, (self._drafter, reason, *self._route))
