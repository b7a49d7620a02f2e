"""Servers under load: headstart beside vLLM and ``transformers serve``, the same requests at growing concurrency.

    python -m benchmarks.goodput --json goodput.json
    python -m benchmarks.goodput --servers headstart --concurrency 1 16

Every server is a process of its own, started by its own command, and held still (SIGSTOP) while another is asked. At
each concurrency every server gets the same chat requests, streamed and greedy, from as many clients; servers take
turns. Goodput counts the requests whose first token and whose later tokens came in time, per second.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import httpx

from benchmarks import files, prompts
from benchmarks.machine import machine
from benchmarks.markdown import measured_on, number, table
from benchmarks.peers.models import find_models
from benchmarks.peers.place import environment_python, missing_environment
from headstart.cli.files import check_writable
from headstart.errors import UserError

ROOT = Path(__file__).resolve().parents[1]
CONCURRENCY = (1, 2, 4, 8, 16)
REQUESTS = {1: 6, 2: 8, 4: 12, 8: 16, 16: 32}
MAX_TOKENS = 64
START_TIMEOUT, REQUEST_TIMEOUT = 600.0, 600.0
FIRST_TOKEN, LATER_TOKEN = 3.0, 0.1
"""Seconds that a first token, and on average each later one, may take to count as good."""
ENVIRONMENT = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_PLUGINS": "", "VLLM_NO_USAGE_STATS": "1"}
"""A KV cache that fits beside the other servers, and none of vLLM's plugins, as in ``benchmarks.peers.vllm``."""

OURS = "headstart"
SERVERS = (OURS, f"{OURS} plain", "vllm", "transformers")


@dataclass(frozen=True)
class Timing:
    """One request: seconds to its first token, seconds of all, and its tokens."""

    first: float
    seconds: float
    tokens: int

    @property
    def later(self) -> float:
        """Mean seconds of a token after the first."""
        return (self.seconds - self.first) / max(1, self.tokens - 1)

    @property
    def good(self) -> bool:
        return self.first <= FIRST_TOKEN and self.later <= LATER_TOKEN


