"""Micro-benchmarks that need fresh processes: start-up from nothing and from the cache, and memory."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter
from typing import Any

from benchmarks.client import ROOT, PeerProcess
from benchmarks.ways import KV_TOKENS, MAX_SEQUENCES, Process

REPEATS = 3
PROMPT = "Why is the sky blue?"


def startup(model: str, dtype: str) -> dict[str, Any]:
    """Seconds of ``headstart generate`` for one token: with an empty cache folder, which converts the model, compiles
    the kernels and calibrates costs, and with a filled one; and of ``headstart --help``, which loads no model."""
    generate = ["generate", PROMPT, "--max-tokens", "1", "--model", model, "--dtype", dtype]
    with tempfile.TemporaryDirectory(prefix="headstart-cold-") as empty:
        cold = command(generate, {"XDG_CACHE_HOME": empty})
        warm = min(command(generate, {"XDG_CACHE_HOME": empty}) for _ in range(REPEATS))
    plain = min(command([*generate, "--drafter", "none"], {}) for _ in range(REPEATS))
    return {
        "cold": cold,
        "warm": warm,
        "warm_plain": plain,
        "help": min(command(["--help"], {}) for _ in range(REPEATS)),
    }


def command(arguments: list[str], environment: dict[str, str]) -> float:
    """Seconds that the command line took."""
    began = perf_counter()
    run = subprocess.run(
        [sys.executable, "-m", "headstart.cli.main", *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "HF_HUB_OFFLINE": "1", **environment},
        capture_output=True,
        text=True,
    )
    if run.returncode != 0:
        raise RuntimeError(f"headstart {' '.join(arguments)}: {run.stderr.strip()[-500:]}")
    return round(perf_counter() - began, 2)


def memory(model: str, dtype: str) -> list[dict[str, Any]]:
    """Peak resident MiB of a process that has loaded the model, by weights and KV budget."""
    from benchmarks.peers.models import find_models

    folder = find_models(model, dtype).folder
    out = []
    with tempfile.TemporaryDirectory() as logs:
        for weights in (None, "int8"):
            for kv_tokens in (1024, KV_TOKENS):
                config = {"folder": str(folder), "dtype": dtype, "weights": weights, "kv_tokens": kv_tokens}
                config |= {"threads": os.cpu_count() or 1, "max_sequences": MAX_SEQUENCES}
                process = PeerProcess(Process("", "headstart", config).command(), Path(logs) / "log")
                try:
                    process.wait_ready(600)
                    peak = process.peak_memory()
                finally:
                    process.close()
                out.append({"weights": weights or dtype, "kv_tokens": kv_tokens, "mib": round(peak / 2**20)})
    return out
