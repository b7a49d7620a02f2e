"""Grammars through llguidance: compiled once, then a mask of tokens for any point of any draft.

Knows the tokenizer and llguidance; does not know laws, drafts or requests. llguidance does no work in proportion to a
grammar's language, releases the GIL while it compiles or computes a mask, and counts its steps, so that a hostile
grammar ends with an error and not with a standstill.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase

from headstart.decode.grammar import Constraint, Grammar
from headstart.decode.params import SamplingParams
from headstart.engine.constraint import Compiled, MatcherConstraint, short
from headstart.errors import InvalidParameter

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

MOST_COMPILED = 32
"""Compiled grammars that are kept, the least recently used thrown out first."""

END = b"<|headstart:end of grammar|>"
"""A token that no model has, told to llguidance only: its bit in a mask says that the text may end here."""

JSON_OPTIONS = {"whitespace_pattern": r"[ \n\r\t]{0,64}"}
"""Between the tokens of JSON, enough white space for any indentation and not enough to go on for ever. A schema
may say otherwise under ``x-guidance``: ``whitespace_flexible`` false is compact JSON."""
STRICT_JSON = {"lenient": False, "coerce_one_of": False}
"""Not for a schema to override: what cannot be enforced is refused."""

MOST_ITEMS, MOST_LEXER_STATES, MOST_SYMBOLS = 20_000, 20_000, 20_000
"""Bounds below llguidance's defaults: a compilation takes a quarter of a second at most, a step
tens of milliseconds, a lexer 40 MB."""


class Grammars:
    """Compiles grammars for one tokenizer, and keeps what it compiled. May be used from several threads.

    Args:
        tokenizer: the model's; ``None`` for models of token ids only, which cannot be constrained.
        vocab_size: number of ids that are tokens.
        eos_ids: ids that end a text.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase | None, vocab_size: int, eos_ids: Iterable[int]) -> None:
        self.vocab_size = vocab_size
        self._eos_ids = frozenset(eos_ids)
        self._tokenizer = tokenizer
        self._lock = threading.Lock()
        self._tokens: _Tokens | None = None
        self._compiled: OrderedDict[Grammar, Compiled] = OrderedDict()

    def constraint(self, params: SamplingParams) -> Constraint | None:
        """The state machine for a request's grammar, with nothing committed; ``None`` when it has no grammar.

        Compiling takes milliseconds, a quarter of a second at most, in the calling thread and without the GIL.

        Raises:
            InvalidParameter: the grammar is wrong, unsupported, too large, or impossible in this vocabulary; its
                forced tokens break it; llguidance is not installed; this tokenizer cannot be read by it.
        """
        grammar = params.grammar
        if grammar is None:
            return None
        tokens = self._read_tokenizer()
        ends = self._eos_ids | tokens.special.intersection(params.stop_token_ids)
        stops = (frozenset() if params.ignore_eos else self._eos_ids) | (ends - self._eos_ids)
        constraint = MatcherConstraint(self._compile(grammar, tokens), self.vocab_size, ends, stops)
        forced = params.forced_tokens
        if forced and (fits := constraint.admits(forced)) < len(forced):
            raise InvalidParameter("forced_tokens", f"token {forced[fits]} breaks the grammar")
        return constraint

    def prepare(self) -> None:
        """Read the tokenizer now, which takes about a second and part of it the GIL; nothing where it cannot be."""
        with suppress(InvalidParameter):
            self._read_tokenizer()

    def _compile(self, grammar: Grammar, tokens: _Tokens) -> Compiled:
        with self._lock:
            found = self._compiled.get(grammar)
            if found is not None:
                self._compiled.move_to_end(grammar)
                return found
        compiled = _compile(grammar, tokens)
        with self._lock:
            self._compiled[grammar] = compiled
            while len(self._compiled) > MOST_COMPILED:
                self._compiled.popitem(last=False)
        return compiled

    def _read_tokenizer(self) -> _Tokens:
        with self._lock:
            if self._tokens is None:
                self._tokens = _Tokens(self._tokenizer)
            return self._tokens


