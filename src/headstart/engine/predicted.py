"""From a client's predicted text to a prediction: tokenised once, as an output would be.

Everything in the text is text: what looks like a special token is spelt out, as the model would spell it. Does not know
what becomes of a prediction.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

from headstart.draft.alignment import Prediction
from headstart.errors import InvalidParameter

LONGEST_TOKEN = 64
"""Characters per token that a text may have at most before its end is left out."""


class Predictions:
    """Encodes predictions for one model.

    Args:
        tokenizer: ``None`` when the model has none; predictions are then token ids.
        vocab_size: number of ids that are tokens.
        most: tokens of a prediction that are kept; an output cannot have more.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase | None, vocab_size: int, most: int) -> None:
        self._shared = tokenizer
        self._own: PreTrainedTokenizerBase | None = None
        self._lock = threading.Lock()
        self.vocab_size = vocab_size
        self.most = most

    def encode(self, given: str | Sequence[int] | None) -> Prediction | None:
        """A prediction given as text or token ids; ``None`` for none, or an empty one.

        Raises:
            InvalidParameter: text without a tokenizer, an id out of range, something else altogether.
        """
        if given is None:
            return None
        ids: list[int]
        if isinstance(given, str):
            ids = self._tokenise(given[: self.most * LONGEST_TOKEN]) if given else []
        elif isinstance(given, Sequence) and not isinstance(given, bytes):
            ids = [*given[: self.most]]
        else:
            raise InvalidParameter("prediction", f"must be text or a list of token ids, got {given!r}")
        for token in ids:
            if not isinstance(token, int) or isinstance(token, bool) or not 0 <= token < self.vocab_size:
                raise InvalidParameter(
                    "prediction", f"token id {token!r} is outside the vocabulary of {self.vocab_size}"
                )
        return Prediction(ids[: self.most]) if ids else None

    def _tokenise(self, text: str) -> list[int]:
        if self._shared is None:
            raise InvalidParameter("prediction", "this model has no tokenizer; give token ids")
        with self._lock:
            if self._own is None:
                # a copy: how a tokenizer treats special tokens is a setting of the whole object, and others use it too
                self._own = copy.deepcopy(self._shared)
            encoded = self._own(text, add_special_tokens=False, split_special_tokens=True)
        return list(encoded["input_ids"])
