"""Bounds of depth and tree size, and their check; light enough for the command line to import at once."""

from __future__ import annotations

from headstart.errors import InvalidParameter

DEFAULT_DEPTH = 4
MAX_DEPTH = 32
MAX_NODES = 64


def check_depth(param: str, depth: int) -> None:
    """Raise ``InvalidParameter`` unless ``0 <= depth <= MAX_DEPTH``."""
    if not isinstance(depth, int) or isinstance(depth, bool) or not 0 <= depth <= MAX_DEPTH:
        raise InvalidParameter(param, f"must be an integer from 0 (plain) to {MAX_DEPTH}, got {depth!r}")
