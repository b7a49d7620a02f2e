"""Where the peers' environments lie, and whether they are there. Knows paths."""

from __future__ import annotations

import os
from pathlib import Path

from headstart.target.cache import cache_dir

PEERS = ("vllm", "llamacpp", "openvino")
"""Peers with an environment of their own; transformers and headstart share the project's."""


def peers_home() -> Path:
    """``$HEADSTART_PEERS``, or ``headstart/peers`` in the user's cache."""
    given = os.environ.get("HEADSTART_PEERS")
    return Path(given) if given else cache_dir() / "peers"


def environment(peer: str) -> Path:
    return peers_home() / peer


def environment_python(peer: str) -> Path:
    return environment(peer) / "bin" / "python"


def stamp(peer: str) -> Path:
    """The file that says the environment is whole; it holds what it was made from."""
    return environment(peer) / "made.json"


def missing_environment(peer: str) -> str | None:
    """Why the peer cannot be run, or ``None``."""
    if stamp(peer).is_file():
        return None
    return f"not installed; {advice(peer)}"


def advice(peer: str) -> str:
    return f"run python -m benchmarks.peers.make_env {peer}"
