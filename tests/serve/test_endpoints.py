"""The endpoints, request by request: what comes back is what the engine says, in OpenAI's shapes."""

from __future__ import annotations

from typing import Any

import pytest
from tests.serve.harness import MODEL, Running, chat, completion, events

from headstart.decode.params import SamplingParams
from headstart.engine.engine import Engine
from headstart.engine.request import Prompt
from headstart.serve.replies import ChatChunk, ChatCompletion, Completion
from headstart.target.model import Target

SCRIPTS = "naïve · नमस्ते दुनिया · 你好,世界 · 👩‍🚀🎉 · Ελληνικά"


def plain(target: Target, prompt: Prompt, **params: Any) -> Any:
    """What the engine says without any drafter."""
    with Engine(target) as engine:
        return engine.generate([prompt], SamplingParams(**params))[0]


def said(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_chat_says_what_the_engine_says(up: Running, target: Target, temperature: float) -> None:
    truth = plain(target, said("hello"), max_tokens=40, temperature=temperature, seed=5)
    body = chat("hello", max_completion_tokens=40, temperature=temperature, seed=5)
    reply = up.post("/v1/chat/completions", body)
    assert reply.status_code == 200
    answer = ChatCompletion.model_validate(reply.json())
    assert answer.choices[0].message.content == truth.text
    assert answer.choices[0].finish_reason == truth.completions[0].finish_reason.value
    assert answer.usage.prompt_tokens == len(truth.prompt_token_ids)
    assert answer.usage.completion_tokens == len(truth.token_ids)
    assert answer.model == MODEL

    chunks = [
        ChatChunk.model_validate(item) for item in events(up.post("/v1/chat/completions", {**body, "stream": True}))
    ]
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == truth.text
    assert [c.choices[0].finish_reason for c in chunks if c.choices[0].finish_reason] == [
        answer.choices[0].finish_reason
    ]
    assert all("usage" not in chunk.model_fields_set for chunk in chunks)


def test_completions_of_many_prompts_in_order(up: Running, target: Target) -> None:
    prompts = ["one", "two", "three"]
    reply = up.post("/v1/completions", completion(prompts, max_tokens=12, n=2, seed=3, echo=True))
    answer = Completion.model_validate(reply.json())
    assert [choice.index for choice in answer.choices] == list(range(6))
    truths = [plain(target, prompt, max_tokens=12, n=2, seed=3, temperature=1.0) for prompt in prompts]
    expected = [prompt + c.text for prompt, truth in zip(prompts, truths, strict=True) for c in truth.completions]
    assert [choice.text for choice in answer.choices] == expected

    body = completion(
        prompts, max_tokens=12, n=2, seed=3, echo=True, stream=True, stream_options={"include_usage": True}
    )
    texts = [""] * 6
    chunks = [Completion.model_validate(item) for item in events(up.post("/v1/completions", body))]
    for chunk in chunks[:-1]:
        assert chunk.usage is None
        assert "usage" in chunk.model_fields_set
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert texts == expected
    assert chunks[-1].choices == []
    found = chunks[-1].usage.prompt_tokens_details
    assert found.cached_tokens <= chunks[-1].usage.prompt_tokens
    assert (
        chunks[-1].usage.model_copy(update={"prompt_tokens_details": answer.usage.prompt_tokens_details})
        == answer.usage
    )


def test_a_prompt_may_be_token_ids(up: Running) -> None:
    ids = list(b"abc")
    one = up.post("/v1/completions", completion(ids, seed=1)).json()
    many = up.post("/v1/completions", completion([ids, ids], seed=1)).json()
    assert [choice["text"] for choice in many["choices"]] == [one["choices"][0]["text"]] * 2
    assert one["usage"]["prompt_tokens"] == 3
    assert one["usage"]["completion_tokens"] <= 16


def test_deltas_join_to_the_whole_where_characters_span_tokens(up: Running, target: Target) -> None:
    forced = target.tokenizer(SCRIPTS)["input_ids"]
    assert len(forced) > len(SCRIPTS)
    more = {"forced_tokens": forced, "max_tokens": len(forced), "temperature": 0, "speculation": {"depth": 4}}
    whole = up.post("/v1/chat/completions", chat(SCRIPTS, **more)).json()
    assert whole["choices"][0]["message"]["content"] == SCRIPTS
    deltas = events(up.post("/v1/chat/completions", chat(SCRIPTS, **more, stream=True)))
    parts = [item["choices"][0]["delta"].get("content", "") for item in deltas]
    assert "".join(parts) == SCRIPTS
    assert not any("\N{REPLACEMENT CHARACTER}" in part for part in parts)


def test_models_version_health(up: Running) -> None:
    [model] = up.get("/v1/models").json()["data"]
    assert model["id"] == MODEL
    assert up.get(f"/v1/models/{MODEL}").json() == model
    assert up.get("/health").json() == {"status": "ready"}
    version = up.get("/version").json()
    assert version["model"] == MODEL
    assert version["drafters"] == ["ngram"]
