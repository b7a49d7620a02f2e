"""Acceptance rules with one mistake each, which a checker must catch. Knows nothing of the checkers."""

from __future__ import annotations

from typing import Any

from headstart.decode.draft import Verdict
from headstart.decode.verify import block_thresholds, residual, verify_block


def block_stop_at_first_failure(tokens: Any, p: Any, q: Any, uniforms: Any, draw: Any) -> Verdict:
    """Broken: what a reviewer may take for the right loop."""
    thresholds, weights = block_thresholds(tokens, p, q)
    tau = 0
    while tau < len(tokens) and uniforms[tau] < thresholds[tau]:
        tau += 1
    law = p(tau) if tau == len(tokens) else residual(p(tau), q[tau], tokens[tau], weights[tau])
    return Verdict(tuple(range(tau)), draw(law, tau))


def resample_from_p(rule: Any) -> Any:
    def broken(tokens: Any, p: Any, q: Any, uniforms: Any, draw: Any) -> Verdict:
        verdict: Verdict = rule(tokens, p, q, uniforms, lambda law, row: -1)
        at = len(verdict.path)
        return Verdict(verdict.path, draw(p(at), at))

    return broken


def block_unscaled_residual(tokens: Any, p: Any, q: Any, uniforms: Any, draw: Any) -> Verdict:
    """Broken: the residual forgets P_tau."""
    verdict = verify_block(tokens, p, q, uniforms, lambda law, row: -1)
    at = len(verdict.path)
    return Verdict(verdict.path, draw(p(at) if at == len(tokens) else residual(p(at), q[at], tokens[at]), at))
