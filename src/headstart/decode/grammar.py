"""What shape the output must have: a grammar as a plain value, and the state machine that a law asks.

Knows no tokenizer and compiles nothing; whoever can turn the text of a grammar into masks of tokens implements
``Constraint``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from headstart.errors import InvalidParameter

GrammarKind = Literal["json_object", "json_schema", "regex", "choice", "lark", "ebnf"]
GRAMMAR_KINDS: tuple[GrammarKind, ...] = ("json_object", "json_schema", "regex", "choice", "lark", "ebnf")
MOST_CHARACTERS = 100_000
"""Longest grammar in characters."""


@dataclass(frozen=True, slots=True)
class Grammar:
    """The language that the output must belong to. Make one with a method named after its kind.

    ``text`` is the JSON schema, the regular expression, a JSON list of choices, a Lark grammar or a GBNF grammar; for
    ``json_object`` it is empty. Whether it can be compiled is found out by the engine, at ``submit``.

    Raises:
        InvalidParameter: an unknown kind, or a text that is too long.
    """

    kind: GrammarKind
    text: str = ""

    def __post_init__(self) -> None:
        if self.kind not in GRAMMAR_KINDS:
            raise InvalidParameter("grammar", f"kind must be one of {', '.join(GRAMMAR_KINDS)}, got {self.kind!r}")
        if not isinstance(self.text, str):
            raise InvalidParameter("grammar", f"a {self.kind} must be text, got {type(self.text).__name__}")
        if len(self.text) > MOST_CHARACTERS:
            message = f"a {self.kind} may have at most {MOST_CHARACTERS} characters, got {len(self.text)}"
            raise InvalidParameter("grammar", message)

    @classmethod
    def json_object(cls) -> Grammar:
        """Any JSON object."""
        return cls("json_object")

    @classmethod
    def json_schema(cls, schema: Mapping[str, Any] | bool | str) -> Grammar:
        """JSON that validates against a JSON schema, given as a value or as text; properties keep their order."""
        return cls("json_schema", schema if isinstance(schema, str) else _as_json("json_schema", schema))

    @classmethod
    def regex(cls, pattern: str) -> Grammar:
        """Text that a regular expression matches as a whole; no look-around, no back references."""
        return cls("regex", pattern)

    @classmethod
    def choice(cls, choices: Sequence[str]) -> Grammar:
        """One of several strings."""
        if isinstance(choices, str) or not all(isinstance(one, str) and one for one in choices):
            raise InvalidParameter("grammar", f"choice must be a list of non-empty strings, got {choices!r}")
        return cls("choice", _as_json("choice", list(dict.fromkeys(choices))))

    @classmethod
    def lark(cls, text: str) -> Grammar:
        """A context-free grammar in llguidance's variant of Lark; its root is ``start``."""
        return cls("lark", text)

    @classmethod
    def ebnf(cls, text: str) -> Grammar:
        """A context-free grammar in GBNF, the notation of llama.cpp; its root is ``root``."""
        return cls("ebnf", text)


class Constraint(Protocol):
    """Where one sequence stands in its grammar: a state machine over the tokens it has committed.

    ``ahead`` are draft tokens after the committed ones, as in ``TokenLaw``. Every answer is a function of the grammar
    and of the tokens, committed and ahead, and of nothing else: not of what was asked before.
    """

    @property
    def complete(self) -> bool:
        """Whether the committed tokens are a whole text of the grammar and nothing can follow but the end."""
        ...

    def append(self, token: int) -> None:
        """Commit one token."""
        ...

    def allowed(self, ahead: Sequence[int] = ()) -> NDArray[np.bool_]:
        """Which tokens may come next; bool ``[vocab_size]``, a fresh array. Tokens that end the sequence are allowed
        exactly where the text is whole. Behind an impossible ``ahead`` everything is allowed: no law is ever asked for
        there that matters.

        Raises:
            GrammarFailed: the grammar became too complex, or no token of this vocabulary can continue it.
        """
        ...

    def admits(self, tokens: Sequence[int]) -> int:
        """How many of ``tokens`` the grammar lets follow, one after another. Cheaper than masks, and may be too kind:
        ``allowed`` decides."""
        ...

    def forced(self, ahead: Sequence[int] = ()) -> list[int]:
        """Tokens that are sure to follow there, as far as they are cheap to know; often none."""
        ...

    def fresh(self) -> Constraint:
        """A state machine of its own for the same grammar, with nothing committed."""
        ...


def _as_json(kind: str, value: object) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidParameter("grammar", f"this {kind} cannot be written as JSON ({error})") from error
