"""The bodies of requests, as OpenAI documents them, with the extensions that other servers made usual.

A field that is not here is refused by name. Knows shapes and static bounds; what a field asks of the engine is
``headstart.serve.asked``'s concern, and limits that an operator sets are checked there.

Accepted without an effect, because leaving them out would give the same answer:

    user, safety_identifier, metadata     labels for OpenAI's own bookkeeping
    prompt_cache_key                      a hint for OpenAI's placement of requests
    store: false                          nothing is ever stored
    service_tier: auto, default           there is one tier
    modalities: ["text"]                  there is one modality
    parallel_tool_calls without tools     there is nothing to call
    description of a json_schema          for a model that is told of it; here the schema is enforced
    best_of equal to n                    every sequence is returned
    suffix, logit_bias, … : null          null is "not given" everywhere
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from headstart.control.limits import MAX_DEPTH
from headstart.decode.params import MOST_SEQUENCES


def _encodable(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("holds half of a surrogate pair, which is no character") from None
    return text


def _at_most(count: int) -> BeforeValidator:
    """Refuses long lists and tables before each of their entries is looked at and complained about."""

    def check(value: Any) -> Any:
        if isinstance(value, list | dict) and len(value) > count:
            raise ValueError(f"has {len(value)} entries, and may have {count}")
        return value

    return BeforeValidator(check)


MOST_FIELDS = 128
MOST_ENTRIES = 16384
MOST_TOOLS = 128

Text = Annotated[str, AfterValidator(_encodable)]
TokenId = Annotated[int, Field(ge=0, lt=2**31)]
TokenKey = Annotated[str, Field(pattern=r"^[0-9]{1,9}$")]
Bias = Annotated[float, Field(ge=-100, le=100)]
Biases = Annotated[dict[TokenKey, Bias], _at_most(MOST_ENTRIES)]
TokenIds = Annotated[list[TokenId], Field(fail_fast=True)]
Texts = Annotated[list[Text], Field(fail_fast=True)]
Stop = Annotated[Text, Field(min_length=1)]


class Body(BaseModel):
    """No coercion, nothing unknown, no infinities."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _few_fields(cls, value: Any) -> Any:
        if isinstance(value, dict) and len(value) > MOST_FIELDS:
            raise ValueError(f"has {len(value)} fields, and may have {MOST_FIELDS}")
        return value


class SpeculationOptions(Body):
    """How this request is drafted for. Changes its speed, never its text."""

    drafter: Text | None = Field(None, description="A drafter the server has loaded, or none. Default: the server's.")
    depth: Annotated[int, Field(ge=0, le=MAX_DEPTH)] | Literal["auto"] | None = Field(
        None, description="Draft tokens per round; 0 is plain decoding, auto leaves it to the server."
    )
    verify: Literal["coupled", "rejection", "block"] | None = Field(
        None,
        description="coupled: the text of plain decoding at any temperature. rejection, block: the same law.",
    )
    trace: bool | None = Field(
        None, description="Streamed chats only: every chunk says under speculation what each round did."
    )


class StreamOptions(Body):
    include_usage: bool | None = Field(None, description="One more chunk with the usage of the whole request.")
    continuous_usage_stats: bool | None = Field(None, description="The usage so far on every chunk.")
    include_obfuscation: Literal[False] | None = Field(None, description="There is no padding to leave out.")


class StructuredOutputs(Body):
    """A form for the output; exactly one of the first five fields. vLLM's name for it, and its fields."""

    json_schema: dict[str, Any] | Text | None = Field(None, alias="json", description="A JSON schema, or its text.")
    json_object: Literal[True] | None = Field(None, description="Any JSON object.")
    regex: Text | None = Field(None, description="A regular expression that matches the whole.")
    choice: Annotated[list[Text], Field(min_length=1, max_length=1024, fail_fast=True)] | None = None
    grammar: Text | None = Field(None, description="GBNF (with ::=), or llguidance's variant of Lark.")
    disable_any_whitespace: bool | None = Field(None, description="Compact JSON.")


