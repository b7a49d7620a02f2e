"""The engine's core: requests in, chunks out, one round at a time.

It admits sequences, plays rounds, delivers what they emit and gives slots back, and stays whole whatever is raised or
cancelled meanwhile. How callers wait for output is ``headstart.engine.engine``'s concern; the model behind ``Target``
and the guesses behind ``Drafter`` are opaque to it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from queue import Empty, SimpleQueue
from time import perf_counter
from typing import Any, TypeVar

from headstart.control.depth import DepthController, FixedDepth
from headstart.decode.params import SamplingParams
from headstart.decode.record import SpecRecord, StepTimes
from headstart.decode.round import play_round
from headstart.decode.sequence import FinishReason
from headstart.draft.base import Drafter
from headstart.draft.ensemble import PLAIN
from headstart.engine.asking import Asking
from headstart.engine.drafting import Drafting
from headstart.engine.events import Observer, Stage, Status
from headstart.engine.grammar import Grammars
from headstart.engine.intake import make_sequences
from headstart.engine.interrupt import interrupts_deferred
from headstart.engine.observing import Observing
from headstart.engine.predicted import Predictions
from headstart.engine.prompt import check_token_ids, encode_prompt
from headstart.engine.request import Branch, Chunk, Prompt, Request, Speculation
from headstart.engine.scheduler import Scheduler
from headstart.errors import InvalidParameter
from headstart.target.model import Target
from headstart.target.prefix import PrefixCache, PrefixRecord

T = TypeVar("T")


class EngineCore:
    """A target, its drafters, and everything that runs on them.

    Args:
        target: the model that decides.
        drafters: any number of drafters; requests choose by name.
        default_drafter: for requests that name none, several joined by ``+`` included; default is the first of
            ``drafters``, or plain.
        controller: decides depth each round; default is a fixed depth of 4.
        max_sequences: most sequences decoded at once; more wait.
        prefill_chunk: most prompt tokens computed beside decoding in one round.
        prefix_cache: keep the rows of sequences that have ended, as long as nobody needs their room, and share those of
            running ones, so that a prompt's beginning is not computed twice. Never changes a text.
        observer: is told of every round and of what becomes of every request; see ``headstart.engine.events``.

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
        prefix_cache: bool = True,
        observer: Observer | None = None,
    ) -> None:
        if not isinstance(prefix_cache, bool):
            raise InvalidParameter("prefix_cache", f"must be true or false, got {prefix_cache!r}")
        for param, value in (("max_sequences", max_sequences), ("prefill_chunk", prefill_chunk)):
            if type(value) is not int or value < 1:
                raise InvalidParameter(param, f"must be an integer of at least 1, got {value!r}")
        self.target = target
        self.controller: DepthController = controller if controller is not None else FixedDepth()
        self.observing = Observing(observer, self.controller)
        self._drafting = Drafting(drafters, target.vocab_size, on_failure=self.observing.drafter_failed)
        self.default_drafter = default_drafter or next(iter(self._drafting.names), PLAIN)
        self._drafting.choose(self.default_drafter)
        self._prefixes = PrefixCache(target.pool) if prefix_cache and target.lasting_rows else None
        self._scheduler = Scheduler(target.pool, max_sequences, prefill_chunk, self._prefixes)
        self._predictions = Predictions(target.tokenizer, target.vocab_size, target.max_model_len)
        self._grammars = Grammars(target.tokenizer, target.vocab_size, target.eos_ids)
        self._request_ids, self._sequence_ids = count(), count()
        self._lock = threading.RLock()
        self._inbox: SimpleQueue[Request] = SimpleQueue()
        self._busy = False
        self._closed = False
        self.times = StepTimes()
        self._ended = SpecRecord()
        self._status = self._measured()

    # -- requests ---------------------------------------------------------------------------------------------------

    def submit(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        speculation: Speculation | None = None,
        *,
        tag: object = None,
    ) -> Request:
        """Queue a request and return its handle. ``tag`` goes to the observer with whatever it is told of the request.

        Raises:
            InvalidParameter: a token id outside the vocabulary, an unknown drafter, an empty prompt, …
            RequestTooLarge: it could never fit; the message has the numbers.
        """
        params = params if params is not None else SamplingParams()
        speculation = speculation if speculation is not None else Speculation()
        for param, value, kind in (("params", params, SamplingParams), ("speculation", speculation, Speculation)):
            if not isinstance(value, kind):
                raise InvalidParameter(param, f"must be {kind.__name__}, got {type(value).__name__}")
        if self._closed:
            raise InvalidParameter("engine", "is closed; load a new one")
        prediction = self._predictions.encode(speculation.prediction)
        drafter = speculation.drafter if speculation.drafter is not None else self.default_drafter
        drafter, names = self._drafting.choose(drafter, predicted=prediction is not None)
        ids = encode_prompt(prompt, self.target.tokenizer, self.target.vocab_size)
        check_token_ids(params, self.target.vocab_size)
        request = Request(next(self._request_ids), ids, params, perf_counter(), tag)
        for i, sequence in enumerate(make_sequences(self.target, ids, params, self._sequence_ids, self._grammars)):
            branch = Branch(
                request,
                i,
                sequence,
                drafter,
                names,
                speculation.depth,
                speculation.tenant,
                speculation.prefix_cache,
                prediction,
            )
            request.branches.append(branch)
        self.observing.request(Stage.QUEUED, request)
        self._inbox.put(request)
        return request

    def prepare(self) -> None:
        """Do now what the first request with a grammar would hold everybody up for."""
        self._grammars.prepare()

    def cancel(self, request: Request) -> None:
        """End a request now, at any moment; its KV slots are free again when this returns (or, when called from inside
        a step, when that step ends). Cancelling a finished request does nothing."""
        request.cancelled = True
        with self._lock:
            if not self._busy:
                with self._at_work():
                    self._reap()

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return bool(self._scheduler.waiting or self._scheduler.running or not self._inbox.empty())

    def step(self) -> bool:
        """Play one round for everyone; returns whether there was work.

        If the target raises, no sequence has changed, and calling again plays the same round. Ctrl-C takes effect when
        the round is over.
        """
        with self._lock:
            if self._busy:
                raise RuntimeError("step() called from inside a step")
            started = perf_counter()
            times = StepTimes()
            with interrupts_deferred(), self._at_work():
                try:
                    self._reap()
                    self._admit()
                    if not self._scheduler.running:
                        return False
                    times = self._play()
                finally:
                    for branch in self._scheduler.running:
                        self._deliver(branch)
                    self._reap()
                    times.rest += perf_counter() - started - times.total
                    self.times.add(times)
            return True

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
    def status(self) -> Status:
        """How full the engine is, as of the last moment between two rounds; does not wait for a round to end."""
        known = self._status
        return replace(known, waiting=known.waiting + self._inbox.qsize())

    @property
    def info(self) -> dict[str, Any]:
        """The target, its numerics, the drafters and the limits, as plain values."""
        return {
            **self.target.info,
            "drafters": list(self._drafting.names),
            "default_drafter": self.default_drafter,
            "max_sequences": self._scheduler.max_sequences,
            "prefill_chunk": self._scheduler.prefill_chunk,
            "prefix_cache": self._prefixes is not None,
        }

    @property
    def prefix_record(self) -> PrefixRecord:
        """What the prefix cache has done and holds; all zero where there is none. Does not wait for a round to end."""
        return self._prefixes.record if self._prefixes is not None else PrefixRecord()

    def clear_prefix_cache(self) -> None:
        """Forget the rows of sequences that have ended. Those of running sequences stay theirs."""
        with self._lock:
            if self._prefixes is not None:
                self._prefixes.clear()

    def advance(self, request: Request) -> list[Chunk]:
        """The request's new chunks, after at most one step, so that others waiting on the same thread get their
        turn."""
        if not request.chunks and not request.done:
            self.step()
        return request.take()

    # -- one step, in parts -----------------------------------------------------------------------------------------

    def _play(self) -> StepTimes:
        """One round: depths, drafts, the target's verdict, and what all of it teaches."""
        branches, prefills = self._scheduler.decoding(), self._scheduler.prefills()
        starting = [branch for branch in self._scheduler.running if branch.sequence.prefilling]
        asking = Asking(branches, prefills, self._drafting, self.controller, waiting=len(starting))
        times = play_round(self.target, asking.turns, prefills, asking.draft)
        for branch, turn in zip(branches, asking.turns, strict=True):
            branch.counts = turn.counts
        asking.teach(times)
        started = [branch for branch in starting if not branch.sequence.prefilling]
        self.observing.round(branches, asking.queries, asking.turns, started, prefills, times)
        return times

    def _collect(self) -> None:
        """Take in what was submitted since."""
        while True:
            try:
                self._scheduler.add(self._inbox.get_nowait().branches)
            except Empty:
                return

    def _admit(self) -> None:
        now = perf_counter()
        for branch in self._scheduler.admit(self._drafting.join):
            if branch.request.started is None:
                branch.request.started = now
                self.observing.request(Stage.ADMITTED, branch.request)
        self._status = self._measured()

    def _deliver(self, branch: Branch) -> None:
        """Turn what a sequence emitted since the last time into a chunk; its end makes a chunk of its own if need
        be."""
        sequence, request = branch.sequence, branch.request
        start = branch.delivered
        fresh = len(sequence.tokens) - sequence.prompt_length - start
        if not fresh and (sequence.finish is None or branch.ended):
            return
        if fresh and request.first_token is None:
            request.first_token = perf_counter()
            self.observing.request(Stage.FIRST_TOKEN, request)
        texts, tail = tuple(sequence.pending_text[:fresh]), "".join(sequence.pending_text[fresh:])
        sequence.pending_text.clear()
        branch.delivered += fresh
        branch.ended = sequence.finish is not None
        branch.texts.extend((*texts, tail))
        tokens = tuple(sequence.tokens[len(sequence.tokens) - fresh :])
        drafters, logprobs = tuple(sequence.drafters[start:]), tuple(sequence.logprobs[start:])
        counts, branch.counts = branch.counts, None
        request.chunks.append(Chunk(branch.index, tokens, texts, drafters, logprobs, sequence.finish, tail, counts))

    def _reap(self) -> None:
        """Take out sequences that have ended or whose request was cancelled, and give their slots back."""
        self._collect()
        # a drafter may cancel others from inside `finish`, so look again after each
        while over := next((b for b in self._branches() if self._is_over(b)), None):
            self._deliver(over)
            self._scheduler.remove(over)
            self._drafting.leave(over)
            self._ended.merge(over.sequence.record)
            over.reaped = True
            if all(branch.reaped for branch in over.request.branches):
                over.request.ended = perf_counter()
                self.observing.request(Stage.ENDED, over.request)
        self._status = self._measured()

    @contextmanager
    def _at_work(self) -> Iterator[None]:
        """Marks that a step or a reaping is on the stack, whatever happens in it."""
        self._busy = True
        try:
            yield
        finally:
            self._busy = False

    def _is_over(self, branch: Branch) -> bool:
        if branch.sequence.finish is None and branch.request.cancelled:
            branch.sequence.end(FinishReason.CANCELLED)
        return branch.sequence.finish is not None

    def _branches(self) -> list[Branch]:
        return [*self._scheduler.running, *self._scheduler.waiting]

    def _measured(self) -> Status:
        scheduler, pool = self._scheduler, self.target.pool
        return Status(len(scheduler.running), len(scheduler.waiting), pool.used, pool.capacity)
