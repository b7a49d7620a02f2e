"""One round: draft, verify, commit, for every running sequence together, beside chunks of prefill.

Pure orchestration. It does not choose who drafts or how deep, does not load or schedule anything,
and leaves time to the caller's clock.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Many
from dataclasses import dataclass, field
from time import perf_counter

import torch

from headstart.decode.draft import EMPTY, ROOT, Draft, Verdict
from headstart.decode.record import RoundCounts, StepTimes
from headstart.decode.segment import Forward, Segment
from headstart.decode.sequence import Sequence
from headstart.decode.verify import verify_coupled, verify_sampled


@dataclass(slots=True)
class Turn:
    """A sequence's part in this round; ``depth`` is how deep its draft was allowed to be."""

    sequence: Sequence
    depth: int = 0
    draft: Draft = EMPTY
    successors: int = 0
    """How many of the target's best next tokens the drafters want to know per row."""
    path: tuple[int, ...] = ()
    """Draft nodes handed out, known after commit."""
    counts: RoundCounts | None = None
    """What the round came to, as the sequence's record has it; known after commit."""
    failures: tuple[tuple[str, str], ...] = ()
    """Drafters that did something wrong, and what."""
    barred: bool = False
    """Whether a draft was there and a grammar forbade all of it."""
    learned: list[tuple[tuple[int, ...], tuple[int, ...]]] = field(default_factory=list)
    """Per row: the last two tokens before it, and the target's ``successors`` best tokens there."""

    @property
    def accepted(self) -> int:
        return len(self.path)

    def fail(self, drafter: str, reason: str) -> None:
        """Count a failure of a drafter."""
        self.failures += ((drafter, reason),)
        self.sequence.record.fallbacks[reason] += 1


@dataclass(slots=True)
class Prefill:
    """The next ``count`` prompt tokens of a sequence."""

    sequence: Sequence
    count: int

    @property
    def completes(self) -> bool:
        return self.sequence.cached + self.count == self.sequence.prompt_length


DraftCall = Callable[[Many[Turn]], Many[Draft]]
"""Asks the drafters: one well-formed draft per turn; never raises."""


def play_round(target: Forward, turns: Many[Turn], prefills: Many[Prefill], draft: DraftCall) -> StepTimes:
    """Play one round; sequences advance in place. Every turn emits at least one token, and so does every prefill that
    completes its prompt.

    If the target raises, no sequence has changed and the round may be played again.
    """
    started = perf_counter()
    for turn, proposal in zip(turns, draft(turns) if turns else (), strict=True):
        turn.draft = proposal
    drafted = perf_counter()
    rows = [_order_rows(turn.draft) for turn in turns]
    best = max((max(turn.successors, int(turn.sequence.law.greedy_fast)) for turn in turns), default=0)
    logits = target.forward(_segments(turns, rows, prefills), best)
    computed = perf_counter()
    verdicts = verify(target, logits, best, turns, rows)
    verified = perf_counter()
    commit(target, logits, turns, rows, verdicts, prefills)
    ended = perf_counter()
    return StepTimes(drafted - started, computed - drafted, verified - computed, ended - verified)


def _order_rows(draft: Draft) -> list[int]:
    """Node indices in row order (row 0 is the root, row ``i + 1`` is ``order[i]``): the principal chain first, so
    that it attends to a plain run of keys."""
    chain = draft.principal_nodes()
    on_chain = set(chain)
    return chain + [node for node in range(len(draft)) if node not in on_chain]


def _segments(turns: Many[Turn], rows: Many[list[int]], prefills: Many[Prefill]) -> list[Segment]:
    segments = []
    for turn, order in zip(turns, rows, strict=True):
        sequence, draft = turn.sequence, turn.draft
        tokens = [sequence.tokens[-1], *(draft.tokens[node] for node in order)]
        parents = None
        if not draft.is_chain:
            row_of = {ROOT: 0} | {node: i + 1 for i, node in enumerate(order)}
            parents = (-1, *(row_of[draft.parent(node)] for node in order))
        segments.append(Segment(sequence.extent, len(sequence.tokens) - 1, tokens, parents))
    for prefill in prefills:
        sequence = prefill.sequence
        tokens = sequence.tokens[sequence.cached : sequence.cached + prefill.count]
        first = prefill.count - 1 if prefill.completes else prefill.count
        segments.append(Segment(sequence.extent, sequence.cached, tokens, first_logits=first))
    return segments


