"""Label values from outside, made harmless: clean, short, and never more than so many.

Each new value of a label is a new time series for ever. Knows strings only.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable

OTHER = "other"
NONE = "none"
MOST_CHARACTERS = 64
MOST_VALUES = 20

_UNWANTED = re.compile(r"[^A-Za-z0-9_.:/@+ -]+")


def clean(value: str | None) -> str:
    """``value`` with runs of unusual characters as one ``_``, at most 64 characters; ``"none"`` if nothing is left."""
    return _UNWANTED.sub("_", (value or "").strip()[: 4 * MOST_CHARACTERS])[:MOST_CHARACTERS].strip("_ ") or NONE


class Bounded:
    """Lets through ``known`` values and the first ``limit`` others; whatever comes later is ``"other"``.

    With ``known`` values and ``limit=0`` the set is closed, and clients cannot use the places up.
    """

    def __init__(self, limit: int = MOST_VALUES, known: Iterable[str] = ()) -> None:
        self._known = frozenset({OTHER, NONE, *(clean(value) for value in known)})
        self._limit = limit
        self._met: set[str] = set()
        self._lock = threading.Lock()

    def __call__(self, value: str | None) -> str:
        cleaned = clean(value)
        if cleaned in self._known or cleaned in self._met:
            return cleaned
        with self._lock:
            if cleaned not in self._met and len(self._met) >= self._limit:
                return OTHER
            self._met.add(cleaned)
            return cleaned
