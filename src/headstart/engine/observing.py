"""Telling an observer, and surviving it: one that raises costs a warning, never a round.

Turns the engine's own objects into events. Does nothing at all without an observer.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from time import perf_counter

from headstart.control.depth import DepthController, DepthQuery
from headstart.decode.record import StepTimes
from headstart.decode.round import Prefill, Turn
from headstart.engine.events import Observer, RequestEvent, RoundEvent, SequenceRound, Stage
from headstart.engine.request import Branch, Request

log = logging.getLogger(__name__)


class Observing:
    """Makes events for ``observer``, which may be set at any time. ``errors`` counts the times it raised."""

    def __init__(self, observer: Observer | None, controller: DepthController) -> None:
        self.observer = observer
        self.errors = 0
        self._controller = controller

    def round(
        self,
        branches: Sequence[Branch],
        queries: Sequence[DepthQuery],
        turns: Sequence[Turn],
        started: Iterable[Branch],
        prefills: Sequence[Prefill],
        times: StepTimes,
    ) -> None:
        """Of a round just played; ``started`` are those whose prompt it completed."""
        observer = self.observer
        if observer is None:
            return
        now = perf_counter()
        sequences = []
        for branch, query, turn in zip(branches, queries, turns, strict=True):
            for drafter, failure in turn.failures:
                if failure == "bad q":  # found while verifying; the others were told when they happened
                    self.drafter_failed(drafter, failure)
            if turn.counts is not None:
                reason = None if turn.counts.drafted else self._reason(branch, query, turn)
                sequences.append(_part(branch, turn, reason, now))
        sequences += [_part(branch, None, None, now) for branch in started if branch.sequence.output]
        tokens = sum(prefill.count for prefill in prefills)
        rows = tokens + len(turns) + sum(len(turn.draft) for turn in turns)
        event = RoundEvent(tuple(sequences), rows, tokens, replace(times))
        self._call(lambda: observer.round(event))

    def request(self, stage: Stage, request: Request) -> None:
        """``request`` has come to ``stage``."""
        observer = self.observer
        if observer is None:
            return
        ended = stage is Stage.ENDED
        moment = {
            Stage.QUEUED: request.submitted,
            Stage.ADMITTED: request.started,
            Stage.FIRST_TOKEN: request.first_token,
            Stage.ENDED: request.ended,
        }[stage]
        event = RequestEvent(
            stage=stage,
            request_id=request.id,
            tag=request.tag,
            seconds=(request.submitted if moment is None else moment) - request.submitted,
            prompt_tokens=len(request.prompt),
            params=request.params,
            drafter=request.branches[0].drafter,
            output=request.output() if ended else None,
        )
        self._call(lambda: observer.request(event))

    def drafter_failed(self, drafter: str, reason: str) -> None:
        """A drafter broke its contract."""
        observer = self.observer
        if observer is not None:
            self._call(lambda: observer.drafter_failed(drafter, reason))

    def _reason(self, branch: Branch, query: DepthQuery, turn: Turn) -> str:
        if not branch.drafters or branch.depth == 0:
            return "not wanted"
        if turn.failures:
            return "drafter failed"
        if query.room == 0:
            return "output nearly finished"
        if turn.barred:
            return "barred by the grammar"
        if (why := self._controller.why.get(branch.sequence.id)) is not None:
            return why
        return "depth 0" if turn.depth == 0 else "nothing to say"

    def _call(self, tell: Callable[[], None]) -> None:
        try:
            tell()
        except Exception:
            self.errors += 1
            if self.errors == 1:
                log.warning("the observer raised; decoding goes on, later errors are only counted", exc_info=True)


def _part(branch: Branch, turn: Turn | None, reason: str | None, now: float) -> SequenceRound:
    gap = None if branch.emitted_at is None else now - branch.emitted_at
    branch.emitted_at = now
    counts = None if turn is None else turn.counts
    drafter = branch.drafter if counts is None or not counts.drafted else counts.drafter
    return SequenceRound(branch.sequence.id, branch.request.tag, drafter, counts, reason, gap)
