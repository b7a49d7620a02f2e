"""The official client against a running server."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from tests.serve.harness import MODEL, running
from tokenizers import pre_tokenizers

from headstart.engine.engine import Engine

MESSAGES = [{"role": "user", "content": "hello"}]
KEY = "a-key-for-tests"


@pytest.fixture
def url(engine: Engine) -> Iterator[str]:
    with running(engine, [KEY]) as up:
        yield f"{up.url}/v1"


@pytest.fixture
def client(url: str) -> Iterator[OpenAI]:
    with OpenAI(base_url=url, api_key=KEY, max_retries=0) as made:
        yield made


def test_chat_and_stream(client: OpenAI) -> None:
    whole = client.chat.completions.create(model=MODEL, messages=MESSAGES, seed=1, max_completion_tokens=30)
    text = ""
    with client.chat.completions.create(
        model=MODEL,
        messages=MESSAGES,
        seed=1,
        max_completion_tokens=30,
        stream=True,
        stream_options={"include_usage": True},
    ) as stream:
        for chunk in stream:
            if chunk.choices:
                text += chunk.choices[0].delta.content or ""
            else:
                assert chunk.usage.total_tokens == whole.usage.total_tokens  # more may be cached the second time
                # how much is accepted may differ: drafters learn
                assert chunk.model_extra["metrics"].keys() == whole.model_extra["metrics"].keys()
    assert text == whole.choices[0].message.content
    assert whole.choices[0].message.role == "assistant"
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens


def test_the_streaming_helper(client: OpenAI) -> None:
    forced = {"forced_tokens": _ids("well then!")}
    with client.chat.completions.stream(model=MODEL, messages=MESSAGES, stop="!", extra_body=forced) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    assert {"chunk", "content.delta", "content.done"} <= kinds
    assert final.choices[0].message.content == "well then"


def test_logprobs_in_both_shapes(client: OpenAI) -> None:
    asked = {"seed": 3, "temperature": 0.8, "max_tokens": 9}
    chat = client.chat.completions.create(model=MODEL, messages=MESSAGES, logprobs=True, top_logprobs=3, **asked)
    content = chat.choices[0].logprobs.content
    assert len(content) == chat.usage.completion_tokens
    assert all(len(item.top_logprobs) == 3 for item in content)
    assert all(item.top_logprobs[0].logprob >= item.logprob for item in content)
    said = bytes(byte for item in content if item.token != "</s>" for byte in item.bytes)
    assert said.decode(errors="replace") == chat.choices[0].message.content

    plain = client.completions.create(model=MODEL, prompt="hello", logprobs=2, **asked)
    found = plain.choices[0].logprobs
    count = plain.usage.completion_tokens
    assert [len(x) for x in (found.tokens, found.token_logprobs, found.top_logprobs, found.text_offset)] == [count] * 4
    for token, logprob, top in zip(found.tokens, found.token_logprobs, found.top_logprobs, strict=True):
        assert top[token] == logprob
        assert 2 <= len(top) <= 3
    assert found.text_offset == sorted(found.text_offset)
    streamed = client.completions.create(model=MODEL, prompt="hello", logprobs=2, stream=True, **asked)
    parts = [chunk.choices[0].logprobs for chunk in streamed]
    assert [token for part in parts for token in part.tokens] == found.tokens
    assert [offset for part in parts for offset in part.text_offset] == found.text_offset


def test_extensions_through_extra_body(client: OpenAI) -> None:
    def ask(**speculation: object) -> object:
        reply = client.chat.completions.create(
            model=MODEL,
            messages=MESSAGES,
            seed=2,
            max_tokens=40,
            extra_body={"speculation": speculation, "top_k": 20, "min_p": 0.01},
        )
        return reply.choices[0].message.content, reply.model_extra["metrics"]["speculative_decoding"]

    text, block = ask(depth=3)
    assert block["num_spec_tokens"] == 3
    assert ask(depth=0) == (text, None)
    assert ask(drafter="none") == (text, None)
    assert ask(drafter="ngram", depth="auto")[0] == text


def test_stop_strings_and_n(client: OpenAI) -> None:
    reply = client.completions.create(
        model=MODEL,
        prompt="x",
        stop=["TOP t", "never"],
        n=2,
        max_tokens=18,
        extra_body={"forced_tokens": _ids("one two STOP three")},
    )
    assert [choice.text for choice in reply.choices] == ["one two S"] * 2
    assert [choice.finish_reason for choice in reply.choices] == ["stop"] * 2
    assert reply.choices[0].model_extra["stop_reason"] == "TOP t"
    assert reply.usage.completion_tokens == 2 * len("one two STOP t")


def _ids(text: str) -> list[int]:
    """Token ids of ASCII text in the tiny vocabulary, which is the sorted alphabet of byte-level tokenizers."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    return [alphabet.index("Ġ" if symbol == " " else symbol) for symbol in text]


def test_errors_are_the_clients_own(client: OpenAI, url: str) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model=MODEL, messages=MESSAGES, top_p=2)
    assert refused.value.param == "top_p"
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(model="gpt-5", messages=MESSAGES)
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.AuthenticationError):
        OpenAI(base_url=url, api_key="not-the-key", max_retries=0).models.list()
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).id == MODEL


def test_async_client(url: str) -> None:
    async def one(client: AsyncOpenAI, seed: int) -> tuple[str | None, str]:
        asked = {"model": MODEL, "messages": MESSAGES, "seed": seed, "max_tokens": 20}
        whole = await client.chat.completions.create(**asked)
        parts = [chunk async for chunk in await client.chat.completions.create(**asked, stream=True)]
        return whole.choices[0].message.content, "".join(part.choices[0].delta.content or "" for part in parts)

    async def main() -> list[tuple[str | None, str]]:
        async with AsyncOpenAI(base_url=url, api_key=KEY, max_retries=0) as client:
            return await asyncio.gather(*(one(client, seed) for seed in range(8)))

    pairs = asyncio.run(main())
    assert all(whole == streamed for whole, streamed in pairs)
    assert len({whole for whole, _ in pairs}) > 1
