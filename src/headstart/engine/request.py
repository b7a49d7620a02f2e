"""What goes into the engine and what comes out: requests, chunks and outputs, as plain values."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from headstart.control.depth import check_depth
from headstart.decode.params import SamplingParams
from headstart.decode.record import SpecRecord
from headstart.decode.sampling import TokenLogprob
from headstart.decode.sequence import FinishReason
from headstart.decode.sequence import Sequence as Decoding

Prompt = str | Sequence[int] | Sequence[Mapping[str, str]]
"""Text, token ids, or chat messages (``{"role": …, "content": …}``) for the tokenizer's chat template."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Speculation:
    """How one request wants to be drafted for. Never changes its text.

    ``drafter`` is a name the engine knows, ``"none"``, or ``None`` for the engine's default; ``depth`` fixes the depth,
    ``0`` is plain, ``None`` leaves it to the controller. ``tenant`` isolates what drafters remember across requests.
    """

    drafter: str | None = None
    depth: int | None = None
    tenant: str | None = None

    def __post_init__(self) -> None:
        if self.depth is not None:
            check_depth("depth", self.depth)


@dataclass(frozen=True, slots=True)
class Chunk:
    """Tokens that left one sequence in one round. ``texts[i]`` became stable with ``token_ids[i]``; ``from_draft[i]`` says
    whether that token was drafted."""

    index: int
    token_ids: tuple[int, ...]
    texts: tuple[str, ...]
    from_draft: tuple[bool, ...]
    logprobs: tuple[TokenLogprob, ...] = ()
    finish_reason: FinishReason | None = None

    @property
    def text(self) -> str:
        return "".join(self.texts)


@dataclass(frozen=True, slots=True)
class Completion:
    """One finished sequence. ``token_ids`` include a final stop id; ``text`` does not."""

    index: int
    token_ids: list[int]
    text: str
    finish_reason: FinishReason
    stopped_by: int | str | None
    seed: int
    from_draft: list[bool]
    logprobs: list[TokenLogprob] | None
    record: SpecRecord


@dataclass(frozen=True, slots=True)
class Output:
    """A finished request: ``n`` completions and its times in seconds (``None`` where it never came so far)."""

    request_id: int
    prompt_token_ids: list[int]
    completions: list[Completion]
    queue_seconds: float | None
    first_token_seconds: float | None
    seconds: float

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
    depth: int | None
    tenant: str | None
    delivered: int = 0
    """Output tokens already handed out in chunks."""


@dataclass(slots=True, eq=False)
class Request:
    """A request inside the engine; also the handle its submitter holds."""

    id: int
    prompt: list[int]
    params: SamplingParams
    submitted: float
    branches: list[Branch] = field(default_factory=list)
    started: float | None = None
    first_token: float | None = None
    ended: float | None = None
    cancelled: bool = False
    chunks: deque[Chunk] = field(default_factory=deque)
    texts: list[list[str]] = field(default_factory=list)

    @property
    def done(self) -> bool:
        """Whether every sequence of the request has ended."""
        return all(branch.sequence.finish is not None for branch in self.branches)
