"""What goes into the engine and what comes out: requests, chunks and outputs, as plain values."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from headstart.control.limits import check_depth
from headstart.decode.params import SamplingParams
from headstart.decode.record import RoundCounts, SpecRecord
from headstart.decode.sampling import TokenLogprob
from headstart.decode.sequence import FinishReason
from headstart.decode.sequence import Sequence as Decoding
from headstart.draft.alignment import Prediction, count_foretold
from headstart.errors import InvalidParameter


@dataclass(frozen=True, slots=True)
class Chat:
    """A conversation for the tokenizer's chat template, with the functions that the model may call.

    ``messages`` and ``tools`` are passed to the template as they are; ``tools`` in OpenAI's shape, ``{"type":
    "function", "function": {"name": …, "description": …, "parameters": …}}``.
    """

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]] = ()


Prompt = str | Sequence[int] | Sequence[Mapping[str, Any]] | Chat
"""Text, token ids, or a conversation: a list of messages (``{"role": …, "content": …}``) or a ``Chat``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Speculation:
    """How one request wants to be drafted for. Never changes its text.

    ``drafter`` is a name the engine knows, several in the order they are asked (``"ngram+model"``), ``"none"``, or
    ``None`` for the engine's default; ``depth`` fixes the depth, ``0`` is plain, ``None`` leaves it to the controller.
    ``tenant`` isolates what drafters and the prefix cache remember across requests; those without one are together.
    ``prefix_cache`` set to false neither uses rows of other requests nor leaves any behind. ``prediction`` is what the
    output is expected to be, as text or token ids (OpenAI's Predicted Outputs): where the output agrees with it, it is
    drafted from before any other drafter is asked. What cannot fit into the context is left out of it.
    """

    drafter: str | None = None
    depth: int | None = None
    tenant: str | None = None
    prefix_cache: bool = True
    prediction: str | Sequence[int] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.prefix_cache, bool):
            raise InvalidParameter("prefix_cache", f"must be true or false, got {self.prefix_cache!r}")
        if self.depth is not None:
            check_depth("depth", self.depth)


@dataclass(frozen=True, slots=True)
class Chunk:
    """Tokens that left one sequence in one round. ``texts[i]`` became stable with ``token_ids[i]``; ``drafters[i]``
    drafted that token, ``None`` if it is the target's own."""

    index: int
    token_ids: tuple[int, ...]
    texts: tuple[str, ...]
    drafters: tuple[str | None, ...]
    logprobs: tuple[TokenLogprob, ...] = ()
    finish_reason: FinishReason | None = None
    tail: str = ""
    """Text that was held back and has no further token to wait for: a sequence was cut off in the middle."""
    counts: RoundCounts | None = None
    """What the round did; ``None`` for a first token, which prefill gives, and where there is no token."""

    @property
    def text(self) -> str:
        return "".join(self.texts) + self.tail

    @property
    def from_draft(self) -> tuple[bool, ...]:
        """For every token, whether it was drafted."""
        return tuple(drafter is not None for drafter in self.drafters)


@dataclass(frozen=True, slots=True)
class Completion:
    """One finished sequence. ``token_ids`` include a final stop id; ``text`` does not, unless asked for.
    ``drafters[i]`` drafted ``token_ids[i]``, ``None`` if it is the target's own. ``error`` says what went wrong when
    ``finish_reason`` is ``error``.

    ``accepted_prediction_tokens`` of the request's prediction are in the output, in their place, the others are
    ``rejected_prediction_tokens``: OpenAI's words. Both say what the prediction was like, not how much of it was
    drafted, so they depend on the output alone.
    """

    index: int
    token_ids: list[int]
    text: str
    finish_reason: FinishReason
    stopped_by: int | str | None
    error: str | None
    seed: int
    drafters: list[str | None]
    logprobs: list[TokenLogprob] | None
    record: SpecRecord
    accepted_prediction_tokens: int = 0
    rejected_prediction_tokens: int = 0

    @property
    def from_draft(self) -> list[bool]:
        """For every token, whether it was drafted."""
        return [drafter is not None for drafter in self.drafters]


