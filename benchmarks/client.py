"""A peer's process as the benchmark sees it: start, ask, hold still, end.

Every process is the leader of its own group and is stopped (SIGSTOP) while it is not asked: a waiting engine may poll,
and threads of some runtimes spin. Knows processes and lines; what a peer is lies behind them.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.peers.protocol import Answer, Decoded, Request

ROOT = Path(__file__).resolve().parents[1]


class PeerFailed(Exception):
    """The process is of no more use; the text says why."""


class AskFailed(Exception):
    """This request failed; the process goes on."""


class PeerProcess:
    """One runner.

    Args:
        command: the program and its arguments.
        log: file that gets what the program prints to stderr.
        environment: variables on top of this process's own.
    """

    def __init__(self, command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None) -> None:
        self._log = log
        self._buffer = b""
        self._began = time.perf_counter()
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                list(command),
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}", **(environment or {})},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
            )
        self.startup_seconds: float | None = None

    def wait_ready(self, timeout: float) -> dict[str, Any]:
        """What the runner says of itself once it has loaded.

        Raises:
            PeerFailed
        """
        message = self._read(timeout)
        if "ready" not in message:
            self.close()
            raise PeerFailed(message.get("failed", f"said {message!r} instead of being ready"))
        self.startup_seconds = time.perf_counter() - self._began
        info: dict[str, Any] = message["ready"]
        return info

    def ask(self, request: Request, timeout: float) -> Answer:
        """Let it run, and hold it still afterwards.

        Raises:
            AskFailed: it could not answer this one.
            PeerFailed: it ended, or took longer than ``timeout`` seconds and was ended.
        """
        assert self._process.stdin is not None
        self.resume()
        try:
            self._process.stdin.write(json.dumps(asdict(request)).encode() + b"\n")
            self._process.stdin.flush()
        except OSError as error:
            self.close()
            raise PeerFailed(self._last_words()) from error
        message = self._read(timeout)
        self.pause()
        if "error" in message:
            raise AskFailed(message["error"])
        answer = message["answer"]
        outputs = [Decoded(**output) for output in answer.pop("outputs")]
        return Answer(outputs=outputs, **answer)

    def pause(self) -> None:
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def peak_memory(self) -> int:
        """Bytes: the largest resident size of each process of the group so far, added up."""
        total = 0
        for status in Path("/proc").glob("[0-9]*/status"):
            with suppress(OSError, ValueError):
                fields = dict(line.split(":", 1) for line in status.read_text().splitlines() if ":" in line)
                if os.getpgid(int(fields["Pid"])) == self._process.pid:
                    total += int(fields.get("VmHWM", "0 kB").split()[0]) * 1024
        return total

    def close(self) -> None:
        """End the group."""
        self._signal(signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()

    def _signal(self, number: int) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def _read(self, timeout: float) -> dict[str, Any]:
        """The next line, as JSON."""
        assert self._process.stdout is not None
        deadline = time.monotonic() + timeout
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._buffer:
                left = deadline - time.monotonic()
                if left <= 0 or not selector.select(left):
                    self.close()
                    raise PeerFailed(f"no answer within {timeout:.0f} s")
                part = os.read(self._process.stdout.fileno(), 1 << 20)
                if not part:
                    self.close()
                    raise PeerFailed(self._last_words())
                self._buffer += part
        line, _, self._buffer = self._buffer.partition(b"\n")
        message: dict[str, Any] = json.loads(line)
        return message

    def _last_words(self) -> str:
        code = self._process.wait()
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        lines = [line for line in self._log.read_text(errors="replace").splitlines() if line.strip()]
        return f"ended with {how}" + (f"; last said: {lines[-1].strip()[:200]}" if lines else "")
