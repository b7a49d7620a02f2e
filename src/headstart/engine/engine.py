"""Requests in, events out: continuous batching around one round at a time.

The engine is driven by whoever waits for output: ``generate``, ``stream`` and ``astream`` all call ``step`` until
their own request moves, and every step moves all requests. It knows requests and rounds; the model behind ``Target``
and the guesses behind ``Drafter`` are opaque to it.
"""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from time import perf_counter
from typing import Any, TypeVar

from headstart.control.depth import DepthController, DepthQuery, FixedDepth, Outcome, RoundCost
from headstart.decode.params import SamplingParams
from headstart.decode.record import SpecRecord, StepTimes
from headstart.decode.round import Turn, play_round
from headstart.decode.sequence import FinishReason
from headstart.draft.base import Drafter
from headstart.engine.drafting import PLAIN, Drafting
from headstart.engine.intake import make_sequences
from headstart.engine.prompt import check_token_ids, encode_prompt
from headstart.engine.request import Branch, Chunk, Output, Prompt, Request, Speculation
from headstart.engine.scheduler import Scheduler
from headstart.errors import InvalidParameter
from headstart.target.model import Target

T = TypeVar("T")


class Engine:
    """A target, its drafters, and everything that runs on them.

    Args:
        target: the model that decides.
        drafters: any number of drafters; requests choose by name.
        default_drafter: for requests that name none; default is the first of ``drafters``, or plain.
        controller: decides depth each round; default is a fixed depth of 4.
        max_sequences: most sequences decoded at once; more wait.
        prefill_chunk: most prompt tokens computed beside decoding in one round.

    All methods may be called from any thread.
    """

    def __init__(
        self,
        target: Target,
        drafters: Sequence[Drafter] = (),
        *,
        default_drafter: str | None = None,
        controller: DepthController | None = None,
        max_sequences: int = 8,
        prefill_chunk: int = 256,
    ) -> None:
        if max_sequences < 1:
            raise InvalidParameter("max_sequences", f"must be at least 1, got {max_sequences}")
        if prefill_chunk < 1:
            raise InvalidParameter("prefill_chunk", f"must be at least 1, got {prefill_chunk}")
        self.target = target
        self.controller: DepthController = controller if controller is not None else FixedDepth()
        self._drafting = Drafting({d.name: d for d in drafters}, target.vocab_size)
        self.default_drafter = default_drafter or next(iter(self._drafting.drafters), PLAIN)
        self._check_drafter(self.default_drafter)
        self._scheduler = Scheduler(target.pool, max_sequences, prefill_chunk)
        self._request_ids, self._sequence_ids = count(), count()
        self._lock = threading.RLock()
        self._busy = False
        self._executor: ThreadPoolExecutor | None = None
        self.times = StepTimes()
        self._ended = SpecRecord()

    # -- requests ---------------------------------------------------------------------------------------------------

    def submit(
        self, prompt: Prompt, params: SamplingParams | None = None, speculation: Speculation | None = None
    ) -> Request:
        """Queue a request and return its handle.

        Raises:
            InvalidParameter: a token id outside the vocabulary, an unknown drafter, an empty prompt, …
            RequestTooLarge: it could never fit; the message has the numbers.
        """
        params = params if params is not None else SamplingParams()
        speculation = speculation if speculation is not None else Speculation()
        drafter = speculation.drafter if speculation.drafter is not None else self.default_drafter
        self._check_drafter(drafter)
        ids = encode_prompt(prompt, self.target.tokenizer, self.target.vocab_size)
        check_token_ids(params, self.target.vocab_size)
        request = Request(next(self._request_ids), ids, params, perf_counter())
        for i, sequence in enumerate(make_sequences(self.target, ids, params, self._sequence_ids)):
            request.branches.append(Branch(request, i, sequence, drafter, speculation.depth, speculation.tenant))
        with self._lock:
            self._scheduler.add(request.branches)
        return request

    def cancel(self, request: Request) -> None:
        """End a request now, at any moment; its KV slots are free again when this returns (or, when called from inside
        a step, when that step ends). Cancelling a finished request does nothing."""
        request.cancelled = True
        with self._lock:
            if not self._busy:
                self._reap()

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return bool(self._scheduler.waiting or self._scheduler.running)

    def step(self) -> bool:
        """Play one round for everyone; returns whether there was work."""
        with self._lock:
            started = perf_counter()
            if self._busy:
                raise RuntimeError("step() called from inside a step")
            self._busy = True
            times = StepTimes()
            try:
                self._reap()
                self._busy = True
                now = perf_counter()
                for branch in self._scheduler.admit():
                    self._drafting.join(branch)
                    branch.request.started = branch.request.started or now
                if not self._scheduler.running:
                    return False
                turns = self._turns()
                prefills = self._scheduler.prefills()
                times = play_round(self.target, turns, prefills, self._drafting.propose)
                self._drafting.observe(turns)
                self._feed_controller(turns, times)
            finally:
                self._deliver()
                self._reap()
                times.rest += perf_counter() - started - times.total
                self.times.add(times)
            return True

    # -- waiting for output -----------------------------------------------------------------------------------------

    def generate(
        self,
        prompts: Sequence[Prompt] | str,
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        speculation: Speculation | Sequence[Speculation] | None = None,
        *,
        on_step: Callable[[], None] | None = None,
    ) -> list[Output]:
        """Decode a list of prompts to the end, batched; outputs in order. ``on_step`` is called after every round.

        If anything raises, Ctrl-C included, all of these requests are cancelled before it propagates.
        """
        many: Sequence[Prompt] = [prompts] if isinstance(prompts, str) else prompts
        requests: list[Request] = []
        try:
            for prompt, param, spec in zip(
                many, _spread(params, len(many), "params"), _spread(speculation, len(many), "speculation"), strict=True
            ):
                requests.append(self.submit(prompt, param, spec))
            while not all(request.done for request in requests):
                self.step()
                if on_step is not None:
                    on_step()
            return [request.output() for request in requests]
        finally:
            for request in requests:
                self.cancel(request)

    def stream(
        self, prompt: Prompt, params: SamplingParams | None = None, speculation: Speculation | None = None
    ) -> Iterator[Chunk]:
        """Decode one prompt and yield chunks as rounds end. Closing the iterator cancels the request."""
        request = self.submit(prompt, params, speculation)
        return self._chunks(request)

    async def astream(
        self, prompt: Prompt, params: SamplingParams | None = None, speculation: Speculation | None = None
    ) -> AsyncIterator[Chunk]:
        """``stream`` for asyncio; rounds run on the engine's own thread, shared by all async streams."""
        import asyncio

        loop = asyncio.get_running_loop()
        executor = self._worker()
        request = await loop.run_in_executor(executor, self.submit, prompt, params, speculation)
        try:
            while True:
                chunks = await loop.run_in_executor(executor, self._advance, request)
                for chunk in chunks:
                    yield chunk
                if request.done and not request.chunks:
                    return
        finally:
            request.cancelled = True
            executor.submit(self.cancel, request)

    # -- what is known ----------------------------------------------------------------------------------------------

    @property
    def record(self) -> SpecRecord:
        """Counts over all sequences so far, running ones included."""
        with self._lock:
            total = SpecRecord()
            total.merge(self._ended)
            for branch in self._scheduler.running:
                total.merge(branch.sequence.record)
            return total

    @property
    def info(self) -> dict[str, Any]:
        """The target, its numerics, the drafters and the limits, as plain values."""
        return {
            **self.target.info,
            "drafters": list(self._drafting.drafters),
            "default_drafter": self.default_drafter,
            "max_sequences": self._scheduler.max_sequences,
            "prefill_chunk": self._scheduler.prefill_chunk,
        }

    def close(self) -> None:
        """Cancel everything and stop the worker thread."""
        with self._lock:
            for branch in self._branches():
                self.cancel(branch.request)
        if self._executor is not None:
            self._executor.shutdown(wait=True)
            self._executor = None

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- one step, in parts -----------------------------------------------------------------------------------------

    def _turns(self) -> list[Turn]:
        branches = self._scheduler.decoding()
        queries = []
        for branch in branches:
            sequence = branch.sequence
            drafts = branch.drafter != PLAIN and branch.depth != 0
            # the round itself emits one token, so a draft deeper than remaining - 1 is of no use
            room = max(0, sequence.remaining - 1) if drafts else 0
            queries.append(DepthQuery(sequence.id, branch.drafter, room, len(sequence.tokens), branch.depth))
        turns = []
        for branch, query, allowed in zip(branches, queries, self.controller.allow(queries), strict=True):
            depth = min(allowed.depth, query.room)
            slots = branch.sequence.extent.size - len(branch.sequence.tokens)
            turns.append(Turn(branch.sequence, depth, max(0, min(allowed.nodes, slots)) if depth else 0))
        return turns

    def _feed_controller(self, turns: Sequence[Turn], times: StepTimes) -> None:
        outcomes = [
            Outcome(
                t.sequence.id,
                self._drafting.branches[t.sequence.id].drafter,
                len(t.draft),
                t.accepted,
                t.draft.confidence,
            )
            for t in turns
        ]
        rows = sum(1 + len(t.draft) for t in turns)
        context = sum(len(t.sequence.tokens) for t in turns)
        self.controller.observe(outcomes, RoundCost(rows, context, times.draft, times.forward, times.total))

    def _deliver(self) -> None:
        """Turn what sequences emitted into chunks."""
        now = perf_counter()
        for branch in self._scheduler.running:
            sequence = branch.sequence
            fresh = len(sequence.tokens) - sequence.prompt_length - branch.delivered
            if not fresh:
                continue
            request = branch.request
            request.first_token = request.first_token or now
            texts = tuple(sequence.pending_text)
            sequence.pending_text.clear()
            start = branch.delivered
            branch.delivered += fresh
            branch.texts.extend(texts)
            request.chunks.append(
                Chunk(
                    branch.index,
                    tuple(sequence.tokens[-fresh:]),
                    texts,
                    tuple(sequence.accepted_tokens[start:]),
                    tuple(sequence.logprobs[start:]),
                    sequence.finish,
                )
            )

    def _reap(self) -> None:
        """Take out sequences that have ended or whose request was cancelled, and give their slots back."""
        self._busy = True  # a drafter may cancel from inside `finish`; the loop below sees that too
        try:
            while over := next((b for b in self._branches() if self._is_over(b)), None):
                self._scheduler.remove(over)
                self._drafting.leave(over)
                self._ended.merge(over.sequence.record)
                if over.request.done:
                    over.request.ended = perf_counter()
        finally:
            self._busy = False

    def _is_over(self, branch: Branch) -> bool:
        if branch.sequence.finish is None and branch.request.cancelled:
            branch.sequence.end(FinishReason.CANCELLED)
        return branch.sequence.finish is not None

    def _branches(self) -> list[Branch]:
        return [*self._scheduler.running, *self._scheduler.waiting]

    # -- helpers ----------------------------------------------------------------------------------------------------

    def _check_drafter(self, name: str) -> None:
        if name != PLAIN and name not in self._drafting.drafters:
            known = ", ".join([*self._drafting.drafters, PLAIN])
            raise InvalidParameter("drafter", f"{name!r} is not loaded; choose one of {known}")

    def _advance(self, request: Request) -> list[Chunk]:
        """At most one step, so that others waiting on the same thread get their turn."""
        if not request.chunks and not request.done:
            self.step()
        chunks = list(request.chunks)
        request.chunks.clear()
        return chunks

    def _chunks(self, request: Request) -> Iterator[Chunk]:
        try:
            while True:
                yield from self._advance(request)
                if request.done and not request.chunks:
                    return
        finally:
            self.cancel(request)

    def _worker(self) -> ThreadPoolExecutor:
        with self._lock:
            if self._executor is None:
                self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="headstart-engine")
            return self._executor


def _spread(value: T | Sequence[T] | None, count: int, name: str) -> Sequence[T | None]:
    if value is None:
        return [None] * count
    if isinstance(value, Sequence) and not isinstance(value, Mapping):
        if len(value) != count:
            raise InvalidParameter(name, f"{len(value)} given for {count} prompts")
        return value
    return [value] * count
