"""Serving one request that was understood: give it to the runner, and turn what comes back into an answer.

Whole or streamed, the text goes through the same steps. Whatever happens on the way, a client that leaves or a deadline
included, the engine's requests are cancelled before this module lets go of them. Does not know endpoints.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from headstart.draft.ensemble import PLAIN
from headstart.engine.request import Chunk
from headstart.errors import HeadstartError
from headstart.serve.acceptance import speculative_decoding
from headstart.serve.asked import Asked
from headstart.serve.problems import as_problem
from headstart.serve.replies import Metrics, Reply, Usage
from headstart.serve.report import KEY, Trace
from headstart.serve.runner import Job, Runner, Work
from headstart.serve.shape import Shape, gather, usage, whole_usage
from headstart.serve.sse import DONE, PING, ClientGone, EventStream, event, unless_gone
from headstart.serve.tags import tag

log = logging.getLogger(__name__)

PING_SECONDS = 15.0

MakeShape = Callable[[Job], Shape]


async def answer(runner: Runner, http: HttpRequest, asked: Asked, make_shape: MakeShape, timeout: float) -> Response:
    """The answer to ``asked``.

    Args:
        make_shape: called once the prompts are encoded.
        timeout: seconds from now to the last token.

    Raises:
        Problem
    """
    trace: Trace = http.scope[KEY]
    trace.asked = asked
    try:
        work = [
            Work(prompt, asked.params, asked.speculation, tag(http, trace, asked.stream, prompt))
            for prompt in asked.prompts
        ]
        job = await runner.submit(work, timeout)
    except HeadstartError as error:
        raise as_problem(error, asked.names) from error
    trace.job = job
    exchange = _Exchange(runner, asked, job, make_shape(job), trace)
    if asked.stream:
        return EventStream(exchange.events(), exchange.gone)
    try:
        reply = await unless_gone(exchange.whole(), http.receive)
    except ClientGone:
        exchange.gone()
        return Response(status_code=204)  # nobody receives it
    except HeadstartError as error:
        raise as_problem(error, asked.names) from error
    return Response(reply.json_bytes(), media_type="application/json")


class _Exchange:
    """One request between the runner and the client."""

    def __init__(self, runner: Runner, asked: Asked, job: Job, shape: Shape, trace: Trace) -> None:
        self._runner, self._asked, self._job = runner, asked, job
        self._shape, self._trace = shape, trace

    def gone(self) -> None:
        self._trace.gone = True
        self._runner.cancel(self._job)

    async def whole(self) -> Reply:
        taken: list[tuple[int, Chunk]] = []
        try:
            while fresh := await self._job.take():
                taken += fresh
        finally:
            self._runner.cancel(self._job)
        self._count(taken)
        choices = sorted(gather(taken, self._job.requests, self._asked.params.n), key=lambda choice: choice.index)
        return self._shape.whole(choices, await self._usage(), self._metrics())

    async def events(self) -> AsyncGenerator[bytes, None]:
        try:
            for reply in self._shape.opening():
                yield event(reply.json_bytes())
            async with aclosing(self._pieces()) as pieces:
                async for data in pieces:
                    yield data
            if self._asked.usage_chunk:
                yield event(self._shape.closing(await self._usage(), self._metrics()).json_bytes())
        except Exception as error:
            if not isinstance(error, HeadstartError):
                log.exception("request %s raised", self._trace.id)
            problem = as_problem(error, self._asked.names)
            self._trace.code = problem.code
            yield event(problem.json_bytes())
        finally:
            self._runner.cancel(self._job)
        yield DONE

    async def _pieces(self) -> AsyncGenerator[bytes, None]:
        async for _ in self._waiting():
            yield PING
        while taken := await self._job.take():
            self._count(taken)
            for fresh in gather(taken, self._job.requests, self._asked.params.n):
                so_far = usage(self._job.requests, self._trace.delivered) if self._asked.usage_always else None
                reply = self._shape.piece(fresh, so_far)
                if reply is not None:
                    yield event(reply.json_bytes())

    async def _waiting(self) -> AsyncIterator[None]:
        """Yields now and then while nothing has come yet."""
        while not self._job.stirred:
            try:
                async with asyncio.timeout(PING_SECONDS):
                    await self._job.stir()
            except TimeoutError:
                yield

    def _count(self, taken: Sequence[tuple[int, Chunk]]) -> None:
        self._trace.delivered += sum(len(chunk.token_ids) for _, chunk in taken)

    async def _usage(self) -> Usage:
        """Of the whole request. OpenAI's details of predictions come with requests that have one."""
        if self._asked.speculation.prediction is None:
            return usage(self._job.requests, self._trace.delivered)
        return await asyncio.to_thread(whole_usage, self._job.requests, self._trace.delivered)

    def _metrics(self) -> Metrics:
        """Acceptance is told of one sequence that was drafted for; ``null`` otherwise, as vLLM has it."""
        branches = [branch for request in self._job.requests for branch in request.branches]
        [first, *others] = branches
        if others or first.drafter == PLAIN or first.depth == 0:
            return Metrics(speculative_decoding=None)
        depth = first.depth if first.depth is not None else self._runner.most_depth
        return Metrics(speculative_decoding=speculative_decoding(first.sequence.record, depth))
