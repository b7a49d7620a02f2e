"""The one protocol all drafters speak, and the request they are given.

A drafter sees histories and proposes drafts for a whole batch at once. It may keep state per sequence (a suffix
automaton, a KV cache) but must not trust it: a history may grow, shrink or be rewritten between two calls, and the
drafter follows. It may raise; the engine then goes on plain for the round. It knows nothing of the target.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from headstart.decode.draft import EMPTY, Draft
from headstart.decode.grammar import Constraint
from headstart.decode.params import SamplingParams
from headstart.draft.alignment import Prediction


@dataclass(frozen=True, slots=True)
class DraftRequest:
    """One sequence that wants a draft.

    ``tokens`` is the whole history, prompt and output, read-only and shared with the engine (do not keep it, do not
    change it). ``depth`` bounds the depth of the draft, ``nodes`` the number of its tokens; ``nodes > depth`` invites a
    tree. ``seed`` is the sequence's own 64-bit seed, for drafters that sample. ``tenant`` isolates what is remembered
    across requests; ``None`` is a tenant of its own.
    """

    sequence_id: int
    tokens: Sequence[int]
    prompt_length: int
    depth: int
    nodes: int
    params: SamplingParams
    seed: int
    tenant: str | None = None
    prediction: Prediction | None = None
    """What the client said the output would be."""
    with_q: bool = False
    """Whether verification needs the laws the draft was sampled from (rejection and block rules)."""
    least: float = 0.0
    """Tokens after the first whose path is less likely than this would be cut; a drafter that knows may stop there."""
    said: Draft = EMPTY
    """What a drafter that was asked before has said, which is not verified yet. It may save another one work."""
    extent: Any = None
    """Where the target keeps the sequence's keys and values, those of all tokens but the last. Behind them a drafter
    may write what it likes while it drafts: the target computes whatever it is going to read there."""
    constraint: Callable[[], Constraint] | None = None
    """Makes a state machine for the request's grammar, with nothing committed, for drafters that form laws. Others
    need not care: what the grammar forbids is cut from their drafts."""


@runtime_checkable
class Drafter(Protocol):
    """Where guesses come from."""

    @property
    def name(self) -> str:
        """Short name for records and metrics, such as ``ngram``."""
        ...

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        """One draft per request, in order; an empty draft where there is nothing to say."""
        ...

    def observe(self, sequence_id: int, draft: Draft, accepted: int) -> None:
        """Feedback after verification: how many nodes along the verified path were accepted."""
        ...

    def finish(self, sequence_id: int, tokens: Sequence[int], prompt_length: int, tenant: str | None) -> None:
        """The sequence is over (done, cancelled or failed): drop its state; remember its text if so configured."""
        ...


@runtime_checkable
class Learner(Protocol):
    """A drafter that also learns from what the target thought, not only from what it said."""

    successors: int
    """How many best next tokens it wants per verified row; 0 = none."""

    def learn(self, sequence_id: int, rows: Sequence[tuple[tuple[int, ...], tuple[int, ...]]]) -> None:
        """All rows of a round, after its verification and before `observe` and the sequence's next `propose`.

        A row is ``(context, successors)``: the last up to two tokens before the predicted position, in order, and the
        target's best ids there, best first. Rows after rejected tokens count too: the target's law after a wrong token
        is knowledge. Which rows were accepted is not said.
        """
        ...
