"""One sequence being decoded: its tokens, its law, and every condition that can end it.

Knows token ids and, through a small protocol, the text they make. Does not know models, drafters or other sequences.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from headstart.decode.params import SamplingParams
from headstart.decode.record import SpecRecord
from headstart.decode.sampling import TokenLaw, TokenLogprob


class FinishReason(StrEnum):
    """Why a sequence ended."""

    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"
    ERROR = "error"


class TextSink(Protocol):
    """Turns tokens into text and watches for stop strings."""

    @property
    def matched(self) -> str | None:
        """The stop string that ended the text."""
        ...

    def push(self, token: int) -> str:
        """Text that became stable with this token."""
        ...

    def finish(self) -> str:
        """Text held back so far."""
        ...


@dataclass(slots=True, eq=False)
class Sequence:
    """State of one sequence.

    ``tokens`` is prompt plus output; ``cached`` counts those whose keys and values are in the pool; ``limit`` bounds
    ``len(tokens)``. ``stop_ids`` end the sequence when emitted; they are part of the output's ids, not of its text.
    """

    id: int
    prompt_length: int
    tokens: list[int]
    params: SamplingParams
    law: TokenLaw
    stop_ids: frozenset[int]
    limit: int
    text: TextSink
    extent: Any = None
    cached: int = 0
    reused: int = 0
    """Prompt tokens whose keys and values were found in the pool instead of computed."""
    finish: FinishReason | None = None
    stopped_by: int | str | None = None
    error: str | None = None
    """What went wrong, when ``finish`` is ``ERROR``."""
    cause: Exception | None = None
    """The exception behind ``error``."""
    record: SpecRecord = field(default_factory=SpecRecord)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    drafters: list[str | None] = field(default_factory=list)
    """For every output token, who drafted it; ``None`` for the target's own."""
    pending_text: list[str] = field(default_factory=list)
    """Stable text per output token not yet handed out; same length as the tokens pushed since."""

    @property
    def output(self) -> list[int]:
        return self.tokens[self.prompt_length :]

    @property
    def prefilling(self) -> bool:
        """Whether prompt tokens are still missing from the pool."""
        return self.cached < self.prompt_length

    @property
    def remaining(self) -> int:
        """How many more tokens may be emitted."""
        return self.limit - len(self.tokens)

    def push(self, token: int, *, drafter: str | None) -> bool:
        """Emit one token, drafted by ``drafter`` if by anyone; returns whether the sequence is over.

        The order of checks is the order a reader of the output sees: a stop id ends it silently, a stop string ends
        the text at its earliest place, a grammar that nothing can follow ends it, then the length.
        """
        self.tokens.append(token)
        self.law.append(token)
        self.drafters.append(drafter)
        if token in self.stop_ids:
            self.pending_text.append(self.text.push(token) if self.params.include_stop else "")
            return self.end(FinishReason.STOP, token)
        self.pending_text.append(self.text.push(token))
        if self.text.matched is not None:
            return self.end(FinishReason.STOP, self.text.matched)
        if self.law.complete:
            return self.end(FinishReason.STOP)
        if self.remaining <= 0:
            return self.end(FinishReason.LENGTH)
        return False

    def fail(self, error: Exception) -> None:
        """End the sequence because computing it raised; others go on."""
        self.error = f"{type(error).__name__}: {error}"
        self.cause = error.with_traceback(None)  # whose frames hold a round's tensors
        self.finish = FinishReason.ERROR

    def end(self, reason: FinishReason, stopped_by: int | str | None = None) -> bool:
        """End the sequence; held back text joins the last token's."""
        self.finish = reason
        self.stopped_by = stopped_by
        tail = self.text.finish()
        if self.pending_text:
            self.pending_text[-1] += tail
        elif tail:
            self.pending_text.append(tail)
        return True
