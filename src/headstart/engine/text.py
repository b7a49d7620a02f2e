"""From tokens to text, one token at a time: what may be delivered now, and where a stop string ends it.

Refuses to know where tokens come from or what a request is; drafts, rounds and batches end before this module.

**Which text.** The delivered text is what the tokens say *after the prompt*: the part that
``decode(prompt + output)`` has and ``decode(prompt)`` has not. ``decode(output)`` alone is no reference: a
sentencepiece decoder drops the space of the first word and a WordPiece decoder keeps the ``##`` of a first
fragment, because both believe the text begins there. With an empty prompt the two agree. Three details:

* ``clean_up_tokenization_spaces`` stays off. It rewrites text that has already left ("don ' t" becomes "don't").
* A character begun in the prompt and completed by the output belongs to the output.
* Byte-fallback tokens (``<0xE3>``) are decoded here, character by character. The tokenizer decodes a run of them as
  one piece: a single bad byte turns all of it, characters long delivered included, into replacement characters. The
  two agree wherever the run is valid UTF-8.

**Cost.** A window over the last few tokens is decoded, never the whole output, so a token costs the same at any
length.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from headstart.errors import InvalidParameter

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"

# A cut may fall inside a character, which garbles the start of the window's text and nothing else: UTF-8 finds its
# feet within 4 bytes and every token kept in the window carries at least one.
_WINDOW_MAX = 16
_WINDOW_KEEP = 8

_BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")


class TextStream:
    """The text of one sequence, growing token by token.

    ``push`` and ``finish`` return what is new; their concatenation is ``text``. Held back are at most one unfinished
    character and, with ``stop``, the longest ending of the text that some stop string begins with. A sequence of bytes
    that is not UTF-8 yields replacement characters, each held for no longer than the next token with text.

    A stop string matches **as soon as it is complete**: the match that ends first in the text wins; of several that
    end at the same character, the longest. So the outcome never depends on where tokens begin and end, and no
    further token is needed to decide. From then on the text is closed: cut before the match, or after it with
    ``include_stop``; further tokens add nothing.

    Args:
        tokenizer: a transformers tokenizer; ``None`` when the caller works in token ids, and the text stays empty.
        prompt_ids: the prompt, as context for the first token.
        stop: strings that end the text.
        include_stop: whether the matched string is delivered.
        skip_special_tokens: leave special tokens out of the text, as ``tokenizer.decode`` does.

    Raises:
        InvalidParameter: stop strings without a tokenizer.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase | None,
        prompt_ids: Sequence[int],
        stop: tuple[str, ...],
        include_stop: bool,
        skip_special_tokens: bool = True,
    ) -> None:
        if tokenizer is None and stop:
            raise InvalidParameter("stop", "stop strings need a tokenizer; give one, or use stop_token_ids")
        self._gate = _StopGate(stop, include_stop)
        self._tokens: _WindowText | _ByteFallbackText | None = None
        if tokenizer is not None:
            kind = _ByteFallbackText if _has_byte_fallback(tokenizer) else _WindowText
            self._tokens = kind(tokenizer, prompt_ids, skip_special_tokens)
        self._parts: list[str] = []
        self._finished = False

    @property
    def matched(self) -> str | None:
        """The stop string that closed the text."""
        return self._gate.matched

    @property
    def text(self) -> str:
        """Everything delivered so far."""
        if len(self._parts) > 1:
            self._parts = ["".join(self._parts)]
        return self._parts[0] if self._parts else ""

    def push(self, token_id: int) -> str:
        """Add one token; return the text that became certain by it, often empty."""
        if self._finished:
            raise RuntimeError("the text is finished; start a new TextStream")
        if self._tokens is None or self.matched is not None:
            return ""
        return self._deliver(self._gate.feed(self._tokens.push(token_id)))

    def finish(self) -> str:
        """No token will follow: return what was held back. Calling it again returns nothing."""
        if self._finished:
            return ""
        self._finished = True
        if self._tokens is None or self.matched is not None:
            return ""
        return self._deliver(self._gate.feed(self._tokens.finish()) + self._gate.flush())

    def _deliver(self, delta: str) -> str:
        if delta:
            self._parts.append(delta)
        return delta