class _Tokens:
    """The tokenizer as llguidance shall read it: a token is text where the engine delivers it as text.

    llguidance's own reading takes every added token that looks like ``<this>`` for a special one, but writes the
    literal text ``<this>`` of a grammar with it, which is a dead end. So it gets the bytes of the tokens as it reads
    them, which of them are special, and a tokenizer that knows no special tokens.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase | None) -> None:
        if tokenizer is None:
            raise InvalidParameter("grammar", "this model has no tokenizer, and a grammar is about text")
        try:
            import llguidance
        except ImportError as error:
            message = "needs llguidance, which is not installed; run: pip install 'headstart[structured]'"
            raise InvalidParameter("grammar", message) from error
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if not isinstance(backend, Tokenizer):
            kind = type(tokenizer).__name__
            raise InvalidParameter("grammar", f"needs a fast tokenizer, and this model has a {kind}")
        description = json.loads(backend.to_str())
        description.update(padding=None, truncation=None, post_processor=None)
        added = description["added_tokens"]
        special = {one["id"]: one["content"].encode() for one in added if one["special"]}
        description["added_tokens"] = [one for one in added if not one["special"]]
        self._library: Any = llguidance
        try:
            self._plain: LLTokenizer = llguidance.LLTokenizer(json.dumps(description), eos_token=0, slices=[])
        except ValueError as error:
            message = f"this model's tokenizer is of a kind that llguidance cannot read ({error})"
            raise InvalidParameter("grammar", message) from error
        known = self._plain.vocab_size
        self.end = max(known, *(token + 1 for token in special)) if special else known
        self.special = frozenset(special)
        # the names are llguidance's protocol
        self.tokens = [special.get(i) or (self._plain.decode_bytes([i]) if i < known else b"") for i in range(self.end)]
        self.tokens.append(END)
        self.special_token_ids = sorted({*special, self.end})
        self.eos_token_id = self.end
        self.bos_token_id = None
        self._tokenizer: LLTokenizer = llguidance.LLTokenizer(llguidance.TokenizerWrapper(self))
        self._limits = llguidance.LLParserLimits(
            step_max_items=MOST_ITEMS,
            max_lexer_states=MOST_LEXER_STATES,
            max_grammar_size=MOST_SYMBOLS,
            verbose_errors=False,
        )

    def __call__(self, text: str) -> list[int]:
        """How the model's tokenizer writes a text."""
        return self._plain.tokenize_str(text)

    def source(self, grammar: Grammar) -> str:
        """The grammar in llguidance's own format. Not checked, except for GBNF, which is rewritten on the way.

        Raises:
            ValueError, RecursionError
        """
        if grammar.kind in ("json_schema", "json_object"):
            schema = json.loads(grammar.text) if grammar.kind == "json_schema" else {"type": "object"}
            if schema is True:
                schema = {}
            if not isinstance(schema, dict):
                raise ValueError(f"a schema is an object or true, not {json.dumps(schema)}")
            own = schema.get("x-guidance")
            defaults = {} if isinstance(own, dict) and "whitespace_flexible" in own else JSON_OPTIONS
            found: str = self._library.LLMatcher.grammar_from_json_schema(
                schema, defaults=defaults, overrides=STRICT_JSON
            )
            return found
        made: str = self._library.grammar_from(grammar.kind, grammar.text)
        return made

    def matcher(self, source: str) -> LLMatcher:
        made: LLMatcher = self._library.LLMatcher(self._tokenizer, source, log_level=0, limits=self._limits)
        return made


def _compile(grammar: Grammar, tokens: _Tokens) -> Compiled:
    """Compile, and try the first step, so that what can be refused now is refused now."""
    try:
        source = tokens.source(grammar)
    except (ValueError, RecursionError) as error:
        raise InvalidParameter("grammar", f"this {grammar.kind} cannot be compiled: {short(error)}") from error
    compiled = Compiled(partial(tokens.matcher, source), tokens.end)
    problem = compiled.template.get_error() or "; ".join(compiled.template.get_grammar_warnings())
    if problem:
        raise InvalidParameter("grammar", f"this {grammar.kind} cannot be compiled: {short(problem)}")
    first = compiled.template.deep_copy()
    bits = np.frombuffer(first.compute_bitmask(), dtype=np.uint8)
    if first.is_error():
        raise InvalidParameter("grammar", f"this {grammar.kind} cannot be used: {short(first.get_error())}")
    if first.is_stopped() or set(np.flatnonzero(np.unpackbits(bits, bitorder="little"))) <= {tokens.end}:
        raise InvalidParameter("grammar", f"this {grammar.kind} allows no text but the empty one")
    return compiled
