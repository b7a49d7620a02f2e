"""headstart: faster decoding of large language models that never changes a token.

Importing this package is cheap; torch and transformers are loaded when a name that needs them is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headstart.decode.draft import Draft
    from headstart.decode.grammar import Grammar
    from headstart.decode.params import SamplingParams
    from headstart.draft.base import Drafter, DraftRequest
    from headstart.engine.engine import Engine
    from headstart.engine.load import load_engine
    from headstart.engine.request import Chat, Chunk, Completion, Output, Speculation
    from headstart.errors import HeadstartError, UserError
    from headstart.target.load import load_target

__version__ = "0.1.0"

_HOMES = {
    "Chat": "headstart.engine.request",
    "Chunk": "headstart.engine.request",
    "Completion": "headstart.engine.request",
    "Draft": "headstart.decode.draft",
    "DraftRequest": "headstart.draft.base",
    "Drafter": "headstart.draft.base",
    "Engine": "headstart.engine.engine",
    "Grammar": "headstart.decode.grammar",
    "HeadstartError": "headstart.errors",
    "Output": "headstart.engine.request",
    "SamplingParams": "headstart.decode.params",
    "Speculation": "headstart.engine.request",
    "UserError": "headstart.errors",
    "load_engine": "headstart.engine.load",
    "load_target": "headstart.target.load",
}

__all__ = [
    "Chat",
    "Chunk",
    "Completion",
    "Draft",
    "DraftRequest",
    "Drafter",
    "Engine",
    "Grammar",
    "HeadstartError",
    "Output",
    "SamplingParams",
    "Speculation",
    "UserError",
    "load_engine",
    "load_target",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