class _WindowText:
    """Token ids in, finished characters out, for decoders that only ever append.

    The window holds the last tokens that carry text; ``_seen`` is its text, of which ``_done`` characters were
    delivered or belong to the prompt.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, prompt_ids: Sequence[int], skip_special: bool) -> None:
        self._decode = _decoder(tokenizer, skip_special)
        self._window = self._context(prompt_ids)
        self._seen = self._decode(self._window)
        self._done = _settled(self._seen)
        self._prompt_is_open = self._done < len(self._seen)

    def push(self, token_id: int) -> str:
        text = self._decode([*self._window, token_id])
        if self._silent(token_id, text):
            return ""
        self._window.append(token_id)
        self._seen = text
        delta = self._take(_settled(text))
        if len(self._window) > _WINDOW_MAX:
            self._shrink()
        return delta

    def finish(self) -> str:
        return self._take(len(self._seen))

    def is_silent(self, token_id: int) -> bool:
        """Whether the token adds nothing here: a skipped special token, say."""
        return self._silent(token_id, self._decode([*self._window, token_id]))

    def anchor(self, token_id: int) -> None:
        """If there is no text yet, take ``token_id`` as context: what follows does not begin the text."""
        if not self._seen:
            self._window.append(token_id)
            self._seen = self._decode(self._window)
            self._done = len(self._seen)

    def _silent(self, token_id: int, text_with_it: str) -> bool:
        # Unchanged text is not enough: the second byte of a character changes nothing either. Nor is silence when
        # decoded alone: a lone word separator is dropped there.
        return text_with_it != "" and text_with_it == self._seen and self._decode([token_id]) == ""

    def _take(self, end: int) -> str:
        start = self._done
        if end <= start:
            return ""
        self._done = end
        if self._prompt_is_open:
            self._prompt_is_open = False
            if self._seen[start] == REPLACEMENT:
                start += 1  # The output did not complete the prompt's last character: the debris is the prompt's.
        return self._seen[start:end]

    def _shrink(self) -> None:
        held = len(self._seen) - self._done
        self._window = self._window[-_WINDOW_KEEP:]
        self._seen = self._decode(self._window)
        self._done = max(0, len(self._seen) - held)

    def _context(self, prompt_ids: Sequence[int]) -> list[int]:
        """A short tail of the prompt, found by doubling, that says something readable."""
        size = _WINDOW_KEEP
        while True:
            tail = list(prompt_ids[-size:])
            if len(tail) < size or self._decode(tail).strip(REPLACEMENT):
                return tail
            size *= 2


class _ByteFallbackText:
    """``_WindowText`` for a vocabulary with byte tokens; those go through a UTF-8 decoder and not into the window."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, prompt_ids: Sequence[int], skip_special: bool) -> None:
        self._tokenizer = tokenizer
        self._words = _WindowText(tokenizer, prompt_ids, skip_special)
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        run: list[int] = []
        for token_id in reversed(prompt_ids[-3:]):
            byte = self._byte(token_id)
            if byte is None:
                break
            run.insert(0, byte)
        self._utf8.decode(bytes(run))
        self._prompt_is_open = self._is_open()

    def push(self, token_id: int) -> str:
        byte = self._byte(token_id)
        if byte is not None:
            self._words.anchor(token_id)
            before = self._words.finish()
            return before + self._own(self._utf8.decode(bytes([byte])))
        if self._is_open() and self._words.is_silent(token_id):
            return ""
        return self._close() + self._words.push(token_id)

    def finish(self) -> str:
        return self._words.finish() + self._close()

    def _close(self) -> str:
        text = self._own(self._utf8.decode(b"", final=True))
        self._utf8.reset()
        return text

    def _own(self, text: str) -> str:
        if text and self._prompt_is_open:
            self._prompt_is_open = False
            return text.removeprefix(REPLACEMENT)
        return text

    def _is_open(self) -> bool:
        return self._utf8.getstate()[0] != b""

    def _byte(self, token_id: int) -> int | None:
        piece = self._tokenizer.convert_ids_to_tokens(token_id)
        found = _BYTE_TOKEN.fullmatch(piece) if isinstance(piece, str) else None
        return int(found[1], 16) if found else None


