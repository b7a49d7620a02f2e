"""Counter-based noise: every random number is a pure function of (seed, stream, position, token id).

There is no generator and no state. Asking twice gives the same number, asking in another order changes nothing, and
the numbers are the same on every platform: bits come from integer arithmetic, and the logarithm of the Gumbel
transform is built from single IEEE-754 operations, because libm and SIMD libraries differ in the last bit.

Refuses to know what the noise is for: no laws beyond the one handed in, no parameters, no sequences.

Hash: the splitmix64 finaliser (Steele, Lea, Flood 2014, "Fast splittable pseudorandom number generators").
Sampling: argmax(log p + Gumbel) is distributed as p (Gumbel 1954; Maddison, Tarlow, Minka 2014).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import IntEnum
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

_U64 = NDArray[np.uint64]
_F64 = NDArray[np.float64]

_MASK = (1 << 64) - 1
_GAMMA = 0x9E3779B97F4A7C15
_MUL1 = 0xBF58476D1CE4E5B9
_MUL2 = 0x94D049BB133111EB
_ROUND = 0xD1B54A32D192ED03
_SEQUENCE = 0x8CB92BA72F3D8DD7
_EXPONENT_ONE = 0x3FF0000000000000
_HALF_STEP = 2.0**-53
_SQRT_HALF = 0.7071067811865476
_LN2 = 0.6931471805599453
_SERIES = tuple(1.0 / odd for odd in range(21, 0, -2))

GUMBEL_MAX = 36.7368005696771
"""No Gumbel value exceeds this (nats): -log(-log(1 - 2**-53))."""
GUMBEL_MIN = -3.6038
"""No Gumbel value is below this (nats): -log(-log(2**-53))."""


class Stream(IntEnum):
    """What a number is used for. Different streams are independent for the same seed and position."""

    SAMPLE = 0
    """The target's own Gumbel noise; a drafter that samples under the coupled rule reads it too."""
    DRAFT = 1
    """A drafter's sampling from q under the rejection and block rules."""
    ACCEPT = 2
    """The uniforms of the rejection and block rules."""
    RECOVER = 3
    """The token after a rejection, or after full acceptance, under the rejection and block rules."""


def uniform(seed: int, stream: Stream, position: int) -> float:
    """One uniform number strictly inside (0, 1): an odd multiple of 2**-53.

    Args:
        seed: 64-bit integer, signed or unsigned (taken modulo 2**64).
        position: absolute position in the sequence, at least 0.
    """
    return _to_unit(_mix(_key(seed, stream, position)))


def gumbel(
    seed: int, stream: Stream, position: int, vocab_size: int, device: torch.device | str = "cpu"
) -> torch.Tensor:
    """Gumbel noise for token ids 0 .. vocab_size - 1; float64 ``[vocab_size]`` on ``device``.

    The value of a token id does not depend on ``vocab_size``, so padded vocabularies share their noise. It is computed
    on the CPU whatever the device, so that it is the same number everywhere.
    """
    keys = np.array([_key(seed, stream, position)], dtype=np.uint64)
    return torch.from_numpy(_gumbel_of(_hash(keys, _steps(vocab_size)))).to(device)


def gumbel_rows(seeds: Sequence[int], stream: Stream, positions: Sequence[int], vocab_size: int) -> torch.Tensor:
    """Gumbel noise for many (seed, position) pairs at once; float64 ``[len(seeds), vocab_size]``.

    Row ``i`` equals ``gumbel(seeds[i], stream, positions[i], vocab_size)`` bit for bit.
    """
    keys = [_key(seed, stream, position) for seed, position in zip(seeds, positions, strict=True)]
    return torch.from_numpy(_gumbel_of(_hash(np.array(keys, dtype=np.uint64)[:, None], _steps(vocab_size))))


class Compiled(Protocol):
    """What compiled code does of this module, for contiguous float32 scores and a key of ``_key``."""

    def best(self, scores: NDArray[np.float32], key: int) -> int:
        """``gumbel_argmax``."""

    def best_two(self, scores: NDArray[np.float32], key: int) -> tuple[int, int, float]:
        """``gumbel_two``."""


_compiled: Compiled | None = None


def draw_with(compiled: Compiled | None) -> None:
    """Let compiled code, which must return the very same, do the drawing; ``None``: numpy does it."""
    global _compiled
    _compiled = compiled


