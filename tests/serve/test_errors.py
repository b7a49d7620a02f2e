"""Every way a request can be refused, in OpenAI's envelope, naming the parameter."""

from __future__ import annotations

import json
import socket
from typing import Any

import pytest
from tests.serve.harness import Running, chat, completion, problem

CHAT = "/v1/chat/completions"
PLAIN = "/v1/completions"
SURROGATE = "\ud800"

REFUSED: list[tuple[str, dict[str, Any], str]] = [
    (CHAT, {"messages": []}, "messages"),
    (CHAT, {"messages": "hi"}, "messages"),
    (CHAT, {"messages": [{"role": "user"}]}, "messages[0].content"),
    (CHAT, {"messages": [{"role": "robot", "content": "x"}]}, "messages[0]"),
    (CHAT, {"messages": [{"role": "user", "content": "x", "mood": 1}]}, "messages[0].mood"),
    (CHAT, {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0].type"),
    (CHAT, {"messages": [{"role": "tool", "content": "x"}]}, "messages[0].tool_call_id"),
    (CHAT, {"messages": [{"role": "assistant", "content": None}]}, "messages[0].content"),
    (CHAT, {"messages": [{"role": "assistant", "tool_calls": [{}]}]}, "messages[0].tool_calls[0].id"),
    (CHAT, {"messages": [{"role": "user", "content": SURROGATE}]}, "messages[0].content"),
    (CHAT, {"temperature": "hot"}, "temperature"),
    (CHAT, {"temperature": -0.1}, "temperature"),
    (CHAT, {"temperature": 1e-9}, "temperature"),
    (CHAT, {"temperature": True}, "temperature"),
    (CHAT, {"top_p": 0}, "top_p"),
    (CHAT, {"top_p": 1.1}, "top_p"),
    (CHAT, {"top_k": -1}, "top_k"),
    (CHAT, {"min_p": 2}, "min_p"),
    (CHAT, {"presence_penalty": 3}, "presence_penalty"),
    (CHAT, {"frequency_penalty": -3}, "frequency_penalty"),
    (CHAT, {"repetition_penalty": 0}, "repetition_penalty"),
    (CHAT, {"logit_bias": {"x": 1}}, "logit_bias.x"),
    (CHAT, {"logit_bias": {"5": 101}}, "logit_bias.5"),
    (CHAT, {"logit_bias": {"999999": 1}}, "logit_bias"),
    (CHAT, {"logit_bias": {str(i): 1 for i in range(2000)}}, "logit_bias"),
    (CHAT, {"logit_bias": {str(i): 1 for i in range(20000)}}, "logit_bias"),
    (CHAT, {"seed": 1.5}, "seed"),
    (CHAT, {"seed": 2**64}, "seed"),
    (CHAT, {"stop": 5}, "stop"),
    (CHAT, {"stop": ""}, "stop"),
    (CHAT, {"stop": ["a", ""]}, "stop[1]"),
    (CHAT, {"stop": ["x"] * 17}, "stop"),
    (CHAT, {"stop": "x" * 257}, "stop"),
    (CHAT, {"stop_token_ids": [-1]}, "stop_token_ids[0]"),
    (CHAT, {"stop_token_ids": [999999]}, "stop_token_ids"),
    (CHAT, {"banned_tokens": [999999]}, "banned_tokens"),
    (CHAT, {"forced_tokens": [999999]}, "forced_tokens"),
    (CHAT, {"min_tokens": 9, "max_tokens": 5}, "min_tokens"),
    (CHAT, {"max_tokens": 0}, "max_tokens"),
    (CHAT, {"max_completion_tokens": 0}, "max_completion_tokens"),
    (CHAT, {"max_tokens": 5, "max_completion_tokens": 6}, "max_tokens"),
    (CHAT, {"max_tokens": 100000}, "messages"),
    (CHAT, {"n": 0}, "n"),
    (CHAT, {"n": 33}, "n"),
    (CHAT, {"n": 129}, "n"),
    (CHAT, {"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    (CHAT, {"top_logprobs": 2}, "top_logprobs"),
    (CHAT, {"logprobs": 2}, "logprobs"),
    (CHAT, {"logprobs_mode": "cooked"}, "logprobs_mode"),
    (CHAT, {"ignore_eos": "yes"}, "ignore_eos"),
    (CHAT, {"stream": 1}, "stream"),
    (CHAT, {"stream_options": {"include_usage": True}}, "stream_options"),
    (CHAT, {"stream": True, "stream_options": {"other": True}}, "stream_options.other"),
    (CHAT, {"stream": True, "stream_options": {"include_obfuscation": True}}, "stream_options.include_obfuscation"),
    (CHAT, {"speculation": {"drafter": "psychic"}}, "speculation.drafter"),
    (CHAT, {"speculation": {"depth": -1}}, "speculation.depth"),
    (CHAT, {"speculation": {"depth": 33}}, "speculation.depth"),
    (CHAT, {"speculation": {"depth": "deep"}}, "speculation.depth"),
    (CHAT, {"speculation": {"verify": "hope"}}, "speculation.verify"),
    (CHAT, {"speculation": {"speed": 2}}, "speculation.speed"),
    (CHAT, {"tools": []}, "tools"),
    (CHAT, {"functions": []}, "functions"),
    (CHAT, {"store": True}, "store"),
    (CHAT, {"service_tier": "flex"}, "service_tier"),
    (CHAT, {"modalities": ["audio"]}, "modalities[0]"),
    (CHAT, {"reasoning_effort": "high"}, "reasoning_effort"),
    (CHAT, {"metadata": {"a": 1}}, "metadata.a"),
    (CHAT, {"user": 7}, "user"),
    (CHAT, {"echo": True}, "echo"),
    (CHAT, {f"field{i}": i for i in range(200)}, "body"),
    (PLAIN, {"prompt": None}, "prompt"),
    (PLAIN, {"prompt": ""}, "prompt"),
    (PLAIN, {"prompt": []}, "prompt"),
    (PLAIN, {"prompt": ["a", ""]}, "prompt"),
    (PLAIN, {"prompt": [[]]}, "prompt"),
    (PLAIN, {"prompt": ["a", 1]}, "prompt[1]"),
    (PLAIN, {"prompt": [999999]}, "prompt"),
    (PLAIN, {"prompt": [True]}, "prompt[0]"),
    (PLAIN, {"prompt": ["a"] * 33}, "prompt"),
    (PLAIN, {"prompt": ["a"] * 9, "n": 4}, "n"),
    (PLAIN, {"prompt": "x" * 600}, "prompt"),
    (PLAIN, {"suffix": "x"}, "suffix"),
    (PLAIN, {"best_of": 2}, "best_of"),
    (PLAIN, {"logprobs": 21}, "logprobs"),
    (PLAIN, {"logprobs": True}, "logprobs"),
    (PLAIN, {"logprobs": 1, "echo": True}, "logprobs"),
    (PLAIN, {"max_completion_tokens": 5}, "max_completion_tokens"),
    (PLAIN, {"messages": []}, "messages"),
]


@pytest.mark.parametrize(("path", "more", "param"), REFUSED, ids=[f"{i}-{case[2]}" for i, case in enumerate(REFUSED)])
def test_what_is_wrong_is_refused_by_name(up: Running, path: str, more: dict[str, Any], param: str) -> None:
    body = chat("hi", **more) if path == CHAT else completion("hi", **more) if "prompt" not in more else {**more}
    with up.client() as client:  # httpx will not write half of a surrogate pair; JSON can
        reply = client.post(path, content=json.dumps(body).encode(), headers={"content-type": "application/json"})
    message = problem(reply, 400, param)
    assert message
    up.idle()


def test_a_missing_field_is_named(up: Running) -> None:
    problem(up.post(CHAT, {}), 400, "messages", "missing_required_parameter")
    problem(up.post(PLAIN, {}), 400, "prompt", "missing_required_parameter")


def test_null_is_not_given(up: Running) -> None:
    fields = ("temperature", "top_p", "stop", "logit_bias", "n", "seed", "stream", "max_tokens", "user", "metadata")
    assert up.post(CHAT, chat("hi", max_completion_tokens=2, **dict.fromkeys(fields))).status_code == 200
    assert up.post(PLAIN, completion("hi", **dict.fromkeys([*fields, "echo", "logprobs"]))).status_code == 200


def test_harmless_fields_are_accepted(up: Running) -> None:
    more = {
        "user": "me",
        "safety_identifier": "me",
        "prompt_cache_key": "k",
        "metadata": {"team": "a"},
        "store": False,
        "service_tier": "auto",
        "modalities": ["text"],
        "parallel_tool_calls": True,
    }
    assert up.post(CHAT, chat("hi", max_tokens=2, **more)).status_code == 200


def test_the_model_must_be_the_one_served(up: Running) -> None:
    problem(up.post(CHAT, {**chat("hi"), "model": "gpt-5"}), 404, "model", "model_not_found")
    problem(up.get("/v1/models/gpt-5"), 404, "model", "model_not_found")
    body = chat("hi", max_tokens=2)
    del body["model"]
    assert up.post(CHAT, body).status_code == 200


@pytest.mark.parametrize(
    ("content", "kind", "status", "code"),
    [
        (b"{bad", "application/json", 400, "invalid_json"),
        (b"", "application/json", 400, "missing_body"),
        (b"[]", "application/json", 400, None),
        (b"7", "application/json", 400, None),
        (b"null", "application/json", 400, None),
        (b"\xff\xfe{}", "application/json", 400, "invalid_json"),
        (b"[" * 100_000, "application/json", 400, "invalid_json"),
        (b'{"prompt": ' + b"9" * 5000 + b"}", "application/json", 400, "invalid_json"),
        (b'{"prompt": "x", "temperature": NaN}', "application/json", 400, None),
        (b'{"prompt": "x", "temperature": Infinity}', "application/json", 400, None),
        (b'{"prompt": "x"}', "text/plain", 415, "not_json"),
        (b"prompt=x", "application/x-www-form-urlencoded", 415, "not_json"),
        (b'{"prompt": "x"}', "application/json; charset=utf-8", 200, None),
    ],
)
def test_bodies_that_are_not_what_they_should_be(
    up: Running, content: bytes, kind: str, status: int, code: str | None
) -> None:
    with up.client() as client:
        reply = client.post(PLAIN, content=content, headers={"content-type": kind})
    assert reply.status_code == status, reply.text
    if status != 200:
        error = reply.json()["error"]
        assert code is None or error["code"] == code, error


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_methods_that_are_not_allowed(up: Running, method: str) -> None:
    with up.client() as client:
        reply = client.request(method, CHAT)
    problem(reply, 405, code="method_not_allowed")
    assert reply.headers["allow"] == "POST"


@pytest.mark.parametrize("path", ["/v1", "/v1/", "/v1/chat", "/v1/completions/", "/v2/completions", "/docs"])
def test_unknown_routes(up: Running, path: str) -> None:
    problem(up.get(path), 404, code="unknown_url")
    problem(up.post(path, {}), 404, code="unknown_url")


def test_bytes_that_are_not_http(up: Running) -> None:
    with socket.create_connection(("127.0.0.1", int(up.url.rpartition(":")[2]))) as raw:
        raw.sendall(b"what is this\r\n\r\n")
        raw.settimeout(5)
        head, _, body = raw.makefile("rb").read().partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400")
    assert json.loads(body)["error"]["code"] == "invalid_http"


def test_request_ids(up: Running) -> None:
    given = up.get("/health", headers={"x-request-id": "Abc-1.2_3:4"})
    assert given.headers["x-request-id"] == "Abc-1.2_3:4"
    drawn = {up.get("/health").headers["x-request-id"] for _ in range(3)}
    assert len(drawn) == 3
    for bad in ("a b", "x" * 129, "a\tb", ""):
        problem(up.get("/health", headers={"x-request-id": bad}), 400, "x-request-id")
    assert up.post(CHAT, {}, headers={"x-request-id": "q"}).headers["x-request-id"] == "q"
