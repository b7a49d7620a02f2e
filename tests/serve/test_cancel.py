"""Clients that leave, and requests that take too long: the engine lets go of them within a round."""

from __future__ import annotations

import socket
import time
from typing import Any

import httpx
import pytest
from tests.serve.harness import Brake, Running, chat, completion, events, problem, running, wait_for

from headstart.engine.engine import Engine


def long(stream: bool, **more: Any) -> dict[str, Any]:
    return completion("tell me", max_tokens=400, ignore_eos=True, temperature=0, stream=stream, **more)


def cancelled(up: Running) -> bool:
    """Whether the runner was told to cancel everything it had."""
    return all(job.cancelled for job in up.server.service.runner.jobs)


def test_a_client_that_leaves_a_stream_frees_its_slots(engine: Engine, brake: Brake) -> None:
    with running(engine) as up:
        brake.hold()
        brake.allow(3)
        with up.client() as client, client.stream("POST", "/v1/completions", json=long(True)) as response:
            lines = response.iter_lines()  # dropping it would close the stream
            next(lines)
            assert engine.target.pool.used > 0
        wait_for(lambda: cancelled(up))
        before = brake.rounds
        brake.allow(1)  # for the round that had begun
        up.idle()
        assert brake.rounds <= before + 1


@pytest.mark.parametrize("n", [1, 3])
def test_a_client_that_leaves_before_the_answer_frees_its_slots(engine: Engine, brake: Brake, n: int) -> None:
    with running(engine) as up:
        brake.hold()
        with up.client() as client, pytest.raises(httpx.ReadTimeout):
            client.post("/v1/completions", json=long(False, n=n), timeout=0.3)
        wait_for(lambda: cancelled(up))
        brake.allow(1)
        up.idle()


def test_a_client_that_leaves_the_queue_is_forgotten(engine: Engine, brake: Brake) -> None:
    """Its sequences never run."""
    with running(engine) as up:
        brake.hold()
        with up.client() as client, pytest.raises(httpx.ReadTimeout):
            client.post("/v1/completions", json=long(False, n=20), timeout=0.3)
        wait_for(lambda: cancelled(up))
        brake.release()
        up.idle()
        assert engine.record.emitted < 400


def test_others_go_on_with_the_same_text(engine: Engine, brake: Brake) -> None:
    with running(engine) as up:
        body = chat("a mate", max_tokens=60, seed=4, ignore_eos=True)  # else it may end within the four rounds
        alone = up.post("/v1/chat/completions", body).json()["choices"][0]["message"]["content"]
        brake.hold()
        with (
            up.client() as leaving,
            up.client() as staying,
            leaving.stream("POST", "/v1/completions", json=long(True)) as gone,
            staying.stream("POST", "/v1/chat/completions", json={**body, "stream": True}) as mate,
        ):
            brake.allow(4)
            lines = gone.iter_lines()
            next(lines)
            gone.close()
            wait_for(lambda: [job.cancelled for job in up.server.service.runner.jobs].count(False) == 1)
            brake.release()
            mate.read()
            text = "".join(item["choices"][0]["delta"].get("content", "") for item in events(mate))
        assert text == alone
        up.idle()


def test_a_request_that_takes_too_long_ends(engine: Engine, brake: Brake) -> None:
    with running(engine, request_timeout=0.3) as up:
        brake.hold()
        message = problem(up.post("/v1/completions", long(False)), 504, code="request_timeout")
        assert "0.3 s" in message
        *_, last = events(up.post("/v1/completions", long(True)))
        assert last["error"]["code"] == "request_timeout"
        brake.release()
        up.idle()


def test_a_reader_that_takes_nothing_is_cut_off_and_stalls_nobody(engine: Engine) -> None:
    with running(engine, send_timeout=0.5) as up:
        # each event has 20 logprobs: far more than the buffers of a socket
        body = httpx.Request("POST", up.url + "/v1/completions", json=long(True, n=8, logprobs=20, seed=1))
        with socket.socket() as slow:
            slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            slow.connect(("127.0.0.1", int(up.url.rpartition(":")[2])))
            head = "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
            slow.sendall(f"{head}content-length: {len(body.content)}\r\n\r\n".encode() + body.content)
            wait_for(lambda: up.server.service.runner.claimed == 8)
            assert up.post("/v1/completions", completion("quick", max_tokens=4)).status_code == 200
            wait_for(lambda: not up.server.server_state.connections)
            # the kernel tells a cut-off client with a reset, or an early end
            slow.settimeout(5)
            received = b""
            try:
                while part := slow.recv(1 << 16):
                    received += part
            except ConnectionError:
                pass
            assert b"[DONE]" not in received
        up.idle()


def test_a_slow_reader_gets_everything(engine: Engine, brake: Brake) -> None:
    """Rounds go on without it; what came meanwhile arrives joined."""
    with running(engine) as up:
        body = completion("tell me", max_tokens=300, ignore_eos=True, seed=2)
        whole = up.post("/v1/completions", body).json()["choices"][0]["text"]
        with up.client() as client, client.stream("POST", "/v1/completions", json={**body, "stream": True}) as response:
            wait_for(lambda: up.server.service.runner.claimed == 0)
            assert engine.target.pool.used == 0
            time.sleep(0.05)
            response.read()
            assert "".join(item["choices"][0]["text"] for item in events(response)) == whole
