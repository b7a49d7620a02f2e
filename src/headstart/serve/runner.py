"""The engine's own thread: it plays rounds while there is work, sleeps when there is none, and hands chunks to asyncio.

One wake-up of the event loop per round carries the chunks of all requests. A round that raises ends the requests in it
and nothing else. Knows engine requests; does not know HTTP, JSON or what a client asked for.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from time import perf_counter, sleep

from headstart.control.limits import DEFAULT_DEPTH
from headstart.decode.params import SamplingParams
from headstart.engine.engine import Engine
from headstart.engine.request import Chunk, Prompt, Request, Speculation
from headstart.errors import HeadstartError

log = logging.getLogger(__name__)

TRIES = 2
"""A round that raised is played again so often in all; then its requests end."""

PERSISTENT = 3
"""Rounds in a row that raised, after which the runner calls itself unhealthy."""

LONGEST_WAIT = 60


class QueueFull(HeadstartError):
    """Too many sequences wait already. ``retry_after`` is a guess in whole seconds."""

    def __init__(self, waiting: int, limit: int, retry_after: int) -> None:
        super().__init__(f"{waiting} sequences wait already and {limit} may; try again in {retry_after} s")
        self.retry_after = retry_after


class Draining(HeadstartError):
    """The server takes no new requests."""


class TookTooLong(HeadstartError):
    """A request had not ended when its time was up."""


class EngineFailed(HeadstartError):
    """Computing a request raised; the log has the traceback."""


@dataclass(frozen=True, slots=True)
class Work:
    """One engine request to be."""

    prompt: Prompt
    params: SamplingParams
    speculation: Speculation
    tag: object = None
    """For the engine's observer."""


class Job:
    """The engine requests behind one HTTP request; lives on the event loop, except where noted.

    ``requests`` are the engine's handles, in the order of the work; their outputs are final once the job is ``over``.
    """

    def __init__(self, sequences: int) -> None:
        self.sequences = sequences
        self.requests: list[Request] = []
        self.failure: Exception | None = None
        self.cancelled = False
        self.submitted = perf_counter()
        self._running: set[int] = set()
        self._pending: list[tuple[int, Chunk]] = []
        self._bell = asyncio.Event()
        self._whole = False
        self._timer: asyncio.TimerHandle | None = None

    @property
    def stirred(self) -> bool:
        """Whether ``take`` would return at once."""
        return bool(self._pending) or self.failure is not None or self.over

    async def stir(self) -> None:
        """Wait until ``take`` would return at once."""
        while not self.stirred:
            self._bell.clear()
            await self._bell.wait()

    @property
    def over(self) -> bool:
        """Whether every request has ended."""
        return self._whole and not self._running

    async def take(self) -> list[tuple[int, Chunk]]:
        """Wait for chunks and return those that came since, each with its request's place; empty when it is over.

        Raises:
            EngineFailed: the engine could not go on with it.
            TookTooLong: its time was up.
            Draining: the server stopped before it was over.
        """
        await self.stir()
        if not self._pending and self.failure is not None:
            raise self.failure
        pending, self._pending = self._pending, []
        return pending


