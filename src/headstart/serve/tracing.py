"""From the engine's events to spans: one for each engine request, from its submission to its end."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from headstart.decode.record import SpecRecord
from headstart.decode.sequence import FinishReason
from headstart.engine.events import RequestEvent, Stage
from headstart.engine.request import Chat, Output, Prompt
from headstart.serve.tags import RequestTag

if TYPE_CHECKING:
    from headstart.observe.traces import Traces, Value


class RequestTraces:
    """Fills ``traces`` with what an engine tells. Requests without a ``RequestTag`` are not traced."""

    def __init__(self, traces: Traces) -> None:
        self._traces = traces

    def request(self, event: RequestEvent) -> None:
        """A request came to a stage."""
        if event.stage is Stage.QUEUED:
            if isinstance(event.tag, RequestTag):
                self._begin(event, event.tag)
        elif event.stage is Stage.FIRST_TOKEN:
            self._traces.first_token(event.request_id, event.seconds)
        elif event.output is not None and self._traces.recording(event.request_id):
            self._end(event, event.output)

    def _begin(self, event: RequestEvent, tag: RequestTag) -> None:
        params = event.params
        attributes: dict[str, Value | None] = {
            "gen_ai.request.temperature": params.temperature,
            "gen_ai.request.top_p": params.top_p,
            "gen_ai.request.top_k": params.top_k or None,
            "gen_ai.request.max_tokens": params.max_tokens,
            "gen_ai.request.frequency_penalty": params.frequency_penalty or None,
            "gen_ai.request.presence_penalty": params.presence_penalty or None,
            "gen_ai.request.seed": params.seed,
            "gen_ai.request.choice.count": params.n if params.n > 1 else None,
            "gen_ai.request.stream": True if tag.stream else None,
            "headstart.request_id": tag.request_id,
            "headstart.route": tag.route,
        }
        if self._traces.content:
            attributes["gen_ai.request.stop_sequences"] = params.stop or None
        self._traces.begin(event.request_id, tag.operation, tag.context, attributes)

    def _end(self, event: RequestEvent, output: Output) -> None:
        tag = event.tag
        assert isinstance(tag, RequestTag)  # or it would not have begun
        completions = output.completions
        errors = [c.error or "the request failed" for c in completions if c.finish_reason is FinishReason.ERROR]
        attributes: dict[str, Value | None] = {
            "gen_ai.response.finish_reasons": [c.finish_reason.value for c in completions],
            "gen_ai.usage.input_tokens": event.prompt_tokens,
            "gen_ai.usage.cache_read.input_tokens": output.cached_tokens or None,
            "gen_ai.usage.output_tokens": sum(len(c.token_ids) for c in completions),
            "gen_ai.response.time_to_first_chunk": output.first_token_seconds if tag.stream else None,
            "headstart.queue_time": output.queue_seconds,
        }
        if self._traces.content:
            if isinstance(tag.prompt, Chat) and tag.prompt.tools:
                tools = [{"type": "function", **tool["function"]} for tool in tag.prompt.tools]
                attributes["gen_ai.tool.definitions"] = json.dumps(tools)
            attributes["gen_ai.input.messages"] = _input(tag.prompt)
            attributes["gen_ai.output.messages"] = _output(output)
        record = SpecRecord()
        for completion in completions:
            record.merge(completion.record)
        error = errors[0] if errors else None
        self._traces.end(event.request_id, event.seconds, attributes, _speculation(event.drafter, record), error)


def _speculation(drafter: str, record: SpecRecord) -> Mapping[str, Value | None]:
    return {
        "drafter": drafter,
        "rounds": record.rounds,
        "num_drafts": record.drafted_rounds,
        "num_draft_tokens": record.drafted,
        "num_accepted_tokens": record.accepted,
        "accepted_per_position": record.accepted_at or None,
        "acceptance_rate": record.acceptance_rate,
        "mean_acceptance_length": record.mean_acceptance_length,
        "drafter_failures": sum(record.fallbacks.values()) or None,
    }


def _input(prompt: Prompt) -> str | None:
    """The prompt in the conventions' shape of messages; nothing for token ids."""
    if isinstance(prompt, str):
        return json.dumps([_message("user", prompt)])
    messages = [m for m in (prompt.messages if isinstance(prompt, Chat) else prompt) if isinstance(m, Mapping)]
    return json.dumps([_given(message) for message in messages]) if messages else None


def _given(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message of a chat, its calls of functions and their results included."""
    text = message.get("content") or ""
    if message["role"] == "tool":
        return {
            "role": "tool",
            "parts": [{"type": "tool_call_response", "id": message.get("tool_call_id"), "response": text}],
        }
    calls = [
        {"type": "tool_call", "id": call.get("id"), **{key: call["function"][key] for key in ("name", "arguments")}}
        for call in message.get("tool_calls") or ()
    ]
    made = _message(message["role"], text)
    return {**made, "parts": [*(made["parts"] if text or not calls else ()), *calls]}


def _output(output: Output) -> str:
    return json.dumps(
        [{**_message("assistant", c.text), "finish_reason": c.finish_reason.value} for c in output.completions]
    )


def _message(role: str, text: str) -> dict[str, Any]:
    return {"role": role, "parts": [{"type": "text", "content": text}]}
