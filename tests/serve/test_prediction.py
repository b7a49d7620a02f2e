"""Predicted Outputs through the official client: the same text, fewer rounds, and OpenAI's counts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import openai
import pytest
from tests.serve.harness import MODEL, Running, chat, events, problem

from headstart.target.model import Target

TEXT = "The quick brown fox jumps over the lazy dog, and the dog does not mind at all: naïve dog, 你好!"
COUNT = len(TEXT.encode())
"""The tiny model's tokens are bytes, and it is made to say this text."""


@pytest.fixture(scope="module")
def asked(target: Target) -> dict[str, Any]:
    assert target.tokenizer is not None
    forced = target.tokenizer(TEXT, add_special_tokens=False)["input_ids"]
    assert len(forced) == COUNT
    return {
        "model": MODEL,
        "messages": [{"role": "user", "content": "hello"}],
        "max_completion_tokens": COUNT,
        "temperature": 0.9,
        "seed": 5,
        "forced_tokens": forced,
    }


Create = Callable[..., Any]


@pytest.fixture(scope="module")
def create(up: Running, asked: dict[str, Any]) -> Iterator[Create]:
    """``chat.completions.create`` of the official client."""
    known = {**asked}
    extra = {"forced_tokens": known.pop("forced_tokens")}
    with openai.OpenAI(base_url=f"{up.url}/v1", api_key="none", max_retries=0) as client:
        yield lambda **more: client.chat.completions.create(**known, extra_body=extra, **more)


def predicted(content: Any) -> dict[str, Any]:
    return {"type": "content", "content": content}


def test_a_right_prediction_is_accepted(create: Create) -> None:
    plain = create()
    assert plain.choices[0].message.content == TEXT
    assert plain.usage.completion_tokens_details is None
    got = create(prediction=predicted(TEXT))
    assert got.choices[0].message.content == TEXT
    assert got.usage.completion_tokens == plain.usage.completion_tokens == COUNT
    details = got.usage.completion_tokens_details
    assert (details.accepted_prediction_tokens, details.rejected_prediction_tokens) == (COUNT, 0)
    # depth 4 and one more token a round, after the first from prefill
    assert got.metrics["speculative_decoding"]["num_spec_steps"] == -(-(COUNT - 1) // 5)


def test_an_edit_is_rejected_and_the_rest_accepted(create: Create) -> None:
    got = create(prediction=predicted(TEXT.replace("brown", "purple")))
    assert got.choices[0].message.content == TEXT
    details = got.usage.completion_tokens_details
    assert details.accepted_prediction_tokens + details.rejected_prediction_tokens == COUNT + 1
    assert 5 <= details.rejected_prediction_tokens <= 10


@pytest.mark.parametrize("content", ["wrong " * 50, "", "hello", "</s>" * 40, [{"type": "text", "text": "parts"}] * 2])
def test_a_wrong_one_changes_nothing(create: Create, content: Any) -> None:
    got = create(prediction=predicted(content))
    assert got.choices[0].message.content == TEXT
    details = got.usage.completion_tokens_details
    whole = content if isinstance(content, str) else "".join(part["text"] for part in content)
    assert details.accepted_prediction_tokens + details.rejected_prediction_tokens == len(whole.encode())
    assert details.accepted_prediction_tokens <= COUNT // 3


def test_streamed_usage_has_the_counts(create: Create) -> None:
    whole = create(prediction=predicted(TEXT))
    chunks = list(create(prediction=predicted(TEXT), stream=True, stream_options={"include_usage": True}))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == TEXT
    assert chunks[-1].usage == whole.usage


def test_every_choice_counts(create: Create) -> None:
    got = create(n=2, prediction=predicted(TEXT))
    assert [choice.message.content for choice in got.choices] == [TEXT, TEXT]
    details = got.usage.completion_tokens_details
    assert (details.accepted_prediction_tokens, details.rejected_prediction_tokens) == (2 * COUNT, 0)


def test_it_goes_with_a_choice_of_drafter_and_depth(up: Running, asked: dict[str, Any]) -> None:
    for speculation in ({"drafter": "ngram"}, {"drafter": "none"}, {"depth": 0}, {"depth": 2}, {"depth": "auto"}):
        body = {**asked, "prediction": predicted(TEXT), "speculation": speculation}
        reply = up.post("/v1/chat/completions", body).json()
        assert reply["choices"][0]["message"]["content"] == TEXT
        assert reply["usage"]["completion_tokens_details"]["accepted_prediction_tokens"] == COUNT
    body = {**asked, "speculation": {"drafter": "prediction"}}
    problem(up.post("/v1/chat/completions", body), 400, "speculation.drafter")


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({"type": "essay", "content": "x"}, "prediction.type"),
        ({"type": "content"}, "prediction.content"),
        ({"type": "content", "content": 7}, "prediction.content"),
        ({"type": "content", "content": "x", "weight": 1}, "prediction.weight"),
    ],
)
def test_mistakes_are_named(up: Running, given: Any, param: str) -> None:
    reply = up.post("/v1/chat/completions", {**chat("a"), "prediction": given})
    assert reply.status_code == 400
    assert str(reply.json()["error"]["param"]).startswith(param)


def test_completions_have_no_predictions(up: Running) -> None:
    reply = up.post("/v1/completions", {"model": MODEL, "prompt": "a", "prediction": predicted("x")})
    problem(reply, 400, "prediction")


def test_a_huge_prediction_is_no_trouble(up: Running, asked: dict[str, Any]) -> None:
    body = {**asked, "prediction": predicted(TEXT + "x" * 300_000), "stream": True}
    deltas = events(up.post("/v1/chat/completions", body))
    assert "".join(item["choices"][0]["delta"].get("content", "") for item in deltas) == TEXT
    up.idle()
