"""Many unlike requests at once, with clients that leave in between: every text is the one that plain decoding gives."""

from __future__ import annotations

import asyncio
import json
import random
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from tests.serve.harness import PATIENCE, running

from headstart.control.adaptive import AdaptiveDepth
from headstart.control.depth import FixedDepth
from headstart.draft.ngram import NgramDrafter
from headstart.draft.quantised import QuantisedDrafter
from headstart.engine.costs import cost_curve
from headstart.engine.engine import Engine
from headstart.serve import asked
from headstart.serve.schema import ChatBody, CompletionBody
from headstart.serve.settings import Settings
from headstart.target.model import Target

CONCURRENCY = 16
SETTINGS = Settings(model_name="tiny")
WORDS = "red blue fast slow river stone light cloud seven eleven repeat again and the of a"


@dataclass(frozen=True)
class Case:
    """One request: what is sent, and what has to come back."""

    path: str
    body: dict[str, Any]
    texts: list[str]
    tokens: int


def bodies(count: int, longest: int, seed: int) -> list[tuple[str, dict[str, Any]]]:
    """Requests of all kinds, each with a seed of its own."""
    rng = random.Random(seed)
    made = []
    for i in range(count):
        text = " ".join(rng.choices(WORDS.split(), k=rng.randint(1, 30)))
        body: dict[str, Any] = {"seed": i, "max_tokens": rng.randint(1, longest), "stream": rng.random() < 0.6}
        body["temperature"] = rng.choice([0, 0, 0.7, 1.0])
        body["speculation"] = rng.choice([{}, {"depth": 0}, {"depth": 3}, {"depth": "auto"}, {"drafter": "none"}])
        for name, value in (
            ("n", 2),
            ("top_p", 0.9),
            ("top_k", 20),
            ("min_p", 0.05),
            ("frequency_penalty", 0.6),
            ("repetition_penalty", 1.2),
            ("stop", ["e", "th"]),
            ("logit_bias", {"11": 4}),
            ("min_tokens", 1),
            ("ignore_eos", True),
        ):
            if rng.random() < 0.2:
                body[name] = value
        if body["stream"] and rng.random() < 0.5:
            body["stream_options"] = {"include_usage": True}
        if rng.random() < 0.5:
            made.append(("/v1/chat/completions", {**body, "messages": [{"role": "user", "content": text}]}))
        else:
            made.append(("/v1/completions", {**body, "prompt": text, "echo": rng.random() < 0.2}))
    return made


def with_truth(target: Target, requests: list[tuple[str, dict[str, Any]]], drafted: Engine) -> list[Case]:
    """What plain decoding says, alone; the engine with drafts must say the same."""
    cases = []
    with Engine(target, max_sequences=2) as plain:
        for path, body in requests:
            if "messages" in body:
                what = asked.chat(ChatBody.model_validate(body), SETTINGS, None)
            else:
                what = asked.completion(CompletionBody.model_validate(body), SETTINGS, None)
            [truth] = plain.generate(list(what.prompts), what.params)
            [same] = drafted.generate(list(what.prompts), what.params)
            texts = [completion.text for completion in truth.completions]
            assert texts == [completion.text for completion in same.completions]
            echo = body["prompt"] if body.get("echo") else ""
            tokens = sum(len(completion.token_ids) for completion in truth.completions)
            cases.append(Case(path, body, [echo + text for text in texts], tokens))
    return cases


async def ask(client: httpx.AsyncClient, case: Case) -> None:
    """Send a request and check what comes back."""
    if not case.body["stream"]:
        reply = await client.post(case.path, json=case.body)
        assert reply.status_code == 200, reply.text
        whole = reply.json()
        found = [choice["text"] if "text" in choice else choice["message"]["content"] for choice in whole["choices"]]
        assert found == case.texts, case
        assert whole["usage"]["completion_tokens"] == case.tokens
        return
    texts, usage, ended = [""] * len(case.texts), None, False
    async with client.stream("POST", case.path, json=case.body) as stream:
        assert stream.status_code == 200
        async for line in stream.aiter_lines():
            if not line.startswith("data: "):
                continue
            if line == "data: [DONE]":
                ended = True
                continue
            chunk = json.loads(line[6:])
            assert "error" not in chunk, chunk
            usage = chunk.get("usage") or usage
            for choice in chunk["choices"]:
                texts[choice["index"]] += choice["text"] if "text" in choice else choice["delta"].get("content", "")
    assert ended
    assert texts == case.texts, case
    if "stream_options" in case.body:
        assert usage is not None
        assert usage["completion_tokens"] == case.tokens


async def leave(client: httpx.AsyncClient, case: Case, rng: random.Random) -> None:
    """Send a request and go away at some moment."""
    try:
        async with asyncio.timeout(rng.random() * 0.2), client.stream("POST", case.path, json=case.body) as stream:
            async for _ in stream.aiter_lines():
                if rng.random() < 0.3:
                    return
    except TimeoutError:
        pass


async def mix(url: str, cases: list[Case]) -> None:
    rng = random.Random(7)
    places = asyncio.Semaphore(CONCURRENCY)

    async def one(case: Case, stays: bool) -> None:
        async with places:
            await (ask(client, case) if stays else leave(client, case, rng))

    limits = httpx.Limits(max_connections=CONCURRENCY)
    async with httpx.AsyncClient(base_url=url, timeout=20 * PATIENCE, limits=limits, verify=False) as client:
        plan = [(case, True) for case in cases] + [(case, False) for case in rng.sample(cases, len(cases) // 4)]
        rng.shuffle(plan)
        async with asyncio.TaskGroup() as group:
            for case, stays in plan:
                group.create_task(one(case, stays))


def test_texts_of_a_mixed_crowd(target: Target) -> None:
    with Engine(target, [NgramDrafter()], controller=FixedDepth(4)) as drafted:
        cases = with_truth(target, bodies(60, 40, seed=1), drafted)
    with Engine(target, [NgramDrafter()], controller=FixedDepth(4), max_sequences=8) as engine, running(engine) as up:
        asyncio.run(mix(up.url, cases))
        up.idle()


@pytest.mark.slow
@pytest.mark.real_threads
@pytest.mark.usefixtures("smollm2_installed")
def test_texts_of_a_mixed_crowd_on_a_real_model() -> None:
    from headstart.target.load import load_target

    real = load_target("smollm2", kv_tokens=16384, max_sequences=16, draft_weights="auto")
    drafters = [NgramDrafter(), *([QuantisedDrafter(real)] if real.draft_weights else [])]
    more = {"default_drafter": "+".join(drafter.name for drafter in drafters)}
    more["controller"] = AdaptiveDepth(cost_curve(real), tree=True)
    with Engine(real, drafters, **more) as drafted:
        cases = with_truth(real, bodies(200, 60, seed=2), drafted)
    with Engine(real, drafters, **more, max_sequences=16) as engine, running(engine) as up:
        asyncio.run(mix(up.url, cases))
        up.idle()
