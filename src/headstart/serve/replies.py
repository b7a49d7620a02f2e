"""The bodies of answers, as OpenAI documents them. Shapes only.

A field that was not set is left out of the JSON, one that was set to ``None`` is ``null``: OpenAI's clients tell the
two apart.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

Finish = Literal["stop", "length", "tool_calls"]


class Reply(BaseModel):
    model_config = ConfigDict(extra="forbid", ser_json_inf_nan="null")

    def json_bytes(self) -> bytes:
        """UTF-8 JSON of what was set."""
        return self.model_dump_json(exclude_unset=True).encode()


class Error(Reply):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorReply(Reply):
    """Every answer that is not a success."""

    error: Error


class PromptTokensDetails(Reply):
    cached_tokens: int


class CompletionTokensDetails(Reply):
    accepted_prediction_tokens: int
    rejected_prediction_tokens: int


class Usage(Reply):
    """Tokens delivered; drafts that were not accepted are in none of these."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails | None = None
    completion_tokens_details: CompletionTokensDetails | None = None


class SpeculativeDecoding(Reply):
    """What speculation did for this request, in vLLM's shape; ``headstart.serve.acceptance`` defines the numbers."""

    mean_acceptance_length: float
    draft_acceptance_rate: float
    acceptance_histogram: list[int]
    num_spec_steps: int
    num_accepted_draft_tokens: int
    num_draft_tokens: int
    num_spec_tokens: int


class Metrics(Reply):
    speculative_decoding: SpeculativeDecoding | None


class CompletionLogprobs(Reply):
    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


class CompletionChoice(Reply):
    """Also the choice of a streamed chunk, where ``finish_reason`` is null until the last one."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: Finish | None
    stop_reason: int | str | None = None


class Completion(Reply):
    """Whole, or one streamed chunk."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[CompletionChoice]
    usage: Usage | None = None
    metrics: Metrics | None = None


class TopLogprob(Reply):
    token: str
    logprob: float
    bytes: list[int] | None


class TokenLogprob(TopLogprob):
    top_logprobs: list[TopLogprob]


class ChatLogprobs(Reply):
    content: list[TokenLogprob]
    refusal: None


class CalledFunction(Reply):
    name: str
    arguments: str


class ToolCall(Reply):
    id: str
    type: Literal["function"]
    function: CalledFunction


class ChatMessage(Reply):
    role: Literal["assistant"]
    content: str | None
    refusal: None
    tool_calls: list[ToolCall] | None = None


class ChatChoice(Reply):
    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: Finish
    stop_reason: int | str | None = None


class ChatCompletion(Reply):
    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChoice]
    usage: Usage
    metrics: Metrics | None = None


class FunctionDelta(Reply):
    name: str | None = None
    arguments: str


class ToolCallDelta(Reply):
    """Part of a call; the first one has ``id``, ``type`` and the function's name."""

    index: int
    id: str | None = None
    type: Literal["function"] | None = None
    function: FunctionDelta


class ChatDelta(Reply):
    role: Literal["assistant"] | None = None
    content: str | None = None
    tool_calls: list[ToolCallDelta] | None = None


class ChatChunkChoice(Reply):
    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None
    finish_reason: Finish | None
    stop_reason: int | str | None = None


class TracedPiece(Reply):
    """The text that one token made stable, and who drafted the token; null if it is the target's own."""

    text: str
    drafter: str | None


class TracedRound(Reply):
    """One round of one choice, with its tokens in order.

    ``depth`` levels were allowed, ``drafted`` tokens were verified, ``deepest`` levels down, and ``accepted`` of them
    handed out. All four are null for a first token, which comes from the prompt and belongs to no round. ``tail`` is
    text of no token, held back until the choice was cut off. Texts are the model's own, calls of functions included.
    """

    depth: int | None
    drafted: int | None
    deepest: int | None
    accepted: int | None
    pieces: list[TracedPiece]
    tail: str | None = None


class SpeculationTrace(Reply):
    rounds: list[TracedRound]


class ChatChunk(Reply):
    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChunkChoice]
    usage: Usage | None = None
    metrics: Metrics | None = None
    speculation: SpeculationTrace | None = None


class Model(Reply):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    max_model_len: int


class ModelList(Reply):
    object: Literal["list"]
    data: list[Model]


class Health(Reply):
    status: Literal["ready", "draining", "failing"]


class Version(Reply):
    version: str
    model: str
    drafters: list[str]
    exact_rows: bool