def gumbel_argmax(logits: torch.Tensor, seed: int, stream: Stream, position: int) -> int:
    """``argmax(logits + gumbel(seed, stream, position, V))`` in float64, first index on ties: one sample of softmax.

    Exactly equal to that definition, but the two logarithms are taken only where they can matter. Write u for the
    uniform behind a Gumbel value g = -log(-log u). As -log u >= 1 - u, g <= -log(1 - u): one float32 logarithm bounds
    every score from above. The token with the best bound is scored exactly; only tokens whose bound reaches that
    score, less the float32 rounding error, are scored too. ``-inf`` logits get no noise when they are many.

    Args:
        logits: float32 or float64 ``[V]``; entries may be ``-inf``. Where the maximum is not finite (all ``-inf``,
            NaN) the first maximal index is returned, as the definition has it.
    """
    scores = logits.detach().cpu().numpy()
    if _compiled is not None and scores.dtype == np.float32 and scores.flags.c_contiguous:
        return _compiled.best(scores, _key(seed, stream, position))
    best = int(scores.argmax())
    top = float(scores[best])
    if not math.isfinite(top):
        return best
    # A token this far behind loses even with the largest noise against the smallest.
    eligible = scores >= top - (GUMBEL_MAX - GUMBEL_MIN) - 1e-6 * (abs(top) + 50.0)
    ids: NDArray[np.intp] | None = None
    steps = _steps(scores.shape[0])
    if 2 * int(np.count_nonzero(eligible)) < scores.shape[0]:
        ids = np.flatnonzero(eligible)
        scores, steps = scores[ids], steps[ids]
    hashed = _hash(np.array([_key(seed, stream, position)], dtype=np.uint64), steps)
    if scores.shape[0] <= 64:  # Below this many, bounding costs more than it saves.
        found = int((scores + _gumbel_of(hashed)).argmax())
        return found if ids is None else int(ids[found])

    rest = np.subtract(2.0, _one_to_two(hashed)).astype(np.float32)  # 1 - u + 2**-53, in (0, 1]
    bound = np.subtract(scores, np.log(rest, out=rest), dtype=np.float32)
    lead = int(bound.argmax())
    score = float(scores[lead]) + _gumbel_at(int(hashed[lead]))
    near = np.flatnonzero(bound >= np.float32(score - 1e-6 * (abs(score) + 80.0)))
    found = lead
    for i in near.tolist():
        rival = float(scores[i]) + _gumbel_at(int(hashed[i]))
        if rival > score or (rival == score and i < found):
            found, score = i, rival
    return found if ids is None else int(ids[found])


def gumbel_two(logits: torch.Tensor, seed: int, stream: Stream, position: int) -> tuple[int, int, float]:
    """``gumbel_argmax`` and the token next to it: both ids, and by how much the second one's score lags (nats).

    Where there is no second finite score, the second is the first and lags by infinity.
    """
    scores = logits.detach().cpu().numpy()
    if _compiled is not None and scores.dtype == np.float32 and scores.flags.c_contiguous:
        return _compiled.best_two(scores, _key(seed, stream, position))
    best = gumbel_argmax(logits, seed, stream, position)
    noisy = scores + gumbel(seed, stream, position, scores.shape[0]).numpy()
    most, noisy[best] = noisy[best], -np.inf
    second = int(noisy.argmax())
    if not (math.isfinite(most) and math.isfinite(noisy[second])):
        return best, best, math.inf
    return best, second, float(most - noisy[second])


def sample_law(law: torch.Tensor, seed: int, stream: Stream, position: int) -> int:
    """One token drawn from a law, by the Gumbel trick on its logarithm; tokens of probability 0 are never drawn.

    Args:
        law: float ``[V]``, not negative, at least one entry positive; it need not sum to 1.
    """
    return gumbel_argmax(law.detach().to("cpu", torch.float64).log(), seed, stream, position)


def derive_seed(seed: int, index: int) -> int:
    """The seed of sequence ``index`` of a request with ``n > 1``; index 0 keeps the request's own seed (unsigned)."""
    seed &= _MASK
    return seed if index == 0 else _mix(_mix(seed ^ _SEQUENCE) + index * _GAMMA & _MASK)


