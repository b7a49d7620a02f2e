"""Requests in, events out: the ways to wait for output.

The engine is driven by whoever waits: ``generate``, ``stream`` and ``astream`` all step it until their own request
moves, and every step moves all requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TypeVar

from headstart.decode.params import SamplingParams
from headstart.engine.core import EngineCore
from headstart.engine.request import Chunk, Output, Prompt, Request, Speculation
from headstart.errors import InvalidParameter

T = TypeVar("T")


class Engine(EngineCore):
    __doc__ = EngineCore.__doc__

    _executor: ThreadPoolExecutor | None = None

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
        if not isinstance(prompts, (str, Sequence)):
            raise InvalidParameter("prompts", f"must be a list of prompts, got {prompts!r}")
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
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        speculation: Speculation | None = None,
        *,
        tag: object = None,
    ) -> Stream:
        """Decode one prompt and iterate over its chunks as rounds end. Closing the iterator, or dropping it, cancels
        the request."""
        return Stream(self, self.submit(prompt, params, speculation, tag=tag))

    async def astream(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        speculation: Speculation | None = None,
        *,
        tag: object = None,
    ) -> AsyncIterator[Chunk]:
        """``stream`` for asyncio; rounds run on the engine's own thread, shared by all async streams."""
        loop = asyncio.get_running_loop()
        executor = self._worker()
        request = self.submit(prompt, params, speculation, tag=tag)
        try:
            while not request.drained:
                try:
                    chunks = await loop.run_in_executor(executor, self.advance, request)
                except RuntimeError:
                    if not self._closed:
                        raise
                    chunks = request.take()  # closed meanwhile: what there is, ending with the cancellation
                for chunk in chunks:
                    yield chunk
        finally:
            request.cancelled = True
            with suppress(RuntimeError):  # the engine is closed and has cancelled everything
                executor.submit(self.cancel, request)

    def close(self) -> None:
        """Cancel everything and stop the worker thread. A closed engine takes no more requests."""
        self._closed = True
        with self._lock:
            if not self._busy:
                with self._at_work():
                    self._collect()
                    for branch in self._branches():
                        branch.request.cancelled = True
                    self._reap()
            self.clear_prefix_cache()
        if self._executor is not None:
            self._executor.shutdown(wait=False)
            self._executor = None

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

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


class Stream(Iterator[Chunk]):
    """Chunks of one request; iterating drives the engine. ``request`` is its handle."""

    def __init__(self, engine: Engine, request: Request) -> None:
        self._engine = engine
        self.request = request
        self._ready: list[Chunk] = []

    def __next__(self) -> Chunk:
        while not self._ready:
            if self.request.drained:
                raise StopIteration
            try:
                self._ready = self._engine.advance(self.request)[::-1]
            except BaseException:
                self.close()
                raise
        return self._ready.pop()

    def close(self) -> None:
        """Cancel the request if it is still going on."""
        if not self.request.done:
            self._engine.cancel(self.request)
        self._ready.clear()
        self.request.take()

    def __del__(self) -> None:
        if not self.request.done:
            self.request.cancelled = True  # the engine's next step, or its close, takes it out
