"""The server under load: a process whose drafter raises for a while, and what can be read of it from outside.

Knows processes, memory and metrics; not what clients ask.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import httpx

from headstart.decode.draft import Draft
from headstart.draft.base import DraftRequest
from headstart.draft.ngram import NgramDrafter

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 120.0


class ServerProcess:
    """Starts the server and waits until it answers.

    Args:
        model: as ``headstart serve`` takes it.
        quiet, loud: seconds after ``start_clock`` between which the drafter raises.
    """

    def __init__(self, model: str, quiet: float, loud: float) -> None:
        self.samples: list[tuple[float, int]] = []
        """Seconds since the process began, and its resident memory in bytes."""
        command = [sys.executable, "-m", "benchmarks.soak.process", model, str(quiet), str(loud)]
        self.process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True)
        self._began = time.monotonic()
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line.startswith("http"):
            self.process.kill()
            self.process.wait()
            raise RuntimeError("the server did not start; its messages are above")
        self.url = line.strip()

    def __enter__(self) -> ServerProcess:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()

    def start_clock(self) -> None:
        """The load begins now."""
        self.process.send_signal(signal.SIGUSR1)

    def sample(self) -> None:
        """Note its memory."""
        with contextlib.suppress(OSError):
            pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
            self.samples.append((time.monotonic() - self._began, pages * os.sysconf("SC_PAGE_SIZE")))

    def metrics(self) -> dict[str, float]:
        """The metrics of ``/metrics`` by name, summed over their labels."""
        text = httpx.get(f"{self.url}/metrics", timeout=PATIENCE).text
        summed: defaultdict[str, float] = defaultdict(float)
        for name, value in re.findall(r"^headstart_(\w+)(?:\{.*\})? (\S+)$", text, flags=re.MULTILINE):
            summed[name] += float(value)
        return dict(summed)

    def settle(self) -> None:
        """Wait until nothing runs."""
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            now = self.metrics()
            if not now["sequences_running"] and not now["sequences_waiting"]:
                return
            time.sleep(0.2)

    def stop(self) -> int:
        """Drain it; returns its exit code."""
        self.process.terminate()
        return self.process.wait(PATIENCE)


class MoodyDrafter(NgramDrafter):
    """n-gram drafts, and an exception instead for a while."""

    def __init__(self, quiet: float, loud: float) -> None:
        super().__init__()
        self._quiet, self._loud = quiet, loud
        self.began: float | None = None

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        if self.began is not None and self._quiet <= time.monotonic() - self.began < self._loud:
            raise RuntimeError("the drafter does not feel like it")
        return super().propose(requests)


def serve(model: str, quiet: float, loud: float) -> int:
    """The server's own process: prints its address, serves until SIGTERM."""
    from headstart.control.adaptive import AdaptiveDepth
    from headstart.draft.quantised import QuantisedDrafter
    from headstart.engine.costs import cost_curve
    from headstart.engine.engine import Engine
    from headstart.serve.app import Service
    from headstart.serve.keys import ApiKeys
    from headstart.serve.server import Server, bind
    from headstart.serve.settings import Settings
    from headstart.target.load import load_target

    target = load_target(model, max_sequences=8, max_model_len=1024, draft_weights="int4")
    drafter = MoodyDrafter(quiet, loud)
    controller = AdaptiveDepth(cost_curve(target), tree=True)

    def start(*_: object) -> None:
        drafter.began = time.monotonic()

    signal.signal(signal.SIGUSR1, start)
    settings = Settings(model_name="soak", log_interval=0, max_queue=16, receive_timeout=5.0, send_timeout=5.0)
    drafters = [drafter, QuantisedDrafter(target)]
    with Engine(target, drafters, default_drafter="ngram+int4", controller=controller) as engine:
        socket = bind("127.0.0.1", 0)
        server = Server(
            Service(engine, settings, ApiKeys()),
            on_ready=lambda port: print(f"http://127.0.0.1:{port}", flush=True),
        )
        server.run(sockets=[socket])
        return 0 if server.clean and target.pool.used == 0 else 1


if __name__ == "__main__":
    from headstart.threads import wait_gently

    wait_gently()
    raise SystemExit(serve(sys.argv[1], float(sys.argv[2]), float(sys.argv[3])))
