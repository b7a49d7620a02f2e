"""One round: draft, verify, commit, for every running sequence together, beside chunks of prefill.

Pure orchestration. It does not choose who drafts or how deep (``Turn`` says so), does not load or schedule anything,
and leaves time to the caller's clock.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Many
from dataclasses import dataclass
from time import perf_counter

import torch

from headstart.decode.draft import EMPTY, ROOT, Draft, Verdict
from headstart.decode.record import StepTimes
from headstart.decode.segment import Forward, Segment
from headstart.decode.sequence import Sequence
from headstart.decode.verify import verify_coupled, verify_sampled
from headstart.errors import DrafterFailed


@dataclass(slots=True)
class Turn:
    """A sequence's part in this round: at most ``depth`` deep, at most ``nodes`` draft tokens."""

    sequence: Sequence
    depth: int
    nodes: int
    draft: Draft = EMPTY
    accepted: int = 0
    """Draft tokens handed out, known after commit."""


@dataclass(slots=True)
class Prefill:
    """The next ``count`` prompt tokens of a sequence."""

    sequence: Sequence
    count: int

    @property
    def completes(self) -> bool:
        return self.sequence.cached + self.count == self.sequence.prompt_length


DraftCall = Callable[[Many[Turn]], Many[Draft]]
"""Asks the drafters: one well-formed draft per turn, within its limits; never raises."""


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
    logits = target.forward(_segments(turns, rows, prefills))
    computed = perf_counter()
    verdicts = verify(logits, turns, rows, target.vocab_size)
    verified = perf_counter()
    commit(target, logits, turns, rows, verdicts, prefills)
    ended = perf_counter()
    return StepTimes(drafted - started, computed - drafted, verified - computed, ended - verified)


def _order_rows(draft: Draft) -> list[int]:
    """Node indices in row order (row 0 is the root, row ``i + 1`` is ``order[i]``): the principal chain first, so
    that it attends to a plain run of keys."""
    if draft.is_chain:
        return list(range(len(draft)))
    chain: list[int] = []
    last = ROOT
    for node in range(len(draft)):
        if draft.parent(node) == last:
            chain.append(node)
            last = node
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


def verify(logits: torch.Tensor, turns: Many[Turn], rows: Many[list[int]], vocab_size: int) -> list[Verdict]:
    """Apply each sequence's rule to its rows of ``logits`` ``[wanted, width]``, turns first."""
    greedy: list[int] = []
    if any(turn.sequence.law.greedy_fast for turn in turns):
        greedy = logits[:, :vocab_size].argmax(dim=-1).tolist()
    verdicts = []
    first = 0
    for turn, order in zip(turns, rows, strict=True):
        law, draft = turn.sequence.law, turn.draft
        row_of = [first] + [0] * len(order)
        for i, node in enumerate(order):
            row_of[node + 1] = first + 1 + i
        if law.greedy_fast:
            verdict = verify_coupled(draft, lambda row, _, index=row_of: greedy[index[row]])  # type: ignore[misc]
        else:
            try:
                verdict = verify_sampled(
                    law.params.verify,
                    draft,
                    lambda row, index=row_of: logits[index[row]],  # type: ignore[misc]
                    law,
                )
            except DrafterFailed:
                turn.sequence.record.fallbacks["bad q"] += 1
                turn.draft = EMPTY
                verdict = verify_sampled(law.params.verify, EMPTY, logits[first : first + 1], law)
        verdicts.append(verdict)
        first += 1 + len(draft)
    return verdicts


def commit(
    target: Forward,
    logits: torch.Tensor,
    turns: Many[Turn],
    rows: Many[list[int]],
    verdicts: Many[Verdict],
    prefills: Many[Prefill],
) -> None:
    """Hand the tokens out, keep the accepted rows of the KV cache, let the others be overwritten."""
    first = 0
    for turn, order, verdict in zip(turns, rows, verdicts, strict=True):
        sequence, draft = turn.sequence, turn.draft
        width = 1 + len(order)
        row_of = {node: i + 1 for i, node in enumerate(order)}
        path_rows = [0, *(row_of[node] for node in verdict.path)]
        emitted = 0
        for row, node in zip(path_rows, [*verdict.path, None], strict=True):
            token = verdict.token if node is None else draft.tokens[node]
            _emit(sequence, token, logits[first + row], from_draft=node is not None)
            emitted += 1
            turn.accepted += node is not None
            if sequence.finish is not None:
                break
        if sequence.finish is None:
            target.commit(sequence.extent, sequence.cached, path_rows)
            sequence.cached += len(path_rows)
        sequence.record.add_round(
            depth=turn.depth,
            drafted=len(draft),
            deepest=max(draft.depths(), default=0),
            accepted=turn.accepted,
            emitted=emitted,
        )
        first += width
    for prefill in prefills:
        sequence = prefill.sequence
        completes = prefill.completes
        sequence.cached += prefill.count
        if completes:
            last = logits[first]
            _emit(sequence, sequence.law.choose(last), last, from_draft=False)
            first += 1


def _emit(sequence: Sequence, token: int, row: torch.Tensor, *, from_draft: bool) -> None:
    if sequence.params.logprobs is not None:
        sequence.logprobs.append(sequence.law.logprobs(row, (), token))
    sequence.push(token, from_draft=from_draft)
