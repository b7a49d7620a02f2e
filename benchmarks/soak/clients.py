"""Clients of every kind, good and bad, and the account of what came back to them. Knows HTTP; nothing of the server's
inside."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import httpx

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
SUBJECTS = ("lighthouses", "the number seven", "how bread is made", "a list that repeats", "rain", "trains")

KINDS = {
    "whole": 30,
    "stream": 40,
    "leaver": 15,
    "slow": 3,
    "oversized": 2,
    "malformed": 4,
    "refused": 4,
    "silent": 2,
}
"""Kinds of clients and their weights."""

EXPECTED = {
    "whole": {200, 429},
    "stream": {200, 429},
    "slow": {200, 429},
    "leaver": {0, 200, 429},
    "oversized": {413},
    "malformed": {400, 404, 405, 415},
    "refused": {400, 404},
    "silent": {0, 408},
}
"""Statuses that each kind may meet; 0 is none, for clients that left or were cut off."""


class Load:
    """The load, and what came of it.

    ``counts`` are requests that came to their end, by kind, and ``turned away`` those answered 429; ``statuses`` are
    all answers.
    """

    def __init__(self, url: str, concurrency: int, seed: int) -> None:
        self.url, self.concurrency = url, concurrency
        self.sent = self.tokens = self.differ = 0
        self.counts: Counter[str] = Counter()
        self.statuses: Counter[int] = Counter()
        self.surprises: list[str] = []
        self._rng = random.Random(seed)
        self._bodies = [self._body(i) for i in range(24)]
        self._truth: list[str] = []

    async def learn(self) -> None:
        """Ask everything once, one at a time and plain."""
        async with self._client() as client:
            for path, body in self._bodies:
                reply = await client.post(path, json={**body, "speculation": {"depth": 0}})
                reply.raise_for_status()
                self._truth.append(_text(reply.json()))

    async def run(self, seconds: float, tick: Callable[[], None]) -> None:
        """Keep ``concurrency`` clients busy; ``tick`` is called twice a second."""
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds

        async def clock() -> None:
            while loop.time() < until:
                tick()
                await asyncio.sleep(0.5)

        async def place(rng: random.Random) -> None:
            async with self._client() as client:
                while loop.time() < until:
                    await self._one(client, rng)

        async with asyncio.TaskGroup() as group:
            group.create_task(clock())
            for _ in range(self.concurrency):
                group.create_task(place(random.Random(self._rng.random())))

    async def _one(self, client: httpx.AsyncClient, rng: random.Random) -> None:
        [kind] = rng.choices(list(KINDS), list(KINDS.values()))
        self.sent += 1
        try:
            status = await getattr(self, f"_{kind}")(client, rng)
        except httpx.HTTPError as error:
            status = -1
            self.surprises.append(f"{kind}: {type(error).__name__} {error}")
        else:
            if status not in EXPECTED[kind]:
                self.surprises.append(f"{kind}: status {status}")
        self.statuses[status] += 1
        self.counts["turned away" if status == 429 else kind] += 1
        if status == 429:
            await asyncio.sleep(rng.random())

    # -- good ones --------------------------------------------------------------------------------------------------

    async def _whole(self, client: httpx.AsyncClient, rng: random.Random) -> int:
        i = rng.randrange(len(self._bodies))
        path, body = self._bodies[i]
        reply = await client.post(path, json=body)
        if reply.status_code == 200:
            found = reply.json()
            self.tokens += found["usage"]["completion_tokens"]
            self._compare(i, _text(found))
        return reply.status_code

    async def _stream(self, client: httpx.AsyncClient, rng: random.Random, pause: float = 0.0) -> int:
        i = rng.randrange(len(self._bodies))
        path, body = self._bodies[i]
        text, ended = "", False
        more = {"stream": True, "stream_options": {"include_usage": True}}
        async with client.stream("POST", path, json={**body, **more}) as stream:
            if stream.status_code == 200:
                async for line in stream.aiter_lines():
                    if line == "data: [DONE]":
                        ended = True
                    elif line.startswith("data: "):
                        chunk = json.loads(line[6:])
                        if "error" in chunk:
                            self.surprises.append(f"stream: {chunk['error']}")
                            continue
                        text += _text(chunk)
                        self.tokens += (chunk["usage"] or {"completion_tokens": 0})["completion_tokens"]
                    if pause:
                        await asyncio.sleep(pause)
                if not ended:
                    self.surprises.append("stream: no [DONE]")
                self._compare(i, text)
        return stream.status_code

    async def _slow(self, client: httpx.AsyncClient, rng: random.Random) -> int:
        return await self._stream(client, rng, pause=0.1)

    # -- bad ones ---------------------------------------------------------------------------------------------------

    async def _leaver(self, client: httpx.AsyncClient, rng: random.Random) -> int:
        path, body = rng.choice(self._bodies)
        more = {"stream": rng.random() < 0.7, "n": rng.choice([1, 1, 3]), "max_tokens": 200}
        try:
            async with (
                asyncio.timeout(rng.random() * 2),
                client.stream("POST", path, json={**body, **more}) as stream,
            ):
                async for _ in stream.aiter_lines():
                    if stream.status_code == 200 and rng.random() < 0.2:
                        break
                return stream.status_code
        except TimeoutError:
            return 0

    async def _oversized(self, client: httpx.AsyncClient, rng: random.Random) -> int:
        size = rng.choice([(1 << 20) + 1, 5 << 20])
        reply = await client.post(TEXT, content=b" " * size, headers={"content-type": "application/json"})
        return reply.status_code

    async def _malformed(self, client: httpx.AsyncClient, rng: random.Random) -> int:
        method, path, content, kind = rng.choice(
            [
                ("POST", TEXT, b'{"prompt": ', "application/json"),
                ("POST", CHAT, b"\xff\xfe\x00", "application/json"),
                ("POST", CHAT, b"[" * 50_000, "application/json"),
                ("POST", TEXT, b'{"prompt": "x"}', "text/plain"),
                ("POST", "/v1/nothing", b"{}", "application/json"),
                ("PUT", CHAT, b"{}", "application/json"),
            ]
        )
        reply = await client.request(method, path, content=content, headers={"content-type": kind})
        return reply.status_code

    async def _refused(self, client: httpx.AsyncClient, rng: random.Random) -> int:
        more: dict[str, Any] = rng.choice(
            [
                {"temperature": "hot"},
                {"model": "another"},
                {"max_tokens": 10**6},
                {"n": 33},
                {"speculation": {"drafter": "psychic"}},
                {"messages": [{"role": "user", "content": "word " * 5000}]},
                {"unheard_of": 1},
            ]
        )
        body = {"messages": [{"role": "user", "content": "hi"}], **more}
        return (await client.post(CHAT, json=body)).status_code

    async def _silent(self, client: httpx.AsyncClient, rng: random.Random) -> int:
        """Open a connection, begin to say something, and stop."""
        host, port = self.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        try:
            head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
            writer.write(
                head[: rng.randrange(len(head))] if rng.random() < 0.5 else head + b"content-length: 9\r\n\r\n{"
            )
            await writer.drain()
            answer = await asyncio.wait_for(reader.read(1000), 30)
            return int(answer.split()[1]) if answer else 0
        except ConnectionError:
            return 0
        finally:
            writer.close()

    # -- helpers ----------------------------------------------------------------------------------------------------

    def _compare(self, i: int, text: str) -> None:
        if text != self._truth[i]:
            self.differ += 1
            self.surprises.append(f"body {i}: {text[:80]!r} instead of {self._truth[i][:80]!r}")

    def _body(self, i: int) -> tuple[str, dict[str, Any]]:
        rng = self._rng
        text = f"Tell me about {rng.choice(SUBJECTS)}, in {rng.randint(2, 9)} sentences."
        body: dict[str, Any] = {"seed": i, "max_tokens": rng.randint(8, 120), "temperature": rng.choice([0, 0, 0.8])}
        if rng.random() < 0.2:
            body["stop"] = ["."]
        if rng.random() < 0.2:
            body["frequency_penalty"] = 0.5
        if rng.random() < 0.5:
            return CHAT, {**body, "messages": [{"role": "user", "content": text}]}
        return TEXT, {**body, "prompt": text * rng.randint(1, 5)}

    def _client(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(base_url=self.url, timeout=300, verify=False, trust_env=False)


def _text(body: dict[str, Any]) -> str:
    """The text of the first choice of an answer or a chunk."""
    for choice in body["choices"]:
        return str(
            choice["text"] if "text" in choice else (choice.get("message") or choice["delta"]).get("content") or ""
        )
    return ""
