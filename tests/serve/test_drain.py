"""A server that is told to stop: what is under way may end, nothing new comes in, and the wait has an end."""

from __future__ import annotations

from tests.serve.harness import Brake, completion, events, problem, running, wait_for

from headstart.engine.engine import Engine


def test_a_drain_lets_requests_end_and_takes_no_more(engine: Engine, brake: Brake) -> None:
    with running(engine) as up:
        whole = up.post("/v1/completions", completion("a", max_tokens=50, seed=1)).json()["choices"][0]["text"]
        brake.hold()
        body = completion("a", max_tokens=50, seed=1, stream=True)
        with up.client() as client, client.stream("POST", "/v1/completions", json=body) as response:
            up.stop()
            wait_for(lambda: up.server.service.runner.draining)
            health = up.get("/health")
            assert (health.status_code, health.json()) == (503, {"status": "draining"})
            reply = up.post("/v1/completions", completion("b"))
            problem(reply, 503, code="draining")
            assert int(reply.headers["retry-after"]) > 0
            assert reply.headers["connection"] == "close"
            assert up.get("/v1/models").status_code == 200
            brake.release()
            response.read()
            assert "".join(item["choices"][0]["text"] for item in events(response)) == whole
        up.thread.join(20)
        assert not up.thread.is_alive()
        assert up.server.clean
        assert engine.target.pool.used == 0


def test_a_drain_ends_after_its_time(engine: Engine, brake: Brake) -> None:
    with running(engine, drain_timeout=0.2) as up:
        brake.hold()
        with up.client() as client, client.stream("POST", "/v1/completions", json=completion("a", stream=True)) as gone:
            up.stop()
            wait_for(lambda: not up.server.clean)
            brake.release()
            gone.read()
            assert events(gone)[-1]["error"]["code"] == "draining"
        up.thread.join(20)
        assert not up.thread.is_alive()


def test_a_second_signal_ends_at_once(engine: Engine, brake: Brake) -> None:
    with running(engine) as up:
        brake.hold()
        with up.client() as client, client.stream("POST", "/v1/completions", json=completion("a", stream=True)) as gone:
            up.stop()
            wait_for(lambda: up.server.service.runner.draining)
            up.stop(now=True)
            gone.read()  # the answer does not wait for the round
            assert events(gone)[-1]["error"]["code"] == "draining"
            brake.release()
        up.thread.join(20)
        assert not up.thread.is_alive()
        assert not up.server.clean


def test_an_idle_server_stops_at_once(engine: Engine) -> None:
    with running(engine, drain_timeout=1000) as up, up.client() as client:
        client.get("/health")  # leaves a connection open
        up.stop()
        up.thread.join(20)
        assert not up.thread.is_alive()
        assert up.server.clean
