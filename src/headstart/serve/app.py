"""The application: its routes, and how one request goes through them.

    front.Front ─► a route below ─► asked (understand) ─► answer (run) ─► chat or completions (shape)

Everything that a route needs is a ``Service``. Knows FastAPI; how a server process lives is
``headstart.serve.server``'s concern.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from fastapi import Depends, FastAPI, Request
from fastapi.security import HTTPBearer
from starlette.responses import PlainTextResponse, Response

from headstart import __version__
from headstart.engine.engine import Engine
from headstart.serve import asked, problems, site
from headstart.serve.answer import answer
from headstart.serve.chat import ChatShape
from headstart.serve.completions import CompletionShape
from headstart.serve.front import Front
from headstart.serve.keys import ApiKeys
from headstart.serve.problems import Problem
from headstart.serve.replies import (
    ChatCompletion,
    Completion,
    ErrorReply,
    Health,
    Model,
    ModelList,
    Version,
)
from headstart.serve.report import KEY, Observer
from headstart.serve.runner import Job, Runner
from headstart.serve.schema import ChatBody, CompletionBody
from headstart.serve.settings import Settings
from headstart.serve.shape import Header
from headstart.serve.telemetry import Telemetry
from headstart.serve.tokens import TokenTexts

if TYPE_CHECKING:
    from headstart.observe.traces import Traces

ERRORS: dict[int | str, dict[str, Any]] = {
    400: {"model": ErrorReply, "description": "A parameter is wrong or not honoured; the error names it."},
    401: {"model": ErrorReply, "description": "No valid API key."},
    404: {"model": ErrorReply, "description": "No such model."},
    408: {"model": ErrorReply, "description": "The body did not arrive in time."},
    413: {"model": ErrorReply, "description": "The body is too large."},
    415: {"model": ErrorReply, "description": "The body is not JSON."},
    429: {"model": ErrorReply, "description": "The queue is full; Retry-After says when to try again."},
    500: {"model": ErrorReply, "description": "The engine failed on this request."},
    503: {"model": ErrorReply, "description": "The server is shutting down."},
    504: {"model": ErrorReply, "description": "The request took longer than allowed."},
}


class Service:
    """An engine behind HTTP.

    Args:
        observers: told of every request when it is over.
        traces: where spans of requests go.
    """

    def __init__(
        self,
        engine: Engine,
        settings: Settings,
        keys: ApiKeys,
        observers: Sequence[Observer] = (),
        traces: Traces | None = None,
    ) -> None:
        self.engine, self.settings, self.keys = engine, settings, keys
        self.telemetry = Telemetry(engine, settings, traces)
        self.observers = (*observers, self.telemetry.responded)
        self.runner = Runner(engine, max_queue=settings.max_queue)
        self.tokens = TokenTexts(engine.target.tokenizer)
        self.started = int(time.time())
        self.fingerprint = _fingerprint(engine.info)

    def header(self, prefix: str) -> Header:
        return Header(f"{prefix}-{uuid.uuid4().hex}", int(time.time()), self.settings.model_name, self.fingerprint)

    def model(self) -> Model:
        longest = min(self.engine.target.max_model_len, self.engine.target.pool.capacity)
        return Model(
            id=self.settings.model_name,
            object="model",
            created=self.started,
            owned_by="headstart",
            max_model_len=longest,
        )


def create_app(service: Service) -> FastAPI:
    """The ASGI application; its lifespan starts and stops the runner, not the engine."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        service.runner.start()
        service.telemetry.start()
        try:
            yield
        finally:
            await service.runner.close()
            await asyncio.to_thread(service.telemetry.close)

    app = FastAPI(
        title="headstart",
        version=__version__,
        summary="OpenAI's API, with speculative decoding that never changes a token.",
        lifespan=lifespan,
        docs_url=None,  # both pages load scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,
    )
    problems.install(app)
    app.add_middleware(
        Front,
        runner=service.runner,
        settings=service.settings,
        keys=service.keys,
        observers=service.observers,
        route=service.telemetry.route,
    )
    key = [Depends(HTTPBearer(auto_error=False))] if len(service.keys) else []  # documents what Front checks

    @app.get("/v1/models", dependencies=key, responses=_errors(401))
    async def models() -> ModelList:
        """The model that is served."""
        return ModelList(object="list", data=[service.model()])

    @app.get("/v1/models/{model:path}", dependencies=key, responses=_errors(401, 404))
    async def model(model: str) -> Model:
        """One model."""
        asked.check_model(model, service.settings)
        return service.model()

    @app.post("/v1/completions", dependencies=key, response_model=Completion, responses=ERRORS)
    async def completions(body: CompletionBody, http: Request) -> Response:
        """Continue a prompt. With ``stream``, server-sent events with the same object in pieces."""
        asked.check_model(body.model, service.settings)
        what = asked.completion(body, service.settings, http.scope[KEY].tenant)

        echoed = what.prompts if what.echo else ()
        echoes = [_echo(service, prompt) for prompt in echoed for _ in range(what.params.n)]

        def shape(job: Job) -> CompletionShape:
            return CompletionShape(
                service.header("cmpl"), service.tokens, echoes, what.params.logprobs is not None, what.usage_chunk
            )

        return await answer(service.runner, http, what, shape, service.settings.request_timeout)

    @app.post("/v1/chat/completions", dependencies=key, response_model=ChatCompletion, responses=ERRORS)
    async def chat_completions(body: ChatBody, http: Request) -> Response:
        """Answer a conversation. With ``stream``, server-sent events with ``chat.completion.chunk`` objects."""
        asked.check_model(body.model, service.settings)
        what = asked.chat(body, service.settings, http.scope[KEY].tenant)

        def shape(job: Job) -> ChatShape:
            return ChatShape(
                service.header("chatcmpl"),
                service.tokens,
                what.params.n,
                what.params.logprobs is not None,
                what.usage_chunk,
                what.calls,
                what.trace,
            )

        return await answer(service.runner, http, what, shape, service.settings.request_timeout)

    @app.get("/health", responses={503: {"model": Health}})
    async def health() -> Response:
        """200 when requests are taken; 503 while the server drains or its rounds keep failing."""
        draining, healthy = service.runner.draining, service.runner.healthy
        state = Health(status="draining" if draining else "ready" if healthy else "failing")
        ready = healthy and not draining
        return Response(state.json_bytes(), 200 if ready else 503, media_type="application/json")

    @app.get("/metrics", response_class=PlainTextResponse)
    def metrics(http: Request) -> Response:
        """Counters for Prometheus; docs/metrics.md lists them."""
        body, content_type = service.telemetry.page(http.headers.get("accept", ""))
        return Response(body, headers={"content-type": content_type})

    @app.get("/version")
    async def version() -> Version:
        """What runs here."""
        info = service.engine.info
        return Version(
            version=__version__,
            model=service.settings.model_name,
            drafters=info["drafters"],
            exact_rows=info["exact_rows"],
        )

    app.router.routes += site.routes()
    return app


def _errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    return {status: ERRORS[status] for status in statuses}


def _echo(service: Service, prompt: Any) -> str:
    """A prompt as text."""
    if isinstance(prompt, str):
        return prompt
    tokenizer = service.engine.target.tokenizer
    if tokenizer is None:
        raise Problem(400, "echo: this model has no tokenizer to write the prompt with", param="echo")
    return str(tokenizer.decode(prompt, skip_special_tokens=False, clean_up_tokenization_spaces=False))


def _fingerprint(info: dict[str, Any]) -> str:
    """Changes with everything that could change the text of a seed."""
    keys = ("model", "dtype", "device", "kernels", "vocab_size")
    what = json.dumps([__version__, *(info[key] for key in keys)])
    return f"hs_{hashlib.sha256(what.encode()).hexdigest()[:10]}"