class Runner:
    """Drives an engine for many clients.

    Args:
        engine: driven by nobody else.
        max_queue: sequences that may wait beyond those that the engine decodes at once.

    ``start``, ``submit``, ``cancel``, ``drain`` and ``close`` belong to the event loop.
    """

    def __init__(self, engine: Engine, *, max_queue: int) -> None:
        self.engine = engine
        self.max_queue = max_queue
        self.draining = False
        self.failing = 0
        """Rounds in a row that raised."""
        self._places: int = engine.info["max_sequences"]
        self._claimed = 0
        self._seconds = 1.0
        """Running mean of a job's time."""
        self._jobs: set[Job] = set()
        self._live: dict[int, tuple[Job, int]] = {}
        """Engine request id: its job and place. Guarded by ``_lock``, like every job's ``requests``."""
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="headstart-rounds", daemon=True)
        # one thread: prompts are encoded in order of arrival, off the event loop
        self._intake = ThreadPoolExecutor(max_workers=1, thread_name_prefix="headstart-intake")
        self._loop: asyncio.AbstractEventLoop | None = None

    # -- for the event loop -----------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin; to be called on the event loop that will submit."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    @property
    def healthy(self) -> bool:
        """Whether rounds can be played."""
        return self.failing < PERSISTENT and (self._thread.is_alive() or self._closing)

    @property
    def most_depth(self) -> int:
        """The deepest draft that the engine's controller may ask for."""
        controller = self.engine.controller
        depth = getattr(controller, "most_depth", getattr(controller, "depth", DEFAULT_DEPTH))
        return depth if type(depth) is int else DEFAULT_DEPTH

    @property
    def jobs(self) -> frozenset[Job]:
        """Jobs that are not over."""
        return frozenset(self._jobs)

    @property
    def claimed(self) -> int:
        """Sequences running and waiting, those still being encoded included."""
        return self._claimed

    async def submit(self, work: Sequence[Work], timeout: float) -> Job:
        """Queue requests together; those that have not ended after ``timeout`` seconds are cancelled.

        Raises:
            QueueFull, Draining
            UserError: what ``EngineCore.submit`` refuses; nothing of the job is left then.
        """
        if self.draining:
            raise Draining("no new requests are taken")
        if not self._thread.is_alive():
            raise EngineFailed("the engine's thread has ended; restart the server")
        job = Job(sum(one.params.n for one in work))
        waiting = max(0, self._claimed - self._places)
        if self._claimed + job.sequences > self._places + self.max_queue and self._claimed:
            raise QueueFull(waiting, self.max_queue, self._retry_after(waiting + job.sequences))
        self._claimed += job.sequences
        self._jobs.add(job)
        assert self._loop is not None
        job._timer = self._loop.call_later(timeout, self._expire, job, timeout)
        try:
            await self._loop.run_in_executor(self._intake, self._enter, job, work)
        except BaseException:
            self.cancel(job)
            raise
        finally:
            job._whole = True
            self._settle(job)
        return job

    def cancel(self, job: Job) -> None:
        """End a job within a round. Cancelling one that is over does nothing."""
        with self._lock:
            job.cancelled = True
            for request in job.requests:
                request.cancelled = True
        self._wake.set()

    def _expire(self, job: Job, timeout: float) -> None:
        message = f"The request had not ended after the {timeout:g} s this server allows, time in the queue included."
        self._fail(job, TookTooLong(message))

    def _fail(self, job: Job, failure: Exception) -> None:
        job.failure = job.failure or failure
        job._bell.set()
        self.cancel(job)

    async def drain(self, timeout: float) -> bool:
        """Take no more, wait for what is there; whether all of it ended in time."""
        self.draining = True
        until = perf_counter() + timeout
        while self._jobs and perf_counter() < until:
            await asyncio.sleep(0.02)
        return not self._jobs

    def cancel_all(self) -> None:
        """End every job within a round, with an error."""
        for job in list(self._jobs):
            self._fail(job, Draining("the server stopped before the request was over"))

    async def close(self) -> None:
        """Cancel everything and stop the thread. The engine itself stays open."""
        self.draining = True
        self.cancel_all()
        await self.drain(5.0)
        self._closing = True
        self._wake.set()
        self._intake.shutdown(wait=False, cancel_futures=True)
        if self._thread.is_alive():
            await asyncio.to_thread(self._thread.join, 5.0)

    def _retry_after(self, waiting: int) -> int:
        return max(1, min(LONGEST_WAIT, math.ceil(self._seconds * waiting / self._places)))

    def _settle(self, job: Job) -> None:
        """Give a job's places back once it is over."""
        if job.over and job in self._jobs:
            self._jobs.remove(job)
            self._claimed -= job.sequences
            if job._timer is not None:
                job._timer.cancel()
            self._seconds += 0.1 * (perf_counter() - job.submitted - self._seconds)
        job._bell.set()

    def _hand_out(self, batch: Sequence[tuple[Job, int, list[Chunk], bool, Exception | None]]) -> None:
        for job, place, chunks, ended, failure in batch:
            if not job.cancelled:  # nobody reads the rest
                job._pending.extend((place, chunk) for chunk in chunks)
            if failure is not None:
                job.failure = job.failure or failure
            if ended:
                job._running.discard(place)
            self._settle(job)

    # -- the intake's thread ----------------------------------------------------------------------------------------

    def _enter(self, job: Job, work: Sequence[Work]) -> None:
        for place, one in enumerate(work):
            with self._lock:
                if job.cancelled:
                    return
            request = self.engine.submit(one.prompt, one.params, one.speculation, tag=one.tag)
            with self._lock:
                job.requests.append(request)
                job._running.add(place)
                request.cancelled = request.cancelled or job.cancelled
                self._live[request.id] = (job, place)
            self._wake.set()

    # -- the engine's thread ----------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._closing:
                self._wake.clear()
                worked = self.engine.has_work
                if worked:
                    self._step()
                self._push()
                if not worked:
                    self._wake.wait()
        except BaseException as error:  # nobody is left to play rounds: say so to everyone who waits
            log.exception("the engine's thread ended")
            self.failing = PERSISTENT
            self._push(EngineFailed(f"the engine's thread ended: {type(error).__name__}"))
            raise

    def _step(self) -> None:
        try:
            played = self.engine.step()
        except Exception as error:
            self.failing += 1
            log.log(logging.ERROR, "a round raised (%d in a row)", self.failing, exc_info=self.failing <= PERSISTENT)
            if self.failing >= TRIES:
                self._give_up(EngineFailed(f"computing a round raised {type(error).__name__}"))
                sleep(min(1.0, 0.01 * 2 ** min(self.failing, 10)))
        else:
            if played:
                self.failing = 0

    def _give_up(self, failure: EngineFailed) -> None:
        """End the requests that were in the round; all of them if none was admitted yet."""
        with self._lock:
            live = [job.requests[place] for job, place in self._live.values()]
        struck = [request for request in live if request.started is not None] or live
        for request in struck:
            request.cancelled = True
        ids = {request.id for request in struck}
        # the engine may be unable to take them out, and clients must not wait for that
        self._push(failure, lambda request: request.id in ids)

    def _push(self, failure: Exception | None = None, fails: Callable[[Request], bool] = lambda _: True) -> None:
        """Send what is new to the event loop, in one go."""
        batch: list[tuple[Job, int, list[Chunk], bool, Exception | None]] = []
        with self._lock:
            for key, (job, place) in list(self._live.items()):
                request = job.requests[place]
                failed = failure if failure is not None and fails(request) else None
                ended = request.done or failed is not None
                chunks = request.take()
                if chunks or ended:
                    batch.append((job, place, chunks, ended, failed))
                if ended:
                    del self._live[key]
        if batch and self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._hand_out, batch)
