"""The prediction drafter: proposes what the client said the output would be (OpenAI's Predicted Outputs).

A long chain where the output agrees with the prediction, short branches where it has just left it, nothing where it is
lost. Confidence grows with the agreement so far; what it is worth is learned by whoever verifies. Nothing is remembered
beyond a request. Knows token ids; not where a prediction came from.
"""

from __future__ import annotations

from collections.abc import Sequence

from headstart.decode.draft import EMPTY, ROOT, Draft
from headstart.draft.alignment import Alignment, Prediction
from headstart.draft.base import DraftRequest
from headstart.draft.ensemble import PREDICTION

BEGINNING = 0.7
"""Assumed probability that an output begins as predicted."""

GUESSES = (0.45, 0.25, 0.15)
"""Assumed probability of each place that is thinkable right after a difference, the likeliest first."""

BRANCH = 4
"""Tokens of a place other than the likeliest."""


def confidence(agreed: int) -> float:
    """Assumed probability that the next token is as predicted after ``agreed`` tokens that were."""
    return 1.0 - 0.5 / (agreed + 1)


class PredictionDrafter:
    """Drafts from each request's own prediction; says nothing for requests without one."""

    name = PREDICTION
    deep = True

    def __init__(self) -> None:
        self._alignments: dict[int, Alignment] = {}

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        return [
            EMPTY if request.prediction is None else self._draft(request, request.prediction) for request in requests
        ]

    def observe(self, sequence_id: int, draft: Draft, accepted: int) -> None:
        """Nothing to learn: the next history tells what was kept."""

    def finish(self, sequence_id: int, tokens: Sequence[int], prompt_length: int, tenant: str | None) -> None:
        self._alignments.pop(sequence_id, None)

    def _draft(self, request: DraftRequest, prediction: Prediction) -> Draft:
        alignment = self._follow(request, prediction)
        tree = request.nodes > request.depth
        left = request.nodes
        tokens: list[int] = []
        parents: list[int] = []
        confidences: list[float] = []
        first: set[int] = set()
        for rank, place in enumerate(alignment.places if tree else alignment.places[:1]):
            rest = prediction.tokens[place : place + min(request.depth, left if rank == 0 else min(left, BRANCH))]
            if not rest or rest[0] in first:
                continue
            first.add(rest[0])
            for i, token in enumerate(rest):
                parents.append(len(tokens) - 1 if i else ROOT)
                tokens.append(token)
                confidences.append(self._confidence(alignment, rank, i))
            left -= len(rest)
        if not tokens:
            return EMPTY
        chain = all(parent == i - 1 for i, parent in enumerate(parents))
        return Draft(tuple(tokens), None if chain else tuple(parents), tuple(confidences), source=PREDICTION)

    def _follow(self, request: DraftRequest, prediction: Prediction) -> Alignment:
        """The alignment of the output so far; starts over where the history was rewritten."""
        output = list(request.tokens[request.prompt_length :])
        alignment = self._alignments.get(request.sequence_id)
        known = 0 if alignment is None else len(alignment.output)
        if alignment is None or alignment.prediction is not prediction or output[:known] != alignment.output:
            alignment, known = Alignment(prediction), 0
            self._alignments[request.sequence_id] = alignment
        alignment.extend(output[known:])
        return alignment

    @staticmethod
    def _confidence(alignment: Alignment, rank: int, ahead: int) -> float:
        if ahead:
            return confidence(ahead + (alignment.run if rank == 0 else 0))
        if rank == 0 and alignment.run:
            return confidence(alignment.run)
        return GUESSES[rank] if alignment.output else BEGINNING
