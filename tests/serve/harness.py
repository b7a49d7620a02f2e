"""A real server on a loopback port, in a thread of this process, and ways to talk to it."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx

from headstart.engine.engine import Engine
from headstart.observe.traces import Traces
from headstart.serve.app import Service
from headstart.serve.keys import ApiKeys
from headstart.serve.server import Server, bind
from headstart.serve.settings import Settings
from headstart.target.model import Target

MODEL = "tiny"
PATIENCE = 30.0


@dataclass(frozen=True)
class Running:
    """A server that answers."""

    url: str
    server: Server
    engine: Engine
    thread: threading.Thread

    def client(self, **options: Any) -> httpx.Client:
        # no certificates: making them ready takes longer than most tests
        return httpx.Client(base_url=self.url, timeout=PATIENCE, verify=False, trust_env=False, **options)

    def post(self, path: str, body: Any, **options: Any) -> httpx.Response:
        with self.client() as client:
            return client.post(path, json=body, **options)

    def get(self, path: str, **options: Any) -> httpx.Response:
        with self.client() as client:
            return client.get(path, **options)

    def stop(self, now: bool = False) -> None:
        loop = self.server.loop
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(self.server.stop, now)

    def idle(self) -> None:
        """Wait until nothing runs, and check that every KV slot is free."""
        wait_for(lambda: self.server.service.runner.claimed == 0 and not self.engine.has_work)
        assert self.engine.target.pool.used == 0


@contextmanager
def running(
    engine: Engine, keys: Sequence[str] = (), traces: Traces | None = None, **settings: Any
) -> Iterator[Running]:
    """Serve ``engine`` until the block ends. ``settings`` are those of ``Settings``."""
    server = Server(Service(engine, Settings(**{"model_name": MODEL, **settings}), ApiKeys(keys), traces=traces))
    socket = bind("127.0.0.1", 0)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [socket]}, name="test-server")
    thread.start()
    up = Running(f"http://127.0.0.1:{socket.getsockname()[1]}", server, engine, thread)
    try:
        wait_for(lambda: server.started or not thread.is_alive())
        yield up
    finally:
        up.stop(now=True)
        thread.join(PATIENCE)
        socket.close()
        assert not thread.is_alive(), "the server did not stop"


def wait_for(true: Any) -> None:
    """Poll until ``true()``; fails when it never is."""
    until = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < until, "waited in vain"
        time.sleep(0.005)


def events(response: httpx.Response) -> list[dict[str, Any]]:
    """The JSON of a stream's events; checks that it ends as it should."""
    lines = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line and not line.startswith(":")]
    assert lines[-1] == "[DONE]", lines
    return [json.loads(line) for line in lines[:-1]]


def chat(text: str, **more: Any) -> dict[str, Any]:
    """A request to the chat endpoint."""
    return {"model": MODEL, "messages": [{"role": "user", "content": text}], **more}


def completion(prompt: Any, **more: Any) -> dict[str, Any]:
    """A request to the completions endpoint."""
    return {"model": MODEL, "prompt": prompt, **more}


def problem(response: httpx.Response, status: int, param: str | None = None, code: str | None = None) -> str:
    """Check an error's envelope; returns its message."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    body = response.json()
    assert set(body) == {"error"}
    error = body["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["param"] == param, error
    if code is not None:
        assert error["code"] == code, error
    return str(error["message"])


class Brake:
    """Holds a target's forward calls back, so that a test decides how far requests get.

    Rounds pass while ``free``; otherwise each needs a permit. ``error`` makes them raise instead.
    """

    def __init__(self, target: Target) -> None:
        self._target = target
        self._forward = target.forward
        self._permits = threading.Semaphore(0)
        self.free = True
        self.error: Exception | None = None
        self.rounds = 0

    def __enter__(self) -> Brake:
        self._target.forward = self._call  # type: ignore[method-assign]
        return self

    def __exit__(self, *_: object) -> None:
        self.release()
        self.error = None
        del self._target.forward

    def hold(self) -> None:
        self.free = False

    def allow(self, rounds: int) -> None:
        for _ in range(rounds):
            self._permits.release()

    def release(self) -> None:
        self.free = True
        self.allow(1)

    def _call(self, *args: Any, **kwargs: Any) -> Any:
        while not self.free and not self._permits.acquire(timeout=0.01):
            pass
        self.rounds += 1
        if self.error is not None:
            raise self.error
        return self._forward(*args, **kwargs)
