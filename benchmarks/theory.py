"""What speculation should gain, from acceptance and the measured price of rows: Leviathan et al. 2023, theorem 3.8,
with a cost curve in place of a constant cost coefficient."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headstart.control.cost import CostCurve

if TYPE_CHECKING:
    from benchmarks.selection import Selection

MOST_DEPTH = 16
CONTEXT = 256
"""Tokens of context at which the best depth is looked for."""


def expected_tokens(acceptance: float, depth: int) -> float:
    """Tokens a round emits if every draft token is accepted with probability ``acceptance``, given those before it."""
    return sum(acceptance**i for i in range(depth + 1))


def predicted(curve: CostCurve, acceptance: float, depth: int, context: int) -> float:
    """Speedup of drafts of ``depth`` tokens over plain decoding at ``context`` tokens of context."""
    rows = depth + 1
    price = curve.predict(rows, rows * context) / curve.predict(1, context)
    return expected_tokens(acceptance, depth) / price


def best_depth(curve: CostCurve, acceptance: float) -> int:
    """The depth with the largest predicted speedup."""
    return max(range(1, MOST_DEPTH + 1), key=lambda depth: predicted(curve, acceptance, depth, CONTEXT))


def prediction(told: Selection, workload: str, way: str) -> tuple[float, int] | None:
    """Predicted speedup of an oracle's way at the mean context of its rows, and its depth; ``None`` for others."""
    words = way.split()
    curve = told.curve(way)
    rows = told.of(workload, way)
    if "oracle" not in words or curve is None or not rows:
        return None
    acceptance = float(words[words.index("oracle") + 1])
    context = round(sum(row.prompt_tokens + row.tokens / 2 for row in rows) / len(rows))
    depth = best_depth(curve, acceptance)
    return predicted(curve, acceptance, depth, context), depth
