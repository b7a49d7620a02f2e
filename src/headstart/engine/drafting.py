"""Asking drafters, and surviving them: a drafter can cost speed, never correctness.

Whatever a drafter does wrong becomes an empty or shortened draft, a counter and one warning. Knows the drafter
protocol; does not know targets or acceptance rules.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import overload

from headstart.decode.admit import admitted
from headstart.decode.draft import EMPTY, Draft
from headstart.decode.round import Turn
from headstart.draft.base import Drafter, DraftRequest, Learner
from headstart.draft.ensemble import JOINT, PLAIN, PREDICTION, check_names, members
from headstart.draft.prediction import PredictionDrafter
from headstart.engine.request import Branch
from headstart.errors import InvalidParameter

log = logging.getLogger(__name__)

MOST_SUCCESSORS = 64


class TokenView(Sequence[int]):
    """A history that can be read and not changed, without copying it."""

    __slots__ = ("_tokens",)

    def __init__(self, tokens: list[int]) -> None:
        self._tokens = tokens

    def __len__(self) -> int:
        return len(self._tokens)

    def __iter__(self) -> Iterator[int]:
        return iter(self._tokens)

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> list[int]: ...
    def __getitem__(self, index: int | slice) -> int | list[int]:
        return self._tokens[index]


@dataclass(frozen=True, slots=True)
class Ask:
    """A drafter is asked for a draft of at most ``depth`` levels and ``nodes`` tokens for the sequence of ``turn``;
    ``least`` is as in ``Allowance``, ``said`` as in ``DraftRequest``."""

    turn: Turn
    drafter: str
    depth: int
    nodes: int
    least: float = 0.0
    said: Draft = EMPTY


class Drafting:
    """All drafters of an engine, and the one of predictions, asked for a whole batch at once. ``on_failure`` is called
    with a drafter's name and what it did wrong."""

    def __init__(self, drafters: Sequence[Drafter], vocab_size: int, on_failure: Callable[[str, str], None]) -> None:
        self._on_failure = on_failure
        self.names = [drafter.name for drafter in drafters]
        """Whom a request may choose, in order."""
        check_names(self.names)
        self.drafters: dict[str, Drafter] = {
            **dict(zip(self.names, drafters, strict=True)),
            PREDICTION: PredictionDrafter(),
        }
        self._learners = {name: drafter for name, drafter in self.drafters.items() if isinstance(drafter, Learner)}
        self.vocab_size = vocab_size
        self.branches: dict[int, Branch] = {}
        self._warned: set[tuple[str, str]] = set()
        self.seconds: dict[str, float] = {}
        """What each drafter took in the last round."""
        self.drafted: dict[str, int] = {}
        """Tokens each drafter proposed in the last round."""
        self.asks: dict[str, int] = {}
        """Sequences each drafter was asked for in the last round."""

    def choose(self, drafter: str, *, predicted: bool = False) -> tuple[str, tuple[str, ...]]:
        """Whom ``drafter`` stands for, before them the one of predictions if something is ``predicted``: what they are
        called together, and each of them.

        Raises:
            InvalidParameter: a drafter that is not there, or a prediction that is not.
        """
        if predicted and PREDICTION not in members(drafter):
            drafter = PREDICTION if drafter == PLAIN else f"{PREDICTION}{JOINT}{drafter}"
        names = members(drafter)
        for name in names:
            if name == PREDICTION and not predicted:
                raise InvalidParameter("drafter", f"{name!r} needs a prediction with the request")
            if name not in (*self.names, PREDICTION):
                known = ", ".join([*self.names, PLAIN])
                raise InvalidParameter("drafter", f"{name!r} is not loaded; choose from {known}")
        return drafter, names

    def successors(self, branch: Branch, first: bool) -> int:
        """How many of the target's best tokens per row the sequence's drafters want to learn from; the ``first`` of
        them only if it is asked: who rests, or has no chance beside a busy batch, need not be taught meanwhile."""
        names = branch.drafters if first else branch.drafters[1:]
        wanted = [getattr(self.drafters[name], "successors", 0) for name in names]
        return max((w for w in wanted if type(w) is int and 0 < w <= MOST_SUCCESSORS), default=0)

    def says(self, name: str, trait: str) -> bool:
        """Whether the drafter says of itself that it has a trait: ``computes`` for every token it drafts, drafts are
        ``deep``."""
        return bool(getattr(self.drafters.get(name), trait, False))

    def join(self, branch: Branch) -> None:
        self.branches[branch.sequence.id] = branch

    def leave(self, branch: Branch) -> None:
        """The sequence is over, however it ended."""
        if self.branches.pop(branch.sequence.id, None) is None:
            return
        sequence = branch.sequence
        for name in branch.drafters:
            try:
                view = TokenView(sequence.tokens)
                self.drafters[name].finish(sequence.id, view, sequence.prompt_length, branch.tenant)
            except Exception as error:
                self._warn(name, "finish raised", error)

    def begin(self) -> None:
        """Another round: counts start at zero."""
        self.seconds, self.drafted, self.asks = {}, {}, {}

    def ask(self, asks: Sequence[Ask]) -> list[Draft]:
        """One well-formed draft per ask, within its limits; its ``source`` is who was asked. Never raises."""
        drafts = [EMPTY] * len(asks)
        groups: dict[str, list[int]] = {}
        for i, ask in enumerate(asks):
            groups.setdefault(ask.drafter, []).append(i)
        for name, mine in groups.items():
            started = perf_counter()
            try:
                found = self.drafters[name].propose([self._request(asks[i]) for i in mine])
                if len(found) != len(mine):
                    raise ValueError(f"{len(found)} drafts for {len(mine)} requests")
            except Exception as error:
                for i in mine:
                    self._fail(asks[i], "raised", error)
                continue
            for i, draft in zip(mine, found, strict=True):
                drafts[i] = self._checked(asks[i], draft)
            self.seconds[name] = self.seconds.get(name, 0.0) + perf_counter() - started
            self.asks[name] = self.asks.get(name, 0) + len(mine)
            self.drafted[name] = self.drafted.get(name, 0) + sum(len(drafts[i]) for i in mine)
        return [self._admitted(ask, draft) for ask, draft in zip(asks, drafts, strict=True)]

    def observe(self, turns: Sequence[Turn]) -> None:
        """Tell each sequence's drafters what the target thought, and the one whose draft was verified what came of
        it."""
        for turn in turns:
            for name in self.branches[turn.sequence.id].drafters:
                try:
                    if turn.learned and name in self._learners:
                        self._learners[name].learn(turn.sequence.id, turn.learned)
                    if len(turn.draft) and turn.draft.source == name:
                        self.drafters[name].observe(turn.sequence.id, turn.draft, turn.accepted)
                except Exception as error:
                    self._warn(name, "feedback raised", error)

    def _request(self, ask: Ask) -> DraftRequest:
        sequence = ask.turn.sequence
        branch = self.branches[sequence.id]
        return DraftRequest(
            sequence_id=sequence.id,
            tokens=TokenView(sequence.tokens),
            prompt_length=sequence.prompt_length,
            depth=ask.depth,
            nodes=ask.nodes,
            params=sequence.params,
            seed=sequence.law.seed,
            tenant=branch.tenant,
            prediction=branch.prediction,
            with_q=samples(ask.turn),
            least=ask.least,
            said=ask.said,
            extent=sequence.extent,
            constraint=None if sequence.law.constraint is None else sequence.law.constraint.fresh,
        )

    def _checked(self, ask: Ask, draft: Draft) -> Draft:
        try:
            problem = draft.problem(self.vocab_size)
            if problem is not None:
                return self._fail(ask, "malformed", problem)
            if samples(ask.turn):
                draft = draft.principal_chain()
            cut = draft.truncated(ask.depth, ask.nodes)
            if cut is not draft:
                self._fail(ask, "too long", f"{len(draft)} tokens for depth {ask.depth}")
            return cut if cut.source == ask.drafter else replace(cut, source=ask.drafter)
        except Exception as error:  # not even a Draft
            return self._fail(ask, "malformed", error)

    def _admitted(self, ask: Ask, draft: Draft) -> Draft:
        """What the sequence's grammar leaves of a draft, and adds to it."""
        constraint = ask.turn.sequence.law.constraint
        if constraint is None:
            return draft
        try:
            left = admitted(draft, constraint, ask.depth, ask.nodes)
        except Exception as error:
            return self._fail(ask, "grammar", error)
        ask.turn.barred = bool(len(draft)) and not len(left)
        return left

    def _fail(self, ask: Ask, reason: str, detail: object) -> Draft:
        ask.turn.fail(ask.drafter, reason)
        self._warn(ask.drafter, reason, detail)
        return EMPTY

    def _warn(self, name: str, reason: str, detail: object) -> None:
        level = logging.DEBUG if (name, reason) in self._warned else logging.WARNING
        self._warned.add((name, reason))
        self._on_failure(name, reason)
        log.log(level, "drafter %s: %s (%s); decoding goes on without that draft", name, reason, detail)


def samples(turn: Turn) -> bool:
    """Whether the sequence's rule needs chains and the laws they were drawn from."""
    params = turn.sequence.params
    return params.verify != "coupled" and not params.greedy
