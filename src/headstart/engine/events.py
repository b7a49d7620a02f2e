"""What the engine tells an observer: every round, what became of every request, and drafters that fail.

Plain values about what has happened; nothing an observer does can change what happens next. What they are counted
into is the observer's concern.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from headstart.decode.params import SamplingParams
from headstart.decode.record import RoundCounts, StepTimes
from headstart.engine.request import Output


@dataclass(frozen=True, slots=True)
class Status:
    """How full the engine is: sequences running and waiting, and slots of the KV pool."""

    running: int
    waiting: int
    kv_used: int
    kv_capacity: int


@dataclass(frozen=True, slots=True)
class SequenceRound:
    """One sequence's part in a round.

    ``counts`` are the very numbers added to the sequence's ``SpecRecord``; ``None`` says that the sequence took no part
    but got its first token, from prefill. ``drafter`` is whose draft was verified; where there was none, whom the
    request names, ``"none"`` for plain requests. ``reason`` says why nothing was drafted, ``None`` where something was.
    ``gap`` are the seconds since the sequence's last tokens; ``None`` for its first. ``tag`` is what the submitter
    passed along.
    """

    sequence_id: int
    tag: object
    drafter: str
    counts: RoundCounts | None
    reason: str | None
    gap: float | None


@dataclass(frozen=True, slots=True)
class RoundEvent:
    """A round that was played: its sequences, ``rows`` of the flat call, ``prompt_tokens`` computed beside decoding,
    and where its seconds went. The engine's own work between rounds is in none of ``times``."""

    sequences: tuple[SequenceRound, ...]
    rows: int
    prompt_tokens: int
    times: StepTimes


class Stage(StrEnum):
    """Where a request has come to. Of several sequences, the first to come so far counts; ``ENDED`` is the last."""

    QUEUED = "queued"
    ADMITTED = "admitted"
    FIRST_TOKEN = "first token"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class RequestEvent:
    """A request came to a stage, ``seconds`` after it was submitted. ``output`` is there once it has ended. A request
    that is cancelled early skips stages, but ``QUEUED`` and ``ENDED`` always come, once each and in this order."""

    stage: Stage
    request_id: int
    tag: object
    seconds: float
    prompt_tokens: int
    params: SamplingParams
    drafter: str
    output: Output | None = None


class Observer(Protocol):
    """Is told what the engine does. Calls come from the thread that steps the engine (``QUEUED``: from the one that
    submits), while it holds the engine's lock: be quick, and do not call the engine. An observer that raises is
    counted and otherwise ignored."""

    def round(self, event: RoundEvent) -> None:
        """A round was played."""
        ...

    def request(self, event: RequestEvent) -> None:
        """A request came to a stage."""
        ...

    def drafter_failed(self, drafter: str, reason: str) -> None:
        """A drafter broke its contract; decoding went on without it."""
        ...
