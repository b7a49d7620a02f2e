"""Drafters that follow a script, for tests of an engine, a server or a depth controller. Yours may use them too.

They know the true continuation, or deliberately break one rule of the protocol, and do so deterministically. They
know nothing of models, and no decoding result depends on them: that is what a test with them shows.

    OracleDrafter            true tokens, each spoiled with probability 1 - acceptance
    TreeOracleDrafter        the true path hidden among wrong siblings
    WrongDrafter             always wrong
    EosDrafter               nothing but the end-of-sequence token
    OutOfVocabularyDrafter   token ids that no vocabulary has
    TooLongDrafter           more tokens than the depth asked for
    RaisingDrafter           raises, always or every nth call
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from headstart.decode.draft import EMPTY, ROOT, Draft
from headstart.draft.base import Drafter, DraftRequest
from headstart.errors import DrafterFailed, InvalidParameter

Truth = Mapping[tuple[int, ...], Sequence[int]] | Callable[[tuple[int, ...], int], Sequence[int]]
"""The true continuation: ``{prompt: output}``, or a function ``(history, count) -> at most count next tokens``."""

_MASK = (1 << 64) - 1


def uniform(*key: int) -> float:
    """A number in [0, 1) that is a pure function of ``key`` (splitmix64, Steele et al. 2014)."""
    state = 0
    for part in key:
        state = (state ^ (part & _MASK)) + 0x9E3779B97F4A7C15 & _MASK
        state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 & _MASK
        state = (state ^ state >> 27) * 0x94D049BB133111EB & _MASK
        state ^= state >> 31
    return (state >> 11) / (1 << 53)


def wrong_token(true: int) -> int:
    """A token that is not ``true``, and inside every vocabulary of at least two tokens that has ``true``."""
    return true - 1 if true > 0 else 1


class Scripted:
    """What all scripted drafters share: a name, a log of feedback, one draft per request from :meth:`draft`.

    ``observed`` collects ``(sequence_id, draft, accepted)`` and ``finished`` the sequence ids, for assertions.
    """

    name = "scripted"

    def __init__(self) -> None:
        self.observed: list[tuple[int, Draft, int]] = []
        self.finished: list[int] = []

    def draft(self, request: DraftRequest) -> Draft:
        return EMPTY

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        return [self.draft(request) for request in requests]

    def observe(self, sequence_id: int, draft: Draft, accepted: int) -> None:
        self.observed.append((sequence_id, draft, accepted))

    def finish(self, sequence_id: int, tokens: Sequence[int], prompt_length: int, tenant: str | None) -> None:
        self.finished.append(sequence_id)


class _Knowing(Scripted):
    """A scripted drafter that knows the truth."""

    def __init__(self, continuations: Truth) -> None:
        super().__init__()
        self._continuations = continuations

    def truth(self, request: DraftRequest, count: int) -> tuple[int, ...]:
        """The next ``count`` true tokens, fewer at the end of the script, none for an unknown prompt."""
        if callable(self._continuations):
            return tuple(self._continuations(tuple(request.tokens), count))[:count]
        output = self._continuations.get(tuple(request.tokens[: request.prompt_length]), ())
        done = len(request.tokens) - request.prompt_length
        return tuple(output[done : done + count])


class OracleDrafter(_Knowing):
    """Proposes the true next tokens; each is replaced by a wrong one with probability ``1 - acceptance``.

    Which ones is a pure function of ``seed``, sequence id and absolute position, so a run can be repeated, and the
    expected conditional acceptance at every depth is ``acceptance``, which is also the drafts' ``confidence``.
    """

    name = "oracle"

    def __init__(self, continuations: Truth, acceptance: float = 1.0, seed: int = 0) -> None:
        super().__init__(continuations)
        if not 0.0 <= acceptance <= 1.0:
            raise InvalidParameter("acceptance", f"must be in [0, 1], got {acceptance!r}")
        self.acceptance = acceptance
        self.seed = seed

    def draft(self, request: DraftRequest) -> Draft:
        start = len(request.tokens)
        tokens = [
            token if uniform(self.seed, request.sequence_id, start + i) < self.acceptance else wrong_token(token)
            for i, token in enumerate(self.truth(request, min(request.depth, request.nodes)))
        ]
        return Draft(tuple(tokens), confidence=(self.acceptance,) * len(tokens), source=self.name)


class TreeOracleDrafter(_Knowing):
    """Hides the true path in a tree: ``width`` siblings at each step, the true child at a random place among them.

    With probability ``acceptance`` the true child is among its siblings at all. Wrong siblings get one wrong child
    each while nodes last. Without nodes to spare (``request.nodes <= request.depth``) the tree is a chain. The
    vocabulary must have more than ``width`` tokens.
    """

    name = "tree-oracle"

    def __init__(self, continuations: Truth, width: int = 3, acceptance: float = 1.0, seed: int = 0) -> None:
        super().__init__(continuations)
        if width < 1:
            raise InvalidParameter("width", f"must be at least 1, got {width!r}")
        self.width = width
        self.acceptance = acceptance
        self.seed = seed

    def draft(self, request: DraftRequest) -> Draft:
        path = self.truth(request, min(request.depth, request.nodes))
        spare = request.nodes - len(path)
        tokens: list[int] = []
        parents: list[int] = []
        parent, stray = ROOT, -1
        for step, true in enumerate(path):
            key = (self.seed, request.sequence_id, len(request.tokens) + step)
            follows = true if uniform(*key) < self.acceptance else wrong_token(true)
            low = max(0, true - self.width)  # tokens not above `true` exist wherever it does
            decoys = [token for token in range(low, low + self.width + 1) if token not in (true, follows)]
            count = min(self.width - 1, spare, len(decoys))
            siblings = sorted(decoys, key=lambda token: uniform(*key, token))[:count]
            place = int(uniform(*key, -1) * (count + 1))
            siblings.insert(place, follows)
            first = len(tokens)
            tokens += siblings
            parents += [parent] * len(siblings)
            spare -= count
            if stray >= 0 and spare > 0:
                tokens.append(wrong_token(true))
                parents.append(stray)
                spare -= 1
            parent = first + place
            stray = next((i for i in range(first, first + len(siblings)) if i != parent), -1)
        return Draft(tuple(tokens), tuple(parents), source=self.name)


class WrongDrafter(_Knowing):
    """Never right: differs from the truth at every position, or proposes ``token`` where the truth is not known."""

    name = "wrong"

    def __init__(self, continuations: Truth | None = None, token: int = 0) -> None:
        super().__init__({} if continuations is None else continuations)
        self.token = token

    def draft(self, request: DraftRequest) -> Draft:
        depth = min(request.depth, request.nodes)
        tokens = [wrong_token(token) for token in self.truth(request, depth)]
        return Draft(tuple(tokens + [self.token] * (depth - len(tokens))), source=self.name)


class EosDrafter(Scripted):
    """Proposes the end-of-sequence token, as often as it may."""

    name = "eos"

    def __init__(self, eos_token_id: int) -> None:
        super().__init__()
        self.eos_token_id = eos_token_id

    def draft(self, request: DraftRequest) -> Draft:
        return Draft((self.eos_token_id,) * min(request.depth, request.nodes), source=self.name)


class OutOfVocabularyDrafter(Scripted):
    """Breaks the contract: proposes ``tokens``, by default one negative id and one beyond every vocabulary."""

    name = "out-of-vocabulary"

    def __init__(self, tokens: Sequence[int] = (-1, 2**31 - 1)) -> None:
        super().__init__()
        self.tokens = tuple(tokens)

    def draft(self, request: DraftRequest) -> Draft:
        start = len(request.tokens)
        count = min(request.depth, request.nodes)
        return Draft(tuple(self.tokens[(start + i) % len(self.tokens)] for i in range(count)), source=self.name)


class TooLongDrafter(_Knowing):
    """Breaks the contract: proposes ``extra`` tokens beyond the depth, true ones where the truth is known.

    An engine that believed it would run past ``max_tokens``.
    """

    name = "too-long"

    def __init__(self, continuations: Truth | None = None, extra: int = 8, token: int = 0) -> None:
        super().__init__({} if continuations is None else continuations)
        self.extra = extra
        self.token = token

    def draft(self, request: DraftRequest) -> Draft:
        length = request.depth + self.extra
        tokens = self.truth(request, length)
        return Draft(tokens + (self.token,) * (length - len(tokens)), source=self.name)


class RaisingDrafter(Scripted):
    """Raises in every ``every``-th call of :meth:`propose`; otherwise asks ``inner``, or proposes nothing."""

    name = "raising"

    def __init__(self, every: int = 1, inner: Drafter | None = None, error: Exception | None = None) -> None:
        super().__init__()
        if every < 1:
            raise InvalidParameter("every", f"must be at least 1, got {every!r}")
        self.every = every
        self.inner = inner
        self.error = DrafterFailed("RaisingDrafter was asked to raise") if error is None else error
        self.calls = 0

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        self.calls += 1
        if self.calls % self.every == 0:
            raise self.error
        return super().propose(requests) if self.inner is None else self.inner.propose(requests)

    def observe(self, sequence_id: int, draft: Draft, accepted: int) -> None:
        super().observe(sequence_id, draft, accepted)
        if self.inner is not None:
            self.inner.observe(sequence_id, draft, accepted)

    def finish(self, sequence_id: int, tokens: Sequence[int], prompt_length: int, tenant: str | None) -> None:
        super().finish(sequence_id, tokens, prompt_length, tenant)
        if self.inner is not None:
            self.inner.finish(sequence_id, tokens, prompt_length, tenant)