@dataclass(frozen=True, slots=True)
class Output:
    """A finished request: ``n`` completions and its times in seconds (``None`` where it never came so far).
    ``cached_tokens`` of the prompt were found in the prefix cache, not computed, by the first sequence."""

    request_id: int
    prompt_token_ids: list[int]
    completions: list[Completion]
    queue_seconds: float | None
    first_token_seconds: float | None
    seconds: float
    cached_tokens: int = 0

    @property
    def text(self) -> str:
        """Text of the first completion."""
        return self.completions[0].text

    @property
    def token_ids(self) -> list[int]:
        """Tokens of the first completion."""
        return self.completions[0].token_ids


@dataclass(slots=True, eq=False)
class Branch:
    """One of the ``n`` sequences of a request inside the engine."""

    request: Request
    index: int
    sequence: Decoding
    drafter: str
    """As the request names it, for metrics."""
    drafters: tuple[str, ...]
    """The same, one by one, in the order they are asked; none for plain decoding."""
    depth: int | None
    tenant: str | None
    prefix_cache: bool = True
    prediction: Prediction | None = None
    delivered: int = 0
    """Output tokens already handed out in chunks."""
    texts: list[str] = field(default_factory=list)
    """Text handed out so far, in pieces."""
    counts: RoundCounts | None = None
    """Of the round whose tokens are not handed out yet."""
    ended: bool = False
    """Whether a chunk with the finish reason was handed out."""
    reaped: bool = False
    """Whether its slots are free again."""
    emitted_at: float | None = None
    """When an observer was last told of tokens, in seconds of ``perf_counter``."""

    def prediction_use(self) -> tuple[int, int]:
        """Tokens of the prediction that are in the output so far, and those that are not; zeros without one."""
        if self.prediction is None:
            return 0, 0
        foretold = count_foretold(self.prediction, self.sequence.output)
        return foretold, len(self.prediction) - foretold

    def completion(self) -> Completion:
        sequence = self.sequence
        accepted, rejected = self.prediction_use()
        return Completion(
            index=self.index,
            token_ids=sequence.output,
            text="".join(self.texts),
            finish_reason=sequence.finish or FinishReason.ERROR,
            stopped_by=sequence.stopped_by,
            error=sequence.error,
            seed=sequence.law.seed,
            drafters=list(sequence.drafters),
            logprobs=sequence.logprobs if sequence.params.logprobs is not None else None,
            record=sequence.record,
            accepted_prediction_tokens=accepted,
            rejected_prediction_tokens=rejected,
        )


@dataclass(slots=True, eq=False)
class Request:
    """A request inside the engine; also the handle its submitter holds."""

    id: int
    prompt: list[int]
    params: SamplingParams
    submitted: float
    tag: object = None
    """Whatever the submitter wants its observer to be told with this request; the engine does not look."""
    branches: list[Branch] = field(default_factory=list)
    started: float | None = None
    first_token: float | None = None
    ended: float | None = None
    cancelled: bool = False
    chunks: deque[Chunk] = field(default_factory=deque)

    @property
    def done(self) -> bool:
        """Whether every sequence of the request has ended, all its chunks are there and its slots are free."""
        return self.ended is not None

    @property
    def drained(self) -> bool:
        """Whether it is done and every chunk was taken."""
        return self.done and not self.chunks

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens that the first sequence found in the prefix cache; final once it has emitted a token."""
        return self.branches[0].sequence.reused

    def take(self) -> list[Chunk]:
        """The chunks not taken yet."""
        taken = []
        while self.chunks:
            taken.append(self.chunks.popleft())
        return taken

    def output(self) -> Output:
        """The result so far; final once ``done``."""

        def since(moment: float | None) -> float | None:
            return None if moment is None else moment - self.submitted

        return Output(
            request_id=self.id,
            prompt_token_ids=self.prompt,
            completions=[branch.completion() for branch in self.branches],
            queue_seconds=since(self.started),
            first_token_seconds=since(self.first_token),
            seconds=(self.ended if self.ended is not None else perf_counter()) - self.submitted,
            cached_tokens=self.cached_tokens,
        )
