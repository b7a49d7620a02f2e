"""llama.cpp's own server, compiled for this processor: plain, its n-gram drafters, a draft model.

One server a mode, since the drafter is fixed when the server starts, and started anew for every scope, since some
drafters remember. Prompts go in as token ids and token ids come out; the times of the first token are the server's own.
Sampling is from the whole law: no truncation, no penalties.
"""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from socket import socket
from time import perf_counter
from typing import Any

from benchmarks.peers.protocol import Answer, Decoded, Request, die_with_parent, serve

DRAFTERS = {
    "plain": "",
    "ngram-simple": "--spec-type ngram-simple --spec-ngram-simple-size-n 3 --spec-ngram-simple-size-m 8",
    "ngram-map-k": "--spec-type ngram-map-k --spec-ngram-map-k-size-n 3 --spec-ngram-map-k-size-m 8",
    "ngram-cache": "--spec-type ngram-cache",
    "ngram-mod": "--spec-type ngram-mod --spec-ngram-mod-n-match 8 --spec-ngram-mod-n-min 2 --spec-ngram-mod-n-max 8",
    "draft model": "--spec-type draft-simple",
}
"""Arguments of each mode. The n-gram drafters are held to 8 tokens after matches of 3: their own defaults, 48 or more
after 12 or 24, hardly ever speak on texts of this length. A draft model keeps its default of 3 tokens."""
LIMIT = "--spec-draft-n-max 8"
START_SECONDS = 120


class LlamaCpp:
    def __init__(self, config: Mapping[str, Any]) -> None:
        self.mode = config["mode"]
        self.config = config
        self.server: subprocess.Popen[bytes] | None = None
        self.scope: str | None = None
        self.arguments = [
            *(str(Path(sys.prefix) / "build" / "bin" / "llama-server"), "-m", config["file"]),
            *("-t", str(config["threads"]), "-tb", str(config["threads"])),
            *("-c", str(config["context"]), "-np", str(config["max_sequences"]), "--kv-unified"),
            *("--cache-ram", "0", "--fit", "off", "--no-slots", "--host", "127.0.0.1"),
        ]
        self.drafter = f"{DRAFTERS[self.mode]} {LIMIT}" if "ngram" in self.mode else DRAFTERS[self.mode]
        self.arguments += self.drafter.split()
        if self.mode == "draft model":
            self.arguments += ["-md", config["draft"], "-td", str(config["threads"])]
        self.start()

    def info(self) -> dict[str, Any]:
        program = subprocess.run([self.arguments[0], "--version"], capture_output=True, text=True)
        source = json.loads((Path(sys.prefix) / "build.json").read_text())
        said = (program.stdout + program.stderr).strip().splitlines()
        return {
            "versions": {"llama.cpp": said[0].removeprefix("version: "), **source["versions"]},
            "weights": self.config["weights"],
            "threads": self.config["threads"],
            "settings": {"build": source["options"], "drafter": self.drafter},
        }

    def answer(self, request: Request) -> Answer:
        if request.mode != self.mode:
            raise ValueError(f"this process decodes {self.mode}, not {request.mode}")
        if request.scope != self.scope and self.scope is not None:
            self.start()
        self.scope = request.scope
        started = perf_counter()

        def one(prompt: list[int]) -> Decoded:
            reply = self.post(
                {
                    "prompt": prompt,
                    "n_predict": request.max_tokens,
                    "temperature": request.temperature,
                    "samplers": ["temperature"],
                    "seed": request.seed,
                    "cache_prompt": False,
                    "return_tokens": True,
                }
            )
            timings = reply["timings"]
            ended = perf_counter() - started
            return Decoded(
                ids=reply["tokens"],
                first=min(timings["prompt_ms"] / 1000, ended),
                first_tokens=1,
                seconds=ended,
                drafted=timings.get("draft_n", None if self.mode == "plain" else 0),
                accepted=timings.get("draft_n_accepted", None if self.mode == "plain" else 0),
            )

        if len(request.prompts) == 1:
            outputs = [one(request.prompts[0])]
        else:
            with ThreadPoolExecutor(len(request.prompts)) as pool:
                outputs = list(pool.map(one, request.prompts))
        return Answer(outputs, perf_counter() - started)

    def post(self, content: Mapping[str, Any]) -> dict[str, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port)
        try:
            connection.request("POST", "/completion", json.dumps(content), {"Content-Type": "application/json"})
            response = connection.getresponse()
            reply: dict[str, Any] = json.loads(response.read())
        finally:
            connection.close()
        if response.status != 200:
            raise RuntimeError(f"the server answered {response.status}: {reply.get('error', reply)}")
        return reply

    def start(self) -> None:
        """A fresh server, ready to answer."""
        if self.server is not None:
            self.server.kill()
            self.server.wait()
        with socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.server = subprocess.Popen(
            [*self.arguments, "--port", str(self.port)], stdout=sys.stderr, preexec_fn=die_with_parent
        )
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            if self.server.poll() is not None:
                raise RuntimeError(f"llama-server ended with {self.server.returncode} while it started")
            if self.healthy():
                return
            time.sleep(0.05)
        self.server.kill()
        raise RuntimeError(f"llama-server was not ready after {START_SECONDS} s")

    def healthy(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status == 200
        except OSError:
            return False
        finally:
            connection.close()


if __name__ == "__main__":
    serve(LlamaCpp)
