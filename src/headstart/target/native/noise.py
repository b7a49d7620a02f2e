"""Compiled code for ``headstart.decode.noise``: the same tokens, to the bit, in a tenth of the time."""

from __future__ import annotations

import ctypes
import logging
from functools import cache

import numpy as np
from numpy.typing import NDArray

from headstart.decode import noise
from headstart.target.native.build import BuildFailed, Signatures, declared, noise_library

log = logging.getLogger(__name__)

_SCORES = ctypes.c_void_p, ctypes.c_int64, ctypes.c_uint64
SIGNATURES: Signatures = {
    "gumbel_argmax": (ctypes.c_int64, _SCORES),
    "gumbel_two": (ctypes.c_int64, (*_SCORES, ctypes.POINTER(ctypes.c_int64), ctypes.POINTER(ctypes.c_double))),
}


@cache
def accelerate() -> bool:
    """Let ``noise.gumbel_argmax`` use compiled code from now on; ``False`` where there is no compiler."""
    try:
        noise.draw_with(_Compiled(noise_library()))
    except BuildFailed as error:
        log.info("numpy draws tokens (%s)", error)
        return False
    return True


class _Compiled:
    """``noise.Compiled``."""

    def __init__(self, library: ctypes.CDLL) -> None:
        declared(library, SIGNATURES)
        self._best, self._best_two = library.gumbel_argmax, library.gumbel_two

    def best(self, scores: NDArray[np.float32], key: int) -> int:
        return int(self._best(scores.ctypes.data, scores.shape[0], key))

    def best_two(self, scores: NDArray[np.float32], key: int) -> tuple[int, int, float]:
        second, lag = ctypes.c_int64(), ctypes.c_double()
        best = self._best_two(scores.ctypes.data, scores.shape[0], key, ctypes.byref(second), ctypes.byref(lag))
        return int(best), second.value, lag.value
