"""Conversations with functions: the template is given them, and one that would drop them is found out."""

from __future__ import annotations

from typing import Any

import pytest
from tests import spoken

from headstart.engine.prompt import encode_prompt
from headstart.engine.request import Chat
from headstart.errors import InvalidParameter

PLAIN = "{% for m in messages %}{{ '<' + m.role + '>' + (m.content or '') }}{% endfor %}<assistant>"
TOOL = {"type": "function", "function": {"name": "now", "parameters": {}}}
ASKED: list[dict[str, Any]] = [{"role": "user", "content": "red"}]
CALLED: list[dict[str, Any]] = [
    *ASKED,
    {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "now", "arguments": {"a": 1}}}]},
    {"role": "tool", "content": "12"},
]


def encoded(template: str, chat: Chat) -> str:
    own = spoken.tokenizer()
    own.chat_template = template
    return str(own.decode(encode_prompt(chat, own, len(own))))


def test_a_template_is_given_tools_and_earlier_calls() -> None:
    assert encoded(PLAIN, Chat(ASKED)) == encoded(spoken.TEMPLATE, Chat(ASKED)) == "<user>red<assistant>"
    assert (
        encoded(spoken.TEMPLATE, Chat(ASKED, [TOOL])) == '<tools>{"name": "now", "parameters": {}}<user>red<assistant>'
    )
    said = encoded(spoken.TEMPLATE, Chat(CALLED, [TOOL]))
    assert said.endswith('<user>red<assistant><tool_call>now {"a": 1}<tool>12<assistant>')


def test_a_template_that_drops_them_is_refused() -> None:
    with pytest.raises(InvalidParameter, match=r"^tools: this model's chat template does not know tools"):
        encoded(PLAIN, Chat(ASKED, [TOOL]))
    with pytest.raises(InvalidParameter, match=r"^prompt: .* leaves out tool_calls"):
        encoded(PLAIN, Chat(CALLED))
    with pytest.raises(InvalidParameter, match=r"^prompt: the chat template refuses these messages \(no tools here\)"):
        encoded("{% if tools %}{{ raise_exception('no tools here') }}{% endif %}", Chat(ASKED, [TOOL]))
