"""Limits that an operator sets, and who may come in at all."""

from __future__ import annotations

import socket
from pathlib import Path

import httpx
import pytest
from tests.serve.harness import Brake, Running, chat, completion, problem, running, wait_for

from headstart.engine.engine import Engine
from headstart.errors import InvalidParameter
from headstart.serve.keys import VARIABLE, ApiKeys, load_keys
from headstart.serve.settings import Settings

KEYS = ("first-key-123", "second-key-456")


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def test_a_key_is_needed_where_there_are_keys(engine: Engine) -> None:
    with running(engine, KEYS) as up:
        body = chat("hi", max_tokens=2)
        for headers in ({}, bearer("wrong-key-000"), {"authorization": KEYS[0]}, {"authorization": f"Basic {KEYS[0]}"}):
            reply = up.post("/v1/chat/completions", body, headers=headers)
            message = problem(reply, 401, code="invalid_api_key")
            assert "Bearer" in message
            assert reply.headers["www-authenticate"] == "Bearer"
            problem(up.get("/v1/models", headers=headers), 401, code="invalid_api_key")
        for key in KEYS:
            assert up.post("/v1/chat/completions", body, headers=bearer(key)).status_code == 200
            assert up.get("/v1/models", headers=bearer(key)).status_code == 200
        assert up.get("/health").status_code == 200
        assert up.get("/version").status_code == 200
        assert "HTTPBearer" in up.get("/openapi.json").json()["components"]["securitySchemes"]


def test_a_body_without_a_key_is_not_read(engine: Engine) -> None:
    with running(engine, KEYS) as up, socket.create_connection(("127.0.0.1", int(up.url.rpartition(":")[2]))) as raw:
        raw.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 1000000\r\n\r\n")
        raw.settimeout(5)
        assert raw.recv(100).startswith(b"HTTP/1.1 401")


