"""Which versions a measurement was made with. Reads package metadata; imports none of them."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version

NOT_INSTALLED = "unknown (not installed)"


def own_version() -> str:
    """headstart's version; a source tree that is only on the path has none."""
    try:
        return version("headstart")
    except PackageNotFoundError:
        return NOT_INSTALLED


def versions() -> dict[str, str]:
    """Versions of what the numbers depend on."""
    found = {"headstart": own_version(), "python": platform.python_version()}
    for name in ("torch", "transformers", "tokenizers"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
