"""From a request's body to plain values: prompts, sampling parameters, speculation, and how the answer is to look.

The one place where OpenAI's names meet the engine's, and where an operator's limits are applied. Refuses, by name, what
the server does not honour. Does not know the engine, HTTP or how anything is computed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from headstart.decode.grammar import Grammar
from headstart.decode.params import SamplingParams
from headstart.engine.request import Chat, Prompt, Speculation
from headstart.errors import InvalidParameter
from headstart.serve import forms
from headstart.serve.problems import Problem, as_problem, refused
from headstart.serve.schema import AssistantMessage, ChatBody, CompletionBody, Sampling, TextPart
from headstart.serve.settings import Settings
from headstart.serve.tools import as_template_message

COMPLETION_MAX_TOKENS = 16
"""OpenAI's default for completions."""

NAMES = {
    "include_stop": "include_stop_str_in_output",
    "drafter": "speculation.drafter",
    "depth": "speculation.depth",
    "verify": "speculation.verify",
}
"""The engine's name of a parameter: the request's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One request, understood.

    ``names`` maps the engine's names of parameters to those of this request, for its errors.
    """

    prompts: Sequence[Prompt]
    params: SamplingParams
    speculation: Speculation
    stream: bool
    usage_chunk: bool = False
    usage_always: bool = False
    echo: bool = False
    calls: bool = False
    """Whether calls of functions are read out of the text."""
    trace: bool = False
    names: Mapping[str, str] = field(default_factory=dict)


def completion(body: CompletionBody, settings: Settings, tenant: str | None) -> Asked:
    """Understand ``POST /v1/completions``.

    Raises:
        Problem: 400, naming the parameter.
    """
    given = body.prompt
    prompts: list[Any]
    if isinstance(given, str) or (given and isinstance(given[0], int)):
        prompts = [given]
    else:
        prompts = list(given)
    if not prompts or not all(prompts):
        raise refused("prompt", "is empty; at least one token is needed")
    n = body.n or 1
    if body.best_of is not None and body.best_of != n:
        raise refused("best_of", f"must equal n, which is {n}: every sequence is returned")
    if _traced(body):
        raise refused("speculation.trace", "is for chats; leave it out")
    if body.echo and body.logprobs is not None:
        raise refused("logprobs", "of the prompt are not computed; leave out logprobs or echo")
    names = {**NAMES, "prompt": "prompt", "grammar": "structured_outputs"}
    _check_limits(body, settings, body.logprobs, "logprobs", len(prompts))
    max_tokens = body.max_tokens if body.max_tokens is not None else COMPLETION_MAX_TOKENS
    return Asked(
        prompts=prompts,
        params=_params(body, settings, names, max_tokens, body.logprobs, forms.structured(body)),
        speculation=_speculation(body, names, tenant),
        echo=bool(body.echo),
        names=names,
        **_stream(body),
    )


def chat(body: ChatBody, settings: Settings, tenant: str | None) -> Asked:
    """Understand ``POST /v1/chat/completions``.

    Raises:
        Problem: 400, naming the parameter.
    """
    given = [name for name in ("max_completion_tokens", "max_tokens") if getattr(body, name) is not None]
    if len(given) == 2 and body.max_tokens != body.max_completion_tokens:
        raise refused("max_tokens", "and max_completion_tokens differ; give one of them")
    max_tokens = getattr(body, given[0]) if given else settings.default_max_tokens
    if body.top_logprobs is not None and not body.logprobs:
        raise refused("top_logprobs", "needs logprobs to be true")
    if _traced(body) and not body.stream:
        raise refused("speculation.trace", "needs stream to be true")
    logprobs = (body.top_logprobs or 0) if body.logprobs else None
    functions = forms.tools(body)
    grammar, origin = forms.form(body, functions)
    names = {
        **NAMES,
        "prompt": "messages",
        "grammar": origin,
        "logprobs": "top_logprobs",
        "max_tokens": given[0] if given else "max_completion_tokens",
    }
    _check_limits(body, settings, logprobs, "top_logprobs", 1)
    return Asked(
        prompts=[Chat(_messages(body), functions.described() if functions is not None else ())],
        params=_params(body, settings, names, max_tokens, logprobs, grammar),
        speculation=_speculation(
            body, names, tenant, None if body.prediction is None else _text(body.prediction.content)
        ),
        calls=functions is not None and functions.callable,
        trace=_traced(body),
        names=names,
        **_stream(body),
    )


