"""What form a request wants its output to have: a grammar, and functions that may be called. Refuses by name.

Knows the bodies of requests; grammars and functions are values here, and what they do is the engine's concern.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

from headstart.decode.grammar import Grammar
from headstart.errors import InvalidParameter
from headstart.serve.problems import as_problem, refused
from headstart.serve.schema import ChatBody, JsonObjectFormat, JsonSchemaFormat, NamedTool, Sampling
from headstart.serve.tools import Function, Tools


def structured(body: Sampling) -> Grammar | None:
    """The grammar of ``structured_outputs``.

    Raises:
        Problem: 400, naming the parameter.
    """
    asked = body.structured_outputs
    if asked is None:
        return None
    forms = [name for name in type(asked).model_fields if name != "disable_any_whitespace"]
    given = [name for name in forms if getattr(asked, name) is not None]
    if len(given) != 1:
        raise refused("structured_outputs", f"needs exactly one form, got {len(given)}")
    if asked.disable_any_whitespace and asked.json_schema is None and asked.json_object is None:
        raise refused(
            "structured_outputs.disable_any_whitespace", f"says something about JSON, and this is a {given[0]}"
        )
    with _named("structured_outputs"):
        if asked.disable_any_whitespace:
            grammar = _compact(asked.json_schema if asked.json_schema is not None else {"type": "object"})
        elif asked.json_schema is not None:
            grammar = Grammar.json_schema(asked.json_schema)
        elif asked.json_object is not None:
            grammar = Grammar.json_object()
        elif asked.regex is not None:
            grammar = Grammar.regex(asked.regex)
        elif asked.choice is not None:
            grammar = Grammar.choice(asked.choice)
        else:
            text = asked.grammar or ""
            grammar = Grammar.ebnf(text) if "::=" in text else Grammar.lark(text)
    return _encodable("structured_outputs", grammar)


def _compact(schema: dict[str, Any] | str) -> Grammar:
    """JSON of a schema, without white space between its tokens."""
    try:
        value = json.loads(schema) if isinstance(schema, str) else schema
    except (ValueError, RecursionError) as error:
        raise InvalidParameter("grammar", f"json is no JSON ({error})") from error
    if not isinstance(value, dict):
        raise InvalidParameter("grammar", "json must be an object")
    return Grammar.json_schema({**value, "x-guidance": {"whitespace_flexible": False}})


def formatted(body: ChatBody) -> Grammar | None:
    """The grammar of ``response_format`` or of ``structured_outputs``.

    Raises:
        Problem: 400, naming the parameter.
    """
    grammar = structured(body)
    asked = body.response_format
    if not isinstance(asked, JsonObjectFormat | JsonSchemaFormat):
        return grammar
    if grammar is not None:
        raise refused("structured_outputs", "and response_format both give the output a form; give one of them")
    with _named("response_format"):
        if isinstance(asked, JsonObjectFormat):
            return Grammar.json_object()
        return _encodable("response_format", Grammar.json_schema(asked.json_schema.json_schema))


def tools(body: ChatBody) -> Tools | None:
    """The functions of a request.

    Raises:
        Problem: 400, naming the parameter.
    """
    asked = body.tool_choice
    if body.tools is None:
        if asked not in (None, "none", "auto"):
            raise refused("tool_choice", "needs tools")
        return None
    choice: Literal["none", "auto", "required"] = "auto" if asked is None or isinstance(asked, NamedTool) else asked
    with _named("tools"):
        functions = [
            Function(
                tool.function.name, tool.function.description, tool.function.parameters, bool(tool.function.strict)
            )
            for tool in body.tools
        ]
        made = Tools(
            tuple(functions),
            choice,
            asked.function.name if isinstance(asked, NamedTool) else None,
            body.parallel_tool_calls is not False,
        )
    _text("tools", made.described())
    return made


def form(body: ChatBody, functions: Tools | None) -> tuple[Grammar | None, str]:
    """The grammar of a chat's output, and which parameter it came from.

    Raises:
        Problem: 400, naming the parameter.
    """
    answer = formatted(body)
    origin = "structured_outputs" if body.structured_outputs is not None else "response_format"
    if functions is None or not functions.callable:
        return answer, origin
    if answer is not None and answer.kind not in ("json_schema", "json_object"):
        raise refused("structured_outputs", "beside tools must be a JSON schema or a JSON object")
    if answer is not None and functions.must_call:
        raise refused(origin, "says nothing where tool_choice requires a call; leave one of them out")
    with _named("tools"):
        return functions.grammar(answer), "tools" if answer is None else origin


@contextmanager
def _named(param: str) -> Iterator[None]:
    """Errors of grammars and functions name the request's parameter."""
    try:
        yield
    except InvalidParameter as error:
        raise as_problem(error, {"grammar": param}) from error


def _encodable(param: str, grammar: Grammar) -> Grammar:
    _text(param, grammar.text)
    return grammar


def _text(param: str, value: str | list[dict[str, Any]] | Mapping[str, Any]) -> None:
    """Refuse what is no Unicode, wherever in a schema it lies."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:
        raise refused(param, "holds half of a surrogate pair, which is no character") from None
