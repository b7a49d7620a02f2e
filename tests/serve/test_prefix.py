"""Prefix caching over HTTP: what was found is in the usage, and keys and salts are walls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.serve.harness import completion, events, running

from headstart.engine.engine import Engine
from headstart.target.model import Target

PROMPT = "A shared beginning of some length, then a question."
KEYS = ("first-key-of-the-test", "second-key-of-the-test")


def test_what_was_found_is_in_the_usage_and_keys_and_salts_are_walls(target: Target) -> None:
    with Engine(target) as engine, running(engine, KEYS) as up:

        def ask(key: str, **more: Any) -> dict[str, Any]:
            headers = {"authorization": f"Bearer {key}"}
            reply = up.post("/v1/completions", completion(PROMPT, seed=1, **more), headers=headers)
            assert reply.status_code == 200, reply.text
            return reply.json()  # type: ignore[no-any-return]

        def found(key: str, **more: Any) -> int:
            return ask(key, **more)["usage"]["prompt_tokens_details"]["cached_tokens"]  # type: ignore[no-any-return]

        first = ask(KEYS[0])
        assert first["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}
        most = first["usage"]["prompt_tokens"] - 1
        again = ask(KEYS[0])
        assert again["choices"] == first["choices"]
        assert again["usage"]["prompt_tokens_details"] == {"cached_tokens": most}
        assert found(KEYS[1]) == 0
        assert found(KEYS[1]) == most
        assert found(KEYS[0], cache_salt="x") == 0
        assert found(KEYS[0], cache_salt="x") == most
        assert found(KEYS[1], cache_salt="x") == 0
        assert found(KEYS[0], n=3) == most
        chunks = list_of(up.post, key=KEYS[0])
        assert chunks[-1]["usage"]["prompt_tokens_details"] == {"cached_tokens": most}


def list_of(post: Callable[..., Any], key: str) -> list[dict[str, Any]]:
    body = completion(PROMPT, seed=1, stream=True, stream_options={"include_usage": True})
    return list(events(post("/v1/completions", body, headers={"authorization": f"Bearer {key}"})))


def test_an_empty_salt_is_refused_by_name(target: Target) -> None:
    with Engine(target) as engine, running(engine) as up:
        reply = up.post("/v1/completions", completion(PROMPT, cache_salt=""))
        assert reply.status_code == 400
        assert reply.json()["error"]["param"] == "cache_salt"
