"""The text and the bytes of single tokens, as logprobs report them. Knows a tokenizer; not models or requests.

A token may be part of a character. Its bytes are then no text, and it is shown as OpenAI shows it,
``bytes:\\xf0\\x9f``,
so that two such tokens stay two in a table keyed by text.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
MARK = "▁"
"""A space, in vocabularies that mark where words begin."""

_BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")


class TokenTexts:
    """Looks tokens up, and remembers them.

    Args:
        tokenizer: ``None`` when the model has none; every token is then shown as its id.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase | None) -> None:
        self._tokenizer = tokenizer
        self._special = frozenset(tokenizer.all_special_ids) if tokenizer is not None else frozenset()
        self.look_up = lru_cache(maxsize=1 << 16)(self._look_up)

    def text(self, token: int) -> str:
        return self.look_up(token)[0]

    def utf8(self, token: int) -> list[int] | None:
        """UTF-8 of the token alone; ``None`` where it cannot be told."""
        raw = self.look_up(token)[1]
        return None if raw is None else list(raw)

    def _look_up(self, token: int) -> tuple[str, bytes | None]:
        if self._tokenizer is None:
            return f"token_id:{token}", None
        piece = self._tokenizer.convert_ids_to_tokens(token)
        if not isinstance(piece, str):
            return f"token_id:{token}", None
        if token in self._special:
            return piece, piece.encode()
        text = self._decode([token])
        if REPLACEMENT in text or not text:
            raw = _raw(piece)
            if raw is None and not text and MARK in piece:
                raw = piece.replace(MARK, " ").encode()
            if raw is None:
                return piece, None
            try:
                return raw.decode(), raw
            except UnicodeDecodeError:
                return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw), raw
        if piece.startswith(MARK) and not text.startswith(" "):
            text = f" {text}"  # a decoder of this kind drops the space of the first word
        return text, text.encode()

    def _decode(self, ids: list[int]) -> str:
        assert self._tokenizer is not None
        text = self._tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return text if isinstance(text, str) else "".join(text)


def _raw(piece: str) -> bytes | None:
    """The bytes behind a piece of a byte-fallback or a byte-level vocabulary."""
    found = _BYTE_TOKEN.fullmatch(piece)
    if found:
        return bytes([int(found[1], 16)])
    alphabet = _byte_level()
    if all(symbol in alphabet for symbol in piece):
        return bytes(alphabet[symbol] for symbol in piece)
    return None


@lru_cache(maxsize=1)
def _byte_level() -> dict[str, int]:
    """GPT-2's alphabet: printable bytes stand for themselves, the others for the characters from 256 on."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in plain]
    return {**{chr(byte): byte for byte in plain}, **{chr(256 + i): byte for i, byte in enumerate(others)}}