class Sampling(Body):
    """What both endpoints take."""

    model: Text | None = Field(None, description="A name that /v1/models lists. Default: the only one.")
    temperature: Annotated[float, Field(ge=0, le=100)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=0)] | None = Field(None, description="0 is off.")
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    repetition_penalty: Annotated[float, Field(ge=0.01, le=100)] | None = None
    logit_bias: Biases | None = Field(None, description="Token id to bias.")
    seed: Annotated[int, Field(ge=-(2**63), lt=2**64)] | None = Field(
        None, description="The same seed gives the same text, whatever else runs. Default: drawn."
    )
    stop: Stop | Annotated[list[Stop], Field(fail_fast=True)] | None = None
    stop_token_ids: TokenIds | None = None
    banned_tokens: TokenIds | None = Field(None, description="Token ids that are never chosen.")
    forced_tokens: TokenIds | None = Field(None, description="The first tokens of the output.")
    min_tokens: Annotated[int, Field(ge=0)] | None = Field(None, description="Earlier no stop id ends the output.")
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    ignore_eos: bool | None = None
    include_stop_str_in_output: bool | None = None
    logprobs_mode: Literal["raw", "processed"] | None = Field(
        None, description="raw: the model's own law. processed: the law that was sampled from."
    )
    structured_outputs: StructuredOutputs | None = None
    n: Annotated[int, Field(ge=1, le=MOST_SEQUENCES)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    speculation: SpeculationOptions | None = None
    cache_salt: Annotated[Text, Field(min_length=1, max_length=256)] | None = Field(
        None, description="What is remembered across requests is shared only with requests of the same salt."
    )

    user: Text | None = Field(None, description="Accepted, no effect.")
    safety_identifier: Text | None = Field(None, description="Accepted, no effect.")
    prompt_cache_key: Text | None = Field(None, description="Accepted, no effect.")
    metadata: Annotated[dict[Text, Text], _at_most(64)] | None = Field(None, description="Accepted, no effect.")
    store: Literal[False] | None = Field(None, description="Nothing is stored.")
    service_tier: Literal["auto", "default"] | None = Field(None, description="There is one tier.")


class CompletionBody(Sampling):
    """``POST /v1/completions``."""

    prompt: Text | TokenIds | Texts | Annotated[list[TokenIds], Field(fail_fast=True)] = Field(
        description="Text or token ids; a list of either is decoded together."
    )
    echo: bool | None = Field(None, description="Put the prompt before the text.")
    logprobs: Annotated[int, Field(ge=0)] | None = Field(None, description="This many of the likeliest tokens.")
    best_of: Annotated[int, Field(ge=1, le=MOST_SEQUENCES)] | None = Field(None, description="Only the value of n.")


class TextPart(Body):
    type: Literal["text"]
    text: Text


Content = Text | Annotated[list[TextPart], Field(fail_fast=True)]


class SystemMessage(Body):
    role: Literal["system", "developer"]
    content: Content
    name: Text | None = None


class UserMessage(Body):
    role: Literal["user"]
    content: Content
    name: Text | None = None


class CalledFunction(Body):
    name: Text
    arguments: Text = Field(description="JSON.")


class ToolCall(Body):
    id: Text
    type: Literal["function"]
    function: CalledFunction


class AssistantMessage(Body):
    role: Literal["assistant"]
    content: Content | None = None
    name: Text | None = None
    refusal: None = None
    tool_calls: Annotated[list[ToolCall], Field(min_length=1, max_length=MOST_TOOLS, fail_fast=True)] | None = None


class ToolMessage(Body):
    role: Literal["tool"]
    content: Content
    tool_call_id: Text


Message = Annotated[SystemMessage | UserMessage | AssistantMessage | ToolMessage, Field(discriminator="role")]


class FunctionOptions(Body):
    name: Text
    description: Text | None = None
    parameters: dict[str, Any] | None = Field(None, description="A JSON schema of an object.")
    strict: bool | None = Field(None, description="Arguments must validate.")


class Tool(Body):
    type: Literal["function"]
    function: FunctionOptions


class NamedFunction(Body):
    name: Text


class NamedTool(Body):
    type: Literal["function"]
    function: NamedFunction


class TextFormat(Body):
    type: Literal["text"]


class JsonObjectFormat(Body):
    type: Literal["json_object"]


class JsonSchema(Body):
    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
    description: Text | None = Field(None, description="Accepted, no effect.")
    json_schema: dict[str, Any] = Field(alias="schema")
    strict: bool | None = Field(None, description="The schema is enforced either way.")


class JsonSchemaFormat(Body):
    type: Literal["json_schema"]
    json_schema: JsonSchema


ResponseFormat = Annotated[TextFormat | JsonObjectFormat | JsonSchemaFormat, Field(discriminator="type")]


class PredictedContent(Body):
    type: Literal["content"]
    content: Content


class ChatBody(Sampling):
    """``POST /v1/chat/completions``."""

    messages: Annotated[list[Message], Field(min_length=1, fail_fast=True)]
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    prediction: PredictedContent | None = Field(
        None, description="What the answer will be like: where it agrees, it is drafted from. Never changes the answer."
    )
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0)] | None = Field(None, description="Needs logprobs.")
    modalities: Annotated[list[Literal["text"]], Field(max_length=1, fail_fast=True)] | None = Field(
        None, description="There is one modality."
    )
    response_format: ResponseFormat | None = None
    tools: Annotated[list[Tool], Field(min_length=1, max_length=MOST_TOOLS, fail_fast=True)] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = Field(
        None, description="Needs tools. auto: the model decides; required, or a function: it must call."
    )
    parallel_tool_calls: bool | None = Field(None, description="Whether it may call more than once.")
