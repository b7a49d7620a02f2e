"""A record of depth decisions, and their replay offline.

``Journal`` wraps a controller and notes every call with its answer, one JSON object a line; ``replay`` puts the same
questions to a controller and says where it answers otherwise. Controllers decide by what they were told and by nothing
else, so a fresh one of the same settings gives the same answers; another one shows what it would have done.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TextIO

from headstart.control.depth import (
    Allowance,
    DepthController,
    DepthQuery,
    Load,
    Outcome,
    Proposal,
    RoundCost,
)
from headstart.decode.draft import Draft


class Journal:
    """A controller that writes down what it is asked and what it answers.

    Args:
        controller: who really decides.
        sink: an open text file, or anything with ``write``; the caller closes it.
    """

    def __init__(self, controller: DepthController, sink: TextIO) -> None:
        self.controller = controller
        self._sink = sink

    @property
    def why(self) -> Mapping[int, str]:
        return self.controller.why

    def allow(self, queries: Sequence[DepthQuery], load: Load) -> list[Allowance]:
        answer = self.controller.allow(queries, load)
        self._note("allow", [asdict(q) for q in queries], asdict(load), [asdict(a) for a in answer])
        return answer

    def allow_next(
        self, queries: Sequence[DepthQuery], said: Sequence[Sequence[Proposal]], load: Load
    ) -> list[Allowance]:
        answer = self.controller.allow_next(queries, said, load)
        given = [{"query": asdict(q), "said": [_line(p) for p in s]} for q, s in zip(queries, said, strict=True)]
        self._note("allow_next", given, asdict(load), [asdict(a) for a in answer])
        return answer

    def trim(self, proposals: Sequence[Proposal], load: Load) -> list[Draft]:
        answer = self.controller.trim(proposals, load)
        self._note("trim", [_line(p) for p in proposals], asdict(load), [_shape(d) for d in answer])
        return answer

    def observe(self, outcomes: Sequence[Outcome], cost: RoundCost) -> None:
        self.controller.observe(outcomes, cost)
        given = [
            {
                "sequence_id": o.sequence_id,
                "drafter": o.drafter,
                "draft": _shape(o.draft),
                "path": list(o.path),
                "ended": o.ended,
                "hot": o.hot,
                "emitted": o.emitted,
            }
            for o in outcomes
        ]
        self._note("observe", given, asdict(cost), None)

    def _note(self, call: str, given: list[dict[str, Any]], circumstances: dict[str, Any], answer: Any) -> None:
        line = {"call": call, "given": given, "circumstances": circumstances, "answer": answer}
        self._sink.write(json.dumps(line) + "\n")


@dataclass(frozen=True, slots=True)
class Difference:
    """Where a replay answered otherwise: line number (from 1), call, the recorded and the new answer."""

    line: int
    call: str
    recorded: Any
    now: Any


def replay(lines: Iterable[str], controller: DepthController) -> list[Difference]:
    """Put a journal's questions to ``controller``; returns where its answers differ."""
    differences = []
    for number, line in enumerate(lines, start=1):
        entry = json.loads(line)
        call, given, circumstances = entry["call"], entry["given"], entry["circumstances"]
        now: Any = None
        if call == "allow":
            queries = [DepthQuery(**q) for q in given]
            now = [asdict(a) for a in controller.allow(queries, Load(**circumstances))]
        elif call == "allow_next":
            queries = [DepthQuery(**g["query"]) for g in given]
            said = [[_proposal(p) for p in g["said"]] for g in given]
            now = [asdict(a) for a in controller.allow_next(queries, said, Load(**circumstances))]
        elif call == "trim":
            proposals = [_proposal(p) for p in given]
            now = [_shape(d) for d in controller.trim(proposals, Load(**circumstances))]
        else:
            outcomes = [Outcome(**{**o, "draft": _draft(o["draft"]), "path": tuple(o["path"])}) for o in given]
            controller.observe(outcomes, RoundCost(**circumstances))
        if now != entry["answer"]:
            differences.append(Difference(number, call, entry["answer"], now))
    return differences


def _line(proposal: Proposal) -> dict[str, Any]:
    return {
        "query": asdict(proposal.query),
        "draft": _shape(proposal.draft),
        "free": proposal.free,
        "asked": proposal.asked,
    }


def _proposal(line: dict[str, Any]) -> Proposal:
    return Proposal(DepthQuery(**line["query"]), _draft(line["draft"]), line["free"], line["asked"])


def _shape(draft: Draft) -> dict[str, Any]:
    """A draft without the laws it was drawn from, which no decision reads."""
    return {
        "tokens": list(draft.tokens),
        "parents": None if draft.parents is None else list(draft.parents),
        "confidence": None if draft.confidence is None else list(draft.confidence),
        "source": draft.source,
    }


def _draft(shape: dict[str, Any]) -> Draft:
    parents, confidence = shape["parents"], shape["confidence"]
    return Draft(
        tuple(shape["tokens"]),
        None if parents is None else tuple(parents),
        None if confidence is None else tuple(confidence),
        source=shape["source"],
    )