def round_seed(seed: int, base_position: int) -> int:
    """The seed of one round, for the DRAFT, ACCEPT and RECOVER streams; ``base_position`` is the first drafted one.

    Noise of these streams must be fresh in every round. A round may look at numbers beyond the place where it ends:
    under block verification that it ended there says that later uniforms were large, and a depth controller may have
    seen the dropped draft. Reading the same numbers again in the next round would condition on that. Every round emits
    at least one token, so base positions never repeat.
    """
    return _mix(_mix(seed & _MASK ^ _ROUND) + (base_position + 1) * _GAMMA & _MASK)


def _mix(z: int) -> int:
    z = (z ^ (z >> 30)) * _MUL1 & _MASK
    z = (z ^ (z >> 27)) * _MUL2 & _MASK
    return z ^ (z >> 31)


def _key(seed: int, stream: Stream, position: int) -> int:
    if position < 0:
        raise ValueError(f"position must be at least 0, got {position}")
    key = _mix((seed & _MASK) + _GAMMA & _MASK)
    key = _mix(key + (int(stream) + 1) * _GAMMA & _MASK)
    return _mix(key + (position + 1) * _GAMMA & _MASK)


def _to_unit(bits: int) -> float:
    return (2 * (bits >> 12) + 1) * _HALF_STEP


@lru_cache(maxsize=8)
def _steps(vocab_size: int) -> _U64:
    """What each token id adds to the key; uint64 ``[vocab_size]``, read-only."""
    steps = np.arange(1, vocab_size + 1, dtype=np.uint64) * np.uint64(_GAMMA)
    steps.flags.writeable = False
    return steps


def _hash(keys: _U64, steps: _U64) -> _U64:
    """The splitmix64 finaliser of every key + step (broadcast), in place on one buffer and one scratch."""
    z = keys + steps
    scratch = np.right_shift(z, np.uint64(30))
    np.bitwise_xor(z, scratch, out=z)
    np.multiply(z, np.uint64(_MUL1), out=z)
    np.right_shift(z, np.uint64(27), out=scratch)
    np.bitwise_xor(z, scratch, out=z)
    np.multiply(z, np.uint64(_MUL2), out=z)
    np.right_shift(z, np.uint64(31), out=scratch)
    np.bitwise_xor(z, scratch, out=z)
    return z


def _one_to_two(hashed: _U64) -> _F64:
    """1 + u - 2**-53 in [1, 2): the top 52 bits as a mantissa, which is exact and avoids uint64 conversion."""
    bits = np.right_shift(hashed, np.uint64(12))
    np.bitwise_or(bits, np.uint64(_EXPONENT_ONE), out=bits)
    return bits.view(np.float64)


def _gumbel_of(hashed: _U64) -> _F64:
    u = _one_to_two(hashed)
    np.subtract(u, 1.0, out=u)
    np.add(u, _HALF_STEP, out=u)
    return np.negative(_log(np.negative(_log(u))))


def _gumbel_at(bits: int) -> float:
    """One entry of ``_gumbel_of``, bit for bit, without numpy's cost per call."""
    return -_log_at(-_log_at(_to_unit(bits)))


def _log(x: _F64) -> _F64:
    """Natural logarithm of positive normal float64 values, within a few units in the last place, same bits anywhere.

    x = m * 2**e with m in [sqrt(1/2), sqrt(2)); log m = 2 atanh(s), s = (m - 1) / (m + 1), by its Taylor series:
    s**2 < 0.0295, so twelve terms reach float64. Each numpy call below is one correctly rounded operation.
    """
    parts: tuple[Any, Any] = np.frexp(x)
    m: _F64 = parts[0]
    e: _F64 = parts[1].astype(np.float64)
    low = m < _SQRT_HALF
    m = np.where(low, m * 2.0, m)
    e = e - low
    s = (m - 1.0) / (m + 1.0)
    z = s * s
    total = np.full_like(s, 1.0 / 23.0)
    for coefficient in _SERIES:
        np.multiply(total, z, out=total)
        np.add(total, coefficient, out=total)
    np.multiply(total, s, out=total)
    return np.asarray(e * _LN2 + 2.0 * total, dtype=np.float64)


def _log_at(x: float) -> float:
    """``_log`` of one number: the same operations in the same order, hence the same bits."""
    m, e = math.frexp(x)
    if m < _SQRT_HALF:
        m, e = m * 2.0, e - 1
    s = (m - 1.0) / (m + 1.0)
    z = s * s
    total = 1.0 / 23.0
    for coefficient in _SERIES:
        total = total * z + coefficient
    return e * _LN2 + 2.0 * (total * s)
