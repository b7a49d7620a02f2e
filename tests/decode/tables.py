"""A constraint read from a table, for tests of what asks one."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

Allowed = Callable[[tuple[int, ...]], set[int]]
"""The output so far -> the tokens that may follow."""


class TableConstraint:
    """Allows what a function of the output says; nothing forced unless one token is left."""

    def __init__(self, vocab_size: int, allows: Allowed) -> None:
        self.vocab_size = vocab_size
        self.allows = allows
        self.committed: tuple[int, ...] = ()

    @property
    def complete(self) -> bool:
        return not self.allows(self.committed)

    def append(self, token: int) -> None:
        self.committed += (token,)

    def allowed(self, ahead: Sequence[int] = ()) -> NDArray[np.bool_]:
        mask = np.zeros(self.vocab_size, dtype=np.bool_)
        mask[list(self.allows((*self.committed, *ahead)))] = True
        return mask

    def admits(self, tokens: Sequence[int]) -> int:
        for count, token in enumerate(tokens):
            if token not in self.allows((*self.committed, *tokens[:count])):
                return count
        return len(tokens)

    def forced(self, ahead: Sequence[int] = ()) -> list[int]:
        path = (*self.committed, *ahead)
        out: list[int] = []
        while len(only := self.allows((*path, *out))) == 1:
            out += only
        return out

    def fresh(self) -> TableConstraint:
        return TableConstraint(self.vocab_size, self.allows)
