"""One sequence's place in a compiled grammar: a mask of tokens for any point of any draft.

Knows llguidance's matcher; does not know how grammars are compiled, nor laws, drafts or requests.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import NDArray

from headstart.errors import GrammarFailed

if TYPE_CHECKING:
    from llguidance import LLMatcher

T = TypeVar("T")
_Bits = NDArray[np.uint8]


class Compiled:
    """A grammar ready to be followed by any number of sequences.

    Copies of one matcher share a lexer, whose states are made as they are met, by whoever meets them. That saves time,
    but they are limited in number; when they run out the lexer is of no more use to anybody and a new one is made.

    Args:
        make: compiles; the matcher may be in an error state, for the caller to see.
        end: the token of llguidance's own whose bit in a mask says that the text may end.
    """

    def __init__(self, make: Callable[[], LLMatcher], end: int) -> None:
        self.end = end
        self.template = make()
        """Never moved: copied."""
        self._make = make
        self._lock = threading.Lock()

    def renew(self, spoilt: LLMatcher) -> None:
        """Compile again, unless somebody has since ``spoilt`` was the template."""
        with self._lock:
            if self.template is spoilt:
                self.template = self._make()


class MatcherConstraint:
    """One sequence's place in a grammar.

    One matcher walks along the drafts that are asked about and is rolled back as need be. An error is final for a
    matcher. The question is then asked once more of one with a new lexer that has seen the committed tokens and nothing
    else; so a draft cannot spoil what is committed, nor one sequence another, and what fails fails always.

    Args:
        compiled: the grammar.
        vocab_size: number of ids that are tokens.
        ends: ids that are no text: they are allowed where the text is whole if they are among ``stops``, the ids that
            end the sequence, or if nothing else is.
    """

    def __init__(self, compiled: Compiled, vocab_size: int, ends: frozenset[int], stops: frozenset[int]) -> None:
        self.complete = False
        self._compiled = compiled
        self._vocab_size = vocab_size
        self._ends = ends
        self._stops = stops
        self._committed: list[int] = []
        self._ahead: list[int] = []
        self._masks: dict[tuple[int, ...], _Bits] = {}
        self._frail = False
        """Whether a question failed for good. Drafts are no longer looked into then, which cost too much."""
        self._template = compiled.template
        self._matcher = self._template.deep_copy()

    def fresh(self) -> MatcherConstraint:
        return MatcherConstraint(self._compiled, self._vocab_size, self._ends, self._stops)

    def append(self, token: int) -> None:
        if self.complete:
            return
        if token in self._ends:
            self.complete = True
        elif self._ask(lambda: self._walk((token,))) < 1:
            raise ValueError(f"token {token} breaks the grammar")
        else:
            self._committed.append(token)
            del self._ahead[0]
            self.complete = not self._ahead and self._matcher.is_stopped()
        self._masks = {path[1:]: bits for path, bits in self._masks.items() if path[:1] == (token,)}

    def allowed(self, ahead: Sequence[int] = ()) -> NDArray[np.bool_]:
        path = tuple(ahead)
        bits = self._masks.get(path)
        if bits is None:
            bits = self._masks[path] = self._ask(lambda: self._compute(path))
        return np.unpackbits(bits, count=self._vocab_size, bitorder="little").view(np.bool_)

    def admits(self, tokens: Sequence[int]) -> int:
        if self.complete or self._frail:
            return 0
        end = next((i for i, token in enumerate(tokens) if token in self._ends), len(tokens))
        count = self._ask(lambda: self._walk(tokens[:end]))
        if count == end < len(tokens) and self.allowed(tokens[:end])[tokens[end]]:
            count += 1
        return count

    def forced(self, ahead: Sequence[int] = ()) -> list[int]:
        if self.complete or self._frail or self._ask(lambda: self._walk(ahead)) < len(ahead):
            return []
        return self._matcher.compute_ff_tokens()

    def _walk(self, path: Sequence[int]) -> int:
        """Move the matcher behind the committed tokens and as much of ``path`` as the grammar lets pass; how much."""
        common = 0
        while common < min(len(path), len(self._ahead)) and path[common] == self._ahead[common]:
            common += 1
        if common < len(self._ahead):
            self._matcher.rollback(len(self._ahead) - common)
            del self._ahead[common:]
        if common < len(path):
            count = self._matcher.try_consume_tokens(list(path[common:]))
            self._ahead += path[common : common + count]
        return len(self._ahead)

    def _compute(self, path: tuple[int, ...]) -> _Bits:
        size = -(-self._vocab_size // 8)
        if self.complete or any(token in self._ends for token in path):
            return self._with_ends(np.zeros(size, dtype=np.uint8))
        if self._walk(path) < len(path):
            return np.full(size, 255, dtype=np.uint8)
        found = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        end = self._compiled.end
        whole = bool(found[end // 8] >> end % 8 & 1)
        bits = np.zeros(size, dtype=np.uint8)
        bits[: found.shape[0]] = found[:size]
        bits[-1] &= 255 >> -self._vocab_size % 8
        for token in (*self._ends, end):
            if token < self._vocab_size:
                bits[token // 8] &= ~(1 << token % 8) & 255
        if whole:
            return self._with_ends(bits)
        if not bits.any():
            raise GrammarFailed("the grammar goes on with characters that no token of this vocabulary has")
        return bits

    def _with_ends(self, bits: _Bits) -> _Bits:
        for token in self._stops if self._stops or bits.any() else self._ends:
            if token < self._vocab_size:
                bits[token // 8] |= 1 << token % 8
        return bits

    def _ask(self, question: Callable[[], T]) -> T:
        """The answer to a question, asked again of a new matcher where the one at hand broke over it.

        Raises:
            GrammarFailed: that one broke too.
        """
        for last in (False, True):
            if self._matcher.is_error():
                self._start_over()
            answer = question()
            if not self._matcher.is_error():
                return answer
            self._frail |= last
        why = short(self._matcher.get_error())
        raise GrammarFailed(f"the grammar cannot be followed any further ({why}); make it simpler")

    def _start_over(self) -> None:
        self._compiled.renew(self._template)
        self._template = self._compiled.template
        self._matcher = self._template.deep_copy()
        self._matcher.try_consume_tokens(self._committed)
        self._ahead = []


def short(error: object) -> str:
    """llguidance's error on one line, without the parser's state."""
    text = " ".join(str(error).replace("<non-verbose/>", "").split())
    return text if len(text) <= 400 else f"{text[:400]}…"