def verify(target: Forward, logits: torch.Tensor, best: int, turns: Many[Turn], rows: Many[list[int]]) -> list[Verdict]:
    """Apply each sequence's rule to its rows of ``logits`` ``[wanted, width]``, turns first; ``best`` is how many best
    tokens of a row somebody needs. A sequence whose law cannot be formed ends with an error and an empty verdict."""
    top = target.top(logits, best) if best else []
    verdicts = []
    first = 0
    for turn, order in zip(turns, rows, strict=True):
        if turn.successors:
            turn.learned = _learned(turn, order, top[first : first + 1 + len(order)])
        row_of = [first] * (1 + len(order))
        for i, node in enumerate(order):
            row_of[node + 1] = first + 1 + i
        try:
            verdicts.append(_verify_one(logits, top, turn, row_of))
        except Exception as error:
            turn.sequence.fail(error)
            verdicts.append(Verdict())
        first += len(row_of)
    return verdicts


def _verify_one(logits: torch.Tensor, top: list[list[int]], turn: Turn, row_of: list[int]) -> Verdict:
    """``row_of[i]`` is the row of ``logits`` for row ``i`` of the acceptance rules: 0 the root, ``node + 1`` a node."""
    law = turn.sequence.law
    if law.greedy_fast:
        return verify_coupled(turn.draft, lambda row, _: top[row_of[row]][0])
    if turn.draft.q is not None:
        try:
            return verify_sampled(law.params.verify, turn.draft, lambda row: logits[row_of[row]], law)
        except Exception:  # q is the drafter's; without it the same error would be the target's
            turn.fail(turn.draft.source, "bad q")
            turn.draft = EMPTY
    return verify_sampled(law.params.verify, turn.draft, lambda row: logits[row_of[row]], law)


def _learned(turn: Turn, order: list[int], top: list[list[int]]) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Contexts and successors of a turn's rows, the root first."""
    last = turn.sequence.tokens[-2:]
    out = [(tuple(last), tuple(top[0][: turn.successors]))]
    for node, best in zip(order, top[1:], strict=True):
        parent = turn.draft.parent(node)
        before = last[-1] if parent == ROOT else turn.draft.tokens[parent]
        out.append(((before, turn.draft.tokens[node]), tuple(best[: turn.successors])))
    return out


def commit(
    target: Forward,
    logits: torch.Tensor,
    turns: Many[Turn],
    rows: Many[list[int]],
    verdicts: Many[Verdict],
    prefills: Many[Prefill],
) -> None:
    """Hand the tokens out, keep the accepted rows of the KV cache, let the others be overwritten. A sequence that
    raises on the way ends with an error; the others go on."""
    first = 0
    for turn, order, verdict in zip(turns, rows, verdicts, strict=True):
        if turn.sequence.finish is None:
            try:
                _commit_one(target, logits, first, turn, order, verdict)
            except Exception as error:
                turn.sequence.fail(error)
        first += 1 + len(order)
    for prefill in prefills:
        sequence = prefill.sequence
        completes = prefill.completes
        sequence.cached += prefill.count
        if completes:
            try:
                _emit(sequence, sequence.law.choose(logits[first]), logits, first, drafter=None)
            except Exception as error:
                sequence.fail(error)
            first += 1


def _commit_one(
    target: Forward, logits: torch.Tensor, first: int, turn: Turn, order: list[int], verdict: Verdict
) -> None:
    sequence, draft = turn.sequence, turn.draft
    row_of = {node: i + 1 for i, node in enumerate(order)}
    path_rows = [0, *(row_of[node] for node in verdict.path)]
    # keys and values first: they depend on nothing that follows
    target.commit(sequence.extent, sequence.cached, path_rows)
    emitted = 0
    for row, node in zip(path_rows, [*verdict.path, None], strict=True):
        if node is None:
            _emit(sequence, verdict.token, logits, first + row, drafter=None)
        else:
            _emit(sequence, draft.tokens[node], logits, first + row, drafter=draft.source)
        emitted += 1
        if node is not None:
            turn.path += (node,)
        if sequence.finish is not None:
            break
    sequence.cached = len(sequence.tokens) - 1
    depths = draft.depths()
    if turn.accepted == emitted:  # a stop inside the draft: what lay behind it was never in question
        depths = [d for d in depths if d <= emitted]
    turn.counts = RoundCounts(
        depth=turn.depth,
        drafted=len(depths),
        deepest=max(depths, default=0),
        accepted=turn.accepted,
        emitted=emitted,
        drafter=draft.source,
    )
    sequence.record.add_round(turn.counts)


def _emit(sequence: Sequence, token: int, logits: torch.Tensor, row: int, *, drafter: str | None) -> None:
    if sequence.params.logprobs is not None:
        sequence.logprobs.append(sequence.law.logprobs(logits[row], (), token))
    sequence.push(token, drafter=drafter)