def test_the_tenant_of_a_request_is_its_key(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    submit = engine.submit
    monkeypatch.setattr(engine, "submit", lambda *args, **kw: (seen.append(args[2].tenant), submit(*args, **kw))[1])
    with running(engine, KEYS) as up:
        for key in (*KEYS, KEYS[0]):
            up.post("/v1/chat/completions", chat("hi", max_tokens=2), headers=bearer(key))
    assert seen[0] == seen[2] != seen[1]
    assert all(tenant and "key" not in tenant for tenant in seen)


def test_keys_from_file_and_environment(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("# ours\nfirst-key-123\n\n  second-key-456  \n")
    keys = load_keys(file, {VARIABLE: " third-key-789 "})
    assert len(keys) == 3
    assert len({keys.tenant(f"Bearer {key}") for key in (*KEYS, "third-key-789")}) == 3
    assert keys.tenant("bearer first-key-123") == keys.tenant("Bearer  first-key-123")
    with pytest.raises(PermissionError):
        keys.tenant("Bearer # ours")
    assert len(load_keys(None, {})) == 0
    assert ApiKeys().tenant(None) is None


@pytest.mark.parametrize("content", [b"", b"# nothing\n", b"short\n", b"has a space in it\n", b"\xff\xfe\n", None])
def test_key_files_that_are_no_use(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "keys"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(InvalidParameter):
        load_keys(file, {})


def test_bodies_over_the_limit(engine: Engine) -> None:
    with running(engine, max_body=1000) as up, up.client() as client:
        json = {"content-type": "application/json"}
        assert client.post("/v1/completions", json=completion("x" * 100)).status_code == 200
        problem(client.post("/v1/completions", json=completion("x" * 1000)), 413, code="body_too_large")
        problem(client.post("/v1/completions", content=b" " * 20_000, headers=json), 413, code="body_too_large")

        def pieces() -> object:  # no content-length
            for _ in range(30):
                yield b" " * 100

        problem(client.post("/v1/completions", content=pieces(), headers=json), 413, code="body_too_large")


def test_a_full_queue_is_429_with_retry_after(engine: Engine, brake: Brake) -> None:
    with running(engine, max_queue=2) as up:
        brake.hold()
        with up.client() as client, client.stream("POST", "/v1/completions", json=completion("a", n=10, stream=True)):
            wait_for(lambda: up.server.service.runner.claimed == 10)
            reply = up.post("/v1/completions", completion("b"))
            problem(reply, 429, code="rate_limit_exceeded")
            assert 1 <= int(reply.headers["retry-after"]) <= 60
        brake.release()
        up.idle()
        assert up.post("/v1/completions", completion("b")).status_code == 200


def test_a_refused_request_holds_no_place(engine: Engine) -> None:
    with running(engine, max_queue=1) as up:
        for _ in range(20):
            problem(up.post("/v1/completions", completion("b", logit_bias={"9999": 1})), 400, "logit_bias")
        assert up.server.service.runner.claimed == 0


def test_connections_over_the_limit_are_turned_away(engine: Engine) -> None:
    with running(engine, max_connections=3) as up:
        address = ("127.0.0.1", int(up.url.rpartition(":")[2]))
        held = [socket.create_connection(address) for _ in range(3)]
        wait_for(lambda: len(up.server.server_state.connections) == 3)
        with socket.create_connection(address) as one_more:
            one_more.settimeout(5)
            head, _, body = one_more.makefile("rb").read().partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 503")
        assert b"retry-after" in head
        assert b"too_many_connections" in body
        for connection in held:
            connection.close()
        wait_for(lambda: not up.server.server_state.connections)
        assert up.get("/health").status_code == 200


@pytest.mark.parametrize(
    ("begin", "served"),
    [(b"", False), (b"GET /hea", False), (b"GET /hea", True), (b"GET /health HTTP/1.1\r\nhost: x\r\n", True)],
)
def test_heads_that_never_end_are_cut_off(engine: Engine, begin: bytes, served: bool) -> None:
    with running(engine, receive_timeout=0.3) as up:
        with socket.create_connection(("127.0.0.1", int(up.url.rpartition(":")[2]))) as raw:
            if served:
                raw.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
                assert raw.recv(1000)
            raw.sendall(begin)
            wait_for(lambda: len(up.server.server_state.connections) == 1)
            wait_for(lambda: not up.server.server_state.connections)
        assert up.get("/health").status_code == 200


def test_a_body_that_never_ends_is_408(engine: Engine) -> None:
    with running(engine, receive_timeout=0.3) as up:
        with socket.create_connection(("127.0.0.1", int(up.url.rpartition(":")[2]))) as raw:
            raw.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 50\r\n\r\n{")
            raw.settimeout(5)
            assert raw.recv(100).startswith(b"HTTP/1.1 408")
        up.idle()


def test_a_client_that_leaves_while_sending_is_nothing_special(engine: Engine) -> None:
    with running(engine) as up:
        for part in (b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 50\r\n\r\n{", b"POST /v1"):
            with socket.create_connection(("127.0.0.1", int(up.url.rpartition(":")[2]))) as raw:
                raw.sendall(part)
        wait_for(lambda: not up.server.server_state.connections)
        assert up.get("/health").status_code == 200


def test_defaults_for_what_a_request_leaves_out(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    submit = engine.submit
    monkeypatch.setattr(engine, "submit", lambda *args, **kw: (seen.append(args[1]), submit(*args, **kw))[1])
    with running(engine, default_temperature=0.5, default_max_tokens=7) as up:
        up.post("/v1/chat/completions", chat("hi"))
        up.post("/v1/chat/completions", chat("hi", temperature=0, max_tokens=3))
        up.post("/v1/completions", completion("hi"))
    assert [(params.temperature, params.max_tokens) for params in seen] == [(0.5, 7), (0, 3), (0.5, 16)]


@pytest.mark.parametrize(
    "wrong",
    [
        {"model_name": ""},
        {"max_queue": 0},
        {"max_body": 1.5},
        {"request_timeout": 0},
        {"drain_timeout": float("nan")},
        {"default_temperature": -1},
        {"default_max_tokens": 0},
    ],
)
def test_settings_are_checked(wrong: dict[str, object]) -> None:
    with pytest.raises(InvalidParameter, match=next(iter(wrong))):
        Settings(**{"model_name": "m", **wrong})  # type: ignore[arg-type]


def test_keep_alive_connections_serve_many_requests(engine: Engine) -> None:
    with running(engine) as up, httpx.Client(base_url=up.url, verify=False, trust_env=False) as client:
        for _ in range(5):
            assert client.post("/v1/completions", json=completion("x", max_tokens=2)).status_code == 200
            client.post("/v1/completions", json=completion("x", max_tokens=2, stream=True)).read()
        assert len(up.server.server_state.connections) == 1


def test_up_stays_usable(up: Running) -> None:
    assert up.get("/health").status_code == 200