def _messages(body: ChatBody) -> list[dict[str, Any]]:
    """Messages as chat templates take them: text contents, ``developer`` under its older name, earlier calls with
    their arguments as objects."""
    out = []
    for i, message in enumerate(body.messages):
        calls = message.tool_calls if isinstance(message, AssistantMessage) else None
        if message.content is None and not calls:
            raise refused(f"messages[{i}].content", "is missing")
        made = message.model_dump(exclude_none=True)
        made["role"] = "system" if message.role == "developer" else message.role
        made["content"] = _text(message.content or "")
        try:
            out.append(as_template_message(made))
        except InvalidParameter as error:
            raise as_problem(error, {error.param: f"messages[{i}].{error.param}"}) from error
    return out


def _text(content: str | Sequence[TextPart]) -> str:
    return content if isinstance(content, str) else "".join(part.text for part in content)


def _params(
    body: Sampling,
    settings: Settings,
    names: Mapping[str, str],
    max_tokens: int | None,
    logprobs: int | None,
    grammar: Grammar | None,
) -> SamplingParams:
    stop = (body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ())
    given: dict[str, Any] = {
        "max_tokens": max_tokens,
        "temperature": body.temperature if body.temperature is not None else settings.default_temperature,
        "stop": stop,
        "logprobs": logprobs,
        "grammar": grammar,
        "logit_bias": {int(token): bias for token, bias in (body.logit_bias or {}).items()},
        "include_stop": body.include_stop_str_in_output,
        "verify": body.speculation.verify if body.speculation is not None else None,
    }
    for name in _SAME_NAME:
        given[name] = getattr(body, name)
    kept = {name: value for name, value in given.items() if value is not None or name == "max_tokens"}
    try:
        return SamplingParams(**kept)
    except InvalidParameter as error:
        raise as_problem(error, names) from error


_SAME_NAME = (
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "seed",
    "stop_token_ids",
    "banned_tokens",
    "forced_tokens",
    "min_tokens",
    "ignore_eos",
    "logprobs_mode",
    "n",
)


def _speculation(
    body: Sampling, names: Mapping[str, str], tenant: str | None, prediction: str | None = None
) -> Speculation:
    asked = body.speculation
    if body.cache_salt is not None:  # a tenant's own name has no slash in it
        tenant = f"{tenant or ''}/{body.cache_salt}"
    if asked is None:
        return Speculation(tenant=tenant, prediction=prediction)
    depth = None if asked.depth == "auto" else asked.depth
    try:
        return Speculation(drafter=asked.drafter, depth=depth, tenant=tenant, prediction=prediction)
    except InvalidParameter as error:
        raise as_problem(error, names) from error


def _traced(body: Sampling) -> bool:
    return bool(body.speculation and body.speculation.trace)


def _stream(body: Sampling) -> dict[str, bool]:
    options = body.stream_options
    if options is not None and not body.stream:
        raise refused("stream_options", "needs stream to be true")
    return {
        "stream": bool(body.stream),
        "usage_chunk": bool(options and options.include_usage),
        "usage_always": bool(options and options.continuous_usage_stats),
    }


def _check_limits(body: Sampling, settings: Settings, logprobs: int | None, name: str, prompts: int) -> None:
    n = body.n or 1
    if prompts * n > settings.max_sequences:
        param = "n" if n > 1 else "prompt"
        raise refused(param, f"{prompts * n} sequences asked for, and a request may have {settings.max_sequences}")
    stop = [body.stop] if isinstance(body.stop, str) else body.stop or []
    if len(stop) > settings.max_stop:
        raise refused("stop", f"{len(stop)} strings given, and a request may have {settings.max_stop}")
    for text in stop:
        if len(text) > settings.max_stop_length:
            raise refused("stop", f"a string has {len(text)} characters, and may have {settings.max_stop_length}")
    for param in ("logit_bias", "stop_token_ids", "banned_tokens", "forced_tokens"):
        count = len(getattr(body, param) or ())
        if count > settings.max_logit_bias:
            raise refused(param, f"{count} entries given, and a request may have {settings.max_logit_bias}")
    if logprobs is not None and logprobs > settings.max_logprobs:
        raise refused(name, f"must be at most {settings.max_logprobs}, got {logprobs}")


def check_model(asked: str | None, settings: Settings) -> None:
    """Refuse a model that is not the one served.

    Raises:
        Problem: 404.
    """
    if asked is not None and asked != settings.model_name:
        message = f"The model {asked!r} does not exist here; the one served is {settings.model_name!r}."
        raise Problem(404, message, param="model", code="model_not_found")
