"""Who may use the server, and as which tenant: API keys from the environment or a file. Knows no HTTP.

Keys are kept as digests only, and compared in constant time: how long a refusal takes says nothing about a key.
"""

from __future__ import annotations

import hmac
import os
from collections.abc import Iterable, Mapping
from hashlib import blake2b
from pathlib import Path

from headstart.errors import InvalidParameter

VARIABLE = "HEADSTART_API_KEY"
SHORTEST = 8


class ApiKeys:
    """A set of keys; an empty one lets everybody in as one nameless tenant."""

    def __init__(self, keys: Iterable[str] = ()) -> None:
        kept = list(keys)
        for key in kept:
            if len(key) < SHORTEST or not key.isascii() or not key.isprintable() or " " in key:
                message = f"a key must be at least {SHORTEST} printable ASCII characters without spaces"
                raise InvalidParameter("api_key", message)
        self._digests = [_digest(key) for key in dict.fromkeys(kept)]

    def __len__(self) -> int:
        return len(self._digests)

    def tenant(self, authorization: str | None) -> str | None:
        """The tenant behind an ``Authorization`` header: 12 hexadecimal digits that do not tell the key.

        Raises:
            PermissionError: there are keys and this is none of them.
        """
        if not self._digests:
            return None
        scheme, _, key = (authorization or "").partition(" ")
        given = _digest(key.strip())
        # every key is looked at, whichever matches
        fits = [hmac.compare_digest(given, known) for known in self._digests]
        if scheme.lower() != "bearer" or not any(fits):
            raise PermissionError("no valid API key")
        return given.hex()[:12]


def load_keys(file: Path | None, environment: Mapping[str, str] = os.environ) -> ApiKeys:
    """Keys from ``HEADSTART_API_KEY`` and from a file with one key a line; lines that start with ``#`` are comments.

    Raises:
        InvalidParameter: the file cannot be read or holds no key, or a key is too short.
    """
    keys = [key] if (key := environment.get(VARIABLE, "").strip()) else []
    if file is not None:
        try:
            lines = file.read_text("utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidParameter("--api-key-file", f"{file} cannot be read ({error})") from error
        found = [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]
        if not found:
            raise InvalidParameter("--api-key-file", f"{file} holds no key; write one a line")
        keys += found
    return ApiKeys(keys)


def _digest(key: str) -> bytes:
    return blake2b(key.encode(), digest_size=16, person=b"headstart-tenant").digest()
