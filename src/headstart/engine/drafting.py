"""Asking drafters, and surviving them: a drafter can cost speed, never correctness.

Whatever a drafter does wrong becomes an empty or shortened draft, a counter and one warning. Knows the drafter
protocol; does not know targets or acceptance rules.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from time import perf_counter
from typing import overload

from headstart.decode.draft import EMPTY, Draft
from headstart.decode.round import Turn
from headstart.draft.base import Drafter, DraftRequest, Learner
from headstart.engine.request import Branch

log = logging.getLogger(__name__)

PLAIN = "none"
"""The drafter name that means no drafter."""

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


class Drafting:
    """All drafters of an engine, asked for a whole batch at once. ``on_failure`` is called with a drafter's name and
    what it did wrong."""

    def __init__(
        self, drafters: Mapping[str, Drafter], vocab_size: int, on_failure: Callable[[str, str], None]
    ) -> None:
        self._on_failure = on_failure
        self.drafters = dict(drafters)
        self.vocab_size = vocab_size
        self.branches: dict[int, Branch] = {}
        self._warned: set[tuple[str, str]] = set()
        self.seconds: dict[str, float] = {}
        """What each drafter took in the last round."""
        self.drafted: dict[str, int] = {}
        """Tokens each drafter proposed in the last round."""
        self.asks: dict[str, int] = {}
        """Sequences each drafter was asked for in the last round."""

    def successors(self, branch: Branch) -> int:
        """How many of the target's best tokens per row the sequence's drafter wants to learn from."""
        wanted = getattr(self.drafters.get(branch.drafter), "successors", 0)
        return wanted if type(wanted) is int and 0 < wanted <= MOST_SUCCESSORS else 0

    def join(self, branch: Branch) -> None:
        self.branches[branch.sequence.id] = branch

    def leave(self, branch: Branch) -> None:
        """The sequence is over, however it ended."""
        if self.branches.pop(branch.sequence.id, None) is None:
            return
        drafter = self.drafters.get(branch.drafter)
        sequence = branch.sequence
        if drafter is not None:
            try:
                drafter.finish(sequence.id, TokenView(sequence.tokens), sequence.prompt_length, branch.tenant)
            except Exception as error:
                self._warn(branch.drafter, "finish raised", error)

    def propose(self, turns: Sequence[Turn]) -> list[Draft]:
        """One well-formed draft per turn, within its limits. Never raises."""
        drafts = [EMPTY] * len(turns)
        self.seconds, self.drafted, self.asks = {}, {}, {}
        groups: dict[str, list[int]] = {}
        for i, turn in enumerate(turns):
            if turn.depth > 0:
                groups.setdefault(self.branches[turn.sequence.id].drafter, []).append(i)
        for name, members in groups.items():
            started = perf_counter()
            try:
                found = self.drafters[name].propose([self._request(turns[i]) for i in members])
                if len(found) != len(members):
                    raise ValueError(f"{len(found)} drafts for {len(members)} requests")
            except Exception as error:
                for i in members:
                    self._fail(turns[i], name, "raised", error)
                continue
            for i, draft in zip(members, found, strict=True):
                drafts[i] = self._checked(turns[i], name, draft)
            self.seconds[name] = perf_counter() - started
            self.asks[name] = len(members)
            self.drafted[name] = sum(len(drafts[i]) for i in members)
        return drafts

    def observe(self, turns: Sequence[Turn]) -> None:
        """Tell each drafter what the target thought, and what came of its draft."""
        for turn in turns:
            name = self.branches[turn.sequence.id].drafter
            drafter = self.drafters.get(name)
            if drafter is None:
                continue
            try:
                if turn.learned and isinstance(drafter, Learner):
                    drafter.learn(turn.sequence.id, turn.learned)
                if len(turn.draft):
                    drafter.observe(turn.sequence.id, turn.draft, turn.accepted)
            except Exception as error:
                self._warn(name, "feedback raised", error)

    def _request(self, turn: Turn) -> DraftRequest:
        sequence = turn.sequence
        return DraftRequest(
            sequence_id=sequence.id,
            tokens=TokenView(sequence.tokens),
            prompt_length=sequence.prompt_length,
            depth=turn.depth,
            nodes=turn.nodes,
            params=sequence.params,
            seed=sequence.law.seed,
            tenant=self.branches[sequence.id].tenant,
            with_q=samples(turn),
        )

    def _checked(self, turn: Turn, name: str, draft: Draft) -> Draft:
        try:
            problem = draft.problem(self.vocab_size)
            if problem is not None:
                return self._fail(turn, name, "malformed", problem)
            if samples(turn):
                draft = draft.principal_chain()
            cut = draft.truncated(turn.depth, turn.nodes)
            if cut is not draft:
                self._fail(turn, name, "too long", f"{len(draft)} tokens for depth {turn.depth}")
            return cut
        except Exception as error:  # not even a Draft
            return self._fail(turn, name, "malformed", error)

    def _fail(self, turn: Turn, name: str, reason: str, detail: object) -> Draft:
        turn.fail(reason)
        self._warn(name, reason, detail)
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
