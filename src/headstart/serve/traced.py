"""What the rounds behind a streamed chunk did, token by token. Knows engine chunks and reply models; not endpoints."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from headstart.engine.request import Chunk
from headstart.serve.replies import SpeculationTrace, TracedPiece, TracedRound


def traced(chunks: Iterable[Chunk]) -> SpeculationTrace:
    """One round per chunk; texts and tails in order make the text of the chunks."""
    return SpeculationTrace(rounds=[_round(chunk) for chunk in chunks])


def _round(chunk: Chunk) -> TracedRound:
    counts = chunk.counts
    tail: dict[str, Any] = {"tail": chunk.tail} if chunk.tail else {}
    return TracedRound(
        depth=None if counts is None else counts.depth,
        drafted=None if counts is None else counts.drafted,
        deepest=None if counts is None else counts.deepest,
        accepted=None if counts is None else counts.accepted,
        pieces=[
            TracedPiece(text=text, drafter=drafter) for text, drafter in zip(chunk.texts, chunk.drafters, strict=True)
        ],
        **tail,
    )
