"""Rounds that raise: the requests in them end with an error, the server lives, and /health says what it is."""

from __future__ import annotations

import pytest
from tests.serve.harness import Brake, Running, chat, completion, events, problem, running, wait_for

from headstart.decode.sampling import TokenLaw
from headstart.draft.scripted import RaisingDrafter
from headstart.engine.engine import Engine
from headstart.serve.runner import PERSISTENT


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("CRITICAL")


def ask(up: Running) -> int:
    return up.post("/v1/chat/completions", chat("hello", max_tokens=5)).status_code


def test_one_bad_round_is_played_again(engine: Engine, brake: Brake) -> None:
    with running(engine) as up:
        good = up.post("/v1/completions", completion("x", seed=1)).json()["choices"][0]["text"]
        forward = brake._forward
        times = iter([True])

        def once(*args: object, **kwargs: object) -> object:
            if next(times, False):
                raise RuntimeError("a hiccup")
            return forward(*args, **kwargs)

        brake._forward = once
        assert up.post("/v1/completions", completion("x", seed=1)).json()["choices"][0]["text"] == good
        assert up.get("/health").status_code == 200


def test_bad_rounds_end_their_requests_and_the_server_recovers(engine: Engine, brake: Brake) -> None:
    with running(engine) as up:
        brake.error = RuntimeError("out of everything")
        message = problem(up.post("/v1/chat/completions", chat("hello")), 500, code="engine_failed")
        assert "RuntimeError" in message
        assert "everything" not in message  # an exception may quote anything
        *_, last = events(up.post("/v1/chat/completions", chat("hello", stream=True)))
        assert last["error"]["code"] == "engine_failed"
        assert up.server.service.runner.failing >= PERSISTENT
        health = up.get("/health")
        assert health.status_code == 503
        assert health.json() == {"status": "failing"}

        brake.error = None
        assert ask(up) == 200
        assert up.get("/health").status_code == 200
        up.idle()


def test_those_who_waited_are_served_after_a_failure(engine: Engine, brake: Brake) -> None:
    with running(engine) as up:
        brake.hold()
        with (
            up.client() as first,
            up.client() as second,
            first.stream("POST", "/v1/completions", json=completion("a", n=8, stream=True)) as struck,
            second.stream("POST", "/v1/completions", json=completion("b", stream=True)) as waiting,
        ):
            wait_for(lambda: up.server.service.runner.claimed == 9)
            brake.error = RuntimeError("no")
            brake.allow(2)
            struck.read()
            assert events(struck)[-1]["error"]["code"] == "engine_failed"
            brake.error = None
            brake.release()
            waiting.read()
            assert events(waiting)[-1]["choices"][0]["finish_reason"] is not None
        up.idle()


def test_a_law_that_cannot_be_formed_ends_its_request_alone(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    choose = TokenLaw.choose

    def bad(self: TokenLaw, *args: object) -> object:
        if self.params.top_k == 7:
            raise ValueError("no law")
        return choose(self, *args)

    monkeypatch.setattr(TokenLaw, "choose", bad)
    with running(engine) as up:
        problem(up.post("/v1/completions", completion("x", top_k=7)), 500, code="engine_failed")
        assert ask(up) == 200
        assert up.get("/health").status_code == 200
        up.idle()


def test_a_drafter_that_raises_costs_nobody_a_token(target: object, brake: Brake) -> None:
    assert brake is not None
    from headstart.target.model import Target

    assert isinstance(target, Target)
    with Engine(target) as plain, running(plain) as up:
        good = up.post("/v1/completions", completion("x", seed=1)).json()["choices"][0]["text"]
    with Engine(target, [RaisingDrafter()]) as engine, running(engine) as up:
        reply = up.post("/v1/completions", completion("x", seed=1)).json()
        assert reply["choices"][0]["text"] == good
        assert reply["metrics"]["speculative_decoding"]["num_draft_tokens"] == 0


def test_the_end_of_the_engines_thread_reaches_everybody(
    engine: Engine, brake: Brake, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Gone(BaseException):
        pass

    monkeypatch.setattr("threading.excepthook", lambda _: None)
    with running(engine) as up:
        brake.error = Gone()  # type: ignore[assignment]
        problem(up.post("/v1/chat/completions", chat("hello")), 500, code="engine_failed")
        assert up.get("/health").status_code == 503
        problem(up.post("/v1/chat/completions", chat("hello")), 500, code="engine_failed")
