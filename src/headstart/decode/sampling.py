"""The law of one sequence's next token: masks, bias, penalties, temperature and filters on one row of logits.

Every step looks at one row and this sequence's history only, so a row's law cannot depend on its batch mates or on
how many rows were verified together. Draft tokens before the row are given as ``ahead`` and count as if committed.

Refuses to know models, tokenizers, drafters and the other rows of the batch.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from headstart.decode import noise
from headstart.decode.grammar import Constraint
from headstart.decode.params import SamplingParams
from headstart.errors import InvalidParameter

_F32 = NDArray[np.float32]
_Ids = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """What is reported about one emitted token.

    ``logprob`` is its natural log-probability (nats), ``rank`` its place counted from 1 (tokens of equal probability
    share a rank), ``top`` the (token id, logprob) of the likeliest tokens, best first, lower id first on ties; tokens
    of probability 0 are left out.
    """

    token: int
    logprob: float
    rank: int
    top: tuple[tuple[int, float], ...]


class TokenLaw:
    """The target's next-token law for one sequence, given its parameters and everything committed so far.

    The order of steps is the one ``SamplingParams`` documents. Details that it leaves open:

    - A grammar's mask comes first and gives way to nothing but forced tokens, which the engine holds to the grammar.
    - ``min_tokens`` bans ``eos_ids`` and ``stop_token_ids`` until that many output tokens exist.
    - A forced token is a point mass: it wins over bans, bias and the model's own ``-inf``.
    - If bans leave no token, ``min_tokens`` gives way first, ``banned_tokens`` second, so that a law always exists.
    - ``top_k`` keeps exactly k tokens and ``top_p`` the smallest sufficient set; ties go to the lower id.
    - Greedy takes the first maximum after the penalties; temperature and filters are skipped.

    Args:
        params: the request's parameters.
        prompt: prompt token ids; only ids below ``vocab_size`` count for the repetition penalty.
        seed: the sequence's own 64-bit seed.
        vocab_size: the tokenizer's vocabulary. Logit rows may be wider; the padding ids beyond are never chosen.
        eos_ids: end-of-sequence ids.
        constraint: where the sequence stands in its grammar, with nothing committed yet.

    Raises:
        InvalidParameter: a forced token lies outside the vocabulary.
    """

    def __init__(
        self,
        params: SamplingParams,
        prompt: Sequence[int],
        seed: int,
        vocab_size: int,
        eos_ids: frozenset[int],
        constraint: Constraint | None = None,
    ) -> None:
        for token in params.forced_tokens:
            if token >= vocab_size:
                message = f"token {token} is outside the vocabulary of {vocab_size}; use ids below it"
                raise InvalidParameter("forced_tokens", message)
        self.params = params
        self.seed = seed
        self.vocab_size = vocab_size
        self.constraint = constraint
        self._prompt_length = len(prompt)
        self._output_length = 0
        self._banned = _id_array(params.banned_tokens, vocab_size)
        self._endings = _id_array({*eos_ids, *params.stop_token_ids}, vocab_size)
        bias = {token: value for token, value in params.logit_bias.items() if token < vocab_size}
        self._bias_ids = np.array(list(bias), dtype=np.int64)
        self._bias = np.array(list(bias.values()), dtype=np.float32)
        self._repeats = params.repetition_penalty != 1.0
        self._counts = params.presence_penalty != 0.0 or params.frequency_penalty != 0.0
        self._seen = _Tally(prompt if self._repeats else (), vocab_size)
        self._written = _Tally((), vocab_size)

    @property
    def position(self) -> int:
        """Absolute position of the next token: prompt length plus committed output tokens."""
        return self._prompt_length + self._output_length

    @property
    def greedy_fast(self) -> bool:
        """Whether this and every later choice is the first maximum of the raw row over ids below ``vocab_size``."""
        p = self.params
        if not p.greedy or self._repeats or self._counts or self.constraint is not None:
            return False
        waits = self._endings.size > 0 and self._output_length < p.min_tokens
        forces = self._output_length < len(p.forced_tokens)
        return not (waits or forces or self._banned.size or self._bias_ids.size)

    @property
    def complete(self) -> bool:
        """Whether the output is a whole text of its grammar and nothing can follow but the end."""
        return self.constraint is not None and self.constraint.complete

    def append(self, token: int) -> None:
        """Commit one output token."""
        if self.constraint is not None:
            self.constraint.append(token)
        self._push(token)

    def logits(self, row: torch.Tensor, ahead: Sequence[int] = ()) -> torch.Tensor:
        """Processed logits at the position after prompt, output and ``ahead``; float32 ``[vocab_size]`` on the CPU.

        Args:
            row: the target's logits there, any float dtype, ``[V]`` with V >= vocab_size; never modified.
            ahead: draft tokens between the committed output and this position.

        Returns:
            Logits whose softmax is the law; excluded tokens are ``-inf``. With temperature 0 they are the logits whose
            first maximum is chosen.

        Raises:
            ValueError: the row is narrower than the vocabulary, or has no finite maximum.
        """
        return torch.from_numpy(self._processed(row, ahead))

    def law(self, row: torch.Tensor, ahead: Sequence[int] = ()) -> torch.Tensor:
        """Probabilities of the next token; float64 ``[vocab_size]`` on the CPU; a point mass with temperature 0."""
        logits = self._processed(row, ahead)
        if self.params.greedy:
            point = torch.zeros(self.vocab_size, dtype=torch.float64)
            point[int(logits.argmax())] = 1.0
            return point
        return torch.from_numpy(_softmax(logits))

    def choose(self, row: torch.Tensor, ahead: Sequence[int] = ()) -> int:
        """The target's own token there, under the coupled rule: ``argmax(log p + Gumbel(seed, SAMPLE, position))``.

        Logits stand in for log p: they differ by a constant. Position is absolute, prompt included, so the token is a
        function of (row, history, parameters, seed) and of nothing else.
        """
        logits = self._processed(row, ahead)
        if self.params.greedy:
            return int(logits.argmax())
        position = self.position + len(ahead)
        return noise.gumbel_argmax(torch.from_numpy(logits), self.seed, noise.Stream.SAMPLE, position)

    def choose_two(self, row: torch.Tensor, ahead: Sequence[int] = ()) -> tuple[int, int, float]:
        """``choose`` and what it would choose next: both tokens, and by how much the second one's score lags (nats),
        noise included. The first one and infinity where there is no second."""
        logits = self._processed(row, ahead)
        if not self.params.greedy:
            position = self.position + len(ahead)
            return noise.gumbel_two(torch.from_numpy(logits), self.seed, noise.Stream.SAMPLE, position)
        best = int(logits.argmax())
        most, logits[best] = logits[best], -np.inf
        second = int(logits.argmax())
        lag = float(most - logits[second])
        return (best, second, lag) if math.isfinite(lag) else (best, best, math.inf)

    def logprobs(self, row: torch.Tensor, ahead: Sequence[int], token: int) -> TokenLogprob:
        """Log-probabilities to report for ``token`` at that position: float32 log-softmax over ``vocab_size`` ids.

        Mode ``raw`` uses the target's row untouched, mode ``processed`` the result of ``logits``;
        ``params.logprobs`` says how many of the best to list.
        """
        raw = self.params.logprobs_mode == "raw"
        logits = self._copied(row) if raw else self._processed(row, ahead)
        logprobs = torch.log_softmax(torch.from_numpy(logits), dim=0).numpy()
        own = logprobs[token]
        best = _largest(logprobs, min(self.params.logprobs or 0, self.vocab_size))
        top = tuple((int(i), float(logprobs[i])) for i in best)
        return TokenLogprob(token, float(own), 1 + int(np.count_nonzero(logprobs > own)), top)

    def _copied(self, row: torch.Tensor) -> _F32:
        if row.dim() != 1 or row.shape[0] < self.vocab_size:
            raise ValueError(f"a row of shape {tuple(row.shape)} cannot cover a vocabulary of {self.vocab_size}")
        copied: _F32 = row.detach()[: self.vocab_size].to("cpu", torch.float32, copy=True).numpy()
        return copied

    def _processed(self, row: torch.Tensor, ahead: Sequence[int]) -> _F32:
        params = self.params
        x = self._copied(row)
        index = self._output_length + len(ahead)
        if index < len(params.forced_tokens):
            x.fill(-np.inf)
            x[params.forced_tokens[index]] = 0.0
            return x
        if self.constraint is not None:
            x[~self.constraint.allowed(ahead)[: self.vocab_size]] = -np.inf
        self._mask(x, index)
        if self._bias_ids.size:
            x[self._bias_ids] += self._bias
        if self._repeats or self._counts:
            with self._as_committed(ahead):
                self._penalise(x)
        if not math.isfinite(float(x.max())):
            raise ValueError("the target's logits are NaN or infinite; load the model in a wider dtype")
        if params.greedy:
            return x
        if params.temperature != 1.0:
            np.divide(x, np.float32(params.temperature), out=x)
        if 0 < params.top_k < self.vocab_size:
            _top_k(x, params.top_k)
        if params.top_p < 1.0:
            _top_p(x, params.top_p)
        if params.min_p > 0.0:
            x[x < x.max() + np.float32(math.log(params.min_p))] = -np.inf
        return x

    def _mask(self, x: _F32, index: int) -> None:
        endings = self._endings if index < self.params.min_tokens else self._endings[:0]
        if not (self._banned.size or endings.size):
            return
        allowed_endings = x[endings]
        x[endings] = -np.inf
        allowed_bans = x[self._banned]
        x[self._banned] = -np.inf
        if x.max() == -np.inf:
            x[endings] = allowed_endings
            x[self._banned] = -np.inf
            if x.max() == -np.inf:
                x[self._banned] = allowed_bans
                x[endings] = allowed_endings

    def _penalise(self, x: _F32) -> None:
        if self._repeats:
            ids = self._seen.ids
            values = x[ids]
            penalty = np.float32(self.params.repetition_penalty)
            x[ids] = np.where(values > 0, values / penalty, values * penalty)
        if self._counts:
            ids, counts = self._written.ids, self._written.counts
            x[ids] -= (self.params.presence_penalty + self.params.frequency_penalty * counts).astype(np.float32)

    def _push(self, token: int) -> None:
        self._output_length += 1
        if self._repeats:
            self._seen.add(token)
        if self._counts:
            self._written.add(token)

    @contextmanager
    def _as_committed(self, ahead: Sequence[int]) -> Iterator[None]:
        # Counting the draft tokens in and out again makes "ahead" the same arithmetic as "append", bit for bit.
        pushed = 0
        try:
            for token in ahead:
                self._push(token)
                pushed += 1
            yield
        finally:
            for token in reversed(ahead[:pushed]):
                self._output_length -= 1
                if self._repeats:
                    self._seen.remove_last(token)
                if self._counts:
                    self._written.remove_last(token)


class _Tally:
    """How often each token occurred, as parallel arrays over the tokens that did; the last addition can be undone."""

    def __init__(self, tokens: Iterable[int], vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._slots: dict[int, int] = {}
        self._ids: _Ids = np.empty(64, dtype=np.int64)
        self._counts: _Ids = np.zeros(64, dtype=np.int64)
        for token in tokens:
            self.add(token)

    @property
    def ids(self) -> _Ids:
        return self._ids[: len(self._slots)]

    @property
    def counts(self) -> _Ids:
        return self._counts[: len(self._slots)]

    def add(self, token: int) -> None:
        if not 0 <= token < self._vocab_size:
            return
        slot = self._slots.setdefault(token, len(self._slots))
        if slot == len(self._ids):
            self._ids = np.concatenate([self._ids, np.empty_like(self._ids)])
            self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)])
        self._ids[slot] = token
        self._counts[slot] += 1

    def remove_last(self, token: int) -> None:
        slot = self._slots.get(token)
        if slot is None:
            return
        self._counts[slot] -= 1
        if self._counts[slot] == 0:
            del self._slots[token]


def _id_array(tokens: Iterable[int], vocab_size: int) -> _Ids:
    return np.array(sorted({t for t in tokens if 0 <= t < vocab_size}), dtype=np.int64)


def _softmax(x: _F32) -> NDArray[np.float64]:
    # exp is slow on -inf, and a filtered row holds little else.
    p = np.zeros(x.shape)
    finite = x > -np.inf
    p[finite] = np.exp(x[finite].astype(np.float64) - float(x.max()))
    p /= p.sum()
    return p


def _top_k(x: _F32, k: int) -> None:
    """Exclude all but the ``k`` likeliest tokens, in place (Fan et al. 2018)."""
    _keep_largest(x, k, np.partition(x, x.shape[0] - k)[x.shape[0] - k])


def _top_p(x: _F32, top_p: float) -> None:
    """Exclude all but the smallest set of likeliest tokens that reaches ``top_p``, in place (Holtzman et al. 2020).

    Values are sorted without their ids, which numpy does some thirty times faster; the ids follow from the last value.
    """
    ordered = np.sort(x[x > -np.inf])[::-1]
    mass = np.cumsum(np.exp(ordered.astype(np.float64) - float(ordered[0])))
    count = int(np.searchsorted(mass, top_p * mass[-1])) + 1
    _keep_largest(x, count, ordered[count - 1])


def _keep_largest(x: _F32, count: int, least: np.float32) -> None:
    """Exclude all but the ``count`` largest, in place; ``least`` is the last of them; ties go to the lower index."""
    equal = np.flatnonzero(x == least)
    surplus = int(np.count_nonzero(x >= least)) - count
    x[x < least] = -np.inf
    x[equal[equal.shape[0] - surplus :]] = -np.inf


def _largest(x: _F32, k: int) -> _Ids:
    """Indices of the ``k`` largest values, largest first, lower index first on ties."""
    if k == 0:
        return np.empty(0, dtype=np.int64)
    x = x.copy()
    _top_k(x, k)
    ids = np.flatnonzero(x > -np.inf)
    ordered: _Ids = ids[np.argsort(-x[ids], kind="stable")]
    return ordered
