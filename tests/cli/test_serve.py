"""``headstart serve`` as a process: start, announcement, signals, refusals."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import Empty, Queue

import httpx
import pytest
from tests.cli.conftest import Call
from tests.cli.tiny import refused

SRC = Path(__file__).resolve().parents[2] / "src"
PATIENCE = 60


class Process:
    """A server process; ``lines`` are those of its stderr so far."""

    def __init__(self, *arguments: str, **environment: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "headstart.cli.main", "serve", "--port", "0", "--depth", "3", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(SRC), "OMP_NUM_THREADS": "1", **environment},
        )
        self.lines: list[str] = []
        self._queue: Queue[str] = Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.url = ""

    def wait(self) -> None:
        """Until it says that it is ready."""
        self.url = f"http://127.0.0.1:{self.until(r'ready after .*:(?P<port>[0-9]+)/v1')['port']}"

    def _read(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr as lines:
            for line in lines:
                self._queue.put(line)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(PATIENCE)
        self._reader.join(PATIENCE)

    def until(self, pattern: str) -> re.Match[str]:
        """Read on to a line that has ``pattern``."""
        while True:
            try:
                line = self._queue.get(timeout=PATIENCE)
            except Empty:
                pytest.fail(f"no {pattern!r} in:\n{''.join(self.lines)}")
            self.lines.append(line)
            if found := re.search(pattern, line):
                return found

    def ask(self, body: dict[str, object], **headers: str) -> httpx.Response:
        return httpx.post(f"{self.url}/v1/chat/completions", json=body, headers=headers, timeout=PATIENCE)


@contextmanager
def serving(*arguments: str, **environment: str) -> Iterator[Process]:
    started = Process(*arguments, **environment)
    try:
        started.wait()
        yield started
    finally:
        started.kill()


def test_from_start_to_signal_with_keys(tiny: str, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("from-the-file\n")
    arguments = ("--model", tiny, "--served-model-name", "little", "--api-key-file", str(keys))
    with serving(*arguments, HEADSTART_API_KEY="from-the-environment") as up:
        assert "Authorization: Bearer" in up.until("curl -N .*/v1/chat/completions").string
        example = json.loads(up.until("-d '(.*)'")[1])
        assert up.ask(example).status_code == 401
        for key in ("from-the-file", "from-the-environment"):
            reply = up.ask({**example, "max_tokens": 3}, authorization=f"Bearer {key}")
            assert reply.status_code == 200
            assert reply.text.endswith("data: [DONE]\n\n")
        line = json.loads(up.until('"status": 200').string)
        assert (line["event"], line["path"], line["stream"]) == ("request", "/v1/chat/completions", True)
        assert line["completion_tokens"] == 3
        assert "sky" not in up.lines[-1]  # no text of a request is logged
        up.process.send_signal(signal.SIGTERM)
        assert up.process.wait(PATIENCE) == 0
        assert not any(key in "".join(up.lines) for key in ("from-the-file", "from-the-environment"))


def test_an_open_address_and_a_second_signal(tiny: str) -> None:
    with serving("--model", tiny, "--host", "0.0.0.0", "--drain-timeout", "1000") as up:
        assert any("without an API key" in line for line in up.lines)
        body = {"prompt": "hello", "max_tokens": 450, "ignore_eos": True, "n": 16, "stream": True, "logprobs": 20}
        with httpx.stream("POST", f"{up.url}/v1/completions", json=body, timeout=PATIENCE) as stream:
            lines = stream.iter_lines()  # dropping it would close the stream
            next(lines)
            up.process.send_signal(signal.SIGINT)
            up.until("draining: 16 sequences under way")
            assert httpx.get(f"{up.url}/health").status_code == 503
            up.process.send_signal(signal.SIGINT)
            assert up.process.wait(PATIENCE) == 1


def test_a_port_that_is_taken_is_refused_before_anything_is_loaded(call: Call, tiny: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        refused(call("serve", "--model", tiny, "--port", port), "--port", str(port))


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (("--drafter", "psychic"), ("--drafter", "psychic")),
        (("--drafter", "model"), ("--draft-model",)),
        (("--depth", "99"), ("--depth",)),
        (("--max-queue", "0"), ("max_queue",)),
        (("--default-temperature", "-1"), ("default_temperature",)),
        (("--request-timeout", "0"), ("request_timeout",)),
        (("--api-key-file", "/nowhere/keys"), ("--api-key-file",)),
        (("--port", "70000"), ("--port",)),
        (("--host", "192.0.2.1"), ("192.0.2.1",)),
        (("--host", "no such host"), ("no such host",)),
        (("--served-model-name", ""), ("model_name",)),
    ],
)
def test_options_that_cannot_be_honoured(
    call: Call, tiny: str, arguments: tuple[str, ...], parts: tuple[str, ...]
) -> None:
    refused(call("serve", "--model", tiny, *arguments), *parts)