class Served:
    """A server's process, still unless ``running``."""

    def __init__(self, name: str, command: Sequence[str], port: int, model: str, log: Path) -> None:
        self.name, self.model, self.url = name, model, f"http://127.0.0.1:{port}"
        began = time.monotonic()
        with log.open("wb") as out:
            self._process = subprocess.Popen(
                list(command),
                cwd=ROOT,
                env={**os.environ, **ENVIRONMENT},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
        while True:
            if self._process.poll() is not None:
                raise UserError(f"{name} ended with {self._process.returncode}; its messages are in {log}")
            if time.monotonic() - began > START_TIMEOUT:
                self.close()
                raise UserError(f"{name} did not start within {START_TIMEOUT:g} s; its messages are in {log}")
            with suppress(httpx.HTTPError):
                if httpx.get(f"{self.url}/health", timeout=5).status_code == 200:
                    break
            time.sleep(0.5)
        self.started = time.monotonic() - began
        self._signal(signal.SIGSTOP)

    @contextmanager
    def running(self) -> Iterator[None]:
        self._signal(signal.SIGCONT)
        try:
            yield
        finally:
            self._signal(signal.SIGSTOP)

    def close(self) -> None:
        for number_ in (signal.SIGCONT, signal.SIGTERM):
            self._signal(number_)
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._signal(signal.SIGKILL)
            self._process.wait()

    def _signal(self, number_: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, number_)


async def load(server: Served, texts: Sequence[str], concurrency: int, max_tokens: int) -> tuple[list[Timing], float]:
    """All texts through ``concurrency`` clients; the requests' timings and the seconds of everything."""
    waiting = iter(texts)
    timings: list[Timing] = []
    limits = httpx.Limits(max_connections=concurrency)

    async def client(http: httpx.AsyncClient) -> None:
        for text in waiting:
            timings.append(await ask(http, server.model, text, max_tokens))

    async with httpx.AsyncClient(base_url=server.url, timeout=REQUEST_TIMEOUT, limits=limits) as http:
        began = time.perf_counter()
        await asyncio.gather(*(client(http) for _ in range(concurrency)))
        return timings, time.perf_counter() - began


async def ask(http: httpx.AsyncClient, model: str, text: str, max_tokens: int) -> Timing:
    """One streamed chat request. Tokens are the server's own count, or one for each piece where it gives none."""
    body = {
        "model": model,
        "messages": [{"role": "user", "content": text}],
        "max_tokens": max_tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    began = time.perf_counter()
    first, pieces, counted = None, 0, None
    async with http.stream("POST", "/v1/chat/completions", json=body) as response:
        if response.status_code != 200:
            raise UserError(f"{http.base_url}: {response.status_code} {(await response.aread())[:300]!r}")
        async for line in response.aiter_lines():
            if not line.startswith("data:") or line.endswith("[DONE]"):
                continue
            chunk = json.loads(line.removeprefix("data:"))
            counted = (chunk.get("usage") or {}).get("completion_tokens", counted)
            if any((choice.get("delta") or {}).get("content") for choice in chunk.get("choices", ())):
                pieces += 1
                first = first if first is not None else time.perf_counter() - began
    seconds = time.perf_counter() - began
    return Timing(first if first is not None else seconds, seconds, counted or pieces)


def commands(names: Sequence[str], model: str, dtype: str) -> dict[str, tuple[list[str], int, str]]:
    """How each server is started: its command, port, and what it calls the model.

    Raises:
        UserError: a server that is not known or not installed.
    """
    folder = str(find_models(model, dtype).folder)
    every = {}
    for name in names:
        port = free_port()
        if name in (OURS, f"{OURS} plain"):
            drafter = ["--drafter", "none"] if name.endswith("plain") else []
            command = [str(Path(sys.executable).with_name("headstart")), "serve", "--model", folder, "--dtype", dtype]
            command += ["--port", str(port), "--max-sequences", "16", "--served-model-name", "model", *drafter]
            called = "model"
        elif name == "transformers":
            command = [str(Path(sys.executable).with_name("transformers")), "serve", folder]
            command += ["--port", str(port), "--dtype", dtype, "--device", "cpu"]
            called = folder
        elif name == "vllm":
            missing = missing_environment("vllm")
            if missing is not None:
                raise UserError(f"vllm: {missing}")
            command = [str(environment_python("vllm")), "-m", "vllm.entrypoints.openai.api_server", "--model", folder]
            command += [
                "--port",
                str(port),
                "--dtype",
                dtype,
                "--max-model-len",
                "4096",
                "--served-model-name",
                "model",
            ]
            called = "model"
        else:
            raise UserError(
                f"{name!r} is no server known here; choose from headstart, headstart plain, vllm, transformers"
            )
        every[name] = command, port, called
    return every


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def tables(result: dict[str, Any]) -> str:
    """The result as markdown."""
    head = (
        f"{measured_on(result['machine'])}\n"
        f"- Command: `{result['command']}`\n"
        f"- Good: first token within {FIRST_TOKEN:g} s and {1000 * LATER_TOKEN:g} ms for each later one on average"
    )
    rows = []
    for name in dict.fromkeys(row["server"] for row in result["rows"]):
        for row in result["rows"]:
            if row["server"] != name:
                continue
            base = next(r for r in result["rows"] if r["server"] == OURS and r["concurrency"] == row["concurrency"])
            rows.append(
                [
                    name,
                    str(row["concurrency"]),
                    number(row["tokens_per_second"]),
                    number(row["tokens_per_second"] / base["tokens_per_second"], 2),
                    number(1000 * row["first_median"], 0),
                    number(1000 * row["later_median"]),
                    number(row["goodput"], 2),
                    f"{row['good']} of {row['requests']}",
                ]
            )
    names = ["server", "clients", "tok/s", "over headstart", "TTFT, ms", "TPOT, ms", "good requests/s", "good"]
    return f"{head}\n\n{table(names, rows)}\n"


def main() -> int:
    """Start, load, print, write; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--servers", nargs="+", default=SERVERS, metavar="NAME")
    parser.add_argument("--concurrency", nargs="+", type=int, choices=CONCURRENCY, default=CONCURRENCY)
    parser.add_argument("--max-tokens", type=int, default=MAX_TOKENS)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--prompts", type=Path, default=prompts.DEFAULT, help="Spec-Bench's question.jsonl")
    parser.add_argument("--logs", type=Path, default=Path("goodput-logs"), help="folder for what the servers print")
    parser.add_argument("--json", type=Path, help="file for the result; it must not exist")
    options = parser.parse_args()
    servers: list[Served] = []
    about = machine()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # an end from outside is an interruption too
    try:
        check_writable(options.json, force=False)
        prompts.check_there(options.prompts)
        options.logs.mkdir(exist_ok=True)
        for name, (command, port, called) in commands(options.servers, options.model, options.dtype).items():
            print(f"starting {name}", file=sys.stderr, flush=True)
            servers.append(Served(name, command, port, called, options.logs / f"{name}.log"))
        rows = measure(servers, options)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted; the servers are ended and nothing is written", file=sys.stderr)
        return 130
    finally:
        for server in servers:
            server.close()
    words = ["python", "-m", "benchmarks.goodput"]
    words += ["--servers", *options.servers] if tuple(options.servers) != SERVERS else []
    words += ["--concurrency", *map(str, options.concurrency)] if tuple(options.concurrency) != CONCURRENCY else []
    words += ["--max-tokens", str(options.max_tokens)] if options.max_tokens != MAX_TOKENS else []
    result = {"kind": "goodput", "machine": about, "command": shlex.join(words), "rows": rows}
    print(tables(result))
    if options.json:
        files.write(options.json, result)
    return 0


def measure(servers: Sequence[Served], options: argparse.Namespace) -> list[dict[str, Any]]:
    """Every server at every concurrency, in turning order."""
    rows = []
    questions = [row["turns"][0] for group in prompts.questions(options.prompts).values() for row in group]
    at = 0
    for server in servers:
        with server.running():
            asyncio.run(load(server, ["Say hello."] * 2, 1, 8))
    for turn, concurrency in enumerate(options.concurrency):
        count = REQUESTS[concurrency]
        texts = [questions[(at + 41 * i) % len(questions)] for i in range(count)]
        at += 7
        for i in range(len(servers)):
            server = servers[(i + turn) % len(servers)]
            with server.running():
                timings, seconds = asyncio.run(load(server, texts, concurrency, options.max_tokens))
            good = sum(timing.good for timing in timings)
            rows.append(
                {
                    "server": server.name,
                    "concurrency": concurrency,
                    "requests": count,
                    "seconds": seconds,
                    "tokens_per_second": sum(timing.tokens for timing in timings) / seconds,
                    "first_median": median(timing.first for timing in timings),
                    "later_median": median(timing.later for timing in timings),
                    "good": good,
                    "goodput": good / seconds,
                    "timings": [asdict(timing) for timing in timings],
                }
            )
            print(f"{server.name}, {concurrency} clients: {seconds:.1f} s", file=sys.stderr, flush=True)
    return rows


if __name__ == "__main__":
    sys.exit(main())