def _decoder(tokenizer: PreTrainedTokenizerBase, skip_special: bool) -> Callable[[list[int]], str]:
    """``tokenizer.decode`` without clean-up. Where it would only hand the ids on to the ``tokenizers`` library, the
    library itself: right after a forward call, with nothing in the caches, that takes a third of the time."""
    from transformers import PreTrainedTokenizerFast

    kind = type(tokenizer)
    if isinstance(tokenizer, PreTrainedTokenizerFast) and all(
        getattr(kind, name) is getattr(PreTrainedTokenizerFast, name) for name in ("decode", "_decode")
    ):
        return partial(tokenizer.backend_tokenizer.decode, skip_special_tokens=skip_special)

    def decode(ids: list[int]) -> str:
        text = tokenizer.decode(ids, skip_special_tokens=skip_special, clean_up_tokenization_spaces=False)
        return text if isinstance(text, str) else "".join(text)

    return decode


def _settled(text: str) -> int:
    """How many characters no further byte can change: an unfinished one shows as a single replacement at the end."""
    return len(text) - text.endswith(REPLACEMENT)


def _has_byte_fallback(tokenizer: PreTrainedTokenizerBase) -> bool:
    # Asked by behaviour: a vocabulary may hold the string "<0xE3>" and mean these six characters.
    piece = "<0xE3>"
    token_id = tokenizer.convert_tokens_to_ids(piece)
    if not isinstance(token_id, int) or tokenizer.convert_ids_to_tokens(token_id) != piece:
        return False
    return tokenizer.decode([token_id], skip_special_tokens=False, clean_up_tokenization_spaces=False) == REPLACEMENT


class _StopGate:
    """Lets text through up to the first stop string, holding back what may become one.

    One automaton per stop string (Knuth, Morris, Pratt 1977) reads each character once, so the cost per character
    does not depend on the length of a stop string.
    """

    def __init__(self, stop: tuple[str, ...], include_stop: bool) -> None:
        self.matched: str | None = None
        self._include = include_stop
        self._automata = [_Automaton(pattern) for pattern in stop if pattern]
        self._held = ""

    def feed(self, text: str) -> str:
        """Add text; return what may leave. Once ``matched`` is set nothing more does."""
        if not self._automata or not text:
            return text
        for index, char in enumerate(text):
            ended = [automaton.pattern for automaton in self._automata if automaton.read(char)]
            if ended:
                self.matched = max(ended, key=len)
                closed = self._held + text[: index + 1]
                self._held = ""
                return closed if self._include else closed.removesuffix(self.matched)
        open_text = self._held + text
        hold = 0 if self._include else max(automaton.state for automaton in self._automata)
        cut = len(open_text) - hold
        self._held = open_text[cut:]
        return open_text[:cut]

    def flush(self) -> str:
        held, self._held = self._held, ""
        return held


class _Automaton:
    """``state`` is the length of the longest beginning of ``pattern`` that the text read so far ends with."""

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self.state = 0
        # _fallback[i]: the longest proper beginning of pattern[:i + 1] that is also its end.
        self._fallback = [0] * len(pattern)
        length = 0
        for i in range(1, len(pattern)):
            while length and pattern[i] != pattern[length]:
                length = self._fallback[length - 1]
            length += pattern[i] == pattern[length]
            self._fallback[i] = length

    def read(self, char: str) -> bool:
        """Advance by one character; whether the pattern is now complete (the caller stops then)."""
        state = self.state
        while state and char != self.pattern[state]:
            state = self._fallback[state - 1]
        self.state = state + (char == self.pattern[state])
        return self.state == len(self.pattern)
