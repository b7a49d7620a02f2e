"""Every error headstart raises on purpose. Each message says what was wrong and what to do next.

    HeadstartError
    ├── UserError                 bad input; exit code 2 on the command line, HTTP 400 on the server
    │   ├── InvalidParameter      a value out of range or a parameter that is not honoured
    │   ├── ModelNotFound         nothing to load under that name
    │   ├── UnsupportedModel      the architecture cannot be run losslessly here
    │   ├── VocabularyMismatch    drafter and target do not speak the same tokens
    │   ├── RequestTooLarge       the request can never fit this engine
    │   └── GrammarFailed         a grammar cannot be followed any further, on the way
    └── DrafterFailed             a drafter raised or proposed nonsense; decoding goes on plain

This module imports nothing, so that every package may import it.
"""

from __future__ import annotations


class HeadstartError(Exception):
    """Root of the tree."""


class UserError(HeadstartError):
    """The caller can mend this: the message says how."""


class InvalidParameter(UserError, ValueError):
    """A parameter has a value that cannot be honoured. ``param`` names it as the caller wrote it."""

    def __init__(self, param: str, message: str) -> None:
        super().__init__(f"{param}: {message}")
        self.param = param


class ModelNotFound(UserError):
    """No model under that name, folder or file."""


class UnsupportedModel(UserError):
    """The model loads, but its architecture rules out rollback or row-wise attention."""


class VocabularyMismatch(UserError):
    """Target and drafter map the same token id to different tokens."""


class RequestTooLarge(UserError):
    """Prompt plus max_tokens exceeds what the engine can ever hold. Carries the numbers."""


class GrammarFailed(UserError, ValueError):
    """A grammar grew too complex on the way, or goes on with what no token can say. Ends its own request only."""


class DrafterFailed(HeadstartError):
    """A drafter broke its contract. Costs speed, never correctness."""
