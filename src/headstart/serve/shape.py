"""What both endpoints share in giving an answer its shape: fresh output per choice, usage, acceptance.

Knows engine chunks and reply models; not HTTP.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from headstart.decode.params import SamplingParams
from headstart.decode.sampling import TokenLogprob
from headstart.decode.sequence import FinishReason
from headstart.engine.request import Chunk, Request
from headstart.errors import UserError
from headstart.serve.replies import CompletionTokensDetails, Finish, Metrics, PromptTokensDetails, Reply, Usage
from headstart.serve.runner import EngineFailed

LEAST_LOGPROB = -9999.0
"""OpenAI's stand-in for minus infinity, which JSON has not."""


@dataclass(frozen=True, slots=True)
class Header:
    """What every body of one answer repeats."""

    id: str
    created: int
    model: str
    system_fingerprint: str


@dataclass(slots=True)
class Fresh:
    """Output of one choice that the client has not seen. ``texts`` holds the text of each token, and at places of
    their own (``tokens`` has ``None`` there) text that belongs to no single token."""

    index: int
    texts: list[str] = field(default_factory=list)
    tokens: list[int | None] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    chunks: list[Chunk] = field(default_factory=list)
    finish: Finish | None = None
    stop_reason: int | str | None = None

    @property
    def text(self) -> str:
        return "".join(self.texts)

    def add(self, chunk: Chunk, request: Request) -> None:
        """Take in a chunk.

        Raises:
            UserError: the sequence ended because it could not go on as asked.
            EngineFailed: it ended because computing it raised, or was cancelled.
        """
        self.chunks.append(chunk)
        self.texts += chunk.texts
        self.tokens += chunk.token_ids
        self.logprobs += chunk.logprobs
        if chunk.tail:
            self.texts.append(chunk.tail)
            self.tokens.append(None)
        match chunk.finish_reason:
            case FinishReason.STOP:
                self.finish = "stop"
                self.stop_reason = _stop_reason(request.branches[chunk.index].sequence.stopped_by, request.params)
            case FinishReason.LENGTH:
                self.finish = "length"
            case FinishReason.ERROR:
                sequence = request.branches[chunk.index].sequence
                if isinstance(sequence.cause, UserError):
                    raise sequence.cause
                raise EngineFailed(f"a sequence ended in an error ({sequence.error})")
            case FinishReason.CANCELLED:
                raise EngineFailed("the request was cancelled")


def gather(taken: Iterable[tuple[int, Chunk]], requests: Sequence[Request], n: int) -> list[Fresh]:
    """Chunks joined by choice, so that a slow reader gets few large pieces; choices in order of appearance."""
    found: dict[int, Fresh] = {}
    for place, chunk in taken:
        index = place * n + chunk.index
        found.setdefault(index, Fresh(index)).add(chunk, requests[place])
    return list(found.values())


def _stop_reason(stopped_by: int | str | None, params: SamplingParams) -> int | str | None:
    """The stop string or stop id of the request that ended a choice; end-of-sequence is neither, as vLLM has it."""
    return stopped_by if isinstance(stopped_by, str) or stopped_by in params.stop_token_ids else None


def usage(requests: Sequence[Request], delivered: int) -> Usage:
    """Tokens of the prompts, each counted once, those found in the prefix cache, and tokens ``delivered``."""
    prompt = sum(len(request.prompt) for request in requests)
    return Usage(
        prompt_tokens=prompt,
        completion_tokens=delivered,
        total_tokens=prompt + delivered,
        prompt_tokens_details=PromptTokensDetails(cached_tokens=sum(request.cached_tokens for request in requests)),
    )


def whole_usage(requests: Sequence[Request], delivered: int) -> Usage:
    """``usage`` of requests that are over, with what became of their predictions. Reads the outputs once more, so it
    takes time where there is a prediction."""
    total = usage(requests, delivered)
    uses = [branch.prediction_use() for request in requests for branch in request.branches]
    total.completion_tokens_details = CompletionTokensDetails(
        accepted_prediction_tokens=sum(accepted for accepted, _ in uses),
        rejected_prediction_tokens=sum(rejected for _, rejected in uses),
    )
    return total


def finite(logprob: float) -> float:
    return max(logprob, LEAST_LOGPROB)


class Shape(Protocol):
    """One endpoint's answers. An object per request: it counts what it has handed out."""

    def whole(self, choices: Sequence[Fresh], usage: Usage, metrics: Metrics) -> Reply:
        """The answer in one piece; ``choices`` in order of index."""
        ...

    def opening(self) -> Iterable[Reply]:
        """Chunks before the first token."""
        ...

    def piece(self, fresh: Fresh, usage: Usage | None) -> Reply | None:
        """The next chunk of a choice; ``None`` while there is nothing to say."""
        ...

    def closing(self, usage: Usage, metrics: Metrics) -> Reply:
        """The chunk with the usage of the whole request."""
        ...
