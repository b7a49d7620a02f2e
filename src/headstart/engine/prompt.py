"""From what a user gives to token ids, with the checks that need a vocabulary. Does not know models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase

from headstart.decode.params import SamplingParams
from headstart.engine.request import Chat, Prompt
from headstart.errors import InvalidParameter


def encode_prompt(prompt: Prompt, tokenizer: PreTrainedTokenizerBase | None, vocab_size: int) -> list[int]:
    """Token ids of a prompt given as text, ids or chat messages.

    Raises:
        InvalidParameter: no tokenizer for text, no chat template for messages, one that drops tools or earlier calls,
            an empty prompt, an id out of range.
    """
    if isinstance(prompt, str):
        ids = list(_need(tokenizer)(prompt)["input_ids"])
    elif isinstance(prompt, Chat):
        ids = _from_chat(prompt, _need(tokenizer))
    elif isinstance(prompt, Mapping) or not isinstance(prompt, Sequence):
        raise InvalidParameter("prompt", f"must be text, a list of token ids or a list of messages, got {prompt!r}")
    elif any(isinstance(part, Mapping) for part in prompt):
        for part in prompt:
            if not isinstance(part, Mapping):
                raise InvalidParameter("prompt", f"mixes messages with something else: {part!r}")
        ids = _from_chat(Chat([m for m in prompt if isinstance(m, Mapping)]), _need(tokenizer))
    else:
        ids = list(prompt)
    if not ids:
        raise InvalidParameter("prompt", "is empty; at least one token is needed")
    for token in ids:
        if not isinstance(token, int) or isinstance(token, bool) or not 0 <= token < vocab_size:
            raise InvalidParameter("prompt", f"token id {token!r} is outside the vocabulary of {vocab_size}")
    return ids


def check_token_ids(params: SamplingParams, vocab_size: int) -> None:
    """Refuse parameters that name tokens the model does not have."""
    for name in ("logit_bias", "banned_tokens", "forced_tokens", "stop_token_ids"):
        for token in getattr(params, name):
            if token >= vocab_size:
                raise InvalidParameter(name, f"token id {token} is outside the vocabulary of {vocab_size}")
    if params.logprobs is not None and params.logprobs > vocab_size:
        raise InvalidParameter("logprobs", f"must be at most the vocabulary of {vocab_size}, got {params.logprobs}")


def _need(tokenizer: PreTrainedTokenizerBase | None) -> PreTrainedTokenizerBase:
    if tokenizer is None:
        raise InvalidParameter("prompt", "this model has no tokenizer; give token ids")
    return tokenizer


def _from_chat(chat: Chat, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    if not tokenizer.chat_template:
        raise InvalidParameter("prompt", "this tokenizer has no chat template; give text or token ids")
    messages, tools = [dict(message) for message in chat.messages], [dict(tool) for tool in chat.tools]
    text = _render(messages, tools, tokenizer)
    # a template says nothing about what it leaves out, so it is asked without
    if tools and text == _render(messages, [], tokenizer):
        raise InvalidParameter(
            "tools", "this model's chat template does not know tools; use a model that was taught them"
        )
    silent = [{key: value for key, value in message.items() if key != "tool_calls"} for message in messages]
    if silent != messages and text == _render(silent, tools, tokenizer):
        raise InvalidParameter("prompt", "this model's chat template leaves out tool_calls of earlier messages")
    # the template writes special tokens itself
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


def _render(messages: list[dict[str, Any]], tools: list[Any], tokenizer: PreTrainedTokenizerBase) -> str:
    try:
        text = tokenizer.apply_chat_template(messages, tools=tools or None, add_generation_prompt=True, tokenize=False)
    except Exception as error:  # templates raise whatever they like on roles they do not know
        raise InvalidParameter("prompt", f"the chat template refuses these messages ({error})") from error
    return str(text)
