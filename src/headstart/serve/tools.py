"""Functions that a model may call: what a request says about them, and the grammar that holds the model to it.

The format is that of Hermes and Qwen: ``<tool_call>``, a JSON object with ``name`` and ``arguments``, ``</tool_call>``.
Knows schemas and grammars; not HTTP, models or templates. How calls are read out of text is
``headstart.serve.calls``'s concern.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from headstart.decode.grammar import Grammar
from headstart.errors import InvalidParameter

OPEN, CLOSE = "<tool_call>", "</tool_call>"
NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
NOTHING = {"type": "object", "properties": {}, "additionalProperties": False}
"""The arguments of a function that says nothing about them."""

WHITE_SPACE = r"[ \n\r\t]{0,64}"

Choice = Literal["none", "auto", "required"]


@dataclass(frozen=True, slots=True)
class Function:
    """One function. ``parameters`` is a JSON schema of an object; ``strict`` says that arguments must validate."""

    name: str
    description: str | None = None
    parameters: Mapping[str, Any] | None = None
    strict: bool = False

    def __post_init__(self) -> None:
        if not NAME.fullmatch(self.name):
            message = f"{self.name!r} must be 1 to 64 letters, digits, underscores and dashes"
            raise InvalidParameter("tools", f"function name {message}")
        schema = self.parameters
        if schema is not None and schema.get("type", "object") != "object":
            raise InvalidParameter("tools", f"parameters of {self.name} must be a schema of an object")

    def described(self) -> dict[str, Any]:
        """The function as chat templates take it."""
        made: dict[str, Any] = {"name": self.name}
        if self.description is not None:
            made["description"] = self.description
        made["parameters"] = dict(self.parameters) if self.parameters is not None else NOTHING
        return {"type": "function", "function": made}


@dataclass(frozen=True, slots=True)
class Tools:
    """The functions of one request.

    Args:
        functions: at least one.
        choice: ``auto``: the model decides; ``required``: it must call; ``none``: it must not, and is told of none.
        named: the one function it must call, once.
        parallel: whether it may call more than once.

    Raises:
        InvalidParameter: two functions of one name; ``named`` is none of them.
    """

    functions: tuple[Function, ...]
    choice: Choice = "auto"
    named: str | None = None
    parallel: bool = True

    def __post_init__(self) -> None:
        names = [function.name for function in self.functions]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise InvalidParameter("tools", f"two functions are called {twice!r}")
        if self.named is not None and self.named not in names:
            raise InvalidParameter("tool_choice", f"{self.named!r} is none of the functions in tools")

    @property
    def callable(self) -> bool:
        """Whether the model may call at all."""
        return self.choice != "none"

    @property
    def must_call(self) -> bool:
        """Whether the model has no other way."""
        return self.choice == "required" or self.named is not None

    def described(self) -> list[dict[str, Any]]:
        """What the chat template is given."""
        return [function.described() for function in self.functions] if self.callable else []

    def grammar(self, answer: Grammar | None = None) -> Grammar | None:
        """What the output must look like, ``None`` where anything goes.

        Args:
            answer: the grammar of an answer that calls nothing, a JSON schema or object; not where a call is a must.

        Raises:
            InvalidParameter: the schemas together are too long.
        """
        if not self.callable:
            return answer
        must = self.must_call
        if not must and answer is None and self.parallel and not any(f.strict for f in self.functions):
            return None
        functions = [f for f in self.functions if self.named in (None, f.name)]
        once = self.named is not None or not self.parallel
        rules = [f"call: {' | '.join(f'call_{i}' for i in range(len(functions)))}"]
        for i, function in enumerate(functions):
            head, tail = json.dumps(f'\n{{"name": "{function.name}", "arguments": '), json.dumps(f"}}\n{CLOSE}")
            schema: Mapping[str, Any] = {"type": "object"}
            if must or answer is not None or function.strict:
                schema = function.parameters if function.parameters is not None else NOTHING
            rules += [f"call_{i}: {head} arguments_{i} {tail}", f"arguments_{i}: {_json(schema)}"]
        opening = json.dumps(OPEN)
        calls = f"{opening} call" if once else f'{opening} call ("\\n"? {opening} call)*'
        if must:
            start = [f"start: {calls}"]
        elif answer is not None:
            schema = json.loads(answer.text) if answer.kind == "json_schema" else {"type": "object"}
            start = [f"start: {calls} | answer", f"answer: {_json(schema)}"]
        else:
            # free text, until the tag that opens a call; a lazy rule ends at the first one
            start = ["start: (before call)? rest" if once else "start: (before call)* rest"]
            start += [f"before[lazy]: /(.|\\n)*{OPEN}/", "rest: /(.|\\n)*/"]
            if once:
                start[0] = "start: before call | rest"
        return Grammar.lark("\n".join([*start, *rules]) + "\n")


def _json(schema: Mapping[str, Any]) -> str:
    """A rule of llguidance for JSON; a schema may choose compact JSON, and may not choose to be read leniently."""
    own = schema.get("x-guidance")
    options: dict[str, Any] = {"lenient": False, "coerce_one_of": False}
    if isinstance(own, Mapping) and own.get("whitespace_flexible") is False:
        options["whitespace_flexible"] = False
    else:
        options["whitespace_pattern"] = WHITE_SPACE
    return f"%json {json.dumps({**schema, 'x-guidance': options}, ensure_ascii=False)}"


def as_template_message(message: Mapping[str, Any]) -> dict[str, Any]:
    """An assistant's message with earlier calls as chat templates take it: arguments as objects, not as JSON text."""
    calls: Sequence[Mapping[str, Any]] = message.get("tool_calls") or ()
    made = []
    for i, call in enumerate(calls):
        function = call["function"]
        try:
            arguments = json.loads(function["arguments"])
        except ValueError as error:
            raise InvalidParameter(f"tool_calls[{i}].function.arguments", f"is not JSON ({error})") from error
        made.append({**call, "function": {**function, "arguments": arguments}})
    return {**message, "tool_calls": made} if made else dict(message)
